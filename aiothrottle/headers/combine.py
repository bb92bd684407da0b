"""Which of the numbers count, where a response says several."""

import math
from collections.abc import Mapping

from aiothrottle.headers.fields import FAMILIES, Fields, word_of
from aiothrottle.headers.limits import Policy, binding
from aiothrottle.headers.profile import Profile
from aiothrottle.headers.quotas import join
from aiothrottle.headers.record import Vendor
from aiothrottle.headers.structured import read_structured
from aiothrottle.headers.trios import Trio, read_named, read_trio
from aiothrottle.headers.values import Clock

__all__ = ["UNSAID", "read_limits"]

UNSAID = Policy()
"""The limit that binds where none is told."""
# More limits than any server has; whoever follows them checks each at every request.
_MOST = 256


def read_limits(
    fields: Fields, vendor: Vendor | None, profile: Profile | None, clock: Clock
) -> tuple[list[Policy], Policy | Trio]:
    """Give all limits that are told apart, and the one that binds."""
    listed, structured = _structured(fields["draft"], clock) if fields["draft"] else ([], False)
    named: list[Policy] = []
    trio: Trio | None = None
    top: Policy | Trio | None = None
    if not structured:
        if fields["limit"]:
            named = read_named(fields["limit"], clock)
            if profile is not None and profile.windows:
                named = _with_windows(named, profile)
        if fields["trio"] or fields["draft"]:
            trio = read_trio(fields["draft"], fields["trio"], clock)
        if trio is not None:
            listed = listed or list(trio.policies)
            top = _of_trio(trio, listed, named)
    policies = listed + named
    if vendor is not None:
        policies = _with_vendor(policies, vendor)
    if top is None:
        top = _chosen(policies, fields) if profile is not None and profile.binds else None
        top = top or binding(policies)
    if top is None and vendor is not None:
        top = vendor.unnamed
    if top is None and len(listed) == 1:
        top = listed[0]
    if trio is not None:
        if top is None:
            top = trio
        elif isinstance(top, Policy) and top.reset_after is None:
            top = top._replace(reset_after=trio.reset_after)
    return policies[:_MOST], top or UNSAID


def _structured(
    families: Mapping[str, Mapping[str, list[str]]], clock: Clock
) -> tuple[list[Policy], bool]:
    """Read RateLimit and RateLimit-Policy, each of the family that is believed most."""
    drafts = [families[family] for family in FAMILIES if family in families]
    none: list[str] = []
    states = next((lines["state"] for lines in drafts if "state" in lines), none)
    policies = next((lines["policy"] for lines in drafts if "policy" in lines), none)
    return read_structured(states, policies, clock)


def _with_windows(named: list[Policy], profile: Profile) -> list[Policy]:
    windows: dict[str | None, float] = dict(profile.windows)
    return [
        policy._replace(window=windows[policy.name])
        if policy.window is None and policy.name in windows
        else policy
        for policy in named
    ]


def _of_trio(trio: Trio, listed: list[Policy], named: list[Policy]) -> Trio | None:
    """Give the trio if it says anything, after it was found among the limits with names."""
    if trio.quota is None and trio.remaining is None:
        return None
    if trio.quota is None and len(listed) == 1:
        trio.quota = listed[0].quota
    window = None
    if listed or named:
        window = join(
            listed or named,
            trio.quota,
            trio.remaining,
            trio.reset_after,
            same_remaining=not listed,
        )
    if trio.window is None:
        trio.window = window
    if trio.quota is not None:
        trio.quota = math.floor(trio.quota)
    return trio


def _with_vendor(policies: list[Policy], vendor: Vendor) -> list[Policy]:
    """Add what the profile read; of one name, it fills in what is missing."""
    together = list(policies)
    places: dict[str | None, int]
    places = {policy.name: place for place, policy in enumerate(policies) if policy.name}
    for policy in vendor.policies:
        place = places.get(policy.name)
        if place is None:
            together.append(policy)
        else:
            together[place] = _filled(together[place], policy)
    return together


def _filled(one: Policy, other: Policy) -> Policy:
    return Policy(
        one.name,
        other.quota if one.quota is None else one.quota,
        other.window if one.window is None else one.window,
        other.remaining if one.remaining is None else one.remaining,
        other.reset_after if one.reset_after is None else one.reset_after,
        one.unit,
    )


def _chosen(policies: list[Policy], fields: Fields) -> Policy | None:
    """Give the limit that the server itself calls the binding one."""
    word = _plain(word_of(fields["word"], "reason") or "")
    return next((policy for policy in policies if _plain(policy.name or "") == word), None)


def _plain(word: str) -> str:
    return word.lower().replace("-", "").replace("_", "")

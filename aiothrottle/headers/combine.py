"""Combines the limits of all headers, and picks the one that binds."""

import math
from collections.abc import Mapping

from aiothrottle.headers.fields import FAMILIES, Fields, label_of
from aiothrottle.headers.limits import Policy, Vendor, binding
from aiothrottle.headers.profile import Profile
from aiothrottle.headers.quota_headers import HeaderQuota, read_named_limits, read_quota
from aiothrottle.headers.quotas import join
from aiothrottle.headers.structured import read_structured
from aiothrottle.headers.values import Clock

__all__ = ["NO_LIMIT", "read_limits"]

NO_LIMIT = Policy()
"""The binding limit of a response that reports none."""
# More limits than any server has. An application checks each of them at every request.
_MAX_POLICIES = 256


def read_limits(
    fields: Fields, vendor: Vendor | None, profile: Profile | None, clock: Clock
) -> tuple[list[Policy], Policy | HeaderQuota]:
    """Return all limits that have a name or a window of their own, and the one that binds."""
    listed, structured = (
        _read_structured(fields["draft"], clock) if fields["draft"] else ([], False)
    )
    named: list[Policy] = []
    state: HeaderQuota | None = None
    bound: Policy | HeaderQuota | None = None
    if not structured:
        if fields["limit"]:
            named = read_named_limits(fields["limit"], clock)
            if profile is not None and profile.windows:
                named = _with_windows(named, profile)
        if fields["quota"] or fields["draft"]:
            state = read_quota(fields["draft"], fields["quota"], clock)
        if state is not None:
            listed = listed or list(state.policies)
            bound = _join_state(state, listed, named)
    policies = listed + named
    if vendor is not None:
        policies = _with_vendor(policies, vendor)
    if bound is None:
        bound = (
            _named_by_server(policies, fields) if profile is not None and profile.binds else None
        )
        bound = bound or binding(policies)
    if bound is None and vendor is not None:
        bound = vendor.unnamed
    if bound is None and len(listed) == 1:
        bound = listed[0]
    if state is not None:
        if bound is None:
            bound = state
        elif isinstance(bound, Policy) and bound.reset_after is None:
            bound = bound._replace(reset_after=state.reset_after)
    return policies[:_MAX_POLICIES], bound or NO_LIMIT


def _read_structured(
    families: Mapping[str, Mapping[str, list[str]]], clock: Clock
) -> tuple[list[Policy], bool]:
    """Read RateLimit and RateLimit-Policy, each of the family with the highest precedence."""
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


def _join_state(
    state: HeaderQuota, listed: list[Policy], named: list[Policy]
) -> HeaderQuota | None:
    """Match the state with a listed limit, and return it; None if it reports no number."""
    if state.quota is None and state.remaining is None:
        return None
    if state.quota is None and len(listed) == 1:
        state.quota = listed[0].quota
    window = None
    if listed or named:
        window = join(
            listed or named,
            state.quota,
            state.remaining,
            state.reset_after,
            same_remaining=not listed,
        )
    if state.window is None:
        state.window = window
    if state.quota is not None:
        state.quota = math.floor(state.quota)
    return state


def _with_vendor(policies: list[Policy], vendor: Vendor) -> list[Policy]:
    """Add the limits of the profile. For a name that exists, fill in what is missing."""
    merged = list(policies)
    places: dict[str | None, int]
    places = {policy.name: place for place, policy in enumerate(policies) if policy.name}
    for policy in vendor.policies:
        place = places.get(policy.name)
        if place is None:
            merged.append(policy)
        else:
            merged[place] = _fill_missing(merged[place], policy)
    return merged


def _fill_missing(one: Policy, other: Policy) -> Policy:
    return Policy(
        one.name,
        other.quota if one.quota is None else one.quota,
        other.window if one.window is None else one.window,
        other.remaining if one.remaining is None else one.remaining,
        other.reset_after if one.reset_after is None else one.reset_after,
        one.unit,
    )


def _named_by_server(policies: list[Policy], fields: Fields) -> Policy | None:
    """Return the limit that the server itself names as the binding one."""
    word = _plain(label_of(fields["label"], "reason") or "")
    return next((policy for policy in policies if _plain(policy.name or "") == word), None)


def _plain(word: str) -> str:
    return word.lower().replace("-", "").replace("_", "")

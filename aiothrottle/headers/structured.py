"""RateLimit and RateLimit-Policy as the drafts from 08 on write them: structured fields."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, cast

import http_sf

from aiothrottle.headers.limits import Policy
from aiothrottle.headers.memo import Memo
from aiothrottle.headers.quotas import read_policies
from aiothrottle.headers.values import CAP, Clock, read_reset

__all__ = ["read_structured"]

# Draft-ietf-httpapi-ratelimit-headers-10. The names are still being discussed: they stand here.
_QUOTA, _UNIT, _WINDOW = "q", "qu", "w"
_REMAINING, _RESET = "r", "t"
# Longer than any honest field.
_LONGEST = 16384


class _Item(NamedTuple):
    name: str
    parameters: Mapping[str, object]

    def integer(self, key: str) -> int | None:
        """Give a parameter; None: it is missing. Raises ValueError for what is no such number."""
        value = self.parameters.get(key)
        if value is None:
            return None
        if type(value) is not int or value < 0:
            raise ValueError(f"{key} is {value!r}")
        return value


def read_structured(
    limits: Iterable[str], policies: Iterable[str], clock: Clock
) -> tuple[list[Policy], bool]:
    """Read the lines of RateLimit and of RateLimit-Policy, and join them by name.

    Older drafts write policies as numbers with parameters; these are read as well.

    Returns:
        The policies, and whether RateLimit said of any of them what is left.
    """
    states: dict[str, Policy] = {}
    for item in _parse(limits):
        state = _state(item, clock)
        if state is not None:
            states[item.name] = _tighter(states.get(item.name), state)
    found = bool(states)
    joined = [_joined(policy, states) for policy in _POLICIES["\n".join(policies)]]
    return joined + list(states.values()), found


def _joined(policy: Policy, states: dict[str, Policy]) -> Policy:
    state = states.pop(policy.name or "", None)
    if state is None:
        return policy
    return policy._replace(remaining=state.remaining, reset_after=state.reset_after)


def _policies(text: str) -> list[Policy]:
    lines = text.split("\n")
    if any(line[:1].isdecimal() for line in lines):
        return read_policies(lines)
    policies: list[Policy] = []
    for item in _parse(lines):
        try:
            quota = item.integer(_QUOTA)
        except ValueError:
            continue
        if quota is not None:
            unit = item.parameters.get(_UNIT)
            word = str(unit) if isinstance(unit, str | http_sf.Token) else None
            policies.append(Policy(item.name, quota, _window(item), unit=word))
    return policies


# A server says the same of them in each response, and to parse it is half of the work.
_POLICIES = Memo(_policies)


def _window(item: _Item) -> float | None:
    try:
        seconds = item.integer(_WINDOW)
    except ValueError:
        return None
    return float(seconds) if seconds and seconds < CAP else None


def _state(item: _Item, clock: Clock) -> Policy | None:
    try:
        remaining, seconds = item.integer(_REMAINING), item.integer(_RESET)
    except ValueError:
        return None
    if remaining is None and seconds is None:
        return None
    # Some write an epoch, whatever the draft says: so it is read by its value.
    reset_after = None if seconds is None else read_reset(str(seconds), clock)
    return Policy(item.name, remaining=remaining, reset_after=reset_after)


def _tighter(one: Policy | None, other: Policy) -> Policy:
    """Of two partitions, not knowing which is ours, take the one with less left, or for longer."""
    if one is None or one.remaining is None:
        return other
    if other.remaining is None:
        return one
    later = (other.reset_after or 0.0) > (one.reset_after or 0.0)
    less = other.remaining - one.remaining
    return other if less < 0 or (less == 0 and later) else one


def _parse(lines: Iterable[str]) -> list[_Item]:
    text = ", ".join(lines)
    if not text or len(text) > _LONGEST or not text.isascii():
        return []
    try:
        members = cast("list[tuple[Any, Any]]", http_sf.parse(text.encode(), tltype="list"))
    except http_sf.StructuredFieldError:
        return []
    # A Token in place of a String is against the draft, whose own examples do it.
    return [
        _Item(str(value), parameters)
        for value, parameters in members
        if isinstance(value, str | http_sf.Token)
    ]

"""Parses RateLimit and RateLimit-Policy of the drafts from 08 on: structured fields."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, cast

from aiothrottle.headers.limits import Policy
from aiothrottle.headers.memo import Memo
from aiothrottle.headers.quotas import read_policies
from aiothrottle.headers.values import CAP, Clock, read_reset

__all__ = ["read_structured"]

# draft-ietf-httpapi-ratelimit-headers-10. The names may still change.
_QUOTA, _UNIT, _WINDOW = "q", "qu", "w"
_REMAINING, _RESET = "r", "t"
# Longer than any real field.
_LONGEST = 16384


class _Item(NamedTuple):
    name: str
    parameters: Mapping[str, object]

    def integer(self, key: str) -> int | None:
        """Return a parameter, None if it is missing; raise ValueError if it is no whole number."""
        value = self.parameters.get(key)
        if value is None:
            return None
        if type(value) is not int or value < 0:
            raise ValueError(f"{key} must be a whole number, 0 or more, got {value!r}")
        return value


def read_structured(
    limits: Iterable[str], policies: Iterable[str], clock: Clock
) -> tuple[list[Policy], bool]:
    """Parse the lines of RateLimit and of RateLimit-Policy, and join them by name.

    Policies of older drafts, numbers with parameters, are accepted as well.

    Returns:
        The policies, and whether RateLimit has the state of any of them.
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
    from http_sf import Token

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
            word = str(unit) if isinstance(unit, str | Token) else None
            policies.append(Policy(item.name, quota, _window(item), unit=word))
    return policies


# A server sends the same policies with each response, and parsing them is half of the work.
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
    # Some servers send an epoch, against the draft: the value decides.
    reset_after = None if seconds is None else read_reset(str(seconds), clock)
    return Policy(item.name, remaining=remaining, reset_after=reset_after)


def _tighter(one: Policy | None, other: Policy) -> Policy:
    """Return the partition with less remaining, or the later reset: either may be the client's."""
    if one is None or one.remaining is None:
        return other
    if other.remaining is None:
        return one
    later = (other.reset_after or 0.0) > (one.reset_after or 0.0)
    less = other.remaining - one.remaining
    return other if less < 0 or (less == 0 and later) else one


def _parse(lines: Iterable[str]) -> list[_Item]:
    import http_sf

    text = ", ".join(lines)
    if not text or len(text) > _LONGEST or not text.isascii():
        return []
    try:
        members = cast("list[tuple[Any, Any]]", http_sf.parse(text.encode(), tltype="list"))
    except http_sf.StructuredFieldError:
        return []
    # A Token in place of a String is against the draft, but its own examples have some.
    return [
        _Item(str(value), parameters)
        for value, parameters in members
        if isinstance(value, str | http_sf.Token)
    ]

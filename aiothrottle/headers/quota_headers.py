"""Parses limit, remaining and reset in separate headers, for one limit or for several."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from aiothrottle.headers.fields import FAMILIES
from aiothrottle.headers.limits import UNIT_BY_NAME, Policy
from aiothrottle.headers.memo import Memo
from aiothrottle.headers.quotas import read_dictionary, read_limit, read_remaining
from aiothrottle.headers.values import Clock, in_seconds, items, read_reset, read_window

__all__ = ["HeaderQuota", "read_latest_reset", "read_named_limits", "read_quota"]

# By the last word of the name of a limit. Months and years have no length.
_WINDOWS = {
    "second": 1.0, "secondly": 1.0,
    "minute": 60.0, "minutely": 60.0,
    "hour": 3600.0, "hourly": 3600.0,
    "day": 86400.0, "daily": 86400.0,
    "week": 604800.0, "weekly": 604800.0,
}  # fmt: skip
# In their order of precedence.
_RESETS = ("reset-after", "reset", "reset-ms", "reset-time", "next")
# Resets that differ by less are the same, rounded in two ways.
_SAME = 2.0
_PARAMETERS = re.compile(r";[ \t]*[a-z]+[ \t]*=", re.IGNORECASE | re.ASCII)

Lines = Mapping[str, list[str]]


def _window_of(name: str) -> float | None:
    return _WINDOWS.get(name.replace("_", "-").rpartition("-")[2])


_WINDOW_BY_NAME = Memo(_window_of)


@dataclass(slots=True)
class HeaderQuota:
    """The limit without a name of its own, under construction, and the policies listed with it."""

    quota: float | None = None
    window: float | None = None
    remaining: float | None = None
    reset_after: float | None = None
    unit: str | None = None
    policies: tuple[Policy, ...] = ()


def read_quota(
    drafts: Mapping[str, Lines], families: Mapping[str, Lines], clock: Clock
) -> HeaderQuota | None:
    """Merge the headers of all families; return None if there are none.

    The limit is that of the family with the highest precedence that has one, and the remainder
    the lowest of all.
    """
    if not drafts and len(families) == 1:  # what most servers send
        (lines,) = families.values()
        return _read(lines, clock)
    merged: HeaderQuota | None = None
    for family in FAMILIES:
        if family in drafts:
            members = read_dictionary(", ".join(drafts[family].get("state", ())))
            if members:
                state = _read({field: [text] for field, text in members.items()}, clock)
                merged = _merge(merged, state)
        if family in families:
            merged = _merge(merged, _read(families[family], clock))
    return merged


def read_named_limits(named: Mapping[str, Lines], clock: Clock) -> list[Policy]:
    """Parse the limits that have different names in their headers."""
    return [
        policy
        for name, lines in named.items()
        if (policy := _read_named(name, lines, clock)) is not None
    ]


def read_latest_reset(lines: Iterable[str], clock: Clock) -> float | None:
    """Parse a reset; of several, in lines or in a list, the latest."""
    latest: float | None = None
    for line in lines:
        seconds = read_reset(line, clock)
        if seconds is None:
            seconds = _latest_item(line, clock)
        if seconds is not None and (latest is None or seconds > latest):
            latest = seconds
    return latest


def _latest_item(line: str, clock: Clock) -> float | None:
    resets = (read_reset(_bare(item), clock) for item in items(line))
    return max((seconds for seconds in resets if seconds is not None), default=None)


def _bare(item: str) -> str:
    """Return the item without its parameters, which mean nothing for a reset."""
    parameters = _PARAMETERS.search(item)
    return item[: parameters.start()].rstrip(" \t") if parameters else item


def _read(lines: Lines, clock: Clock) -> HeaderQuota:
    state = HeaderQuota()
    if "limit" in lines:
        limit, policies = read_limit(lines["limit"])
        state.quota, state.policies = limit, tuple(policies)
    if "remaining" in lines:
        remaining = read_remaining(lines["remaining"], state.quota)
        state.remaining = None if remaining is None else math.floor(remaining)
    state.reset_after = _read_reset(lines, clock)
    if "used" in lines and state.quota is None and state.remaining:
        # Not if nothing remains: the used part may exceed the limit.
        used = read_remaining(lines["used"], None)
        state.quota = None if used is None else used + state.remaining
    if "window" in lines:
        state.window = read_window(lines["window"][0])
    if "window-ms" in lines and state.window is None:
        state.window = read_window(lines["window-ms"][0], 0.001)
    return state


def _read_reset(lines: Lines, clock: Clock) -> float | None:
    """Return the first reset that can be parsed."""
    for field in _RESETS:
        if field in lines:
            values = lines[field]
            if field == "reset-ms":
                values = [in_seconds(line) for line in values]
            seconds = read_latest_reset(values, clock)
            if seconds is not None:
                return seconds
    return None


def _merge(one: HeaderQuota | None, other: HeaderQuota) -> HeaderQuota:
    if one is None:
        return other
    if one.quota is None:
        one.quota = other.quota
    if one.remaining is None or (other.remaining is not None and other.remaining < one.remaining):
        one.remaining = other.remaining
    reset = other.reset_after
    if one.reset_after is None or (reset is not None and reset > one.reset_after + _SAME):
        one.reset_after = reset
    if one.window is None:
        one.window = other.window
    one.policies = one.policies or other.policies
    return one


def _read_named(name: str, lines: Lines, clock: Clock) -> Policy | None:
    quota = window = remaining = None
    if "limit" in lines:
        quota, listed = read_limit(lines["limit"])
        window = listed[0].window if listed else None
        # "-1" means unlimited, and the other fields mean nothing.
        if quota is None and any(line.startswith("-") for line in lines["limit"]):
            return None
    if "remaining" in lines:
        remaining = read_remaining(lines["remaining"], quota)
    reset_after = _read_reset(lines, clock)
    if quota is None and remaining is None and reset_after is None:
        return None
    if window is None:
        window = read_window(lines["window"][0]) if "window" in lines else _WINDOW_BY_NAME[name]
    return Policy(name, quota, window, remaining, reset_after, UNIT_BY_NAME[name])

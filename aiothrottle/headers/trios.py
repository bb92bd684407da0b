"""Limit, remaining and reset, each in a header of its own; one such trio, or one for each limit."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from aiothrottle.headers.fields import FAMILIES
from aiothrottle.headers.limits import Policy
from aiothrottle.headers.memo import Memo
from aiothrottle.headers.quotas import read_dictionary, read_limit, read_remaining
from aiothrottle.headers.values import Clock, in_seconds, items, read_reset, read_window

__all__ = ["Trio", "read_latest", "read_named", "read_trio"]

# By the last word of the name of a limit. Months and years have no length.
_WINDOWS = {
    "second": 1.0, "secondly": 1.0,
    "minute": 60.0, "minutely": 60.0,
    "hour": 3600.0, "hourly": 3600.0,
    "day": 86400.0, "daily": 86400.0,
    "week": 604800.0, "weekly": 604800.0,
}  # fmt: skip
# In the order in which they are believed.
_RESETS = ("reset-after", "reset", "reset-ms", "reset-time", "next")
# Two resets that differ by less are one that was rounded twice.
_SAME = 2.0
_PARAMETERS = re.compile(r";[ \t]*[a-z]+[ \t]*=", re.IGNORECASE | re.ASCII)

Lines = Mapping[str, list[str]]


def _window_of(name: str) -> float | None:
    return _WINDOWS.get(name.replace("_", "-").rpartition("-")[2])


_WINDOW_BY_NAME = Memo(_window_of)


@dataclass(slots=True)
class Trio:
    """What a response says without telling limits apart, and the policies listed with it.

    It is a `Policy` that is still being put together.
    """

    quota: float | None = None
    window: float | None = None
    remaining: float | None = None
    reset_after: float | None = None
    unit: str | None = None
    policies: tuple[Policy, ...] = ()


def read_trio(
    drafts: Mapping[str, Lines], families: Mapping[str, Lines], clock: Clock
) -> Trio | None:
    """Read the trios of all families as one; None if there is none.

    The limit is that of the family believed most, the remainder the least, and so is what can be
    read only in another one.
    """
    if not drafts and len(families) == 1:  # what most servers send
        (lines,) = families.values()
        return _read(lines, clock)
    together: Trio | None = None
    for family in FAMILIES:
        if family in drafts:
            members = read_dictionary(", ".join(drafts[family].get("state", ())))
            if members:
                trio = _read({field: [text] for field, text in members.items()}, clock)
                together = _merge(together, trio)
        if family in families:
            together = _merge(together, _read(families[family], clock))
    return together


def read_named(named: Mapping[str, Lines], clock: Clock) -> list[Policy]:
    """Read the limits that are told apart by the names of their headers."""
    return [
        policy
        for name, lines in named.items()
        if (policy := _read_named(name, lines, clock)) is not None
    ]


def read_latest(lines: Iterable[str], clock: Clock) -> float | None:
    """Read a reset; of several, in lines or in a list, the latest."""
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
    """Give the item without its parameters, of which a reset has none to speak of."""
    parameters = _PARAMETERS.search(item)
    return item[: parameters.start()].rstrip(" \t") if parameters else item


def _read(lines: Lines, clock: Clock) -> Trio:
    trio = Trio()
    if "limit" in lines:
        limit, policies = read_limit(lines["limit"])
        trio.quota, trio.policies = limit, tuple(policies)
    if "remaining" in lines:
        remaining = read_remaining(lines["remaining"], trio.quota)
        trio.remaining = None if remaining is None else math.floor(remaining)
    trio.reset_after = _read_reset(lines, clock)
    if "used" in lines and trio.quota is None and trio.remaining:
        # Not when nothing is left: what was used may run past the limit.
        used = read_remaining(lines["used"], None)
        trio.quota = None if used is None else used + trio.remaining
    if "window" in lines:
        trio.window = read_window(lines["window"][0])
    if "window-ms" in lines and trio.window is None:
        trio.window = read_window(lines["window-ms"][0], 0.001)
    return trio


def _read_reset(lines: Lines, clock: Clock) -> float | None:
    """Read the first of them that can be read."""
    for field in _RESETS:
        if field in lines:
            said = lines[field]
            if field == "reset-ms":
                said = [in_seconds(line) for line in said]
            seconds = read_latest(said, clock)
            if seconds is not None:
                return seconds
    return None


def _merge(one: Trio | None, other: Trio) -> Trio:
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
        # "-1" is no limit at all, and what stands beside it means nothing.
        if quota is None and any(line.startswith("-") for line in lines["limit"]):
            return None
    if "remaining" in lines:
        remaining = read_remaining(lines["remaining"], quota)
    reset_after = _read_reset(lines, clock)
    if quota is None and remaining is None and reset_after is None:
        return None
    if window is None:
        window = read_window(lines["window"][0]) if "window" in lines else _WINDOW_BY_NAME[name]
    return Policy(name, quota, window, remaining, reset_after)

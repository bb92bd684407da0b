"""Reads limits from headers: a number in each, a list of quotas, a dictionary, structured fields.

The drafts of the IETF write them in all of these forms: numbers (draft 00 to 06, and X-RateLimit-*
of everybody), lists such as ``10, 10;w=1, 50;w=60``, a dictionary (draft 07), structured fields
(from draft 08 on).

Invariant: of repeated lines the lowest number, the highest used part and the latest reset count.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

from aiothrottle.headers.limits import Lines, Policy, binding
from aiothrottle.headers.values import (
    CAP,
    MOST_ITEMS,
    Clock,
    Memo,
    in_seconds,
    items,
    read_count,
    read_reset,
    read_window,
)
from aiothrottle.headers.vendors import COMMON

# An unclosed quotation ends with the line: searching its end from each quote would take quadratic
# time.
_QUOTED = r'"(?:[^"\\]++|\\.?)*+"?'
_ITEM = re.compile(rf'(?:[^,"]++|{_QUOTED})++', re.DOTALL)
_PARAMETER = re.compile(
    rf";[ \t]*([a-z]+)[ \t]*=[ \t]*({_QUOTED}|[^;]*)", re.IGNORECASE | re.ASCII | re.DOTALL
)
_PARAMETERS = re.compile(r";[ \t]*[a-z]+[ \t]*=", re.IGNORECASE | re.ASCII)
_MEMBER = re.compile(r"[ \t]*(limit|remaining|reset)[ \t]*=(.*)", re.IGNORECASE | re.ASCII)
# Resets that differ by less are the same, rounded in two ways.
_SAME = 2.0
# Prefixes, and resets, in their order of precedence.
_FAMILIES = ("ratelimit", "rate-limit", "x-ratelimit", "x-rate-limit", "anthropic-ratelimit")
_RESETS = ("reset-after", "reset", "reset-ms", "reset-time", "next")


# ---- a limit under construction -----------------------------------------------------------------

_REQUESTS, _OTHERS = map(frozenset, (COMMON["units"]["requests"], COMMON["units"]["others"]))
_WINDOWS: dict[str, float] = COMMON["windows"]
_WORDS = re.compile("[^-_]+")


def _meaning(name: str) -> tuple[str | None, float | None]:
    words = _WORDS.findall(name.lower())
    window = None
    if words and words[-1] in _WINDOWS:
        window = _WINDOWS[words.pop()] or None
    if not _REQUESTS.isdisjoint(words):
        return "requests", window
    return None if _OTHERS.isdisjoint(words) else "-".join(words), window


MEANINGS = Memo(_meaning)
"""Unit and window of a limit, by its name; None: not known, the unit is most likely requests."""


@dataclass(slots=True)
class Record:
    """A limit under construction, from one header or several."""

    name: str | None = None
    quota: float | None = None
    remaining: float | None = None
    used: float | None = None
    reset_after: float | None = None
    window: float | None = None
    #: The limits with windows that a header lists beside this one.
    listed: Sequence[Policy] = ()

    def merge(self, other: "Record") -> None:
        """Merge what another header reports: the lower numbers, and the later reset."""
        self.quota = _pick(min, self.quota, other.quota)
        self.remaining = _pick(min, self.remaining, other.remaining)
        self.used = _pick(max, self.used, other.used)
        self.reset_after = _pick(max, self.reset_after, other.reset_after)
        self.window = _pick(max, self.window, other.window)
        self.listed = self.listed or other.listed

    def policy(self) -> Policy:
        """Return the limit as an immutable value, with the numbers that follow from others."""
        quota, remaining, used = self.quota, self.remaining, self.used
        if used is not None:
            if quota is not None and remaining is None:
                remaining = max(0, quota - used)
            elif quota is None and remaining:  # not 0: the used part may exceed the limit
                quota = used + remaining
        unit = None if self.name is None else MEANINGS[self.name][0]
        return Policy(self.name, quota, self.window, remaining, self.reset_after, unit)


def _pick(choose: Callable[..., float | None], *numbers: float | None) -> float | None:
    """Return the lowest or the highest of the numbers that are known; None: there is none."""
    return choose((number for number in numbers if number is not None), default=None)


# ---- a number in each header ---------------------------------------------------------------------


def read_record(lines: Lines, clock: Clock) -> Record:
    """Read a limit whose fields are in headers of their own.

    Args:
        lines: The lines of each field.
        clock: The clock of the server.
    """
    record = Record()
    if "limit" in lines:
        record.quota = _least(lines["limit"])
        record.listed = [it for line in lines["limit"] if ";" in line for it in _listed(line)]
    if "remaining" in lines:
        # Below 0 where a server counts on beyond its limit.
        below_zero = None if record.quota is None else 0
        record.remaining = _least(lines["remaining"], below_zero)
    if "used" in lines and (record.quota is None or record.remaining is None):
        record.used = _pick(max, *(_least([line]) for line in lines["used"]))
    record.reset_after = _read_reset(lines, clock)
    if "window" in lines:
        record.window = read_window(lines["window"][0])
    if "window-ms" in lines and record.window is None:
        record.window = read_window(lines["window-ms"][0], 0.001)
    if "rate" in lines and record.quota and record.window is None:
        rate = _least(lines["rate"])
        record.window = record.quota / rate if rate and record.quota < CAP * rate else None
    return record


def read_unnamed(
    drafts: Mapping[str, Lines], families: Mapping[str, Lines], clock: Clock
) -> Record | None:
    """Read the limit without a name of its own; None if there is none.

    The limit is that of the family with the highest precedence that has one, and the remainder
    the lowest of all.
    """
    record: Record | None = None
    for family in _FAMILIES:
        if family in drafts:
            members = _members(drafts[family].get("state", ()))
            record = _joined(record, members, clock) if members else record
        if family in families:
            record = _joined(record, families[family], clock)
    if record is not None and record.remaining is not None:
        record.remaining = math.floor(record.remaining)
    return record


def read_named(
    name: str, lines: Lines, windows: Mapping[str, float], clock: Clock
) -> Policy | None:
    """Read a limit with a name in its headers; None if they report nothing.

    Args:
        name: The name.
        lines: The lines of each field.
        windows: The windows of limits whose headers and names do not tell them, by name.
        clock: The clock of the server.
    """
    record = read_record(lines, clock)
    # "-1" means unlimited, and the other fields mean nothing.
    if record.quota is None and any(line.startswith("-") for line in lines.get("limit", ())):
        return None
    if record.quota is None and record.remaining is None and record.reset_after is None:
        return None
    record.name = name
    if record.listed:
        record.window = record.listed[0].window
    elif record.window is None:
        record.window = MEANINGS[name][1] or windows.get(name)
    return record.policy()


def _joined(record: Record | None, lines: Lines, clock: Clock) -> Record:
    """Add the lines of one more family, whose limit and window have no precedence."""
    other = read_record(lines, clock)
    if record is None:
        return other
    if record.quota is not None:
        other.quota = None
    if record.window is not None:
        other.window = None
    known, reset = record.reset_after, other.reset_after
    if known is not None and reset is not None and reset <= known + _SAME:
        other.reset_after = None
    record.merge(other)
    return record


def _members(states: Iterable[str]) -> Lines:
    """Read ``limit=100, remaining=50, reset=5`` (draft 07)."""
    members: dict[str, list[str]] = {}
    for item in _split(", ".join(states)):
        if match := _MEMBER.fullmatch(item):
            members.setdefault(match[1].lower(), []).append(match[2].strip(" \t"))
    return members


def _read_reset(lines: Lines, clock: Clock) -> float | None:
    """Return the first reset that can be read; of several, in lines or in a list, the latest."""
    for field in _RESETS:
        if field not in lines:
            continue
        texts = map(in_seconds, lines[field]) if field == "reset-ms" else lines[field]
        resets = [reset for text in texts if (reset := _latest(text, clock)) is not None]
        if resets:
            return max(resets)
    return None


def _latest(text: str, clock: Clock) -> float | None:
    whole = read_reset(text, clock)
    if whole is not None:
        return whole
    # Parameters mean nothing for a reset.
    bare = (_PARAMETERS.split(item, 1)[0].rstrip(" \t") for item in items(text))
    return _pick(max, *(read_reset(item, clock) for item in bare))


def _least(lines: Iterable[str], below_zero: float | None = None) -> float | None:
    """Return the lowest number; of a list of quotas the one that expires next counts.

    Args:
        lines: The lines.
        below_zero: What a negative number means; None: nothing.
    """
    least: float | None = None
    for line in lines:
        number = read_count(line)  # by far the most common
        if number is None:
            is_negative = read_count(line.removeprefix("-")) is not None
            number = below_zero if is_negative else _common(_QUOTAS[line])
        if number is not None and (least is None or number < least):
            least = number
    return least


# ---- lists of quotas -----------------------------------------------------------------------------


def _quotas(line: str) -> Sequence[Policy]:
    """Read the items of a list; the quota of one that is no number is None."""
    quotas: list[Policy] = []
    for item in _split(line):
        text, semicolon, rest = item.partition(";")
        name = window = None
        for key, value in _PARAMETER.findall(semicolon + rest):
            word = value.strip(' \t"')
            if key.lower() in {"w", "window"}:
                window = read_window(word)
            elif key.lower() == "name":
                name = word or None
        quotas.append(Policy(name, read_count(text.strip(" \t")), window))
    return quotas


# A server sends the same list with each response.
_QUOTAS = Memo(_quotas)


def _listed(line: str) -> list[Policy]:
    return [quota for quota in _QUOTAS[line] if None not in (quota.quota, quota.window)]


def _split(line: str) -> Iterator[str]:
    matches = islice(_ITEM.finditer(line), MOST_ITEMS)
    return (match[0] for match in matches if match[0].strip(" \t"))


def _common(quotas: Sequence[Policy]) -> float | None:
    """Return the first number; None if numbers without a window differ, as in other lists."""
    numbers = {quota.quota for quota in quotas if quota.window is None}
    if len(numbers) > 1 or None in numbers or not quotas:
        return None
    return quotas[0].quota


# ---- structured fields ---------------------------------------------------------------------------

# draft-ietf-httpapi-ratelimit-headers-10. The names may still change.
_QUOTA, _UNIT, _WINDOW = "q", "qu", "w"
_REMAINING, _RESET = "r", "t"


def read_structured(families: Mapping[str, Lines], clock: Clock) -> tuple[list[Policy], bool]:
    """Read RateLimit and RateLimit-Policy, each of the family with the highest precedence.

    They are joined by name. Policies of older drafts, numbers with parameters, are accepted too.

    Returns:
        The policies, and whether RateLimit has the state of any of them.
    """
    drafts = [families[family] for family in _FAMILIES if family in families]
    partitions: dict[str, list[Policy]] = {}
    for name, parameters in _parse(next((it["state"] for it in drafts if "state" in it), ())):
        remaining, seconds = _whole(parameters, _REMAINING), _whole(parameters, _RESET)
        if -1 in (remaining, seconds) or (remaining is None and seconds is None):
            continue
        # Some servers send an epoch, against the draft: the value decides.
        reset_after = None if seconds is None else read_reset(str(seconds), clock)
        state = Policy(name, remaining=remaining, reset_after=reset_after)
        partitions.setdefault(name, []).append(state)
    # Any partition may be the client's, so the one with the least remaining counts.
    states = {name: bound for name, each in partitions.items() if (bound := binding(each))}
    policies = next((it["policy"] for it in drafts if "policy" in it), ())
    joined = [
        policy
        if (known := states.pop(policy.name or "", None)) is None
        else policy._replace(remaining=known.remaining, reset_after=known.reset_after)
        for policy in _POLICIES["\n".join(policies)]
    ]
    return joined + list(states.values()), bool(partitions)


def _of_text(text: str) -> list[Policy]:
    from http_sf import Token

    lines = text.split("\n")
    if any(line[:1].isdecimal() for line in lines):
        return [it for line in lines for it in _QUOTAS[line] if it.quota is not None]
    policies: list[Policy] = []
    for name, parameters in _parse(lines):
        quota, seconds = _whole(parameters, _QUOTA), _whole(parameters, _WINDOW)
        if quota is not None and quota >= 0:
            unit = parameters.get(_UNIT)
            word = str(unit) if isinstance(unit, str | Token) else None
            window = float(seconds) if seconds and 0 < seconds < CAP else None
            policies.append(Policy(name, quota, window, unit=word))
    return policies


# A server sends the same policies with each response, and parsing them is half of the work.
_POLICIES = Memo(_of_text)


def _whole(parameters: Mapping[str, object], key: str) -> int | None:
    """Return a parameter; None if it is missing, -1 if it is no whole number from 0 on."""
    value = parameters.get(key)
    if value is None:
        return None
    return value if type(value) is int and value >= 0 else -1


def _parse(lines: Iterable[str]) -> list[tuple[str, Mapping[str, object]]]:
    """Return names and parameters of the members of a structured list."""
    import http_sf

    text = ", ".join(lines)
    if not text or not text.isascii():
        return []
    try:
        members = cast("list[tuple[Any, Any]]", http_sf.parse(text.encode(), tltype="list"))
    except http_sf.StructuredFieldError:
        return []
    # A Token in place of a String is against the draft, but its own examples have some.
    return [
        (str(value), parameters)
        for value, parameters in members
        if isinstance(value, str | http_sf.Token)
    ]

"""Parses lists of quotas as the drafts up to 07 write them: ``10, 10;w=1, 50;w=60``."""

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from aiothrottle.headers.limits import Policy
from aiothrottle.headers.values import MOST_ITEMS, read_count, read_window

__all__ = ["join", "read_dictionary", "read_limit", "read_policies", "read_remaining"]

# Longer than any real list.
_LONGEST = 8192
# An unclosed quotation ends with the line: searching its end from each quote would take quadratic
# time.
_QUOTED = r'"(?:[^"\\]++|\\.?)*+"?'
_ITEM = re.compile(rf'(?:[^,"]++|{_QUOTED})++', re.DOTALL)
_PARAMETER = re.compile(
    rf";[ \t]*([a-z]+)[ \t]*=[ \t]*({_QUOTED}|[^;]*)", re.IGNORECASE | re.ASCII | re.DOTALL
)
_MEMBER = re.compile(r"[ \t]*(limit|remaining|reset)[ \t]*=(.*)", re.IGNORECASE | re.ASCII)


class _Quota(NamedTuple):
    text: str
    name: str | None
    window: float | None


def read_dictionary(text: str) -> dict[str, str]:
    """Parse ``limit=100, remaining=50, reset=5`` (draft 07)."""
    members = (_MEMBER.fullmatch(item) for item in _split(text))
    return {match[1].lower(): match[2].strip(" \t") for match in members if match}


def read_policies(lines: Iterable[str]) -> list[Policy]:
    """Parse a list of limits, each with an optional window."""
    return _policies(quota for line in lines for quota in _quotas(line))


def read_limit(lines: Iterable[str]) -> tuple[float | None, list[Policy]]:
    """Parse the limit that expires next, and the listed limits that have a window.

    Of several lines, the lowest limit counts.
    """
    least: float | None = None
    policies: list[Policy] = []
    for line in lines:
        limit = read_count(line)  # by far the most common
        if limit is None:
            quotas = _quotas(line)
            limit = _common(quotas)
            policies += _policies(quota for quota in quotas if quota.window is not None)
        if limit is not None and (least is None or limit < least):
            least = limit
    return least, policies


def read_remaining(lines: Iterable[str], limit: float | None) -> float | None:
    """Parse the remainder; of several lines the lowest. If there is a limit, below 0 is 0."""
    least: float | None = None
    for line in lines:
        number = read_count(line)
        if number is None:
            number = _common(_quotas(line))
        if number is None and limit is not None and read_count(line.removeprefix("-")) is not None:
            number = 0
        if number is not None and (least is None or number < least):
            least = number
    return least


def join(
    policies: list[Policy],
    limit: float | None,
    remaining: float | None,
    reset_after: float | None,
    *,
    same_remaining: bool,
) -> float | None:
    """Find the one policy with this limit, and put the remainder and the reset into it.

    Changes the list. Returns the window of that policy; None if not exactly one matches.
    """
    found = [
        index
        for index, policy in enumerate(policies)
        if policy.quota == limit and (not same_remaining or policy.remaining == remaining)
    ]
    if limit is None or len(found) != 1:
        return None
    policy = policies[found[0]]
    if policy.reset_after is not None:
        reset_after = policy.reset_after
    policies[found[0]] = policy._replace(remaining=remaining, reset_after=reset_after)
    return policy.window


def _policies(quotas: Iterable[_Quota]) -> list[Policy]:
    numbers = ((quota, read_count(quota.text)) for quota in quotas)
    return [
        Policy(quota.name, number, quota.window) for quota, number in numbers if number is not None
    ]


def _common(quotas: list[_Quota]) -> float | None:
    """Return the first number; None if numbers without a window differ, as in other lists."""
    bare = {quota.text for quota in quotas if quota.window is None}
    numbers = {read_count(text) for text in bare}
    if len(numbers) > 1 or not quotas:
        return None
    return read_count(quotas[0].text) if None not in numbers else None


def _quotas(line: str) -> list[_Quota]:
    quotas: list[_Quota] = []
    for item in _split(line):
        text, semicolon, rest = item.partition(";")
        name = window = None
        for key, value in _PARAMETER.findall(semicolon + rest):
            word = value.strip(' \t"')
            if key.lower() in {"w", "window"}:
                window = read_window(word)
            elif key.lower() == "name":
                name = word or None
        quotas.append(_Quota(text.strip(" \t"), name, window))
    return quotas


def _split(line: str) -> Iterator[str]:
    if len(line) <= _LONGEST:
        matches = islice(_ITEM.finditer(line), MOST_ITEMS)
        yield from (match[0] for match in matches if match[0].strip(" \t"))

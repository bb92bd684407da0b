"""Reads the limits of a response by the profile of its vendor."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import cast

from aiothrottle.headers.body import Object, number_of
from aiothrottle.headers.limits import Record, Vendor, fill_template, pick
from aiothrottle.headers.profile import Items, Json, Limit, Profile
from aiothrottle.headers.quota_headers import read_latest_reset
from aiothrottle.headers.quotas import read_limit, read_remaining
from aiothrottle.headers.values import (
    CAP,
    Clock,
    in_seconds,
    read_count,
    read_reset,
    read_window,
)

# Longer than any real header, and more objects than any vendor has limits.
_LONGEST = 8192
_MOST = 256
# Longer than any date, more than any number, and longer than a useful name.
_LONGEST_VALUE = 100
_GREATEST = 1e20
_LONGEST_NAME = 64


class _Found:
    """An object at the end of a path, the keys that stars matched, and the objects above it.

    The objects above, nearest first, are searched and not copied: a server could send many members
    above many objects.
    """

    __slots__ = ("_above", "_node", "_stars")

    def __init__(self, stars: list[str], node: Object, above: tuple[Object, ...]) -> None:
        self._stars = stars
        self._node = node
        self._above = above

    def get(self, key: str) -> object:
        """Return a member of the object, or else a scalar of the nearest object above, or None."""
        if not key:
            return None
        if key in self._node:
            return self._node[key]
        values = (node.get(key) for node in self._above)
        return next((value for value in values if _is_scalar(value)), None)

    def number(self, key: str) -> float | None:
        value = self.get(key)
        return None if _is_long(value) else number_of(value)

    def text(self, key: str) -> str:
        """Return a text, or a number as text; "" for a value that is too long."""
        value = self.get(key)
        if isinstance(value, int | float):
            return str(value) if abs(value) < _GREATEST else ""
        return value if isinstance(value, str) and not _is_long(value) else ""

    def word(self, key: str) -> str | None:
        """Return the text to insert into a name."""
        if key.isdecimal() and int(key) < len(self._stars):
            return self._stars[int(key)][:_LONGEST_NAME]
        value = self.get(key)
        if isinstance(value, str):
            return value[:_LONGEST_NAME]
        return self.text(key) if isinstance(value, int) else None


def read_json(
    row: Json, lines: Mapping[str, list[str]], data: object, vendor: Vendor, clock: Clock
) -> Iterator[Record]:
    """Read the limits of the row, and record its waits in `vendor`; `data` is the body's JSON."""
    if row.header:
        data = _loads(", ".join(lines.get(row.header.lower(), ())))
    for found in _walk(data, row.path.split(".") if row.path else []):
        record = _record(row, found, clock)
        wait = found.number(row.wait)
        if wait:
            vendor.wait = pick(max, vendor.wait, min(CAP, wait * row.wait_unit))
        cost, rate = found.number(row.cost), found.number(row.rate)
        if cost and rate and record.remaining is not None and cost > record.remaining:
            vendor.wait_if_throttled = min(CAP, (cost - record.remaining) / rate)
        if record != Record(record.name):
            yield record


def _record(row: Json, found: _Found, clock: Clock) -> Record:
    used = [number for key in row.used if (number := found.number(key)) is not None]
    fixed = None if isinstance(row.limit, str) or not used else row.limit
    limit = found.number(row.limit) if isinstance(row.limit, str) else fixed
    window = found.number(row.window)
    return Record(
        None if row.name is None else fill_template(row.name, found.word) or None,
        limit,
        found.number(row.remaining),
        max(used, default=None),
        read_reset(found.text(row.reset), clock),
        float(window) if window and window < CAP else None,
    )


def _walk(data: object, path: list[str]) -> Iterator[_Found]:
    """Yield every object at the end of the path."""
    level: list[tuple[list[str], object, tuple[Object, ...]]] = [([], data, ())]
    for step in path:
        below: list[tuple[list[str], object, tuple[Object, ...]]] = []
        for stars, node, above in level:
            children = _children(node)
            here = (cast("Object", node), *above) if isinstance(node, dict) else above
            for key, child in children:
                if step == "*":
                    below.append(([*stars, key], child, here))
                elif key == step:
                    below.append((stars, child, here))
        level = below[:_MOST]
    for stars, node, above in level:
        if isinstance(node, dict):
            yield _Found(stars, cast("Object", node), above)


def _children(node: object) -> Iterable[tuple[str, object]]:
    if isinstance(node, dict):
        return cast("Object", node).items()
    if isinstance(node, list):
        return ((str(i), child) for i, child in enumerate(cast("list[object]", node)))
    return ()


def _is_scalar(node: object) -> bool:
    return isinstance(node, str | int | float)


def _is_long(value: object) -> bool:
    return isinstance(value, str) and len(value) > _LONGEST_VALUE


def _loads(text: str) -> object:
    try:
        return json.loads(text) if len(text) <= _LONGEST else None
    except (ValueError, RecursionError):
        return None


# Longer than any real header, and more limits than any vendor has.
_MAX_LIMITS = 256
_NUMBERS = frozenset({"limit", "remaining", "used", "reset", "window"})

Lines = dict[str, list[str]]


def with_seconds(profile: Profile, names: Iterable[str], values: Iterable[str]) -> list[str]:
    """Return the values, with milliseconds converted to seconds."""
    return [
        in_seconds(value.strip(" \t")) if name.lower() in profile.in_milliseconds else value
        for name, value in zip(names, values, strict=True)
    ]


def read_vendor(profile: Profile, lines: Lines, data: object, clock: Clock) -> Vendor:
    """Read all limits of the profile. `data` is the JSON of the body."""
    vendor = Vendor()
    for row in profile.limits:
        if isinstance(row, Limit):
            records = _read_limit(row, lines, clock)
        elif isinstance(row, Items):
            records = _read_items(row, lines, clock)
        else:
            records = read_json(row, lines, data, vendor, clock)
        for record in records:
            vendor.add(record, named=row.name is not None)
    return vendor


# ---- headers that each hold one number -------------------------------------------------------


def _read_limit(row: Limit, lines: Lines, clock: Clock) -> Iterator[Record]:
    limit, _ = read_limit(lines.get(row.limit.lower(), ()))
    remaining = read_remaining(lines.get(row.remaining.lower(), ()), limit)
    used = read_remaining(lines.get(row.used.lower(), ()), None)
    reset_after = read_latest_reset(lines.get(row.reset.lower(), ()), clock)
    # Several limits may share one reset, which alone does not prove that this one exists.
    found = limit, remaining, used, None if row.name else reset_after
    if found != (None, None, None, None):
        yield Record(row.name, limit, remaining, used, reset_after, _window(row.window, lines))


def _window(window: float | str | None, lines: Lines) -> float | None:
    if not isinstance(window, str):
        return None if window is None else float(window)
    name = window.lower()
    unit = 0.001 if "milli" in name or name.endswith("-ms") else 1.0
    return next((read_window(line, unit) for line in lines.get(name, ())), None)


# ---- several limits in a header --------------------------------------------------------------


def _read_items(row: Items, lines: Lines, clock: Clock) -> Iterator[Record]:
    for header, values in lines.items():
        named = row.names.fullmatch(header)
        if named is None:
            continue
        text = ", ".join(values)
        for position, match in enumerate(row.each.finditer(text[:_LONGEST])):
            if position == _MAX_LIMITS:
                break
            groups = {**named.groupdict(), **match.groupdict()}
            found = {k: v for k, v in groups.items() if v}
            if row.remaining is not None or not _NUMBERS.isdisjoint(found):
                yield from _read_item(row, position, found, clock)


def _read_item(row: Items, position: int, groups: dict[str, str], clock: Clock) -> Iterator[Record]:
    window = row.window[position:][:1] if isinstance(row.window, tuple) else (row.window,)
    seconds = read_window(groups["window"].lower()) if "window" in groups else _first(window)
    remaining = read_count(groups.get("remaining", ""))
    reset_after = read_reset(groups.get("reset", ""), clock)
    if row.aligned and seconds:
        reset_after = seconds - clock.timestamp % seconds
    for name in _names(row.name, position, groups):
        yield Record(
            name,
            read_count(groups.get("limit", "")),
            row.remaining if remaining is None else remaining,
            read_count(groups.get("used", "")),
            reset_after,
            None if seconds is None else float(seconds),
        )


def _first(values: tuple[float | None, ...]) -> float | None:
    return values[0] if values else None


def _names(
    name: str | tuple[str, ...] | None, position: int, groups: dict[str, str]
) -> list[str | None]:
    if name is None:
        return [None]
    if isinstance(name, tuple):
        return list(name[position:][:1])
    return [part.strip() or None for part in fill_template(name, groups.get).split(";")]

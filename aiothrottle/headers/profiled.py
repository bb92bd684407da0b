"""Reads a response as the profile of its vendor says."""

from collections.abc import Iterable, Iterator

from aiothrottle.headers.profile import Items, Limit, Profile
from aiothrottle.headers.profiled_json import read_json
from aiothrottle.headers.quotas import read_limit, read_remaining
from aiothrottle.headers.record import Record, Vendor, filled
from aiothrottle.headers.trios import read_latest
from aiothrottle.headers.values import (
    Clock,
    in_seconds,
    read_count,
    read_reset,
    read_window,
)

__all__ = ["read_vendor", "with_seconds"]

# Longer than any honest header; more limits, and more steps to them, than any vendor has.
_LONGEST = 8192
_MOST = 256
_NUMBERS = frozenset({"limit", "remaining", "used", "reset", "window"})

Lines = dict[str, list[str]]


def with_seconds(profile: Profile, names: Iterable[str], values: Iterable[str]) -> list[str]:
    """Give the values, those that are milliseconds as seconds."""
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
    reset_after = read_latest(lines.get(row.reset.lower(), ()), clock)
    # A reset may be that of several limits, and tells none apart.
    told = limit, remaining, used, None if row.name else reset_after
    if told != (None, None, None, None):
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
            if position == _MOST:
                break
            groups = {**named.groupdict(), **match.groupdict()}
            told = {k: v for k, v in groups.items() if v}
            if row.remaining is not None or not _NUMBERS.isdisjoint(told):
                yield from _of_item(row, position, told, clock)


def _of_item(row: Items, position: int, groups: dict[str, str], clock: Clock) -> Iterator[Record]:
    window = row.window[position:][:1] if isinstance(row.window, tuple) else (row.window,)
    seconds = read_window(groups["window"].lower()) if "window" in groups else _first(window)
    left = read_count(groups.get("remaining", ""))
    reset_after = read_reset(groups.get("reset", ""), clock)
    if row.aligned and seconds:
        reset_after = seconds - clock.instant % seconds
    for name in _names(row.name, position, groups):
        yield Record(
            name,
            read_count(groups.get("limit", "")),
            row.remaining if left is None else left,
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
    return [part.strip() or None for part in filled(name, groups.get).split(";")]

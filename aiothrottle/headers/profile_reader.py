"""Reads the limits of a response by the profile of its vendor."""

from collections.abc import Iterable, Iterator

from aiothrottle.headers.profile import Items, Limit, Profile
from aiothrottle.headers.profile_json import read_json
from aiothrottle.headers.quota_headers import read_latest_reset
from aiothrottle.headers.quotas import read_limit, read_remaining
from aiothrottle.headers.record import Record, Vendor, fill_template
from aiothrottle.headers.values import (
    Clock,
    in_seconds,
    read_count,
    read_reset,
    read_window,
)

__all__ = ["read_vendor", "with_seconds"]

# Longer than any real header, and more limits than any vendor has.
_LONGEST = 8192
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

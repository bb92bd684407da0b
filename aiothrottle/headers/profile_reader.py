"""Reads the limits of a response by the profile of its vendor.

Invariant: each kind of row (headers with one number each, several limits in a header, JSON) makes
records; those with the same name become one limit.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple, cast

from aiothrottle.headers.body import Object, number_of, read_json
from aiothrottle.headers.limits import Lines
from aiothrottle.headers.profile import Items, Json, Limit, Profile
from aiothrottle.headers.quotas import Record, read_record
from aiothrottle.headers.values import CAP, Clock, in_seconds, read_reset

# More limits, or objects with limits, than any vendor has.
_MOST = 256
# Longer than any date, more than any number, and longer than a useful name.
_LONGEST_VALUE = 100
_GREATEST = 1e20
_LONGEST_NAME = 64
_NUMBERS = frozenset({"limit", "remaining", "used", "reset", "window"})
_BRACES = re.compile(r"\{([^{}]*)\}")


@dataclass(slots=True)
class Vendor:
    """The limits with a name, one without, and the waits."""

    named: dict[str | None, Record] = field(default_factory=dict[str | None, Record])
    #: It fills the fields if none of the others binds.
    unnamed: Record | None = None
    wait: float | None = None
    wait_if_throttled: float | None = None

    def add(self, record: Record, *, named: bool) -> None:
        """Add the limit of one header."""
        if not named:
            self.unnamed = self.unnamed or record
        elif record.name in self.named:
            self.named[record.name].merge(record)
        elif len(self.named) < _MOST:
            self.named[record.name] = record


def with_seconds(profile: Profile, names: Iterable[str], values: Iterable[str]) -> list[str]:
    """Return the values, with milliseconds converted to seconds."""
    in_milliseconds = {name.lower() for name in profile.milliseconds}
    return [
        in_seconds(value.strip(" \t")) if name.lower() in in_milliseconds else value
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
            records = _read_json(row, lines, data, vendor, clock)
        for record in records:
            vendor.add(record, named=row.name is not None)
    return vendor


def _fill_template(template: str, label_of: Callable[[str], str | None]) -> str:
    """Fill in the braces of the name of a limit; return "" if a value is missing.

    Braces in a value are not expanded: a server could make each value name the next one twice.
    """
    words = {key: label_of(key) for key in _BRACES.findall(template)}
    return "" if None in words.values() else _BRACES.sub(lambda key: words[key[1]] or "", template)


# ---- headers that each hold one number -----------------------------------------------------------


def _read_limit(row: Limit, lines: Lines, clock: Clock) -> Iterator[Record]:
    headers = {"limit": row.limit, "remaining": row.remaining, "used": row.used, "reset": row.reset}
    if isinstance(row.window, str):
        name = row.window.lower()
        in_ms = "milli" in name or name.endswith("-ms")
        headers["window-ms" if in_ms else "window"] = name
    of_fields = {
        field: lines[header.lower()] for field, header in headers.items() if header.lower() in lines
    }
    record = read_record(of_fields, clock)
    # Several limits may share one reset, which alone does not prove that this one exists.
    reset_after = None if row.name else record.reset_after
    if (record.quota, record.remaining, record.used, reset_after) != (None, None, None, None):
        record.name = row.name
        if row.window is not None and not isinstance(row.window, str):
            record.window = float(row.window)
        yield record


# ---- several limits in a header ------------------------------------------------------------------


def _read_items(row: Items, lines: Lines, clock: Clock) -> Iterator[Record]:
    for header, values in lines.items():
        named = row.names.fullmatch(header)
        if named is None:
            continue
        text = ", ".join(values)
        for position, match in enumerate(islice(row.each.finditer(text), _MOST)):
            groups = {**named.groupdict(), **match.groupdict()}
            found = {k: v for k, v in groups.items() if v}
            if row.remaining is not None or not _NUMBERS.isdisjoint(found):
                yield from _read_item(row, position, found, clock)


def _read_item(row: Items, position: int, groups: dict[str, str], clock: Clock) -> Iterator[Record]:
    fields = {name: [groups[name].lower()] for name in _NUMBERS & groups.keys()}
    for name in _names(row.name, position, groups):
        record = read_record(fields, clock)
        record.name = name
        if record.remaining is None:
            record.remaining = row.remaining
        if record.window is None:
            windows = row.window[position:] if isinstance(row.window, tuple) else (row.window,)
            record.window = next(iter(windows), None)
        if row.aligned and record.window:
            record.reset_after = record.window - clock.timestamp % record.window
        yield record


def _names(
    name: str | tuple[str, ...] | None, position: int, groups: dict[str, str]
) -> list[str | None]:
    if name is None:
        return [None]
    if isinstance(name, tuple):
        return list(name[position:][:1])
    return [part.strip() or None for part in _fill_template(name, groups.get).split(";")]


# ---- JSON ----------------------------------------------------------------------------------------


def _read_json(
    row: Json, lines: Lines, data: object, vendor: Vendor, clock: Clock
) -> Iterator[Record]:
    """Read the limits of the row, and record its waits in `vendor`; `data` is the body's JSON."""
    if row.header:
        data = read_json(", ".join(lines.get(row.header.lower(), ())))
    for found in _walk(data, row.path.split(".") if row.path else []):
        used = [number for key in row.used if (number := found.number(key)) is not None]
        fixed = None if isinstance(row.limit, str) or not used else row.limit
        window = found.number(row.window)
        record = Record(
            (row.name and _fill_template(row.name, found.word)) or None,
            found.number(row.limit) if isinstance(row.limit, str) else fixed,
            found.number(row.remaining),
            max(used, default=None),
            read_reset(found.text(row.reset), clock),
            float(window) if window and window < CAP else None,
        )
        if wait := found.number(row.wait):
            vendor.wait = max(vendor.wait or 0.0, min(CAP, wait * row.wait_unit))
        cost, rate = found.number(row.cost), found.number(row.rate)
        if cost and rate and record.remaining is not None and cost > record.remaining:
            vendor.wait_if_throttled = min(CAP, (cost - record.remaining) / rate)
        if record != Record(record.name):
            yield record


class _Found(NamedTuple):
    """An object at the end of a path, the keys that stars matched, and the objects above it.

    The objects above, nearest first, are searched and not copied: a server could send many members
    above many objects.
    """

    stars: tuple[str, ...]
    node: object
    above: tuple[Object, ...]

    def get(self, key: str) -> object:
        """Return a member of the object, or else a scalar of the nearest object above, or None."""
        node = cast("Object", self.node)
        if not key or key in node:
            return node[key] if key else None
        values = (above.get(key) for above in self.above)
        return next((value for value in values if isinstance(value, str | int | float)), None)

    def number(self, key: str) -> float | None:
        """Return a number, or a number in a text; None for another value, or a long one."""
        value = self.get(key)
        is_long = isinstance(value, str) and len(value) > _LONGEST_VALUE
        return None if is_long else number_of(value)

    def text(self, key: str) -> str:
        """Return a text, or a number as text; "" for a value that is too long."""
        value = self.get(key)
        if isinstance(value, int | float):
            return str(value) if abs(value) < _GREATEST else ""
        return value if isinstance(value, str) and len(value) <= _LONGEST_VALUE else ""

    def word(self, key: str) -> str | None:
        """Return the text to insert into a name."""
        if key.isdecimal() and int(key) < len(self.stars):
            return self.stars[int(key)][:_LONGEST_NAME]
        value = self.get(key)
        if isinstance(value, str):
            return value[:_LONGEST_NAME]
        return self.text(key) if isinstance(value, int) else None


def _walk(data: object, path: list[str]) -> Iterator[_Found]:
    """Yield every object at the end of the path."""
    level = [_Found((), data, ())]
    for step in path:
        below: list[_Found] = []
        for stars, node, above in level:
            children = _children(node)
            here = (cast("Object", node), *above) if isinstance(node, dict) else above
            for key, child in children:
                if step == "*":
                    below.append(_Found((*stars, key), child, here))
                elif key == step:
                    below.append(_Found(stars, child, here))
        level = below[:_MOST]
    return (found for found in level if isinstance(found.node, dict))


def _children(node: object) -> Iterable[tuple[str, object]]:
    if isinstance(node, dict):
        return cast("Object", node).items()
    if isinstance(node, list):
        return ((str(i), child) for i, child in enumerate(cast("list[object]", node)))
    return ()

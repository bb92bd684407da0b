"""Reads limits in JSON by the profile of a vendor."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import cast

from aiothrottle.headers.body import Object, number_of
from aiothrottle.headers.profile import Json
from aiothrottle.headers.record import Record, Vendor, fill_template, pick
from aiothrottle.headers.values import CAP, Clock, read_reset

__all__ = ["read_json"]

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

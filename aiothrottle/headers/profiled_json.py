"""Reads limits in JSON, as the profile of a vendor says."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import cast

from aiothrottle.headers.body import Object, number_of
from aiothrottle.headers.profile import Json
from aiothrottle.headers.record import Record, Vendor, filled, pick
from aiothrottle.headers.values import CAP, Clock, read_reset

__all__ = ["read_json"]

# Longer than any honest header; more steps to a limit than any vendor has.
_LONGEST = 8192
_MOST = 256


def read_json(
    row: Json, lines: Mapping[str, list[str]], data: object, vendor: Vendor, clock: Clock
) -> Iterator[Record]:
    """Read the limits of the row; `data` is the JSON of the body. Notes waits in `vendor`."""
    if row.header:
        data = _loads(", ".join(lines.get(row.header.lower(), ())))
    for stars, found in _walk(data, row.path.split(".") if row.path else []):
        record = _of_object(row, stars, found, clock)
        wait = number_of(found.get(row.wait))
        if wait:
            vendor.wait = pick(max, vendor.wait, min(CAP, wait * row.wait_unit))
        cost, rate = number_of(found.get(row.cost)), number_of(found.get(row.rate))
        if cost and rate and record.remaining is not None and cost > record.remaining:
            vendor.wait_if_refused = min(CAP, (cost - record.remaining) / rate)
        if record != Record(record.name):
            yield record


def _of_object(row: Json, stars: list[str], found: Object, clock: Clock) -> Record:
    limit = number_of(found.get(row.limit) if isinstance(row.limit, str) else row.limit)
    used = [number for key in row.used if (number := number_of(found.get(key))) is not None]
    if not (used or isinstance(row.limit, str)):
        limit = None
    reset, window = found.get(row.reset), number_of(found.get(row.window))
    name = None
    if row.name is not None:
        words = {key: str(word)[:64] for key, word in found.items() if isinstance(word, str | int)}
        name = filled(row.name, words | {str(i): star for i, star in enumerate(stars)}) or None
    return Record(
        name,
        limit,
        number_of(found.get(row.remaining)),
        max(used, default=None),
        None if reset is None else read_reset(str(reset)[:_LONGEST], clock),
        float(window) if window and window < CAP else None,
    )


def _walk(data: object, path: list[str]) -> Iterator[tuple[list[str], Object]]:
    """Give every object at the end of the path, with what stars stood for.

    The members of an object are added to those of the objects below it.
    """
    level: list[tuple[list[str], Object, object]] = [([], {}, data)]
    for step in path:
        below: list[tuple[list[str], Object, object]] = []
        for stars, members, node in level:
            children = list(_children(node))
            here = members | {key: child for key, child in children if _is_scalar(child)}
            for key, child in children:
                if step == "*":
                    below.append(([*stars, key], here, child))
                elif key == step:
                    below.append((stars, here, child))
        level = below[:_MOST]
    for stars, members, node in level:
        if isinstance(node, dict):
            yield stars, members | cast("Object", node)


def _children(node: object) -> Iterable[tuple[str, object]]:
    if isinstance(node, dict):
        return cast("Object", node).items()
    if isinstance(node, list):
        return ((str(i), child) for i, child in enumerate(cast("list[object]", node)))
    return ()


def _is_scalar(node: object) -> bool:
    return isinstance(node, str | int | float)


def _loads(text: str) -> object:
    try:
        return json.loads(text) if len(text) <= _LONGEST else None
    except (ValueError, RecursionError):
        return None

"""Reads what only the body reports: that the request was throttled, and how long to wait."""

import json
import math
import re
from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeAlias, cast

from aiothrottle._statuses import LEAST_ERROR
from aiothrottle.headers.values import CAP, EPOCHS_FROM, Clock, delay_of, read_delay, read_number
from aiothrottle.headers.vendors import COMMON

Object: TypeAlias = dict[str, object]

# Longer than any error, and more nodes than any error has.
_MAX_CHARACTERS = 65_536
_MAX_NODES = 2000

_RULES = COMMON["body"]
_PHRASES: tuple[str, ...] = tuple(_RULES["phrases"])
CODES: frozenset[str] = frozenset(_RULES["codes"] + _RULES["codes_under_a_key"])
_ERROR_KEYS: frozenset[str] = frozenset(_RULES["error_keys"])
_WAITS: dict[str, float] = _RULES["waits"]
_ELEMENT = re.compile(r">([A-Za-z]{1,32})<")
_PROSE = re.compile(r"(?:banned until|throttled:)\s*([0-9]{10,13})(?![0-9])", re.IGNORECASE)


class BodyResult(NamedTuple):
    """What a body reports.

    `throttled` is whether it contains the mark of a throttled request, `retry_after` the wait in
    seconds, `data` its JSON, None if there is none.
    """

    throttled: bool
    retry_after: float | None
    data: object


def read_body(
    body: str | bytes, status: int, clock: Clock, marks: Iterable[str] = ()
) -> BodyResult:
    """Read a body. A wait counts only in a body about an error; `marks` are a profile's own."""
    phrases = (*_PHRASES, *map(_normal, marks)) if marks else _PHRASES
    is_error = status >= LEAST_ERROR
    body = body[:_MAX_CHARACTERS]
    text = body if isinstance(body, str) else body.decode("utf-8", "replace")
    data = read_json(text)
    if data is None:
        throttled = _marked_text(text, phrases, is_error=is_error)
        wait = _prose(text, clock) if throttled or is_error else None
        return BodyResult(throttled, wait, None)
    parts = _nodes(data if is_error else _error_parts(data))
    throttled = any(_marked(key, node, phrases) for key, node in parts)
    wait = _wait(data, clock) if throttled or is_error else None
    return BodyResult(throttled, wait, data)


def nested_headers(data: object) -> list[tuple[str, str]]:
    """Return the headers that a gateway forwards in its error: error.metadata.headers."""
    for key in ("error", "metadata", "headers"):
        data = cast("Object", data).get(key) if isinstance(data, dict) else None
    if not isinstance(data, dict):
        return []
    nested = cast("Object", data)
    return [(name, str(value)) for name, value in nested.items() if isinstance(value, str | int)]


def number_of(value: object) -> float | None:
    """Return a JSON number, or a number in a string; None for a negative or other value."""
    if isinstance(value, str):
        return read_number(value.strip())
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # JSON can hold 1e400, which is infinite.
    return min(value, 1e18) if 0 <= value < math.inf else None


def read_json(text: str) -> object:
    """Return an object or a list; None if the text is neither."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        return json.loads(text, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None


def _error_parts(data: object) -> object:
    """Return the keys of errors, which alone may hold a mark if the status is below 400."""
    top = cast("Object", data).items() if isinstance(data, dict) else ()
    return {key: value for key, value in top if plain(key) in _ERROR_KEYS}


def _nodes(data: object) -> Iterator[tuple[str, object]]:
    """Yield every node of the data with its key, breadth first."""
    queue: deque[tuple[str, object]] = deque([("", data)])
    for _ in range(_MAX_NODES):
        if not queue:
            return
        key, node = queue.popleft()
        yield key, node
        if isinstance(node, dict):
            queue.extend((plain(key), value) for key, value in cast("Object", node).items())
        elif isinstance(node, list):
            queue.extend((key, value) for value in cast("list[object]", node))


def plain(key: str) -> str:
    """Return a word as servers mean it, however they join its parts."""
    return key.lower().replace("_", "").replace("-", "")


def _marked(key: str, node: object, phrases: Iterable[str]) -> bool:
    if key == "throttleseconds":
        return bool(number_of(node))
    if isinstance(node, int):
        node = str(node) if abs(node) < 1e9 else ""
    if not isinstance(node, str):
        return False
    code = node.lower()
    return code in CODES or f"{key}:{code}" in CODES or _has_phrase(node, phrases)


def _marked_text(text: str, phrases: Iterable[str], *, is_error: bool) -> bool:
    """Return whether a text has a mark; one that is no error has only the element of an error."""
    if is_error and _has_phrase(text, phrases):
        return True
    if not is_error and "<Error>" not in text:
        return False
    return any(code.lower() in CODES for code in _ELEMENT.findall(text))


def _has_phrase(text: str, phrases: Iterable[str]) -> bool:
    text = _normal(text)
    return any(phrase in text for phrase in phrases)


def _normal(text: str) -> str:
    return text.lower().replace(": ", ":")


def _wait(data: object, clock: Clock) -> float | None:
    for _, node in _nodes(data):
        if isinstance(node, dict):
            wait = _wait_in(cast("Object", node), clock)
        else:
            wait = _prose(node, clock) if isinstance(node, str) else None
        if wait is not None:
            return wait
    return None


def _wait_in(node: "Object", clock: Clock) -> float | None:
    for key, value in node.items():
        word = plain(key)
        if word not in _WAITS:
            continue
        number = number_of(value)
        if number is None:
            wait = read_delay(value.strip(), clock) if isinstance(value, str) else None
        else:
            server_time = number_of(node.get("serverTime"))
            if server_time is not None and number >= EPOCHS_FROM:
                return min(CAP, max(0.0, number - server_time) / 1000)
            wait = delay_of(number * _WAITS[word], clock)
        # Some servers send a zero with every response.
        if wait is not None and (wait > 0 or word != "throttleseconds"):
            return wait
    return None


def _prose(text: str, clock: Clock) -> float | None:
    match = _PROSE.search(text)
    return None if match is None else delay_of(float(match[1]), clock)

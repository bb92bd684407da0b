"""Read the `usage` along with the caller, of a JSON body or a stream of events: the final cost.

Invariant: no body raises, and memory is bounded. What is cut off before its usage is final stays as
it was charged; so does a resource whose number is missing, or is no plausible count of tokens.
"""

import json
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from aiothrottle.llm.calls import as_object

CostOf: TypeAlias = Callable[[Mapping[str, Any]], dict[str, float]]
"""Returns the final cost that a `usage` reports; of resources that it does not report, nothing."""

#: No model reads or writes more. A larger number would stop all requests for hours or for ever.
_MOST = 10_000_000

# Bytes of a body that is parsed whole. Of a longer one, which holds embeddings, the usage is at
# the end: parsing megabytes would block the event loop.
_WHOLE = 1 << 18
_TAIL = 1 << 12
# Inside of a text of the document these quotes would be escaped.
_USAGE = re.compile(r'(?<!\\)"usage"\s*:\s*(?={)')

_LINE_END = re.compile(rb"\r\n|\r|\n")
# After these nothing follows that has a usage. No set, as a type may be any JSON, also a list.
_LAST = ("message_stop", "response.completed", "response.failed", "response.incomplete")


class JsonUsage:
    """A `BodyReader` of a JSON document with a `usage`."""

    __slots__ = ("_cost_of", "_kept", "_whole")

    def __init__(self, cost_of: CostOf) -> None:
        self._cost_of = cost_of
        self._kept = bytearray()
        self._whole = True

    def feed(self, chunk: bytes, /) -> None:
        """Keep the body, or the end of a long one."""
        self._kept += chunk
        if len(self._kept) > _WHOLE:
            self._whole = False
            del self._kept[:-_TAIL]

    def end(self, *, complete: bool) -> dict[str, float] | None:
        """Return the reported cost; None if none is reported."""
        if not complete:
            return None
        return self._cost_of(as_object(self._usage())) or None

    def _usage(self) -> Any:  # noqa: ANN401 - any JSON
        if self._whole:
            return _loads(bytes(self._kept)).get("usage")
        tail = self._kept.decode("utf-8", "replace")
        found = [match.end() for match in _USAGE.finditer(tail)]
        try:
            return json.JSONDecoder().raw_decode(tail, found[-1])[0] if found else None
        except (ValueError, RecursionError):
            return None


class EventUsage:
    """A `BodyReader` of server-sent events, of which some have a `usage`.

    The last one counts. That of a `message_start` is without the output, which is still to come.
    """

    __slots__ = ("_cost_of", "_events", "_is_last", "_usage")

    def __init__(self, cost_of: CostOf) -> None:
        self._cost_of = cost_of
        self._events = EventStream()
        self._usage: dict[str, Any] = {}
        self._is_last = False

    def feed(self, chunk: bytes, /) -> None:
        """Read the events that end in this chunk."""
        for data in self._events.feed(chunk):
            self._read(data)

    def end(self, *, complete: bool) -> dict[str, float] | None:
        """Return the reported cost; None if none is reported, or not the final one."""
        # A client may stop reading at the last event, before the blank line that ends it.
        self.feed(b"\n\n")
        if not (complete or self._is_last):
            return None
        return self._cost_of(self._usage) or None

    def _read(self, data: bytes) -> None:
        if data == b"[DONE]":
            self._is_last = True
            return
        # Nearly all events have neither, and need not be parsed.
        if b'"usage"' not in data and b"message_stop" not in data:
            return
        event = _loads(data)
        kind = event.get("type")
        usage = as_object(event.get("usage"))
        if kind == "message_start":
            usage = {**as_object(as_object(event.get("message")).get("usage"))}
            usage.pop("output_tokens", None)
        elif not usage:
            usage = as_object(as_object(event.get("response")).get("usage"))
        self._usage.update({name: value for name, value in usage.items() if value is not None})
        self._is_last = self._is_last or kind in _LAST


class EventStream:
    r"""Reads server-sent events (WHATWG HTML, section 9.2) incrementally.

    The result depends on the bytes alone, not on the chunks in which they come, and at most
    `longest` bytes are kept. It works on bytes, as no part of a character is a line end in UTF-8.

    Args:
        longest: Bytes. The data of a longer event is skipped.

    >>> events = EventStream()
    >>> list(events.feed(b"event: a\r\ndata: {}\r\n\r")), list(events.feed(b"\ndata: 1"))
    ([b'{}'], [])
    """

    __slots__ = ("_after_return", "_data", "_line", "_longest", "_lost", "_mark")

    def __init__(self, longest: int = 1 << 20) -> None:
        self._longest = longest
        self._line = bytearray()
        self._data = bytearray()  # of the event so far: each line of it, and a line feed
        self._lost = False  # the event is too long, and is skipped up to the next blank line
        self._after_return = False  # a line feed that follows is of the same line end
        self._mark = BOM_UTF8  # what the first line may begin with

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the data of each event that ends in this chunk."""
        if not chunk:
            return
        if self._after_return and chunk.startswith(b"\n"):
            chunk = chunk[1:]
        self._after_return = chunk.endswith(b"\r")
        *ended, rest = _LINE_END.split(chunk)
        for part in ended:
            self._extend(part)
            if (data := self._end_line()) is not None:
                yield data
        self._extend(rest)

    def _extend(self, part: bytes) -> None:
        if len(self._data) + len(self._line) + len(part) > self._longest:
            self._lost = True
        if self._lost:
            # Only whether the line is blank is still of interest.
            self._data.clear()
            self._line[:] = (self._line + part[:1])[:1]
        else:
            self._line += part

    def _end_line(self) -> bytes | None:
        """End the line, and return the data of the event if the line is blank and ends one."""
        line = bytes(self._line).removeprefix(self._mark)
        self._mark = b""
        self._line.clear()
        if not line:
            data = bytes(self._data[:-1]) if self._data else None
            self._data.clear()
            self._lost = False
            return data
        name, _, value = line.partition(b":")
        if name == b"data" and not self._lost:
            self._data += value.removeprefix(b" ") + b"\n"
        return None


def _loads(text: str | bytes) -> dict[str, Any]:
    """Return a JSON object; an empty one if the text is none."""
    try:
        return as_object(json.loads(text))
    except (ValueError, RecursionError):  # nested too deeply for the parser
        return {}


# ---- costs ---------------------------------------------------------------------------------------


def openai_cost(usage: Mapping[str, Any]) -> dict[str, float]:
    """Return the cost that OpenAI and compatible APIs report.

    Tokens that came from the cache count as others do. An embedding has no output.

    >>> openai_cost({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15})
    {'tokens': 15.0}
    >>> openai_cost({"total_tokens": -1})
    {}
    """
    total = _count(usage.get("total_tokens"))
    if total is None and "total_tokens" not in usage:
        read = _count(usage.get("prompt_tokens", usage.get("input_tokens")))
        written = _count(usage.get("completion_tokens", usage.get("output_tokens", 0)))
        total = None if read is None or written is None else read + written
    return {} if total is None else {"tokens": total}


def anthropic_cost(usage: Mapping[str, Any]) -> dict[str, float]:
    """Return the cost that Anthropic reports.

    Tokens that were written into the cache count towards the limit of input tokens, those that were
    read from it do not (but with some older models).

    >>> anthropic_cost({"input_tokens": 10, "cache_creation_input_tokens": 90, "output_tokens": 5})
    {'input_tokens': 100.0, 'output_tokens': 5.0}
    """
    cost: dict[str, float] = {}
    read = _count(usage.get("input_tokens"))
    cached = usage.get("cache_creation_input_tokens")
    cached = 0.0 if cached is None else _count(cached)
    if read is not None and cached is not None:
        cost["input_tokens"] = read + cached
    if (written := _count(usage.get("output_tokens"))) is not None:
        cost["output_tokens"] = written
    return cost


def _count(value: object) -> float | None:
    """Return a plausible count of tokens, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= _MOST else None  # a NaN is neither

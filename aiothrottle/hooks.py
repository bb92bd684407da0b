"""What the callables of an integration get and return: `key`, `cost`, `priority` and `settle`.

The same for every integration, so that one callable works with a session, a middleware and a
transport. Nothing here reads a clock, waits or sends.
"""

import json
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias, TypedDict

from aiothrottle._checks import check_whole, shown
from aiothrottle.amounts import Cost

__all__ = [
    "BodyReader",
    "CostHook",
    "KeyHook",
    "PriorityHook",
    "Request",
    "Response",
    "SettleHook",
    "Throttle",
    "WholeBody",
]

_NOT_PARSED: Any = object()


class Request:
    """A request that has not been sent yet.

    Args:
        method: The method, in capitals.
        url: The absolute URL, of the client's own type: a `yarl.URL`, an `httpx.URL`.
        headers: The headers that the caller or the session gave; the client may add others. Names
            are matched in any case.
        content: The body, if it can be sent again and is in memory; else None, also if there is
            none. It is never read from a file, a form with files or a generator.
        document: The object of ``json=``, where the client has not serialized it yet.

    >>> request = Request("POST", "https://example.org/", {}, b'{"model": "small"}')
    >>> request.json()["model"]
    'small'
    """

    __slots__ = ("_document", "content", "headers", "method", "url")

    def __init__(
        self,
        method: str,
        url: Any,  # noqa: ANN401 - as the client has it
        headers: Mapping[str, str],
        content: bytes | None = None,
        document: Any = _NOT_PARSED,  # noqa: ANN401 - any JSON
    ) -> None:
        self.method: str = method
        self.url: Any = url
        self.headers: Mapping[str, str] = headers
        self.content: bytes | None = content
        self._document = document

    def json(self) -> Any:  # noqa: ANN401 - any JSON
        """Return the body as JSON, parsed once; None if there is none, or it is no JSON."""
        if self._document is _NOT_PARSED:
            try:
                self._document = None if self.content is None else json.loads(self.content)
            except ValueError:
                self._document = None
        return self._document


class Response(NamedTuple):
    """The head of a response; its body has not been read yet.

    Args:
        request: The request.
        status: The status.
        headers: The headers; names are matched in any case.
    """

    request: Request
    status: int
    headers: Mapping[str, str]


class BodyReader(Protocol):
    """Reads a body along with the caller, without delaying it, and returns the final cost.

    The integration calls `feed` with each decoded chunk, once and in order, and then `end` once. An
    exception of either goes to the exception handler of the event loop, not to the caller who reads
    the body; after one of `feed`, the reader is not called again, and the cost stays as charged.
    """

    def feed(self, chunk: bytes, /) -> None:
        """Read a chunk of the decoded body.

        Args:
            chunk: The bytes.
        """
        ...

    def end(self, *, complete: bool) -> Cost | None:
        """Return the final cost of the request; None: it stays as it was charged.

        Args:
            complete: Whether the body was read to its end; not so if the response was closed early,
                cut off, released unread or dropped, or ran into `max_hold`.
        """
        ...


class WholeBody:
    """A `BodyReader` for a function of the whole body.

    Args:
        function: Returns the final cost, or None. It is called only with a complete body.
        longest: Bytes. The cost of a longer body stays as it was charged.

    >>> def settle(response):
    ...     return WholeBody(lambda body: json.loads(body)["usage"]["total_tokens"])
    """

    __slots__ = ("_chunks", "_function", "_room")

    def __init__(self, function: Callable[[bytes], Cost | None], *, longest: int = 1 << 20) -> None:
        if not callable(function):
            raise TypeError(f"function must be a function of a body, got {shown(function)}")
        check_whole("longest", longest, "bytes")
        self._function = function
        self._chunks: list[bytes] = []
        self._room = longest

    def feed(self, chunk: bytes, /) -> None:
        """Keep a chunk, unless the body is too long."""
        self._room -= len(chunk)
        if self._room >= 0:
            self._chunks.append(chunk)
        else:
            self._chunks.clear()

    def end(self, *, complete: bool) -> Cost | None:
        """Return the cost that the function returns; None if the body is incomplete or too long."""
        return self._function(b"".join(self._chunks)) if complete and self._room >= 0 else None


#: Returns the key of a request in a `KeyedRateLimiter`; None: its host.
KeyHook: TypeAlias = Callable[[Request], Hashable]
#: Returns the cost of a request; None: 1 token.
CostHook: TypeAlias = Callable[[Request], Cost | None]
#: Returns the priority of a request: see `RateLimiter.throttle`; None: 0.
PriorityHook: TypeAlias = Callable[[Request], float | None]
#: Returns the final cost of a request, a `BodyReader` that will return it, or None: it stays.
SettleHook: TypeAlias = Callable[[Response], Cost | BodyReader | None]


class Throttle(TypedDict, total=False):
    """What one request overrides: ``session.post(url, throttle={"cost": 3})``.

    With httpx: ``client.post(url, extensions={"aiothrottle": {"cost": 3}})``.
    """

    key: Hashable
    """The key of the request, in place of what the `key` of the integration returns. It needs a
    `KeyedRateLimiter`."""

    cost: Cost
    """The cost of the request, in place of what the `cost` of the integration returns."""

    priority: float
    """The priority of the request, in place of what the `priority` of the integration returns."""

    timeout: float | None
    """Seconds that an attempt may wait for the limiter, in place of `queue_timeout`."""

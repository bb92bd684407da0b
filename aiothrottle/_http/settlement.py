"""Settlement: the final cost of an attempt, from the head of its response or from its body.

Invariant: a body reader gets each decoded chunk once, in order, and `end` once, however the body
ends; nothing is called after that, nor after the reader has raised. What a reader raises goes to
the exception handler of the loop, never to the caller who reads the body: the cost stays.
"""

import asyncio
import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

from aiothrottle._checks import shown
from aiothrottle._http.admission import result_of
from aiothrottle.hooks import BodyReader, Request, Response, SettleHook
from aiothrottle.permit import Permit


class BodySink(Protocol):
    """Gets the chunks of a body, and its end."""

    def feed(self, chunk: bytes, /) -> None:
        """Take the next chunk."""
        ...

    def end(self, *, complete: bool) -> None:
        """Take the end. Only the first call counts."""
        ...


class Settlement:
    """A body reader, until it ends, and the permit that it settles.

    Args:
        reader: The reader.
        permit: The permit; it may be released before the body ends.
    """

    __slots__ = ("_loop", "_permit", "_reader")

    def __init__(self, reader: BodyReader, permit: Permit) -> None:
        self._loop = asyncio.get_running_loop()
        self._permit = permit
        self._reader: BodyReader | None = reader

    def feed(self, chunk: bytes, /) -> None:
        """Give a decoded chunk to the reader."""
        if self._reader is not None:
            try:
                self._reader.feed(chunk)
            except Exception as error:  # noqa: BLE001 - reported; the caller's reading goes on
                self._reader = None
                self._report(error)

    def end(self, *, complete: bool) -> None:
        """End the reader, and settle the permit with the cost that it returns."""
        reader, self._reader = self._reader, None
        if reader is None:
            return
        try:
            cost = reader.end(complete=complete)
            if cost is not None:
                self._permit.settle(cost)
        except Exception as error:  # noqa: BLE001 - reported, as in `feed`
            self._report(error)

    def abandon(self, *, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        """End the reader of a body that is garbage, in a turn of its loop. Thread-safe."""
        if self._reader is None or is_finalizing():
            return
        try:
            self._loop.call_soon_threadsafe(self._end_incomplete)
        except RuntimeError:  # the loop is closed, and its limiter has ended with it
            self._end_incomplete()

    def _end_incomplete(self) -> None:
        self.end(complete=False)

    def _report(self, error: Exception) -> None:
        self._loop.call_exception_handler(
            {
                "message": "the body reader of settle= failed; the cost stays as it was charged",
                "exception": error,
            }
        )


def settle_head(
    hook: SettleHook, request: Request, status: int, headers: Mapping[str, str], permit: Permit
) -> Settlement | None:
    """Call `settle`, and settle the permit if it returns a cost.

    Args:
        hook: The option.
        request: What the hooks see of the request.
        status: The status of the response.
        headers: The headers of the response.
        permit: The permit of the attempt; it may be released already.

    Returns:
        The settlement that needs the body, if `settle` returned a reader.

    Raises:
        TypeError: It returned what is neither a cost nor a reader.
        ValueError: It returned a cost that is out of range.
        Exception: What it raised.
    """
    result: Any = result_of("settle", hook, Response(request, status, headers))
    if result is None:
        return None
    if isinstance(result, Mapping) or (
        isinstance(result, int | float) and not isinstance(result, bool)
    ):
        permit.settle(cast("Any", result))
        return None
    methods = (getattr(result, name, None) for name in ("feed", "end"))
    if isinstance(result, type) or not all(map(callable, methods)):
        raise TypeError(
            "settle= must return the final cost, an object with the methods feed and end, or "
            f"None, got {shown(result)}"
        )
    return Settlement(cast("BodyReader", result), permit)

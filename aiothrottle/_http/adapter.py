"""What the retry loop needs of an HTTP client: a protocol that each integration implements.

An adapter decides nothing about retries or pauses; it translates. None of its methods waits for a
limiter, and each that awaits leaves no slot held when it is cancelled.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, TypeVar

from aiothrottle._http.terms import Settlement
from aiothrottle.hooks import Request as HookRequest
from aiothrottle.permit import Permit

# Bytes and seconds. The body of a discarded response is read up to these, which keeps its
# connection; reading a longer one costs more than a new connection.
SHORT_BODY = 1 << 16
SHORT_TIME = 1.0


class Request(Protocol):
    """The part of a request that the loop reads."""

    @property
    def method(self) -> str:
        """The method, in capitals."""
        ...

    @property
    def url(self) -> Any:  # noqa: ANN401 - yarl.URL, httpx.URL
        """The absolute URL, of the client's own type."""
        ...


class Failure(NamedTuple):
    """What an exception means that the client raised in place of a response."""

    #: Whether it is retried where `Retry.exceptions` is None.
    retryable: bool = False
    #: Whether the server did not answer, or not in time: adaptive throttling counts a failure.
    unanswered: bool = False
    #: Host, status and headers of the response that it stands for.
    response: tuple[str, int, Mapping[str, str]] | None = None


_Request_contra = TypeVar("_Request_contra", bound=Request, contravariant=True)
_Response = TypeVar("_Response")


class Adapter(Protocol[_Request_contra, _Response]):
    """Translates the requests, responses and exceptions of one client."""

    def is_replayable(self, request: _Request_contra, /) -> bool:
        """Return whether another attempt would send the same body.

        The loop calls it before the first attempt, and after each one, as some bodies are consumed
        unnoticed.
        """
        ...

    def classify(self, error: Exception) -> Failure:
        """Return what an exception of the client means."""
        ...

    def receive(
        self, request: _Request_contra, response: _Response, permit: Permit | None, /
    ) -> tuple[int, Mapping[str, str]]:
        """Return status and headers, and have the response hold the permit until it ends."""
        ...

    def view(self, request: _Request_contra, /) -> HookRequest:
        """Return what a hook sees of a request that was not sent yet; nothing is consumed."""
        ...

    def follow(self, response: _Response, settlement: Settlement, /) -> None:
        """Feed the body to the settlement, as it is read, and end it when the body ends."""
        ...

    def host(self, response: _Response) -> str:
        """Return the host that sent the response, by which its profile is found."""
        ...

    async def read_body(self, response: _Response, *, unsized: bool) -> bytes | None:
        """Return a short body, which the caller can read once more; None if it is not short.

        Args:
            response: The response, unread.
            unsized: Whether a compressed body, or one of unknown length, is read too, as far as
                it is short. The caller is going to read it, so it may take its time.
        """
        ...

    def replayed(self, response: _Response) -> AbstractContextManager[Callable[[], _Response]]:
        """Keep what `Retry.should_retry` reads of the body.

        Yields a function; called at the end, it returns the response with its whole body unread.
        """
        ...

    async def close(self, response: _Response) -> None:
        """Close a response that is not returned, also if this is cancelled."""
        ...

    async def discard(self, response: _Response) -> None:
        """Close a response that is followed by another attempt, also if this is cancelled.

        A short body is read first, which keeps the connection.
        """
        ...

    async def prepare_again(self, request: _Request_contra, /) -> None:
        """Make a request ready for another attempt, after the delay."""
        ...

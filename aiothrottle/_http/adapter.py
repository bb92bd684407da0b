"""What the retry loop needs of an HTTP client; each integration has an adapter that does it."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, TypeVar

from aiothrottle.permit import Permit

__all__ = ["SHORT_BODY", "SHORT_TIME", "Adapter", "Failure", "Request"]

# A short body is read, so that the connection can be used again; a longer one costs more than a
# new connection. In bytes, and in seconds.
SHORT_BODY = 1 << 16
SHORT_TIME = 1.0


class Request(Protocol):
    """What the loop itself needs of a request."""

    @property
    def method(self) -> str:
        """The method, in capitals."""
        ...

    @property
    def url(self) -> Any:  # noqa: ANN401 - as the client has it
        """The absolute URL. It is asked for only where it matters."""
        ...


class Failure(NamedTuple):
    """What an exception says that was raised in place of a response."""

    #: Whether it is tried again where `Retry.exceptions` names none.
    retryable: bool = False
    #: Whether the server did not answer, or not in time: it may be overloaded.
    unanswered: bool = False
    #: Host, status and headers of the response that it stands for.
    response: tuple[str, int, Mapping[str, str]] | None = None


_Request_contra = TypeVar("_Request_contra", bound=Request, contravariant=True)
_Response = TypeVar("_Response")


class Adapter(Protocol[_Request_contra, _Response]):
    """Knows the requests, responses and exceptions of one client."""

    def is_replayable(self, request: _Request_contra, /) -> bool:
        """Tell whether an attempt sends the same body as the others.

        It is asked before and after each attempt: some bodies show only then that they are spent.
        """
        ...

    def classify(self, error: Exception) -> Failure:
        """Tell what an exception says that the client has raised."""
        ...

    def receive(
        self, request: _Request_contra, response: _Response, permit: Permit | None, /
    ) -> tuple[int, Mapping[str, str]]:
        """Return status and headers; the permit is released when the response ends, in any way."""
        ...

    def host(self, response: _Response) -> str:
        """Return the host that has sent the response: its vendor's profile is found by that."""
        ...

    async def read_body(self, response: _Response) -> bytes | None:
        """Read a short body; the caller can read it all the same. None: it is not short."""
        ...

    def replayed(self, response: _Response) -> AbstractContextManager[Callable[[], _Response]]:
        """Keep what `Retry.should_retry` reads of the body.

        What it yields, called at the end, returns the response as if nothing had been read of it.
        """
        ...

    async def close(self, response: _Response) -> None:
        """Close a response that nobody gets, also if this is cancelled."""
        ...

    async def discard(self, request: _Request_contra, response: _Response | None, /) -> None:
        """Clean up after an attempt that is followed by another one.

        A response is read if it is short, and closed, also if this is cancelled.
        """
        ...

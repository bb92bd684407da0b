"""The parts of httpx and httpx2 that a transport uses, as protocols."""

from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Protocol, TypeVar

__all__ = ["AsyncTransport", "Request", "Response", "Stream"]


class Request(Protocol):
    """The used part of the library's `Request`."""

    method: str
    url: Any
    stream: Any
    extensions: Any

    @property
    def headers(self) -> Any:  # noqa: ANN401 - a multidict of the library
        """The headers, by names of any case."""
        ...

    async def aread(self) -> bytes:
        """Read the body into memory."""
        ...


class Response(Protocol):
    """The used part of the library's `Response`."""

    status_code: int
    stream: Any
    request: Any
    is_closed: bool
    is_stream_consumed: bool
    extensions: dict[str, Any]
    history: list[Any]
    default_encoding: Any

    @property
    def headers(self) -> Any:  # noqa: ANN401 - a multidict of the library
        """The headers, by names of any case."""
        ...

    def aiter_raw(self) -> AsyncIterator[bytes]:
        """Iterate over the body as it was sent, then close."""
        ...

    async def aread(self) -> bytes:
        """Read the body into memory."""
        ...

    async def aclose(self) -> None:
        """Close the stream, if it is not closed."""
        ...


class Stream(Protocol):
    """The used part of the library's `AsyncByteStream`."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    async def aclose(self) -> None:
        """Release the connection, or close it."""
        ...


_Request_contra = TypeVar("_Request_contra", contravariant=True)
_Response_co = TypeVar("_Response_co", covariant=True)


class AsyncTransport(Protocol[_Request_contra, _Response_co]):
    """The used part of the library's `AsyncBaseTransport`."""

    async def handle_async_request(self, request: _Request_contra, /) -> _Response_co:
        """Send a request."""
        ...

    async def aclose(self) -> None:
        """Close all connections."""
        ...

    async def __aenter__(self) -> Any: ...  # noqa: ANN401 - it is not used

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None: ...

"""The result of a session's methods: it can be awaited, entered, or made a task."""

from collections.abc import Coroutine, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientWebSocketResponse

__all__ = ["RequestContext"]

_Result = TypeVar("_Result", bound="ClientResponse | ClientWebSocketResponse[bool]")


class RequestContext(Coroutine[Any, Any, _Result], Generic[_Result]):
    """A coroutine, for `await` and `create_task`, and an asynchronous context manager."""

    __slots__ = ("_coroutine", "_response")

    def __init__(self, coroutine: Coroutine[Any, Any, _Result]) -> None:
        self._coroutine = coroutine

    def send(self, value: Any, /) -> Any:  # noqa: ANN401 - a coroutine's signature
        """As a coroutine's."""
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:  # noqa: ANN401 - a coroutine's signature
        """As a coroutine's."""
        return self._coroutine.throw(*error)

    def close(self) -> None:
        """As a coroutine's."""
        self._coroutine.close()

    def __await__(self) -> Generator[Any, None, _Result]:
        return self._coroutine.__await__()

    async def __aenter__(self) -> _Result:
        self._response: _Result = await self._coroutine
        await self._response.__aenter__()
        return self._response

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._response.__aexit__(exc_type, exc, traceback)

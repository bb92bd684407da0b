"""The peers of the table: `aiohttp-retry` behind the limiter of another project, at the known rate.

Each request waits once for the limiter, and its retries do not, as where a limiter stands around
the call of a client that retries. They are imported where they are used: the lines are also read
where they are not installed.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self

from aiohttp import ClientResponse, TCPConnector

__all__ = ["PEERS", "Peer"]

_LIMIT, _AT_ONCE, _ATTEMPTS = 20, 8, 5
#: What means "throttled" at the servers of the table, or "try again later".
_STATUSES = {429, 503}

Enter = Callable[[], Awaitable[Any]]


def _aiolimiter() -> Enter:
    from aiolimiter import AsyncLimiter

    return AsyncLimiter(_LIMIT, 1).acquire


def _pyrate_limiter() -> Enter:
    from pyrate_limiter import Duration, Limiter, Rate

    return Limiter(Rate(_LIMIT, Duration.SECOND)).try_acquire_async


class Peer:
    """A client with `get`, as a session has it."""

    def __init__(self, make: Callable[[], Enter]) -> None:
        self._make = make

    async def __aenter__(self) -> Self:
        from aiohttp_retry import ExponentialRetry, RetryClient

        self._enter = self._make()
        self._client = RetryClient(
            retry_options=ExponentialRetry(_ATTEMPTS, statuses=_STATUSES),
            connector=TCPConnector(limit=_AT_ONCE),
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._client.close()

    @asynccontextmanager
    async def get(self, url: str) -> AsyncGenerator[ClientResponse]:
        """Wait for the limiter, and send; a retry does not wait again."""
        await self._enter()
        async with self._client.get(url) as response:
            yield response


#: By the text that stands for the arguments of a session.
PEERS: dict[str, Callable[[], Enter]] = {
    "AsyncLimiter(20, 1)": _aiolimiter,
    "Limiter(Rate(20, Duration.SECOND))": _pyrate_limiter,
}

"""A request of a session is cancelled before each single step of the loop, on real sockets.

Whether it is retried, redirected or half read by then: the slot is free afterwards, and no
connection is left in use.
"""

import asyncio
import gc
import io
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import pytest
from aiohttp import ClientTimeout

from aiothrottle import RateLimiter
from aiothrottle.aiohttp import Retry, ThrottledSession, throttled_session
from tests.misbehaving_server import LARGE, MisbehavingServer
from tests.serving import until

Make: TypeAlias = Callable[..., Any]
Use: TypeAlias = Callable[[Any, Any], Awaitable[object]]

RETRY = Retry(attempts=3, backoff=0.001)


async def read(session: Any, url: Any) -> None:  # noqa: ANN401 - one of both
    async with session.get(url / "later") as response:
        assert await response.read() == b"xxxx"


async def stream(session: Any, url: Any) -> None:  # noqa: ANN401
    async with session.get(url / "unread") as response:
        async for _ in response.content.iter_chunked(50_000):
            pass


async def leave_half_read(session: Any, url: Any) -> None:  # noqa: ANN401
    async with session.get(url / "large") as response:
        assert len(await response.content.readexactly(LARGE // 100)) == LARGE // 100


async def be_throttled(session: Any, url: Any) -> None:  # noqa: ANN401
    async with session.get(url / "throttled") as response:
        assert response.status == 200


async def be_throttled_with_a_large_body(session: Any, url: Any) -> None:  # noqa: ANN401
    async with session.get(url / "throttled-large") as response:
        assert response.status == 200


async def be_throttled_during_an_upload(session: Any, url: Any) -> None:  # noqa: ANN401
    async with session.post(url / "throttled", data=io.BytesIO(bytes(1000))) as response:
        assert response.status == 200


async def be_disconnected(session: Any, url: Any) -> None:  # noqa: ANN401
    async with session.get(url / "half-closed-early") as response:
        assert await response.read() == b"body"


async def be_redirected(session: Any, url: Any) -> None:  # noqa: ANN401
    async with session.get(url / "redirect") as response:
        assert await response.read() == b"body"


async def be_redirected_with_a_large_body(session: Any, url: Any) -> None:  # noqa: ANN401
    async with session.get(url / "redirect-large") as response:
        assert await response.read() == b"xxxx"


USES: list[Use] = [
    *(
        read,
        stream,
        leave_half_read,
        be_throttled,
        be_throttled_with_a_large_body,
        be_throttled_during_an_upload,
    ),
    *(be_disconnected, be_redirected, be_redirected_with_a_large_body),
]


class _Ready(deque[asyncio.Handle]):
    """The ready queue of a loop, which calls `step` before each callback."""

    step: Callable[[], None]

    def popleft(self) -> asyncio.Handle:
        self.step()
        return super().popleft()


class Steps(asyncio.SelectorEventLoop):
    """A loop on which the victim is cancelled before its n-th callback."""

    victim: "asyncio.Task[object] | None" = None

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at
        # Private to asyncio: see tests/interleaving.py.
        self._ready = _Ready()
        self._ready.step = self.step

    def step(self) -> None:
        if self.victim is not None:
            self.at -= 1
            if self.at == 0:
                self.victim.cancel()


class Reader:
    """A body reader that counts its ends."""

    def __init__(self, _: object) -> None:
        self.ends = 0

    def feed(self, chunk: bytes, /) -> None:
        assert chunk
        assert not self.ends

    def end(self, *, complete: bool) -> float:
        self.ends += 1
        return 2.0 if complete else 1.0


async def cancelled(
    loop: Steps, make: Make, use: Use, settle: Callable[[object], Reader] | None = None
) -> bool:
    """Return whether the victim was really cancelled; another request waits behind it."""
    limiter = RateLimiter(concurrency_limit=1)
    async with MisbehavingServer() as server:
        server.throttled_times, server.retry_after = 1, "Retry-After: 0.001\r\n"
        timeout = ClientTimeout(total=30)
        async with make(limiter, retry=RETRY, timeout=timeout, settle=settle) as session:
            victim = loop.victim = asyncio.ensure_future(use(session, server.url))
            other = asyncio.create_task(read(session, server.url))
            await asyncio.wait([victim, other])
            loop.victim = None
            other.result()
            if not victim.cancelled():
                victim.result()
            statistics = limiter.statistics()
            assert (statistics.in_flight, statistics.waiting) == (0, 0)
            assert not session.connector._acquired
        await until(lambda: not server.connected)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    return victim.cancelled()


@pytest.mark.parametrize("make", [ThrottledSession, throttled_session])
@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
def test_request_cancelled_at_any_step_leaves_nothing(use: Use, make: Make) -> None:
    at, often = 1, 0
    while True:
        loop = Steps(at)
        with asyncio.Runner(loop_factory=lambda loop=loop: loop) as runner:  # type: ignore[misc]
            often += runner.run(cancelled(loop, make, use))
        if loop.at > 0:
            break  # it was done before
        at += 1
    assert often >= 5


@pytest.mark.parametrize("make", [ThrottledSession, throttled_session])
@pytest.mark.parametrize(
    "use", [read, leave_half_read, be_throttled, be_throttled_with_a_large_body]
)
def test_body_reader_ends_once_wherever_cancelled(use: Use, make: Make) -> None:
    at = 1
    while True:
        readers: list[Reader] = []

        def settle(response: object, readers: list[Reader] = readers) -> Reader:
            readers.append(Reader(response))
            return readers[-1]

        loop = Steps(at)
        with asyncio.Runner(loop_factory=lambda loop=loop: loop) as runner:  # type: ignore[misc]
            runner.run(cancelled(loop, make, use, settle))
        gc.collect(0)
        assert readers
        assert {reader.ends for reader in readers} == {1}
        if loop.at > 0:
            break  # it was done before
        at += 1

"""Ctrl-C: `asyncio.run` turns it into a cancellation, which leaves no trace in a limiter."""

import asyncio
import signal
from collections.abc import Iterator

import pytest

from aiothrottle import RateLimiter
from aiothrottle.testing import VirtualTimeLoop


@pytest.fixture(autouse=True)
def _default_handler() -> Iterator[None]:
    """Handle SIGINT as Python does; a shell has background processes ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("turns", range(6))
@pytest.mark.parametrize("with_parent", [False, True], ids=["alone", "parent"])
def test_sigint_under_asyncio_run_leaves_no_trace(turns: int, *, with_parent: bool) -> None:
    parent = RateLimiter("3/s", concurrency_limit=2) if with_parent else None
    limiter = RateLimiter("2/s", concurrency_limit=2, parent=parent)

    async def worker() -> None:
        async with limiter.throttle():
            await asyncio.sleep(0.3)

    async def serve_some() -> None:
        workers = [asyncio.create_task(worker()) for _ in range(7)]
        for _ in range(turns):
            await asyncio.sleep(0)
        signal.raise_signal(signal.SIGINT)
        await asyncio.gather(*workers)

    with (
        pytest.raises(KeyboardInterrupt),
        asyncio.Runner(loop_factory=VirtualTimeLoop) as runner,
    ):
        runner.run(serve_some())

    for each in filter(None, (limiter, parent)):
        statistics = each.statistics()
        assert (statistics.in_flight, statistics.waiting) == (0, 0)

    async def serve_all() -> int:
        await asyncio.gather(*(worker() for _ in range(4)))
        return limiter.statistics().in_flight

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        assert runner.run(serve_all()) == 0

"""The search of `aiothrottle probe --find-limit`, in virtual time, against servers of each kind."""

import asyncio
from typing import Protocol

import pytest

from aiothrottle.cli.probe.search import Reply, Search, Tried
from aiothrottle.cli.suggestion import Advice, Sighting
from aiothrottle.rate import Rate
from aiothrottle.testing import VirtualTimeLoop
from aiothrottle.testing.algorithms import (
    FixedWindow,
    ServerAlgorithm,
    SlidingWindowLog,
    TokenBucket,
)

LATENCY = 0.002


class Kind(Protocol):
    def throttles(self, now: float) -> bool: ...


class Free:
    """Throttled requests cost nothing."""

    def __init__(self, algorithm: ServerAlgorithm) -> None:
        self._algorithm = algorithm

    def throttles(self, now: float) -> bool:
        if self._algorithm.ready_at() > now + 1e-9:
            return True
        self._algorithm.count(now)
        return False


class Counter:
    """HAProxy's counter of a second, with a part of the one before; of throttled ones too."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._second = self._here = self._before = 0

    def throttles(self, now: float) -> bool:
        second = int(now)
        if second > self._second:
            self._before = self._here if second == self._second + 1 else 0
            self._second, self._here = second, 0
        self._here += 1
        return int(self._here + self._before * (1 - (now - second))) > self._limit


class World:
    """A server in virtual time, and what was sent to it."""

    def __init__(self, kind: Kind, retry_after: float | None = None) -> None:
        self._kind = kind
        self._retry_after = retry_after
        self.sent = self.throttled = 0

    async def send(self) -> Reply:
        await asyncio.sleep(LATENCY)
        throttled = self._kind.throttles(asyncio.get_running_loop().time())
        self.sent += 1
        self.throttled += throttled
        return Reply(throttled, self._retry_after if throttled else None)

    async def find(self, most: int, *reported: Rate) -> Tried | None:
        clock = asyncio.get_running_loop().time
        began_at, admitted = clock(), 0
        while not (await self.send()).throttled:
            admitted += 1
        burst = Sighting(admitted, clock() - began_at, self._retry_after, refused=True)
        return await Search(self.send, most=most, reported=reported).run(burst)

    async def use(self, advice: Advice, seconds: float) -> tuple[int, int]:
        """Return how many requests the advised limiter sends, and how many are throttled."""
        await asyncio.sleep(60)
        clock = asyncio.get_running_loop().time
        limiter, end = advice.limiter(1), clock() + seconds
        sent, throttled = self.sent, self.throttled
        while clock() < end:
            async with limiter.throttle():
                await self.send()
        return self.sent - sent, self.throttled - throttled


@pytest.mark.parametrize(
    ("kind", "rate", "least"),
    [
        pytest.param(Free(TokenBucket(20, 1, 20)), 20.0, 0.9, id="bucket-of-the-limit"),
        pytest.param(Free(TokenBucket(20, 1, 5)), 20.0, 0.9, id="small-bucket"),
        pytest.param(Free(TokenBucket(20, 1, 1)), 20.0, 0.85, id="no-burst"),
        pytest.param(Free(TokenBucket(2, 1, 40)), 2.0, 0.85, id="bucket-far-above-the-rate"),
        pytest.param(Free(FixedWindow(20, 1, 0.3)), 20.0, 0.85, id="fixed-window"),
        pytest.param(Free(FixedWindow(3, 1)), 3.0, 0.75, id="slow-fixed-window"),
        pytest.param(Free(SlidingWindowLog(20, 1)), 20.0, 0.9, id="sliding-window"),
        pytest.param(Free(SlidingWindowLog(100, 10)), 10.0, 0.6, id="ten-seconds"),
        pytest.param(Counter(20), 20.0, 0.7, id="counts-throttled-requests-too"),
    ],
)
def test_advised_limiter_is_not_throttled(kind: Kind, rate: float, least: float) -> None:
    async def main() -> None:
        world = World(kind)
        tried = await world.find(3000)
        assert tried is not None
        assert tried.passed, tried
        sent, throttled = await world.use(tried.advice, 120)
        assert throttled <= 0.01 * sent, tried
        assert sent >= least * rate * 120, tried

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main())


def test_search_sends_no_more_than_it_may() -> None:
    async def main() -> None:
        world = World(Free(TokenBucket(200, 1, 100)))
        tried = await world.find(300)
        assert tried is None or not tried.passed
        assert world.sent <= 300 + 102 + 200

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main())


def test_reported_rate_is_tried_first() -> None:
    async def main() -> None:
        world = World(Free(SlidingWindowLog(20, 1)), retry_after=1.0)
        tried = await world.find(1000, Rate(20))
        assert tried is not None
        assert tried.passed
        assert tried.advice == Advice((Rate(20),))
        assert world.throttled == 1

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main())


def test_search_ends_if_the_server_asks_for_a_long_wait() -> None:
    async def main() -> None:
        world = World(Free(FixedWindow(20, 60)), retry_after=45.0)
        assert await world.find(1000) is None
        assert world.throttled == 1

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main())

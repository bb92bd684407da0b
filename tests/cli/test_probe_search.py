"""The search of `aiothrottle probe --find-limit`, in virtual time, against servers of each kind."""

import asyncio
import random
from collections.abc import Callable

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
from tests.server_limits import Admits, envoy, nginx, sliding_counter, token_bucket

LATENCY = 0.002


def free(algorithm: ServerAlgorithm) -> Admits:
    """Throttled requests cost nothing."""

    def admits(now: float) -> bool:
        if algorithm.ready_at() > now + 1e-9:
            return False
        algorithm.count(now)
        return True

    return admits


def locking(limit: int) -> Admits:
    """A window of a second from a request on; a client that exceeds it is locked out for one."""
    ends, count, locked_until = 0.0, 0, 0.0

    def admits(now: float) -> bool:
        nonlocal ends, count, locked_until
        if now < locked_until:
            return False
        if now >= ends:
            ends, count = now + 1.0, 0
        count += 1
        if count > limit:
            locked_until, ends = now + 1.0, 0.0
            return False
        return True

    return admits


class World:
    """A server in virtual time, and what was sent to it."""

    def __init__(
        self, admits: Admits, retry_after: float | None = None, jitter: float = 0.0
    ) -> None:
        self._admits = admits
        self._random, self._jitter = random.Random(1), jitter
        self._retry_after = retry_after
        self.sent = self.throttled = 0

    async def send(self) -> Reply:
        await asyncio.sleep(LATENCY + self._jitter * self._random.random())
        throttled = not self._admits(asyncio.get_running_loop().time())
        self.sent += 1
        self.throttled += throttled
        return Reply(throttled, self._retry_after if throttled else None)

    async def find(
        self, most: int, *reported: Rate, progress: Callable[[str], None] = lambda _: None
    ) -> Tried | None:
        clock = asyncio.get_running_loop().time
        began_at, admitted = clock(), 0
        while not (await self.send()).throttled:
            admitted += 1
        burst = Sighting(admitted, clock() - began_at, self._retry_after, throttled=True)
        search = Search(self.send, most=most, reported=reported, progress=progress)
        return await search.run(burst)

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
    ("admits", "rate", "least"),
    [
        pytest.param(free(TokenBucket(20, 1, 20)), 20.0, 0.9, id="bucket-of-the-limit"),
        pytest.param(free(TokenBucket(20, 1, 5)), 20.0, 0.9, id="small-bucket"),
        pytest.param(free(TokenBucket(20, 1, 1)), 20.0, 0.85, id="no-burst"),
        pytest.param(free(TokenBucket(2, 1, 40)), 2.0, 0.85, id="bucket-far-above-the-rate"),
        pytest.param(free(FixedWindow(20, 1, 0.3)), 20.0, 0.9, id="fixed-window"),
        pytest.param(free(FixedWindow(3, 1)), 3.0, 0.9, id="slow-fixed-window"),
        pytest.param(free(SlidingWindowLog(20, 1)), 20.0, 0.9, id="sliding-window"),
        pytest.param(free(SlidingWindowLog(100, 10)), 10.0, 0.9, id="ten-seconds"),
        pytest.param(sliding_counter(20), 20.0, 0.85, id="counts-throttled-requests-too"),
        pytest.param(locking(20), 20.0, 0.85, id="locks-a-client-out"),
        pytest.param(nginx(20, 20), 20.0, 0.9, id="nginx-burst-20"),
        pytest.param(nginx(20, 5), 20.0, 0.9, id="nginx-burst-5"),
        pytest.param(envoy(5, 0.25), 20.0, 0.9, id="envoy-5"),
        pytest.param(envoy(20, 1.0), 20.0, 0.9, id="envoy-20"),
        pytest.param(token_bucket(20, 5, 0.5), 20.0, 0.9, id="traefik-burst-5"),
        pytest.param(free(TokenBucket(100, 1, 50)), 100.0, 0.9, id="fast-bucket"),
        pytest.param(free(TokenBucket(20, 60, 3)), 1 / 3, 0.85, id="twenty-a-minute"),
    ],
)
def test_advised_limiter_is_not_throttled(admits: Admits, rate: float, least: float) -> None:
    async def main() -> None:
        world = World(admits)
        tried = await world.find(3000)
        assert tried is not None
        assert tried.passed, tried
        sent, throttled = await world.use(tried.advice, 120)
        assert throttled <= 0.01 * sent, tried
        assert sent >= least * rate * 120, tried

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main())


def test_requests_of_a_server_without_burst_may_be_late() -> None:
    async def main() -> None:
        world = World(nginx(20, 0), jitter=0.004)
        tried = await world.find(2000)
        assert tried is not None
        assert tried.passed
        sent, throttled = await world.use(tried.advice, 120)
        assert throttled <= 0.01 * sent, tried
        assert sent >= 0.85 * 20 * 120, tried

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main())


def test_one_early_request_is_tolerated_without_burst() -> None:
    async def main() -> None:
        admits, tries = nginx(20, 0), 0

        def admits_all_but_one(now: float) -> bool:
            nonlocal tries
            tries += steps[-1].startswith("trying")
            return tries != 100 and admits(now)

        world, steps = World(admits_all_but_one), [""]
        tried = await world.find(2000, progress=steps.append)
        assert tried is not None
        assert tried.passed
        assert tried.throttled == 1
        assert tried.advice == Advice((Rate(20),), 1, spaced=True)

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main())


def test_large_bucket_is_not_taken_for_a_high_rate() -> None:
    """Nothing above the measured rate is tried: a bucket takes long to overflow."""

    async def main() -> None:
        world = World(nginx(20, 20))
        tried = await world.find(2000)
        assert tried is not None
        assert tried.advice == Advice((Rate(20),))
        # Before the one try of 200: the climb, its last pace for 3 s, and the one before for 5 s.
        assert world.sent <= 550
        assert world.throttled <= 80

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main())


def test_steps_are_reported() -> None:
    async def main() -> None:
        steps: list[str] = []
        await World(free(TokenBucket(20, 1, 20))).find(2000, progress=steps.append)
        assert steps[0] == "waiting 2 s"
        assert steps[1].startswith("sending ")
        assert steps[-1] == 'trying RateLimiter("20/s", guard=0.05)'

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main())


def test_search_sends_no_more_than_it_may() -> None:
    async def main() -> None:
        world = World(free(TokenBucket(200, 1, 100)))
        tried = await world.find(300)
        assert tried is None or not tried.passed
        assert world.sent <= 300 + 102 + 200

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main())


def test_reported_rate_is_tried_first() -> None:
    async def main() -> None:
        world = World(free(SlidingWindowLog(20, 1)), retry_after=1.0)
        tried = await world.find(1000, Rate(20))
        assert tried is not None
        assert tried.passed
        assert tried.advice == Advice((Rate(20),))
        assert world.throttled == 1

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main())


def test_search_ends_if_the_server_asks_for_a_long_wait() -> None:
    async def main() -> None:
        world = World(free(FixedWindow(20, 60)), retry_after=45.0)
        assert await world.find(1000) is None
        assert world.throttled == 1

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main())

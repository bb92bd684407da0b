"""The search of `aiothrottle probe --find-limit`, in virtual time, against servers of each kind."""

import asyncio
import random
from collections.abc import Callable

import pytest

from aiothrottle import Rate, RateLimiter
from aiothrottle.cli.advice import Advice, Sighting, about
from aiothrottle.cli.search import Reply, Search, Tried
from aiothrottle.testing.algorithms import (
    FixedWindow,
    ServerAlgorithm,
    SlidingWindowLog,
    TokenBucket,
)
from tests.adaptive.session_in_time import run
from tests.support.server_limits import Admits, envoy, nginx, sliding_counter, token_bucket
from tests.support.virtually import now, on_virtual_loop, virtual

LATENCY = 0.002


def free(algorithm: ServerAlgorithm) -> Admits:
    """Throttled requests cost nothing."""

    def admits(now: float) -> bool:
        ready = algorithm.ready_at() <= now + 1e-9
        if ready:
            algorithm.count(now)
        return ready

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
        return count <= limit

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
        throttled = not self._admits(now())
        self.sent += 1
        self.throttled += throttled
        return Reply(throttled, self._retry_after if throttled else None)

    async def find(
        self, most: int, *reported: Rate, progress: Callable[[str], None] = lambda _: None
    ) -> Tried | None:
        began_at, admitted = now(), 0
        while not (await self.send()).throttled:
            admitted += 1
        burst = Sighting(admitted, now() - began_at, self._retry_after, throttled=True)
        search = Search(self.send, most, reported=reported, progress=progress)
        return await search.run(burst)

    async def use(self, advice: Advice, seconds: float) -> tuple[int, int]:
        """Return how many requests the advised limiter sends, and how many are throttled."""
        await asyncio.sleep(60)
        limiter, end = advice.limiter(1), now() + seconds
        sent, throttled = self.sent, self.throttled
        while now() < end:
            async with limiter.throttle():
                await self.send()
        return self.sent - sent, self.throttled - throttled


KINDS = {
    "late requests": (nginx(20, 0), 20.0, 0.85),
    "bucket of the limit": (free(TokenBucket(20, 1, 20)), 20.0, 0.9),
    "no burst": (free(TokenBucket(20, 1, 1)), 20.0, 0.85),
    "bucket far above the rate": (free(TokenBucket(2, 1, 40)), 2.0, 0.85),
    "slow fixed window": (free(FixedWindow(3, 1)), 3.0, 0.9),
    "ten seconds": (free(SlidingWindowLog(100, 10)), 10.0, 0.9),
    "counts throttled requests too": (sliding_counter(20), 20.0, 0.85),
    "locks a client out": (locking(20), 20.0, 0.85),
    "nginx, burst 5": (nginx(20, 5), 20.0, 0.9),
    "envoy, 20": (envoy(20, 1.0), 20.0, 0.9),
    "traefik, burst 5": (token_bucket(20, 5, 0.5), 20.0, 0.9),
    "fast bucket": (free(TokenBucket(100, 1, 50)), 100.0, 0.9),
    "twenty a minute": (free(TokenBucket(20, 60, 3)), 1 / 3, 0.85),
    "fifteen in ten seconds": (free(SlidingWindowLog(15, 10)), 1.5, 0.8),
    "bucket that fills slowly": (free(TokenBucket(1, 2, 5)), 0.5, 0.9),
    "windows of ten seconds": (free(FixedWindow(50, 10)), 5.0, 0.9),
}


@pytest.mark.parametrize("kind", KINDS)
@virtual
async def test_advised_limiter_is_not_throttled(kind: str) -> None:
    admits, rate, least = KINDS[kind]
    world = World(admits, jitter=0.004 if kind == "late requests" else 0.0)
    tried = await world.find(3000)
    assert tried is not None
    assert tried.passed, tried
    sent, throttled = await world.use(tried.advice, 120)
    assert throttled <= 0.01 * sent, tried
    assert sent >= least * rate * 120, tried


AGREED: dict[str, tuple[Callable[[], Admits], float]] = {
    "bucket": (lambda: token_bucket(5, 10), 5.0),
    "even spacing": (lambda: nginx(20, 0), 20.0),
    "fixed window": (lambda: free(FixedWindow(20, 1)), 20.0),
    "small window": (lambda: free(SlidingWindowLog(5, 1)), 5.0),
}


@pytest.mark.parametrize("kind", AGREED)
def test_probe_and_fetch_say_nearly_the_same(kind: str) -> None:
    make, rate = AGREED[kind]
    tried = on_virtual_loop(World(make(), jitter=0.003).find(3000))
    assert tried is not None
    (probed,) = tried.advice.rates
    limiter = RateLimiter(concurrency_limit=10)  # that of a fetch without a rate
    run(make(), 60.0, limiter=limiter, workers=10)
    fetched = limiter.statistics().rate_limit
    assert fetched is not None
    said = [each.limit / each.period for each in (probed, Rate.parse(about(fetched)))]
    assert said[1] == pytest.approx(said[0], rel=0.1)
    assert said == pytest.approx([rate, rate], rel=0.1)


@virtual
async def test_one_early_request_is_tolerated_without_burst() -> None:
    admits, tries, steps = nginx(20, 0), 0, [""]

    def admits_all_but_one(now: float) -> bool:
        nonlocal tries
        tries += steps[-1].startswith("trying")
        return tries != 100 and admits(now)

    tried = await World(admits_all_but_one).find(2000, progress=steps.append)
    assert tried is not None
    assert (tried.passed, tried.throttled) == (True, 1)
    assert tried.advice == Advice((Rate(20),), 1, spaced=True)


@virtual
async def test_large_bucket_is_not_taken_for_a_high_rate() -> None:
    """Nothing above the measured rate is tried: a bucket takes long to overflow."""
    world, steps = World(nginx(20, 20)), list[str]()
    tried = await world.find(2000, progress=steps.append)
    assert tried is not None
    assert tried.advice == Advice((Rate(20),))
    assert steps[0] == "waiting 2 s"
    assert steps[1].startswith("sending ")
    assert steps[-1] == 'trying RateLimiter("20/s", guard=0.05)'
    # Before the one try of 200: the climb, its last pace for 3 s, and the one before for 5 s.
    assert world.sent <= 550
    assert world.throttled <= 80


@virtual
async def test_search_keeps_to_what_it_may_send_and_what_is_reported() -> None:
    world = World(free(TokenBucket(200, 1, 100)))
    tried = await world.find(300)
    assert tried is None or not tried.passed
    assert world.sent <= 300 + 102 + 200
    world = World(free(SlidingWindowLog(20, 1)), retry_after=1.0)
    tried = await world.find(1000, Rate(20))
    assert tried is not None
    assert (tried.passed, tried.advice, world.throttled) == (True, Advice((Rate(20),)), 1)
    # A window that the climb does not fill.
    world = World(free(SlidingWindowLog(60, 20)), retry_after=20.0)
    tried = await world.find(2000)
    assert tried is not None
    assert tried.passed
    assert 2.7 < tried.advice.per_second <= 3
    # The server asks for a long wait.
    world = World(free(FixedWindow(20, 60)), retry_after=45.0)
    assert await world.find(1000) is None
    assert world.throttled == 1

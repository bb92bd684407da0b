"""Published reactions to 429s, as limiters of ours that follow the same rules.

Each is the published rule, at the rate of requests of a closed loop of workers. Rules per request
pause only the request that was throttled.
"""

import asyncio
import math
import random
from collections.abc import Callable
from typing import NamedTuple

from aiothrottle import RateLimiter, TokenBucket
from aiothrottle.simulation import Arrival, Server
from aiothrottle.testing import VirtualTimeLoop

__all__ = ["AutoThrottle", "AwsCubic", "BackOff", "RetryAfterAlone", "Rival", "run"]

# The rate while no rate limit is in force yet.
_NO_LIMIT = 1e6


class Throttled(NamedTuple):
    """A 429: its time, its Retry-After, the attempt that it answers, and a draw from [0, 1)."""

    now: float
    retry_after: float
    attempt: int
    chance: float


class Rival:
    """A rule: the wait before a request, and the reaction to its response."""

    def __init__(self) -> None:
        self.limiter = RateLimiter()

    def succeeded(self, now: float, took: float) -> None:
        """Record a success."""

    def throttled(self, response: Throttled) -> float:
        """Record a 429; return the seconds until this request is retried."""
        raise NotImplementedError


class BackOff(Rival):
    """Exponential backoff with full jitter: 0.5 s, doubled each time, 30 s at the most."""

    def throttled(self, response: Throttled) -> float:
        return response.chance * min(30.0, 0.5 * 2.0 ** min(response.attempt, 10))


class RetryAfterAlone(Rival):
    """Each request waits for its own Retry-After, and no other does."""

    def throttled(self, response: Throttled) -> float:
        return response.retry_after


class AwsCubic(Rival):
    """The adaptive mode of the AWS SDKs: a cubic whose constant is in seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.limiter = RateLimiter(_NO_LIMIT, algorithm=TokenBucket(burst=1), guard=0.0)
        self._enabled = False
        self._measured = self._fill = self._ceiling = self._k = self._cut_at = 0.0
        self._counted, self._slice = 0, 0.0

    def succeeded(self, now: float, took: float) -> None:  # noqa: ARG002
        self._measure(now)
        if self._enabled:
            wanted = 0.4 * (now - self._cut_at - self._k) ** 3 + self._ceiling
            self._fill_at(min(wanted, 2.0 * self._measured))

    def throttled(self, response: Throttled) -> float:
        self._measure(response.now)
        rate = min(self._measured, self._fill) if self._enabled else self._measured
        self._ceiling, self._cut_at, self._enabled = rate, response.now, True
        self._k = (rate * 0.3 / 0.4) ** (1 / 3)
        self._fill_at(min(0.7 * rate, 2.0 * self._measured))
        return response.chance * min(20.0, 2.0 ** min(response.attempt, 10))

    def _measure(self, now: float) -> None:
        self._counted += 1
        if now - self._slice >= 0.5:
            rate = self._counted / (now - self._slice)
            self._measured = 0.8 * rate + 0.2 * self._measured
            self._counted, self._slice = 0, now

    def _fill_at(self, rate: float) -> None:
        self._fill = max(0.5, rate)
        self.limiter.update(rate_limit=self._fill)


class AutoThrottle(Rival):
    """Scrapy's extension: a delay from the latency, for a target concurrency; here one."""

    def __init__(self, target: float = 1.0) -> None:
        super().__init__()
        self._target = target
        self._delay = 5.0
        self.limiter = RateLimiter(1.0 / self._delay, algorithm=TokenBucket(burst=1), guard=0.0)

    def succeeded(self, now: float, took: float) -> None:  # noqa: ARG002
        wanted = took / self._target
        self._delay = min(60.0, max(wanted, (self._delay + wanted) / 2.0))
        self.limiter.update(rate_limit=1.0 / self._delay)

    def throttled(self, response: Throttled) -> float:  # noqa: ARG002
        # The response is not a 200, so it may not make the delay shorter; it is not longer either.
        return 0.0


def run(
    make: Callable[[], Rival],
    server: Server,
    *,
    workers: int,
    latency: float,
    seconds: float,
    seed: int,
) -> list[Arrival]:
    """Simulate workers with that rule, as `simulate` does with a limiter; return the arrivals."""
    world = _World(make(), server, latency, seed)
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(world.run(workers, seconds))
    return world.arrivals


class _World:
    """One client, one server, and the network between them."""

    def __init__(self, rival: Rival, server: Server, latency: float, seed: int) -> None:
        self.arrivals: list[Arrival] = []
        self._rival = rival
        self._chance = random.Random(f"{seed} {type(rival).__name__}")
        self._algorithm = server.make_algorithm(
            random.Random(f"{seed} phase").random() * server.period
        )
        self._latency = latency

    async def run(self, workers: int, seconds: float) -> None:
        """Let the workers send until the time is over."""
        tasks = [asyncio.create_task(self._send_on_and_on()) for _ in range(workers)]
        await asyncio.wait(tasks, timeout=seconds)
        for task in tasks:
            task.cancel()

    async def _send_on_and_on(self) -> None:
        time = asyncio.get_running_loop().time
        attempt = 0
        while True:
            async with self._rival.limiter.throttle():
                begun = time()
                await self._travel()
                wait = self._arrive(time())
                await self._travel()
            if wait is None:
                attempt = 0
                self._rival.succeeded(time(), time() - begun)
            else:
                retry_after = float(math.ceil(wait))
                attempt += 1
                response = Throttled(time(), retry_after, attempt, self._chance.random())
                await asyncio.sleep(self._rival.throttled(response))

    async def _travel(self) -> None:
        await asyncio.sleep(self._latency + self._chance.random() * 0.01)

    def _arrive(self, now: float) -> float | None:
        """Return None if the request is admitted, else the seconds until one would be."""
        ready_at = self._algorithm.ready_at()
        throttled = ready_at > now
        self.arrivals.append(Arrival(now, 0, throttled))
        if throttled:
            return ready_at - now
        self._algorithm.count(now)
        return None

"""The peers, each by its own documented use, and the yardsticks. Each states its promise.

Every factory takes the rate per second and the burst, and returns a contestant, or None where its
library has no such limit. Libraries are imported where they are used: a process that measures one
of them loads only that one.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Self, cast

from contestant import Awaited, Begin, Contestant, Entered, Made
from promises import Bucket, Window

__all__ = ["PEERS", "BareGate", "no_op", "semaphore"]


class NoOp:
    """A throttle that throttles nothing."""

    __slots__ = ()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, exc_type: object, exc: object, traceback: object) -> None:
        return None


class NoOpLimiter:
    """A limiter that limits nothing, called like the real one."""

    def throttle(
        self,
        cost: float = 1.0,  # noqa: ARG002 - the shape of the real one
        priority: float = 0,  # noqa: ARG002
        timeout: float | None = None,  # noqa: ARG002
    ) -> NoOp:
        """Return a block that does nothing."""
        return NoOp()


class BareGate:
    """At most `burst + rate * t`, first in, first out; and nothing else.

    This is the least that a queue of futures served by one timer can cost: no slots, no costs, no
    pause, no statistics, and the token of a cancelled waiter is lost. The bucket is full at first:
    every newcomer waits.
    """

    __slots__ = ("burst", "last", "rate", "timer", "tokens", "waiters")

    def __init__(self, rate: float, burst: float) -> None:
        self.rate, self.burst = rate, burst
        self.tokens, self.last = 0.0, time.monotonic()
        self.waiters: deque[asyncio.Future[None]] = deque()
        self.timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> None:
        if not self.waiters and self._drained() >= 1.0:
            self.tokens -= 1.0
            return
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self.waiters.append(future)
        if self.timer is None:
            self.timer = loop.call_later((1.0 - self.tokens) / self.rate, self._serve)
        await future

    async def __aexit__(self, exc_type: object, exc: object, traceback: object) -> None:
        return None

    def _drained(self) -> float:
        now = time.monotonic()
        self.tokens = min(self.burst, self.tokens + (now - self.last) * self.rate)
        self.last = now
        return self.tokens

    def _serve(self) -> None:
        waiters = self.waiters
        served = min(int(self._drained()), len(waiters))
        for _ in range(served):
            future = waiters.popleft()
            if not future.done():  # cancelled
                future.set_result(None)
        self.tokens -= served
        self.timer = None
        if waiters:
            loop = asyncio.get_running_loop()
            self.timer = loop.call_later((1.0 - self.tokens) / self.rate, self._serve)


class BareTimer:
    """One in any `1/rate`, by a lock and a timer: the best that the timers of asyncio allow.

    They are no finer than a millisecond on most systems, and the lateness of a timer is lost,
    because two requests would follow each other too closely otherwise.
    """

    __slots__ = ("interval", "last", "lock")

    def __init__(self, rate: float) -> None:
        self.interval, self.last = 1.0 / rate, -1.0
        self.lock = asyncio.Lock()

    async def __aenter__(self) -> None:
        async with self.lock:
            while (wait := self.last + self.interval - time.monotonic()) > 0.0:  # noqa: ASYNC110 - no event
                await asyncio.sleep(wait)
            self.last = time.monotonic()

    async def __aexit__(self, exc_type: object, exc: object, traceback: object) -> None:
        return None


def no_op() -> Contestant:
    """No promise: the least that `async with limiter.throttle()` can cost."""
    return Made(NoOpLimiter().throttle)


def semaphore(slots: int = 1000) -> Contestant:
    """Bounds the requests in flight, not their rate."""
    return Entered(asyncio.Semaphore(slots))


def bare_gate(rate: int, burst: int) -> Contestant:
    """At most burst + rate * t in any time t, and nothing else."""
    return Entered(BareGate(rate, burst), Bucket(rate, burst))


def bare_timer(rate: int, burst: int) -> Contestant | None:
    """At most 1 + rate * t in any time t, and nothing else."""
    return Entered(BareTimer(rate), Bucket(rate, 1)) if burst == 1 else None


def aiolimiter(rate: int, burst: int) -> Contestant:
    """At most burst + rate * t in any time t. A heap of futures by amount, one timer."""
    from aiolimiter import AsyncLimiter

    return Entered(AsyncLimiter(burst, burst / rate), Bucket(rate, burst))


def asyncio_throttle(rate: int, burst: int) -> Contestant:
    """Never more than burst in any burst/rate seconds. Each waiter polls every 10 ms."""
    from asyncio_throttle.throttler import Throttler

    throttler = cast("Callable[..., Any]", Throttler)(rate_limit=burst, period=burst / rate)
    return Entered(throttler, Window(burst, burst / rate))


def pyrate_limiter(rate: int, burst: int) -> Contestant:
    """With burst = rate never more than that in a second; else burst + rate * t (token bucket).

    As on its page about asyncio, with the buffer of 50 ms that it adds to every wait by default.
    """
    from pyrate_limiter import (
        BucketAsyncWrapper,
        Duration,
        InMemoryBucket,
        Limiter,
        Rate,
        StateBucket,
        TokenBucket,
    )

    if burst == rate:
        bucket = BucketAsyncWrapper(InMemoryBucket([Rate(rate, Duration.SECOND)]))
        return Awaited(Limiter(bucket).try_acquire_async, Window(rate))
    rates = [Rate(rate, Duration.SECOND, burst=burst)]
    state = BucketAsyncWrapper(StateBucket(rates, algorithm=TokenBucket()))
    return Awaited(Limiter(state).try_acquire_async, Bucket(rate, burst))


def limits(rate: int, burst: int) -> Contestant | None:
    """Never more than the limit in any second (moving window); periods are whole seconds.

    It has no waiting. Its page says to sleep until `reset_time` and to ask again.
    """
    if burst != rate:
        return None
    from limits import RateLimitItemPerSecond
    from limits.aio.storage import MemoryStorage
    from limits.aio.strategies import MovingWindowRateLimiter

    limiter = MovingWindowRateLimiter(cast("Any", MemoryStorage()))
    item = RateLimitItemPerSecond(rate)

    async def acquire() -> None:
        while not await limiter.hit(item):
            stats = await limiter.get_window_stats(item)
            await asyncio.sleep(max(0.0, stats.reset_time - time.time()))

    return Awaited(acquire, Window(rate))


def throttled(rate: int, burst: int) -> Contestant:
    """At most burst + rate * t in any time t (token bucket, its default). Each waiter polls."""
    from throttled.asyncio import MemoryStore, Throttled

    throttle = Throttled(
        key="key", timeout=3600, quota=f"{rate}/s burst {burst}", store=MemoryStore()
    )
    return Awaited(throttle.limit, Bucket(rate, burst))


class Aiometer(Contestant):
    """Starts functions evenly spaced. It has no single entry, only a batch of functions."""

    def __init__(self, rate: int) -> None:
        super().__init__(Bucket(rate, 1))
        self.rate = rate

    async def once(self, begin: Begin) -> None:
        """Run one function."""
        await self._run(begin, 1)

    async def repeat(self, times: int) -> None:
        """Run many."""
        await self._run(lambda: None, times)

    async def saturate(self, begin: Begin, seconds: float, workers: int) -> None:
        """Start as many as the limit allows, and some more."""
        del workers
        try:
            async with asyncio.timeout(seconds + 0.5):
                await self._run(begin, int(self.rate * (seconds + 1)))
        except TimeoutError:
            pass

    async def _run(self, begin: Begin, times: int) -> None:
        import aiometer

        async def job() -> None:
            begin()

        await aiometer.run_all([partial(job)] * times, max_per_second=self.rate)


def aiometer(rate: int, burst: int) -> Contestant | None:
    """Evenly spaced: at most 1 + rate * t in any time t."""
    return Aiometer(rate) if burst == 1 else None


PEERS: dict[str, Callable[[int, int], Contestant | None]] = {
    "aiolimiter": aiolimiter,
    "asyncio-throttle": asyncio_throttle,
    "pyrate-limiter": pyrate_limiter,
    "limits": limits,
    "throttled-py": throttled,
    "aiometer": aiometer,
}

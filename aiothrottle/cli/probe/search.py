"""Searches the rate that a server admits in the long run: ``aiothrottle probe --find-limit``.

Nothing is advised that was not tried: a limiter with the very arguments of the advice sends
requests for some seconds, and not one of them is throttled. A burst that is welcome is not the
rate, and a rate with room for bursts is not that of a server without: so the search paces its
requests evenly and ever faster until one is throttled, measures what is admitted in spite of it,
and tries what lies between, the fastest first. Before each try the server has time to recover.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from aiothrottle.cli.suggestion import Advice, Sighting, readable_rate
from aiothrottle.errors import ThrottleTimeout
from aiothrottle.limiter import RateLimiter
from aiothrottle.rate import Rate

__all__ = ["LONGEST_WAIT", "Reply", "Search", "Tried", "advices", "candidates"]

#: Seconds. A server that lets a client wait longer is not waited for.
LONGEST_WAIT = 30.0

# Seconds without requests after a throttled one, at the least.
_REST = 2.0
# The steps of ever faster requests: the growth, and the least seconds and requests of a step.
# A pace below the slowest is not searched any further.
_GROWTH, _STEP_SECONDS, _STEP_REQUESTS, _SLOWEST = 1.6, 1.0, 3, 0.1
# The admitted requests are counted for so many seconds, or requests: whole windows of a second.
_COUNTED_SECONDS, _COUNTED_REQUESTS = 3, 60
# A try takes so many seconds, or so many requests, or what a bucket of the observed size needs to
# overflow so many times; and so many seconds at the most.
_TRY_SECONDS, _TRY_REQUESTS, _OVERFLOWS, _LONGEST_TRY = 4.0, 30, 1.5, 30.0
# By that part a measured rate may be wrong.
_ERROR = 0.06
# By that factor the next try is slower, so many times, if nothing better is known.
_SLOWER, _FALLBACKS = 0.85, 10


class Reply(NamedTuple):
    """What the search needs of a response."""

    throttled: bool
    retry_after: float | None = None


class Tried(NamedTuple):
    """The last try of the search: `sent` requests in `seconds`, and whether none was throttled."""

    advice: Advice
    sent: int
    seconds: float
    passed: bool


@dataclass(slots=True)
class _Count:
    """The requests of a step. Since the first throttled one, up to the last one: `between`."""

    admitted: int = 0
    throttled: int = 0
    first_at: float = math.inf
    last_at: float = -math.inf
    since_first: int = 0
    between: int = 0

    def add(self, now: float, *, throttled: bool) -> None:
        if throttled:
            self.throttled += 1
            self.first_at = min(self.first_at, now)
            self.last_at, self.between = now, self.since_first
        else:
            self.admitted += 1
            self.since_first += self.throttled > 0

    @property
    def rate(self) -> float:
        """The admitted requests per second between the first and the last throttled one."""
        seconds = self.last_at - self.first_at
        return self.between / seconds if seconds > 0 else 0.0


class Search:
    """A search, after a burst that ended with a throttled request.

    Args:
        send: Sends a request.
        most: The most requests to send.
        at_once: The number of concurrent requests.
        reported: The rates that the server reports.
    """

    def __init__(
        self,
        send: Callable[[], Awaitable[Reply]],
        *,
        most: int,
        at_once: int = 1,
        reported: Sequence[Rate] = (),
    ) -> None:
        self._send = send
        self._left = most
        self._at_once = at_once
        self._reported = tuple(reported)
        self._wait = _REST

    async def run(self, burst: Sighting) -> Tried | None:
        """Search, and return the first try in which no request was throttled.

        Returns:
            Otherwise the last try; None if there was none: the server lets clients wait too long,
            or there are too few requests.
        """
        self._wait = max(_REST, burst.retry_after or 0.0)
        tried = None
        await self._recover()
        if self._reported and self._goes_on:
            tried = await self._try(Advice(self._reported), _TRY_SECONDS)
            if tried.passed:
                return tried
        clean, throttled = await self._climb(burst)
        measured = 0.0
        if clean and self._goes_on:
            counted = max(_COUNTED_SECONDS, math.ceil(_COUNTED_REQUESTS / throttled))
            measured = (await self._pace(throttled, counted)).rate
        for rate in candidates(clean, throttled, measured):
            # Beyond what was measured it is likely too fast: tried once, and without a burst.
            likely = rate <= measured * (1 + _ERROR) or not measured
            for advice in advices(rate, burst.admitted - 1 if likely else 1):
                seconds = _try_seconds(advice.per_second, measured, burst.admitted)
                if seconds > _LONGEST_TRY:
                    continue  # it would not be noticed that the rate is too high
                if not self._goes_on:
                    return tried
                tried = await self._try(advice, seconds)
                if tried.passed:
                    return tried
        return tried

    @property
    def _goes_on(self) -> bool:
        return self._left > 0 and self._wait <= LONGEST_WAIT

    async def _recover(self) -> None:
        """Wait until the server admits a request after the burst; that is how long it takes."""
        while self._goes_on:
            await asyncio.sleep(self._wait)
            if not (await self._counted()).throttled:
                return
            self._wait *= 2

    async def _climb(self, burst: Sighting) -> tuple[float, float]:
        """Return the fastest even pace that was not throttled (0.0: none), and the one that was."""
        pace = burst.admitted / (burst.seconds + self._wait)
        clean, throttled = 0.0, math.inf
        while self._goes_on and throttled == math.inf:
            await asyncio.sleep(1 / pace)  # since the last request of the step before
            seconds = max(_STEP_SECONDS, _STEP_REQUESTS / pace)
            count = await self._pace(pace, seconds, until_throttled=True)
            if not count.throttled:
                clean, pace = pace, pace * _GROWTH
            elif clean or pace < _SLOWEST:
                throttled = pace
            else:  # still in the wake of the burst, or that slow
                pace /= 2
                await asyncio.sleep(self._wait)
        return clean, throttled

    async def _try(self, advice: Advice, seconds: float) -> Tried:
        await asyncio.sleep(self._wait)
        began_at = asyncio.get_running_loop().time()
        count = await self._send_for(advice.limiter(self._at_once), seconds, until_throttled=True)
        lasted = asyncio.get_running_loop().time() - began_at
        passed = not count.throttled and self._left > 0
        return Tried(advice, count.admitted + count.throttled, lasted, passed)

    async def _pace(self, rate: float, seconds: float, *, until_throttled: bool = False) -> _Count:
        limiter = RateLimiter(rate, burst=1, guard=0.0, concurrency_limit=self._at_once)
        return await self._send_for(limiter, seconds, until_throttled=until_throttled)

    async def _send_for(
        self, limiter: RateLimiter, seconds: float, *, until_throttled: bool
    ) -> _Count:
        """Send what the limiter grants within some seconds, if wanted until one is throttled."""
        clock = asyncio.get_running_loop().time
        end = clock() + seconds
        count = _Count()

        async def work() -> None:
            while self._left > 0 and not (until_throttled and count.throttled):
                try:
                    async with limiter.throttle(timeout=max(end - clock(), 0.0)):
                        reply = await self._counted()
                except ThrottleTimeout:
                    return
                count.add(clock(), throttled=reply.throttled)
                if clock() >= end:
                    return

        async with asyncio.TaskGroup() as group:
            for _ in range(self._at_once):
                group.create_task(work())
        return count

    async def _counted(self) -> Reply:
        self._left -= 1
        reply = await self._send()
        self._wait = max(self._wait, reply.retry_after or 0.0)
        return reply


def candidates(clean: float, throttled: float, measured: float) -> list[float]:
    """Return requests per second to try, the most first.

    Args:
        clean: A pace that was not throttled, or 0.
        throttled: A faster one that was; infinite if there is none.
        measured: What was admitted at that pace, or 0. Where room for a burst was used up it is
            the rate; a server that counts throttled requests too admits next to nothing.

    >>> candidates(13.4, 21.5, 0.4)[:6]
    [20.0, 18.0, 13.0, 11.0, 9.5, 8.0]
    >>> candidates(25.6, 41.0, 20.3)[:6]
    [40.0, 34.0, 25.0, 20.0, 19.0, 18.0]
    """
    found: set[float] = set()
    if clean:
        most = min(throttled, clean * _GROWTH)
        found |= {_roundest(clean, most), _SLOWER * most}
        found |= {clean * _SLOWER**it for it in range(_FALLBACKS)}
    if measured:
        most = measured * (1 + _ERROR)
        likely = _roundest(measured * (1 - _ERROR), most)
        found = {it for it in found if not likely < _round(it) <= most}
        found |= {likely, 0.97 * measured, _SLOWER * measured}
    return sorted({_round(it) for it in found if it < throttled}, reverse=True)


def _try_seconds(rate: float, measured: float, burst: int) -> float:
    """Return how long a try has to be: a bucket that holds the observed burst has to overflow."""
    seconds = max(_TRY_SECONDS, _TRY_REQUESTS / rate)
    if burst > 1 and rate > measured * (1 + _ERROR / 2):
        return max(seconds, _OVERFLOWS * burst / (rate - measured))
    return seconds


def advices(rate: float, burst: int) -> Iterator[Advice]:
    """Yield the limiters of a rate to try: with as large a burst as was admitted, and with none."""
    readable = readable_rate(rate)
    if burst >= readable.limit:
        yield Advice((readable,))
    elif burst > 1:
        yield Advice((readable,), burst)
    yield Advice((readable,), 1)


def _round(value: float) -> float:
    return _roundest(value * (1 - _ERROR), value)


def _roundest(least: float, most: float) -> float:
    """Return the greatest multiple in a range of the largest possible step 1, 2 or 5 times 10**n.

    >>> _roundest(13.4, 21.5), _roundest(19.1, 21.5), _roundest(0.31, 0.35)
    (20.0, 20.0, 0.35)
    """
    step = 10.0 ** math.ceil(math.log10(most))
    while True:
        for part in (1.0, 0.5, 0.2):
            multiple = math.floor(most / (step * part) * (1 + 1e-9)) * step * part
            if multiple >= least:
                return round(multiple, 9)
        step /= 10

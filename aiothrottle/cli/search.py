"""Searches the rate that a server admits in the long run: `aiothrottle probe --find-limit`.

Nothing is advised that was not tried: a limiter with the very arguments of the advice sends
requests for some seconds, and not one of them is throttled. A burst that is welcome is not the
rate, and a rate with room for bursts is not that of a server without: so the search paces its
requests evenly and ever faster until one is throttled, and measures what is admitted all the same.
That is the rate, unless a faster pace goes on without a throttled request: some servers count
throttled requests too, or lock a client out for a while. In front of those it tries what lies
between the two paces, the fastest first. Before each try the server has time to recover.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from aiothrottle._checks import number
from aiothrottle._statuses import TOO_MANY_REQUESTS
from aiothrottle.cli.advice import Advice, Sighting, readable_rate
from aiothrottle.errors import ThrottleTimeout
from aiothrottle.headers import ServerLimits
from aiothrottle.limiter import RateLimiter
from aiothrottle.rate import Rate

#: Seconds. A server that lets a client wait longer is not waited for.
LONGEST_WAIT = 30.0

# Seconds without requests after a throttled one, at the least.
_REST = 2.0
# The steps of ever faster requests: the growth, and the least seconds and requests of a step.
# A pace below the slowest is not searched any further.
_GROWTH, _STEP_SECONDS, _STEP_REQUESTS, _SLOWEST = 1.6, 1.0, 3, 0.1
# The admitted requests are counted in so many parts, each of so many seconds, or requests: whole
# windows of a second. The parts may differ by such a factor, and by so many requests.
_PARTS, _COUNTED_SECONDS, _COUNTED_REQUESTS = 3, 1, 20
_UNSTEADY, _FEW = 1.3, 2
# A faster pace is kept up until a bucket of the observed size would have overflowed so many times:
# a fixed window admits it twice, before and after its end.
_OVERFLOWS = 2.1
# A try takes so many seconds and requests at the least; longer, up to so many seconds, until it has
# sent so many requests that 1 % of them would be noticed; and so many seconds at the most.
_TRY_SECONDS, _TRY_REQUESTS, _LONGEST_TRY = 4.0, 30, 30.0
_SURE_SECONDS, _SURE_REQUESTS = 10.0, 200
# By that part a measured rate may be wrong.
_ERROR = 0.06
# The part of a window of a second that an even pace uses at the least.
_USED = 0.9
# A rate per second is that much faster than what is sent with its guard.
_GUARDED = 1.055
# A server that admits no more than that at once throttles each request that is early. Elsewhere
# such a burst makes up for a request that is sent late.
_NO_BURST, _LEAST_BURST = 2, 2
# In front of the former a busy client sends one too early now and then; a rate that is too high is
# throttled at once.
_TOLERATED = 1
# By that factor the next try is slower, so many times, if nothing better is known.
_SLOWER, _FALLBACKS = 0.85, 10


class Reply(NamedTuple):
    """A response: what a search needs of it, and what is printed."""

    throttled: bool
    retry_after: float | None = None
    status: int = TOO_MANY_REQUESTS
    limits: ServerLimits = ServerLimits()
    location: str | None = None


class Tried(NamedTuple):
    """The last try of the search: `sent` requests in `seconds`, of which some were throttled."""

    advice: Advice
    sent: int
    seconds: float
    passed: bool
    throttled: int = 0


@dataclass(slots=True)
class _Count:
    """The requests of a step, and how long it took."""

    admitted: int = 0
    throttled: int = 0
    seconds: float = 0.0


@dataclass(slots=True, eq=False)
class Search:
    """A search, after a burst that ended with a throttled request.

    Args:
        send: Sends a request.
        left: The requests that it may still send.
        at_once: The number of concurrent requests.
        reported: The rates that the server reports.
        progress: Called with a line about each step.

    Attributes:
        wait: The seconds without requests that the server needs after a throttled one.
    """

    send: Callable[[], Awaitable[Reply]]
    left: int
    at_once: int = 1
    reported: tuple[Rate, ...] = ()
    progress: Callable[[str], None] = lambda _: None
    wait: float = field(default=0.0, init=False)

    async def run(self, burst: Sighting) -> Tried | None:
        """Search, and return the first try that passed.

        Returns:
            Otherwise the last try; None if there was none: the server lets clients wait too long,
            or there are too few requests.
        """
        self.wait = max(_REST, burst.retry_after or 0.0)
        tried = None
        await self._recover()
        if self.reported and self._goes_on:
            tried = await self._try(Advice(self.reported), _TRY_SECONDS)
            if tried.passed:
                return tried
        clean, throttled = await self._climb(burst)
        measured = await self._measure(clean, throttled, burst)
        # A bucket was filled meanwhile.
        size = math.ceil(burst.admitted - measured * burst.seconds)
        rates = candidates(clean, throttled, measured, burst.admitted)
        if rates:  # the last: it may admit such a burst after each wait, and no more
            window = burst.admitted / (burst.seconds + self.wait)
            rates.append(_roundest(window * (1 - _ERROR), window))
        for rate in rates:
            for advice in advices(rate, burst.admitted, size):
                if not self._goes_on:
                    return tried
                seconds = _try_seconds(advice.per_second, burst.admitted)
                tried = await self._try(advice, seconds)
                if tried.passed:
                    return tried
        return tried

    @property
    def _goes_on(self) -> bool:
        return self.left > 0 and self.wait <= LONGEST_WAIT

    async def _recover(self) -> None:
        """Wait until the server admits a request after the burst; that is how long it takes."""
        waited = 0.0
        while self._goes_on:
            self.progress(f"waiting {number(self.wait, 3)} s")
            await asyncio.sleep(self.wait)
            waited += self.wait
            if not (await self._counted()).throttled:
                self.wait = waited
                return
            self.wait *= 2

    async def _climb(self, burst: Sighting) -> tuple[float, float]:
        """Send evenly and ever faster until a request is throttled.

        Returns:
            Requests per second: the fastest pace without a throttled one, 0 if there was none; and
            the slowest with one, infinite if there was none.
        """
        pace = burst.admitted / (burst.seconds + self.wait)
        clean = 0.0
        while self._goes_on:
            await asyncio.sleep(1 / pace)  # since the last request of the step before
            count = await self._pace(pace, max(_STEP_SECONDS, _STEP_REQUESTS / pace), tolerated=0)
            if not count.throttled:
                # A busy client sends more slowly than it should.
                clean = min(pace, count.admitted / count.seconds)
                pace *= _GROWTH
            elif clean or pace < _SLOWEST:
                return clean, pace
            else:  # still in the wake of the burst, or that slow
                pace /= 2
                await asyncio.sleep(self.wait)
        return clean, math.inf

    async def _measure(self, clean: float, throttled: float, burst: Sighting) -> float:
        """Return what is admitted in the long run at the throttled pace; 0.0: that is not known."""
        if not (self._goes_on and clean):
            return 0.0
        seconds = max(_COUNTED_SECONDS, math.ceil(_COUNTED_REQUESTS / throttled))
        began_at, counts = _now(), list[int]()
        for part in range(1, _PARTS + 1):
            count = await self._pace(throttled, began_at + part * seconds - _now())
            counts.append(count.admitted)
            await asyncio.sleep(began_at + part * seconds - _now())
        # Nothing is left of a bucket at both ends, so its size makes no difference.
        measured = sum(counts) / (_now() - began_at)
        if not measured or max(counts) > _UNSTEADY * min(counts) + _FEW:
            return 0.0
        return 0.0 if await self._admits_more(clean, measured, burst.admitted) else measured

    async def _admits_more(self, pace: float, measured: float, burst: int) -> bool:
        """Return whether a pace above the measured one can be kept up, not only by a bucket."""
        if pace <= measured * (1 + _ERROR):
            return False
        seconds = _OVERFLOWS * burst / (pace - measured)
        if seconds > _LONGEST_TRY:
            return False
        await asyncio.sleep(self.wait)
        count = await self._pace(pace, seconds, tolerated=0)
        return not count.throttled and count.admitted - measured * count.seconds > burst

    async def _try(self, advice: Advice, seconds: float) -> Tried:
        self.progress(f"trying {advice.python}")
        burst = advice.burst or min(rate.limit for rate in advice.rates)
        # The steps before have emptied a bucket.
        await asyncio.sleep(max(self.wait, min(burst / advice.per_second, LONGEST_WAIT)))
        tolerated = _TOLERATED if advice.spaced else 0
        count = await self._send_for(advice.limiter(self.at_once), seconds, tolerated=tolerated)
        passed = count.throttled <= tolerated and self.left > 0
        sent = count.admitted + count.throttled
        return Tried(advice, sent, count.seconds, passed, count.throttled)

    async def _pace(self, rate: float, seconds: float, *, tolerated: float = math.inf) -> _Count:
        self.progress(f"sending {number(rate, 3)} a second")
        every = Rate(1, 1 / rate)
        limiter = RateLimiter(every, guard=0.0, concurrency_limit=self.at_once)
        return await self._send_for(limiter, seconds, tolerated=tolerated)

    async def _send_for(self, limiter: RateLimiter, seconds: float, *, tolerated: float) -> _Count:
        """Send what the limiter grants within some seconds, until too many are throttled."""
        began_at = _now()
        end, count = began_at + seconds, _Count()

        async def work() -> None:
            while self.left > 0 and count.throttled <= tolerated:
                try:
                    async with limiter.throttle(timeout=max(end - _now(), 0.0)):
                        reply = await self._counted()
                except ThrottleTimeout:
                    return
                count.throttled += reply.throttled
                count.admitted += not reply.throttled
                if _now() >= end:
                    return

        async with asyncio.TaskGroup() as group:
            for _ in range(self.at_once):
                group.create_task(work())
        count.seconds = _now() - began_at
        return count

    async def _counted(self) -> Reply:
        self.left -= 1
        reply = await self.send()
        self.wait = max(self.wait, reply.retry_after or 0.0)
        return reply


def _now() -> float:
    return asyncio.get_running_loop().time()


def candidates(clean: float, throttled: float, measured: float, admitted: int = 0) -> list[float]:
    """Return requests per second to try, the most first.

    Args:
        clean: A pace that was not throttled, or 0.
        throttled: A faster one that was; infinite if there is none.
        measured: What the server admits in the long run; 0 if that is not known.
        admitted: The requests of the burst.

    >>> candidates(13.4, 21.5, 0.0)[:6]
    [20.0, 18.0, 13.0, 11.0, 9.5, 8.0]
    >>> candidates(25.6, 41.0, 20.3)[:4]
    [20.0, 19.0, 17.0, 14.0]
    """
    if measured:
        # The guard takes a twentieth off a rate per second, and next to nothing off a slower one.
        most = _GUARDED * measured
        if readable_rate(most).period != 1:
            most = measured
        found = {_roundest(measured * (1 - _ERROR), most), 0.97 * measured}
        found |= {measured * _SLOWER**it for it in range(1, _FALLBACKS)}
        # An even pace does not use all of a small window of a second.
        found |= {float(admitted)} if _USED * admitted <= measured <= admitted else set()
    elif clean:
        most = min(throttled, clean * _GROWTH)
        found = {_roundest(clean, most), _SLOWER * most}
        found |= {clean * _SLOWER**it for it in range(_FALLBACKS)}
    else:
        return []
    rounded = {_roundest(it * (1 - _ERROR), it) for it in found if it < throttled}
    return sorted(rounded, reverse=True)


def _try_seconds(rate: float, admitted: int) -> float:
    # What was admitted at once is admitted at any pace: it proves nothing of the rate.
    least = max(_TRY_REQUESTS, _OVERFLOWS * admitted) / rate
    seconds = max(_TRY_SECONDS, min(_SURE_SECONDS, _SURE_REQUESTS / rate), least)
    return min(seconds, _LONGEST_TRY)


def advices(rate: float, admitted: int, size: int) -> Iterator[Advice]:
    """Yield the limiters of a rate to try, the largest burst first.

    Args:
        rate: Requests per second.
        admitted: The requests of the burst.
        size: The same without what a bucket got meanwhile.
    """
    readable = readable_rate(rate)
    if admitted >= readable.limit:
        yield Advice((readable,))
    if size <= _NO_BURST:
        yield Advice((readable,), 1, spaced=True)
        return
    if _LEAST_BURST < size - 1 < readable.limit:
        yield Advice((readable,), size - 1)
    yield Advice((readable,), _LEAST_BURST)


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

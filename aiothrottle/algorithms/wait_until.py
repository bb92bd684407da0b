"""Wait until: one request every interval, and rejections where the wait is too long.

The wait-until of Hvass Labs; `WaitUntil` says how it differs.
"""

import math
from dataclasses import dataclass, field
from typing import ClassVar

from aiothrottle.algorithms.draining import Draining
from aiothrottle.algorithms.level import Level, LevelConstants
from aiothrottle.checks import check_number

__all__ = ["WaitUntil"]

# Parts of an interval. Timestamps are rounded in the last digit: 1.1 + 5 - 1.1 is above 5.
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True, init=False)
class WaitUntil(Draining):
    """One every interval; rejects a wait beyond `raise_after`; rejected requests accumulate too.

    In the original, a request at `now` waits until the reserved time, and rejected or not moves
    that to ``max(reserved + interval, now + interval)``, but at most to ``now + limit``. Of ten
    requests at one instant, with ``WaitUntil(1, raise_after=5, limit=10)``, the first starts, five
    wait 1 to 5 seconds, and four are rejected with waits of 6, 7, 8 and 9. After that, requests at
    that instant have a wait of 10: no more than the limit.

    The original moves the reserved time when a request arrives, and the request sleeps. Here
    requests wait in a queue, first in, first out, and each takes its tokens when it starts, which
    makes the next one due an interval later. So the nth in the queue starts n intervals after the
    reserved time, exactly as if it had slept. (With a limit below ``raise_after + interval`` the
    original starts two requests within an interval. This does not.) The queue decides on a
    rejection too: a request that would wait longer than `max_wait` behind the whole queue
    (`delay_behind`) is rejected.

    This is the one algorithm in which a rejected request counts: it takes `cost_of_reject`, up to
    the limit. If the queue is empty, that is taken at once; otherwise it joins the queue as an
    entry without a waiter, and is taken in its turn. So a request before it in the queue starts
    when it would have anyway, and a request behind it waits for it too. `try_acquire` and `peek` do
    not count as rejected requests.

    Through a store it is as in the original: the time is reserved when a request arrives. So the
    queue is that of all processes, and there, too, no two requests start within an interval.

    Args:
        interval: Seconds from one request to the next.
        raise_after: Seconds. A request that would wait longer is rejected.
        limit: Seconds that rejected requests can make others wait, at most. Not below
            `raise_after`.

    Raises:
        TypeError: One of them is not a number.
        ValueError: One of them is out of range, or they contradict each other.

    >>> algorithm = WaitUntil(interval=1, raise_after=5, limit=10)
    >>> state = algorithm.start()
    >>> algorithm.take(state, now=0.0, cost=1)
    >>> [algorithm.delay_behind(state, now=0.0, cost=1, ahead=n) for n in range(6)]
    [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    >>> algorithm.cost_of_reject(state, now=0.0, cost=1, ahead=5)
    1
    """

    interval: float
    raise_after: float
    limit: float
    _kind: ClassVar[int] = 0x61
    _limit: float = field(repr=False, compare=False)
    _period: float = field(repr=False, compare=False)

    def __init__(self, interval: float, raise_after: float, limit: float) -> None:
        check_number("interval", interval, "seconds", above=0)
        check_number("raise_after", raise_after, "seconds")
        check_number("limit", limit, "seconds")
        if limit < max(interval, raise_after):
            raise ValueError(
                f"limit={limit!r} is below interval={interval!r} or raise_after={raise_after!r}: "
                "requests that have to wait or to be rejected would start; give as much or more"
            )
        set_field = object.__setattr__  # frozen
        set_field(self, "interval", interval)
        set_field(self, "raise_after", raise_after)
        set_field(self, "limit", limit)
        set_field(self, "_limit", 1.0)
        set_field(self, "_period", float(interval))

    @property
    def capacity(self) -> float:
        """The intervals that fit into the limit; a cost of 2 is followed by two of them."""
        return self.limit / self.interval

    def constants(self) -> LevelConstants:
        """Return the numbers by which a port of the algorithm decides to the last bit alike."""
        return LevelConstants(
            *(self._limit, self._period, self.capacity),
            own_room=0,
            brim=0,
            top=self.capacity,
            all_or_nothing=1,
            last_only=1,
        )

    @property
    def max_wait(self) -> float:
        """Seconds: `raise_after`, and what rounding can add."""
        return self.raise_after + _ROUNDING * self.interval

    def delay_behind(self, state: Level, now: float, cost: float, ahead: float) -> float:
        """Seconds until the reserved time, as it will be after the `ahead` tokens."""
        if cost > self.capacity:
            return math.inf
        if cost == 0:
            return 0.0
        return state.fits_in(now, ahead, 0.0, self._limit, self._period)

    def take(self, state: Level, now: float, cost: float) -> None:
        """Move the reserved time by `cost` intervals, up to the limit."""
        moved = min(cost, self.capacity - self.used(state, now))
        if moved > 0.0:
            state.put_in(now, moved, self._limit, self._period)
            # No request starts before the reserved time: all but the last has drained.
            state.forget(state.at)

    def cost_of_reject(self, state: Level, now: float, cost: float, ahead: float) -> float:
        """Tokens that a rejected `cost` takes: all of it, up to the limit."""
        return max(0.0, min(cost, self.capacity - self.used(state, now) - ahead))

    def remaining(self, state: Level, now: float) -> float:
        """All or nothing: the reserved time has come, or it has not."""
        return 0.0 if self.delay(state, now, min(1.0, self.capacity)) > 0.0 else self.capacity

"""Wait until: one hit every interval, and who comes when the wait is too long is refused.

The wait-until of Hvass Labs; what differs from it is said in `WaitUntil`.
"""

import math
from dataclasses import dataclass, field
from typing import ClassVar

from aiothrottle.algorithms.level import Draining, Level
from aiothrottle.checks import check_number

__all__ = ["WaitUntil"]

# Parts of an interval. Instants are known to their last digit: 1.1 + 5 - 1.1 is above 5.
_UNSURE = 1e-6


@dataclass(frozen=True, slots=True, init=False)
class WaitUntil(Draining):
    """One every interval; refuses when the wait passes `raise_after`; refused hits accumulate too.

    A hit at `now` waits until the stamp, and then the stamp is, with or without it having been
    refused, ``max(stamp + interval, now + interval)``, but at most ``now + limit``. Ten hits at
    one instant, of ``WaitUntil(1, raise_after=5, limit=10)``: the first goes, five wait 1 to 5
    seconds, four are refused at 6, 7, 8 and 9. From then on, hits at that instant wait 10: no more
    than the limit.

    The classic moves the stamp when a hit arrives, and the hit sleeps the wait that it was told.
    Here nothing is stamped before it goes: the hits wait in a line, first in, first out, and each
    takes its tokens when it starts, at the stamp, which puts the next of the line one interval
    later. So the nth in line starts n intervals after the stamp, as it would have slept: the line
    is what the classic keeps in the stamp. (With a limit below ``raise_after + interval`` the
    classic lets two go within an interval. This does not.) What the line knows decides on a
    refusal too: who would wait longer than `longest_wait` behind all who wait (`delay_behind`) is
    refused.

    This is the one algorithm in which a refusal counts: it takes `cost_of_refusal`, and the limit
    is what cuts that. If nobody waits, the keeper of the line takes it at once; otherwise it joins
    the line as an entry that wakes nobody, and is taken in its turn. So those who came before
    a refused hit start as they were told, and those who come after it wait for it too. A question
    and a hit that would rather not wait (`admit`) are no refused hits.

    Through a store it is as in the classic: every hit is stamped when it comes. So the line is that
    of all processes, and there, too, no two go within an interval.

    Args:
        interval: Seconds from one hit to the next.
        raise_after: Seconds. Who would wait longer is refused.
        limit: Seconds that the refused can make others wait, at the most. Not below `raise_after`.

    Raises:
        TypeError: One of them is not a number.
        ValueError: One of them is out of range, or they contradict each other.

    >>> algorithm = WaitUntil(interval=1, raise_after=5, limit=10)
    >>> state = algorithm.start()
    >>> algorithm.admit(state, now=0.0, cost=1)
    True
    >>> [algorithm.delay_behind(state, now=0.0, cost=1, ahead=n) for n in range(6)]
    [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    >>> algorithm.cost_of_refusal(state, now=0.0, cost=1, ahead=5)
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
                f"limit={limit!r} is below interval={interval!r} or raise_after={raise_after!r}, "
                "and would let hits go that have to wait or to be refused: give as much or more"
            )
        set_field = object.__setattr__  # frozen
        set_field(self, "interval", interval)
        set_field(self, "raise_after", raise_after)
        set_field(self, "limit", limit)
        set_field(self, "_limit", 1.0)
        set_field(self, "_period", float(interval))

    @property
    def capacity(self) -> float:
        """What fits under the limit: a cost of 2 is followed by two intervals."""
        return self.limit / self.interval

    @property
    def longest_wait(self) -> float:
        """Seconds: `raise_after`, and what rounding may add."""
        return self.raise_after + _UNSURE * self.interval

    def delay_behind(self, state: Level, now: float, cost: float, ahead: float) -> float:
        """Seconds until the stamp, as it will be when those ahead have gone."""
        if cost > self.capacity:
            return math.inf
        if cost == 0:
            return 0.0
        return state.fits_in(now, ahead, 0.0, self._limit, self._period)

    def take(self, state: Level, now: float, cost: float) -> None:
        """Move the stamp by `cost` intervals, up to the limit."""
        moved = min(cost, self.capacity - self.used(state, now))
        if moved > 0.0:
            state.put_in(now, moved, self._limit, self._period)
            # Nobody goes before the stamp: what went before the last one has drained.
            state.forget(state.at)

    def cost_of_refusal(self, state: Level, now: float, cost: float, ahead: float = 0.0) -> float:
        """Tokens that a refused `cost` takes: all of it, up to the limit."""
        return max(0.0, min(cost, self.capacity - self.used(state, now) - ahead))

    def remaining(self, state: Level, now: float) -> float:
        """All or nothing: the stamp has come, or it has not."""
        return 0.0 if self.delay(state, now, min(1.0, self.capacity)) > 0.0 else self.capacity

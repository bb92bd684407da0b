"""This process's share of a limit, while it cannot ask the store what the others spend.

Strategy. While the store answers, the record here is kept no emptier than that of the store, from
the answers, so it has what all processes have spent. Without the store every token that is granted
here counts `divisor` times: once for this process and once for each of the others, which are
assumed to do the same (see `ShareSize`). So together they keep within the limit, whatever its
algorithm, and no algorithm has to be scaled.
"""

import math
from typing import Any

from aiothrottle.algorithms import Algorithm, WaitUntil
from aiothrottle.algorithms.protocol import inherit
from aiothrottle.amounts import common, positive
from aiothrottle.stores.record import Record
from aiothrottle.stores.store import Answer

__all__ = ["LocalShare"]

# A token counts as this many times the capacity at the most: each time is a step of its own.
_MOST_STEPS = 10_000


class LocalShare:
    """A record of what all processes are known to have spent, and assumed to spend.

    >>> from aiothrottle.algorithms import SlidingWindowLog
    >>> share = LocalShare(SlidingWindowLog("10/s"))
    >>> [share.spend(0.0, 1, divisor=4) for _ in range(3)]  # a quarter of ten
    [0.0, 0.0, 1.0]
    """

    __slots__ = ("_algorithm", "_record")

    def __init__(self, algorithm: Algorithm[Any]) -> None:
        self._algorithm = algorithm
        self._record = Record(algorithm.start())

    def use(self, algorithm: Algorithm[Any], now: float) -> None:
        """Continue with another algorithm; what was spent stays spent."""
        if algorithm is not self._algorithm:
            self._record.state = inherit(algorithm, self._algorithm, self._record.state, now)
            self._algorithm = algorithm

    def note_answer(self, now: float, answer: Answer, spent: float) -> None:
        """Take in an answer of the store, which has just granted `spent` tokens to this process."""
        if isinstance(self._algorithm, WaitUntil):  # its remaining tokens are all or nothing
            unseen = answer.reset_after - self.reset_after(now)
            self._record.record(self._algorithm, now, max(0.0, unseen) / self._algorithm.interval)
            return
        if spent:
            self._record.take(self._algorithm, now, now, now + answer.delays[-1], spent)
        # The other processes have spent whatever else is missing there.
        here = self._algorithm.remaining(self._record.state, now)
        if unseen := positive(here - answer.remaining):
            self._record.record(self._algorithm, now, unseen)

    @property
    def reserves_ahead(self) -> bool:
        """Whether requests are decided when they arrive, not when they start: see `Newcomers`."""
        return isinstance(self._algorithm, WaitUntil)

    def wait(self, now: float, cost: float, divisor: float) -> float:
        """Seconds until the cost may start here."""
        first = common(cost * divisor, self._algorithm.capacity)
        return self._record.peek(self._algorithm, now, first).retry_after

    def spend(self, now: float, cost: float, divisor: float, horizon: float = 0.0) -> float:
        """Spend the cost if it may start within the horizon. Return the seconds until it may."""
        wait = self.wait(now, cost, divisor)
        if wait <= horizon:
            rest = common(cost * divisor, _MOST_STEPS * self._algorithm.capacity)
            while rest:
                # What is more than the capacity is taken as soon as it fits: so one of eight
                # processes that share two per minute starts one request every four minutes.
                part = common(rest, self._algorithm.capacity)
                self._record.reserve(self._algorithm, now, [part], math.inf)
                rest -= part
        return wait

    def record(self, now: float, cost: float) -> None:
        """Count what was spent here already, whether it fits or not."""
        self._record.record(self._algorithm, now, cost)

    def refund(self, now: float, cost: float, divisor: float, instant: float) -> None:
        """Give back what was spent at the instant, except what exceeded the capacity."""
        back = common(cost * divisor, self._algorithm.capacity)
        self._record.refund(self._algorithm, now, back, instant)

    def remaining(self, now: float, divisor: float) -> float:
        """Tokens that this process may spend now."""
        return self._record.peek(self._algorithm, now, 0.0).remaining / divisor

    def most_counting(self, now: float, divisor: float) -> float:
        """Return how many of the tokens spent here can still count, at the most."""
        if isinstance(self._algorithm, WaitUntil):
            return self.reset_after(now) / self._algorithm.interval / divisor
        return self._algorithm.capacity

    def reset_after(self, now: float) -> float:
        """Seconds until all that was spent is forgotten."""
        return self._record.reset_after(self._algorithm, now)

"""This process's part of a limit, while it cannot ask for what the others spend.

Strategy. As long as the store answers, the record here is kept no emptier than that of the store,
as its answers tell, so it knows what all have spent. Without the store every token that goes here
counts once for each process: the others are taken to do the same. So together they keep within the
limit, whatever its algorithm, and nobody has to scale one.
"""

import math
from typing import Any

from aiothrottle.algorithms import Algorithm, WaitUntil
from aiothrottle.algorithms.capabilities import inherit
from aiothrottle.stores.ledger import Record
from aiothrottle.stores.store import Answer

__all__ = ["LocalShare"]


class LocalShare:
    """A record of what all are known to have spent, and to have spent by what is done here.

    >>> from aiothrottle.algorithms import SlidingWindowLog
    >>> share = LocalShare(SlidingWindowLog("10/s"))
    >>> [share.spend(0.0, 1, processes=4) for _ in range(3)]  # a quarter of ten
    [0.0, 0.0, 1.0]
    """

    __slots__ = ("_algorithm", "_record")

    def __init__(self, algorithm: Algorithm[Any]) -> None:
        self._algorithm = algorithm
        self._record = Record(algorithm.start())

    def use(self, algorithm: Algorithm[Any], now: float) -> None:
        """Go on with another algorithm; what was spent stays spent."""
        if algorithm is not self._algorithm:
            self._record.state = inherit(algorithm, self._algorithm, self._record.state, now)
            self._algorithm = algorithm

    def told(self, now: float, answer: Answer, spent: float) -> None:
        """Hear what the store has said when it let so much go: it knows of all."""
        if isinstance(
            self._algorithm, WaitUntil
        ):  # what is left of it is all or nothing, and tells less
            unseen = answer.reset_after - self.reset_after(now)
            self._record.record(self._algorithm, now, max(0.0, unseen) / self._algorithm.interval)
            return
        if spent:
            self._record.take(self._algorithm, now, now, now + answer.delays[-1], spent)
        # Whatever else is missing there the others have spent.
        unseen = self._algorithm.remaining(self._record.state, now) - answer.remaining
        if unseen > 0.0:
            self._record.record(self._algorithm, now, unseen)

    @property
    def reserves_ahead(self) -> bool:
        """Whether requests are decided when they arrive, not when they start: see `Newcomers`."""
        return isinstance(self._algorithm, WaitUntil)

    def wait(self, now: float, cost: float, processes: int) -> float:
        """Seconds until the cost may go here."""
        first = min(cost * processes, self._algorithm.capacity)
        return self._record.peek(self._algorithm, now, first).retry_after

    def spend(self, now: float, cost: float, processes: int, horizon: float = 0.0) -> float:
        """Spend the cost if it may go within the horizon. Give the seconds until it may."""
        wait = self.wait(now, cost, processes)
        if wait <= horizon:
            rest = cost * processes
            while rest > 0.0:
                # What is more than ever goes at once goes as soon as it may: so one of eight who
                # share two per minute goes every four minutes.
                part = min(rest, self._algorithm.capacity)
                self._record.reserve(self._algorithm, now, [part], math.inf)
                rest -= part
        return wait

    def record(self, now: float, cost: float) -> None:
        """Count what has happened here, whether it fitted or not."""
        self._record.record(self._algorithm, now, cost)

    def refund(self, now: float, cost: float, processes: int, instant: float) -> None:
        """Give back what was spent at the instant, but for what is more than goes at once."""
        back = min(cost * processes, self._algorithm.capacity)
        self._record.refund(self._algorithm, now, back, instant)

    def remaining(self, now: float, processes: int) -> float:
        """Tokens that may go here now."""
        return self._record.peek(self._algorithm, now, 0.0).remaining / processes

    def most(self, now: float, processes: int) -> float:
        """How much of what was spent here may still count: of a stamp what goes later."""
        if isinstance(self._algorithm, WaitUntil):
            return self.reset_after(now) / self._algorithm.interval / processes
        return self._algorithm.capacity

    def reset_after(self, now: float) -> float:
        """Seconds until all that was spent is forgotten."""
        return self._record.reset_after(self._algorithm, now)

"""What went lately, and when: as much of it as still counts, in a few portions."""

import math
from collections import deque
from dataclasses import dataclass

__all__ = ["Spent"]

# A token may count for so much of a period too long.
_PORTIONS = 32


@dataclass(slots=True)
class _Portion:
    begin: float
    cost: float


class Spent:
    """Tokens that count for a period each.

    >>> spent = Spent(period=60.0)
    >>> spent.add(0.0, 5); spent.add(30.0, 2)
    >>> spent.total(50.0), spent.pop_over(80.0), spent.total(80.0)
    (7.0, 5.0, 2.0)
    """

    __slots__ = ("_period", "_portions", "_width")

    def __init__(self, period: float) -> None:
        self._width = period / _PORTIONS
        self._period = period + self._width
        self._portions: deque[_Portion] = deque()

    @property
    def over_at(self) -> float:
        """The instant at which the oldest of it no longer counts; infinity if there is nothing."""
        return self._portions[0].begin + self._period if self._portions else math.inf

    def add(self, now: float, cost: float) -> None:
        """Count the cost."""
        self.pop_over(now)
        last = self._portions[-1] if self._portions else None
        if last is not None and now < last.begin + self._width:
            last.cost += cost
        elif cost:
            self._portions.append(_Portion(now, cost))

    def take_back(self, cost: float, instant: float) -> None:
        """Count the cost off what went at that instant."""
        for portion in reversed(self._portions):
            if portion.begin <= instant:
                portion.cost = max(0.0, portion.cost - cost)
                return

    def total(self, now: float) -> float:
        """How much still counts."""
        self.pop_over(now)
        return math.fsum(portion.cost for portion in self._portions)

    def keep(self, most: float) -> float:
        """Forget the oldest, so that no more than so much is left. Gives how much is."""
        kept = 0.0
        for portion in reversed(self._portions):
            portion.cost = min(portion.cost, most - kept)
            kept += portion.cost
        return kept

    def pop_over(self, now: float) -> float:
        """Forget what no longer counts, and tell how much it was."""
        over = 0.0
        while self.over_at <= now:
            over += self._portions.popleft().cost
        return over

"""The tokens that were spent lately, and when: as many as still count, in a few portions."""

import math
from collections import deque
from dataclasses import dataclass

from aiothrottle.amounts import common, positive, total

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
    >>> spent.total(50.0), spent.pop_expired(80.0), spent.total(80.0)
    (7.0, 5.0, 2.0)
    """

    __slots__ = ("_period", "_portions", "_width")

    def __init__(self, period: float) -> None:
        self._width = period / _PORTIONS
        self._period = period + self._width
        self._portions: deque[_Portion] = deque()

    @property
    def expires_at(self) -> float:
        """The instant at which the oldest tokens count no more; infinity if there are none."""
        return self._portions[0].begin + self._period if self._portions else math.inf

    def add(self, now: float, cost: float) -> None:
        """Count the cost."""
        self.pop_expired(now)
        last = self._portions[-1] if self._portions else None
        if last is not None and now < last.begin + self._width:
            last.cost += cost
        elif cost:
            self._portions.append(_Portion(now, cost))

    def subtract(self, cost: float, instant: float) -> None:
        """Subtract the cost from what was spent at that instant."""
        for portion in reversed(self._portions):
            if portion.begin <= instant:
                portion.cost = positive(portion.cost - cost)
                return

    def total(self, now: float) -> float:
        """Return how many tokens still count."""
        self.pop_expired(now)
        return total([portion.cost for portion in self._portions])

    def cap(self, most: float) -> float:
        """Forget the oldest tokens beyond `most`. Return how many are kept."""
        kept = 0.0
        for portion in reversed(self._portions):
            portion.cost = common(portion.cost, most - kept)
            kept += portion.cost
        return kept

    def pop_expired(self, now: float) -> float:
        """Forget the tokens that count no more, and return how many there were."""
        expired = 0.0
        while self.expires_at <= now:
            expired += self._portions.popleft().cost
        return expired

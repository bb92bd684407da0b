"""A store that records what is taken from it, for the benchmarks of stores."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from aiothrottle.algorithms import Algorithm
from aiothrottle.stores import Answer, Key, Store

__all__ = ["Counting"]


class Counting(Store):
    """Records what is taken, by the server's clock and less what is refunded; counts its calls.

    A base class that stands before that of the store.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - the store's
        super().__init__(*arguments, **options)
        self.calls: int = 0
        self.taken: dict[Key, list[float]] = defaultdict(list)

    async def reserve(
        self,
        key: Key,
        algorithm: Algorithm[Any],
        costs: Sequence[float],
        *,
        max_reservation: float = 0.0,
    ) -> Answer:
        """Record the tokens taken."""
        self.calls += 1
        answer = await super().reserve(key, algorithm, costs, max_reservation=max_reservation)
        self.taken[key] += answer.instants
        return answer

    async def refund(
        self, key: Key, algorithm: Algorithm[Any], cost: float, instant: float
    ) -> None:
        """Remove the tokens refunded."""
        self.calls += 1
        await super().refund(key, algorithm, cost, instant)
        for _ in range(round(cost)):
            self.taken[key].remove(instant)

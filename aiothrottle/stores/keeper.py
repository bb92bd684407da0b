"""The methods of a store that decides in Python: each is one step on one record.

Invariant: arguments are checked here, before a record is touched.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from aiothrottle.algorithms import Algorithm
from aiothrottle.stores.ledger import Record
from aiothrottle.stores.store import Answer, Key, Store, check_costs, check_horizon, check_instant

__all__ = ["Keeper", "Step"]

Step: TypeAlias = Callable[[Record, float], Answer]
"""Changes a record at an instant of the store's clock, and returns the answer."""


class Keeper(Store):
    """A store that lacks only `_apply` and `clear`."""

    __slots__ = ()

    async def reserve(
        self,
        key: Key,
        algorithm: Algorithm[Any],
        costs: Sequence[float],
        *,
        horizon: float = 0.0,
    ) -> Answer:
        """Take, in order, as many of the costs as may start within `horizon` seconds from now."""
        check_costs(*costs)
        check_horizon(horizon)
        return await self._apply(
            key,
            algorithm,
            lambda record, clock: record.reserve(algorithm, clock, costs, horizon),
        )

    async def refund(
        self, key: Key, algorithm: Algorithm[Any], cost: float, instant: float
    ) -> None:
        """Give back `cost` tokens of those taken for `instant`, one of `Answer.instants`."""
        check_costs(cost)
        check_instant(instant)
        await self._apply(
            key,
            algorithm,
            lambda record, clock: record.refund(algorithm, clock, cost, instant),
        )

    async def peek(self, key: Key, algorithm: Algorithm[Any], cost: float = 1.0) -> Answer:
        """Return the answer that `reserve` would give for the cost, and spend nothing."""
        check_costs(cost)
        return await self._apply(
            key, algorithm, lambda record, clock: record.peek(algorithm, clock, cost)
        )

    async def record(self, key: Key, algorithm: Algorithm[Any], cost: float = 1.0) -> Answer:
        """Count a cost that was spent already; there may be a debt afterwards."""
        check_costs(cost)
        return await self._apply(
            key, algorithm, lambda record, clock: record.record(algorithm, clock, cost)
        )

    @abstractmethod
    async def _apply(self, key: Key, algorithm: Algorithm[Any], step: Step) -> Answer:
        """Apply the step to the record of the key, or a fresh one, atomically."""

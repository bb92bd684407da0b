"""What answers while a store is away, and counts what it grants.

Tokens that are given out here bear a mark (`Here`): no store knows their instants.
"""

import math
from collections.abc import Sequence
from typing import Any, Final, Literal, Self, TypeAlias

from aiothrottle.algorithms import Algorithm
from aiothrottle.algorithms.capabilities import max_wait
from aiothrottle.stores.health import Health
from aiothrottle.stores.local_share import LocalShare
from aiothrottle.stores.spent import Spent
from aiothrottle.stores.store import Answer

__all__ = ["CHOICES", "SOON", "Fallback", "Here", "OnStoreError"]

OnStoreError: TypeAlias = Literal["raise", "local", "open", "closed"]
CHOICES: Final = ("raise", "local", "open", "closed")

#: Seconds after which to ask again, at the least, while the store is away.
SOON = 0.05


class Here(float):
    """An instant of this process's clock: the store knows nothing of it."""

    __slots__ = ("processes",)

    #: By so many the cost was multiplied, see `LocalShare`.
    processes: int

    def __new__(cls, instant: float, processes: int = 1) -> Self:
        """Give the instant with its mark."""
        here = super().__new__(cls, instant)
        here.processes = processes
        return here


class Fallback:
    """The choice of `on_store_error`, as a store that reserves nothing ahead but by `WaitUntil`."""

    __slots__ = ("_choice", "_life", "_share", "spent")

    def __init__(self, choice: OnStoreError, life: Health) -> None:
        self._choice = choice
        self._life = life
        self._share: LocalShare | None = None
        #: What went since the store is away; None while it is not.
        self.spent: Spent | None = None

    @property
    def reserves_ahead(self) -> bool:
        """Whether it gives out what may go only later."""
        return self._share is not None and self._share.reserves_ahead

    def use(self, algorithm: Algorithm[Any], now: float) -> None:
        """Go by that algorithm from now on."""
        if self._choice == "local":
            if self._share is None:
                self._share = LocalShare(algorithm)
            self._share.use(algorithm, now)

    def told(self, now: float, answer: Answer, spent: float) -> None:
        """Hear what the store has said, so as not to know less when it is away."""
        if self._share is not None:
            self._share.told(now, answer, spent)

    def begin(self, algorithm: Algorithm[Any]) -> None:
        """Count what goes, now that the store is away."""
        full = algorithm.start()
        algorithm.take(full, 0.0, algorithm.capacity)
        self.spent = Spent(algorithm.reset_after(full, 0.0))

    def forget(self) -> None:
        """Begin anew, by another clock."""
        self._share = self.spent = None

    def reserve(
        self, algorithm: Algorithm[Any], now: float, costs: Sequence[float], horizon: float
    ) -> Answer:
        """Let go, in order, as many of the costs as may go now, or within the horizon."""
        processes, longest = self._life.processes, horizon if self.reserves_ahead else 0.0
        instants: list[float] = []
        for place, cost in enumerate(costs):
            wait = self.wait(now, cost)
            if wait > longest:
                if max_wait(algorithm) <= longest < wait < math.inf:
                    # Rejected requests count, as in a store.
                    self.record(algorithm, now, math.fsum(costs[place:]))
                return self._answer(algorithm, now, tuple(instants), wait)
            if self._share is not None:
                self._share.spend(now, cost, processes, longest)
            if self.spent is not None:
                self.spent.add(now, cost)
            instants.append(Here(now + wait, processes))
        return self._answer(algorithm, now, tuple(instants), 0.0)

    def peek(self, algorithm: Algorithm[Any], now: float, cost: float) -> Answer:
        """Tell what `reserve` would say."""
        return self._answer(algorithm, now, (), self.wait(now, cost))

    def record(self, algorithm: Algorithm[Any], now: float, cost: float) -> Answer:
        """Count what has happened already."""
        if self._share is not None:
            self._share.record(now, cost)
        if self.spent is not None:
            self.spent.add(now, cost)
        return self._answer(algorithm, now, (), 0.0)

    def refund(self, now: float, cost: float, instant: float) -> None:
        """Give back what was let go here at that instant."""
        if isinstance(instant, Here) and self._share is not None:
            self._share.refund(now, cost, instant.processes, instant)
        if self.spent is not None:
            self.spent.take_back(cost, instant)

    def wait(self, now: float, cost: float) -> float:
        """Seconds after which to ask again for the cost; 0.0 if it may go."""
        if not cost or self._choice == "open":
            return 0.0
        again = max(SOON, self._life.pause(now))
        if self._share is None:
            return again
        wait = self._share.wait(now, cost, self._life.processes)
        return wait if self._share.reserves_ahead else min(again, wait)

    def total(self, now: float) -> float:
        """How much went since the store is away, and still counts."""
        return 0.0 if self.spent is None else self.spent.total(now)

    def most(self, algorithm: Algorithm[Any], now: float) -> float:
        """How much of that is of any interest to the store: a debt of one process is bounded."""
        if self._share is None:
            return algorithm.capacity
        return self._share.most(now, self._life.processes)

    def is_forgettable(self, now: float) -> bool:
        """Tell whether a new one would do the same."""
        share = self._share
        return not self.total(now) and (share is None or share.reset_after(now) == 0.0)

    def _answer(
        self, algorithm: Algorithm[Any], now: float, instants: tuple[float, ...], wait: float
    ) -> Answer:
        remaining, reset_after = 0.0, 0.0
        if self._share is not None:
            remaining = self._share.remaining(now, self._life.processes)
            reset_after = self._share.reset_after(now)
        elif self._choice == "open":
            remaining = algorithm.capacity
        return Answer(Here(now), instants, wait, remaining, reset_after)

"""What answers while a store fails, and counts what it grants.

Invariant: every instant that is given out here is a `Here`: no store has taken tokens for it.
"""

import math
from collections.abc import Sequence
from typing import Any, Self

from aiothrottle.algorithms import Algorithm
from aiothrottle.algorithms.protocol import max_wait
from aiothrottle.amounts import nothing, total
from aiothrottle.stores.health import Health
from aiothrottle.stores.share import LocalShare, ShareSize, Spent
from aiothrottle.stores.store import Answer, OnStoreError

__all__ = ["SHORTEST_PAUSE", "Fallback", "Here"]

#: Seconds after which to ask again, at the least, while the store fails.
SHORTEST_PAUSE = 0.05


class Here(float):
    """An instant of this process's clock, of which the store knows nothing."""

    __slots__ = ("divisor",)

    #: The cost was multiplied by this, see `LocalShare`.
    divisor: float

    def __new__(cls, instant: float, divisor: float = 1.0) -> Self:
        """Return the instant with its mark."""
        here = super().__new__(cls, instant)
        here.divisor = divisor
        return here


class Fallback:
    """The fallback of one limiter: a store that reserves nothing ahead, except with `WaitUntil`.

    Args:
        choice: What serves: `on_store_error`.
        health: The health of the server.
        size: The size of this process's share, for "local".
    """

    __slots__ = ("_choice", "_share", "_size", "health", "spent")

    def __init__(self, choice: OnStoreError, health: Health, size: ShareSize) -> None:
        self._choice = choice
        #: The health of the server that has the key.
        self.health: Health = health
        self._size = size
        self._share: LocalShare | None = None
        #: The tokens that were granted since the store fails; None while it does not fail.
        self.spent: Spent | None = None

    @property
    def reserves_ahead(self) -> bool:
        """Whether it grants tokens for later instants."""
        return self._share is not None and self._share.reserves_ahead

    def use(self, algorithm: Algorithm[Any], now: float) -> None:
        """Decide by that algorithm from now on."""
        if self._choice == "local":
            if self._share is None:
                self._share = LocalShare(algorithm)
            self._share.use(algorithm, now)

    def note_answer(self, now: float, answer: Answer, spent: float) -> None:
        """Take in an answer of the store, to know as much when the store fails."""
        if self._share is not None:
            self._share.note_answer(now, answer, spent)

    def begin_outage(self, algorithm: Algorithm[Any]) -> None:
        """Count what is granted from now on, as the store fails."""
        full = algorithm.start()
        algorithm.take(full, 0.0, algorithm.capacity)
        self.spent = Spent(algorithm.reset_after(full, 0.0))

    def forget(self) -> None:
        """Begin anew, by another clock."""
        self._share = self.spent = None

    def reserve(
        self, algorithm: Algorithm[Any], now: float, costs: Sequence[float], horizon: float
    ) -> Answer:
        """Grant, in order, as many of the costs as may start now, or within the horizon."""
        divisor, longest = self._size.divisor, horizon if self.reserves_ahead else 0.0
        instants: list[float] = []
        for place, cost in enumerate(costs):
            wait = self.wait(now, cost)
            if wait > longest:
                if max_wait(algorithm) <= longest < wait < math.inf:
                    # Rejected requests count, as in a store.
                    self.record(algorithm, now, total(costs[place:]))
                return self._answer(algorithm, now, tuple(instants), wait)
            if self._share is not None:
                self._share.spend(now, cost, divisor, longest)
            if self.spent is not None:
                self.spent.add(now, cost)
            instants.append(Here(now + wait, divisor))
        return self._answer(algorithm, now, tuple(instants), 0.0)

    def peek(self, algorithm: Algorithm[Any], now: float, cost: float) -> Answer:
        """Return the answer that `reserve` would give, and spend nothing."""
        return self._answer(algorithm, now, (), self.wait(now, cost))

    def record(self, algorithm: Algorithm[Any], now: float, cost: float) -> Answer:
        """Count a cost that was spent already."""
        if self._share is not None:
            self._share.record(now, cost)
        if self.spent is not None:
            self.spent.add(now, cost)
        return self._answer(algorithm, now, (), 0.0)

    def refund(self, now: float, cost: float, instant: float) -> None:
        """Give back what was granted here for that instant."""
        if isinstance(instant, Here) and self._share is not None:
            self._share.refund(now, cost, instant.divisor, instant)
        if self.spent is not None:
            self.spent.subtract(cost, instant)

    def wait(self, now: float, cost: float) -> float:
        """Seconds after which to ask again for the cost; 0.0 if it may start."""
        if not cost or self._choice == "open":
            return 0.0
        pause = max(SHORTEST_PAUSE, self.health.pause())
        if self._share is None:
            return pause
        wait = self._share.wait(now, cost, self._size.divisor)
        return wait if self._share.reserves_ahead else min(pause, wait)

    def patience(self, now: float, cost: float) -> float:
        """Seconds after which it may grant the cost by itself; infinity if it never does."""
        return math.inf if self._share is None else self._share.wait(now, cost, self._size.divisor)

    def total(self, now: float) -> float:
        """Return how many of the tokens granted since the store fails still count."""
        return 0.0 if self.spent is None else self.spent.total(now)

    def most_counting(self, algorithm: Algorithm[Any], now: float) -> float:
        """Return how many of them the store has to count, at the most: a debt is bounded."""
        if self._share is None:
            return algorithm.capacity
        return self._share.most_counting(now, self._size.divisor)

    def is_forgettable(self, now: float) -> bool:
        """Return whether a new fallback would answer the same."""
        share = self._share
        return not self.total(now) and (share is None or share.reset_after(now) == 0.0)

    def _answer(
        self, algorithm: Algorithm[Any], now: float, instants: tuple[float, ...], wait: float
    ) -> Answer:
        remaining, reset_after = nothing(algorithm.capacity), 0.0
        if self._share is not None:
            remaining = self._share.remaining(now, self._size.divisor)
            reset_after = self._share.reset_after(now)
        elif self._choice == "open":
            remaining = algorithm.capacity
        return Answer(Here(now), instants, wait, remaining, reset_after)

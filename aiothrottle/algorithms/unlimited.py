"""No rate limit: for a limiter that bounds concurrency alone."""

import math
from dataclasses import dataclass

from aiothrottle.algorithms.algorithm import Algorithm

__all__ = ["Unlimited"]


@dataclass(frozen=True, slots=True)
class Unlimited(Algorithm[None]):
    """Every cost may go at any time."""

    @property
    def capacity(self) -> float:
        """No bound."""
        return math.inf

    def start(self) -> None:
        """There is nothing to remember."""

    def delay(self, state: None, now: float, cost: float) -> float:  # noqa: ARG002
        """Give 0.0: now."""
        return 0.0

    def take(self, state: None, now: float, cost: float) -> None:
        """There is nothing to record."""

    def remaining(self, state: None, now: float) -> float:  # noqa: ARG002
        """No bound."""
        return math.inf

    def reset_after(self, state: None, now: float) -> float:  # noqa: ARG002
        """Give 0.0: there is nothing to forget."""
        return 0.0

"""No rate limit: for a limiter that bounds concurrency alone."""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from aiothrottle.algorithms.algorithm import Algorithm, unpack

__all__ = ["Unlimited"]

_KIND = 0x01
_DUMP = struct.Struct("<B")


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

    def allowance(self, state: None, now: float, most: int) -> int:  # noqa: ARG002
        """All of them."""
        return most

    def take_each(self, state: None, instants: Sequence[float]) -> None:
        """There is nothing to record."""

    def remaining(self, state: None, now: float) -> float:  # noqa: ARG002
        """No bound."""
        return math.inf

    def reset_after(self, state: None, now: float) -> float:  # noqa: ARG002
        """Give 0.0: there is nothing to forget."""
        return 0.0

    def dump(self, state: None) -> bytes:  # noqa: ARG002
        """Write that there is nothing."""
        return _DUMP.pack(_KIND)

    def load(self, data: bytes) -> None:
        """Read that there is nothing."""
        unpack(_DUMP, _KIND, data, "Unlimited")

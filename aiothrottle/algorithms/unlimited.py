"""No rate limit: for a limiter that bounds concurrency alone."""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from aiothrottle.algorithms.dumps import unpack

__all__ = ["Unlimited"]

_KIND = 0x01
_DUMP = struct.Struct("<B")


@dataclass(frozen=True, slots=True)
class Unlimited:
    """Every cost can be taken at any time. There is no state."""

    @property
    def capacity(self) -> float:
        """Infinity."""
        return math.inf

    def start(self) -> None:
        """Return None: there is no state."""

    def delay(self, state: None, now: float, cost: float) -> float:  # noqa: ARG002
        """Return 0.0: now."""
        return 0.0

    def take(self, state: None, now: float, cost: float) -> None:
        """Do nothing."""

    def delay_behind(self, state: None, now: float, cost: float, ahead: float) -> float:  # noqa: ARG002
        """Return 0.0: now."""
        return 0.0

    def allowance(self, state: None, now: float, most: int) -> int:  # noqa: ARG002
        """Return `most`."""
        return most

    def take_each(self, state: None, timestamps: Sequence[float]) -> None:
        """Do nothing."""

    def remaining(self, state: None, now: float) -> float:  # noqa: ARG002
        """Return infinity."""
        return math.inf

    def reset_after(self, state: None, now: float) -> float:  # noqa: ARG002
        """Return 0.0: there is nothing to drop."""
        return 0.0

    def dump(self, state: None) -> bytes:  # noqa: ARG002
        """Return one byte, which names the algorithm."""
        return _DUMP.pack(_KIND)

    def load(self, data: bytes) -> None:
        """Check that byte."""
        unpack(_DUMP, _KIND, data, "Unlimited")

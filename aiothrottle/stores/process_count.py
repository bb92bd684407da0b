"""How many processes share a store: each of them signs, now and then, in a record of the store."""

import json
import math
from dataclasses import dataclass

from aiothrottle.algorithms.timestamps import until

__all__ = ["ProcessCount"]


@dataclass(frozen=True, slots=True)
class ProcessCount:
    """Counts who has signed lately. An algorithm, since any store can keep its record.

    Args:
        name: Who signs.
        seconds: Who has not signed for so long is not counted.

    >>> ann, bob = ProcessCount("ann", seconds=30.0), ProcessCount("bob", seconds=30.0)
    >>> state = ann.start()
    >>> ann.take(state, 0.0, 1); bob.take(state, 20.0, 1)
    >>> ann.remaining(state, 20.0), ann.remaining(state, 40.0)
    (2, 1)
    """

    name: str
    seconds: float

    @property
    def capacity(self) -> float:
        """None."""
        return math.inf

    def start(self) -> dict[str, float]:
        """Give a count of nobody."""
        return {}

    def delay(self, state: dict[str, float], now: float, cost: float) -> float:  # noqa: ARG002
        """Nobody waits."""
        return 0.0

    def take(self, state: dict[str, float], now: float, cost: float) -> None:
        """Sign, and strike out who has not for long."""
        if cost:
            state[self.name] = max(now, state.get(self.name, now))
            for name in [name for name, at in state.items() if at + self.seconds <= now]:
                del state[name]

    def remaining(self, state: dict[str, float], now: float) -> float:
        """How many have signed."""
        return sum(at + self.seconds > now for at in state.values())

    def reset_after(self, state: dict[str, float], now: float) -> float:
        """Seconds until nobody is counted."""
        return until(max(state.values()) + self.seconds, now) if state else 0.0

    def dump(self, state: dict[str, float]) -> bytes:
        """Write who has signed, and when."""
        return json.dumps(state).encode()

    def load(self, data: bytes) -> dict[str, float]:
        """Read it."""
        return {str(name): float(at) for name, at in json.loads(data).items()}

"""Counts the processes that share a store: each registers now and then in a record of the store.

`on_store_error="local"` divides a limit by the count if the user gives no `local_share`. It costs
two calls every ten seconds, as every server keeps the record by compare and swap, and it lags
behind the processes that have started or ended since. A given share costs nothing and is exact.

Invariant: a process counts from its first registration until 30 seconds after its last one.
"""

import json
import math
import os
import random
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from aiothrottle.algorithms.protocol import until

if TYPE_CHECKING:
    from aiothrottle.stores.store import Store

__all__ = ["ProcessCount", "ProcessCounter"]

# The key of the record. No limiter has it by chance.
_KEY = "aiothrottle.processes"
# Seconds between two registrations, at first and later, and for which one counts.
_FIRST_INTERVAL, _LAST_INTERVAL, _COUNTED = 0.1, 10.0, 30.0
# By up to this part an interval is longer or shorter, so that processes do not all call at once.
_JITTER = 0.25


class ProcessCounter:
    """Registers this process in a store, and counts the registered ones."""

    __slots__ = ("_due_at", "_interval", "_token", "processes")

    def __init__(self) -> None:
        self._token = secrets.token_hex(8)
        #: How many processes use the store, this one included, as far as is known.
        self.processes: int = 1
        self.restart()

    def restart(self) -> None:
        """Begin anew on another loop, whose clock may be another one; the count stays."""
        self._due_at = -math.inf
        self._interval = _FIRST_INTERVAL

    def is_due(self, now: float) -> bool:
        """Return whether it is time to register; if so, the caller has to."""
        if now < self._due_at:
            return False
        self._due_at = now + self._interval * random.uniform(1 - _JITTER, 1 + _JITTER)
        self._interval = min(2 * self._interval, _LAST_INTERVAL)
        return True

    async def register(self, store: "Store") -> None:
        """Register this process, and count the registered ones. Raises what the store raises."""
        # The process is part of the name: a forked child has the same token.
        count = ProcessCount(f"{os.getpid():x}-{self._token}", _COUNTED)
        answer = await store.record(_KEY, count)
        self.processes = max(1, int(answer.remaining))


@dataclass(frozen=True, slots=True)
class ProcessCount:
    """Counts the names that registered lately. An algorithm, since any store can keep its record.

    Args:
        name: The name to register.
        seconds: How long a registration counts.

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
        """Infinity."""
        return math.inf

    def start(self) -> dict[str, float]:
        """Return an empty count."""
        return {}

    def delay(self, state: dict[str, float], now: float, cost: float) -> float:  # noqa: ARG002
        """Return 0.0: now."""
        return 0.0

    def take(self, state: dict[str, float], now: float, cost: float) -> None:
        """Register the name, and drop the registrations that count no more."""
        if cost:
            state[self.name] = max(now, state.get(self.name, now))
            for name in [name for name, at in state.items() if at + self.seconds <= now]:
                del state[name]

    def remaining(self, state: dict[str, float], now: float) -> float:
        """Return how many names count."""
        return sum(at + self.seconds > now for at in state.values())

    def reset_after(self, state: dict[str, float], now: float) -> float:
        """Seconds until no registration counts."""
        return until(max(state.values()) + self.seconds, now) if state else 0.0

    def dump(self, state: dict[str, float]) -> bytes:
        """Return the names and their timestamps as bytes."""
        return json.dumps(state).encode()

    def load(self, data: bytes) -> dict[str, float]:
        """Return the state that was dumped.

        Raises:
            ValueError: The bytes are no such dump.
        """
        names: Any = json.loads(data)
        if not isinstance(names, dict):
            raise ValueError(f"not a dump of ProcessCount: {names!r:.50} is no table of names")
        timestamps = cast("dict[str, float]", names)
        return {name: float(at) for name, at in timestamps.items()}

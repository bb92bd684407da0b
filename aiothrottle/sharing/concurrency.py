"""What the user says of slots that all processes share."""

import math
from dataclasses import dataclass

__all__ = ["SharedConcurrency"]


@dataclass(frozen=True, slots=True)
class SharedConcurrency:
    """A concurrency limit that all processes have together, in a store.

    It stands where a concurrency limit stands. All limiters with the same store and `key` count
    together, whatever their rates are; they should have the same `limit`. Those who wait are served
    in the order in which they came, of all processes.

    Args:
        limit: How many may be inside ``throttle()`` at once, in all processes together.
        lease: Seconds after which the slots of a process that died are free again. Each process
            says every third of it that it is alive.
        per_process: How many of them this limiter takes at the most. None: all.

    Raises:
        TypeError: An argument is of a wrong kind.
        ValueError: An argument is out of range.

    >>> from aiothrottle import RateLimiter
    >>> from aiothrottle.stores import MemoryStore
    >>> limiter = RateLimiter("50/s", SharedConcurrency(40), store=MemoryStore(), key="example.org")
    """

    limit: int
    lease: float = 30.0
    per_process: int | None = None

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        for name in ("limit", "per_process"):
            slots = getattr(self, name)
            if name == "per_process" and slots is None:
                continue
            if isinstance(slots, bool) or not isinstance(slots, int):
                raise TypeError(f"{name} is a whole number of slots, not {slots!r}")
            if slots < 1:
                raise ValueError(f"{name} is 1 or more, not {slots!r}")
        if isinstance(self.lease, bool) or not isinstance(self.lease, int | float):
            raise TypeError(f"lease is a number of seconds, not {self.lease!r}")
        if not 0.0 < self.lease < math.inf:
            raise ValueError(f"lease is a finite number of seconds above 0, not {self.lease!r}")

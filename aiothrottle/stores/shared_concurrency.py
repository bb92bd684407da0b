"""What the user says of slots that all processes share."""

from dataclasses import dataclass

from aiothrottle.checks import check_number, check_whole

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
    >>> limiter = RateLimiter(
    ...     "50/s", concurrency_limit=SharedConcurrency(40), store=MemoryStore(), key="example.org"
    ... )
    """

    limit: int
    lease: float = 30.0
    per_process: int | None = None

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        check_whole("limit", self.limit, "slots")
        check_number("lease", self.lease, "seconds", above=0)
        check_whole("per_process", self.per_process, "slots", none="None for all of them")

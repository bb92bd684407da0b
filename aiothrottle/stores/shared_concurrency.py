"""The user's choice for slots that all processes share."""

from dataclasses import dataclass

from aiothrottle._checks import check_number, check_whole


@dataclass(frozen=True, slots=True)
class SharedConcurrency:
    """A concurrency limit for all processes together, counted in a store.

    It is given in place of a number as the concurrency limit. All limiters with the same store and
    `key` count together, whatever their rates are; they should have the same `limit`. Waiters of
    all processes are served first come, first served.

    Args:
        limit: How many requests may be inside ``throttle()`` at once, in all processes together.
        lease: Seconds after which the slots of a crashed process are free. Each process renews its
            slots every third of it.
        per_process: The most slots of this limiter. None: all.

    Raises:
        TypeError: An argument has a wrong type.
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
        """Check the numbers."""
        check_whole("limit", self.limit, "slots")
        check_number("lease", self.lease, "seconds", above=0)
        check_whole("per_process", self.per_process, "slots", none="None for all of them")

"""How many tokens are reserved before a request needs them, and for how long they are kept.

Strategy. Either the user gives both (`prefetch="50/100ms"`: 50 tokens, kept for 100 ms), or the
number is learned: a single task that asks again each time in the same turn of the loop would need a
call for each request. So while it does, each call reserves about twice as many as the call before.
What it does not use within the turn is returned, so nothing is used late.
"""

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiothrottle.rate import Rate

__all__ = ["Prefetch"]

# Tokens that are learned to be worth reserving, at the most.
_MOST_LEARNED = 63
# Seconds that a reservation may be used late. The store counts it at its instant: a request that
# starts much later starts together with those that the store grants then.
_PATIENCE = 0.02


class Prefetch:
    """The tokens to reserve beyond those of the waiters.

    Args:
        given: The tokens, and for how long they are kept. None: the number is learned.

    >>> prefetch = Prefetch(None)
    >>> [prefetch.tokens(30, alone=True) for _ in range(5)]
    [0, 1, 3, 7, 15]
    >>> prefetch.reset()
    >>> prefetch.tokens(30, alone=True)
    0
    """

    __slots__ = ("_calls", "_given")

    def __init__(self, given: "Rate | None") -> None:
        self._given = given
        # Calls for a single waiter, one after the other, between which the queue never was empty.
        self._calls = 0

    @property
    def is_given(self) -> bool:
        """Whether the user gives the number: then prefetched tokens are kept while nobody waits."""
        return self._given is not None

    @property
    def is_learned(self) -> bool:
        """Whether the number is learned, and the last call prefetched tokens."""
        return self._given is None and self._calls > 1

    @property
    def patience(self) -> float:
        """Seconds that a reservation may be used late."""
        return _PATIENCE if self._given is None else max(_PATIENCE, self._given.period)

    def reset(self) -> None:
        """Learn anew: a turn has passed without a request, or the store has rejected one."""
        self._calls = 0

    def tokens(self, batch: int, *, alone: bool) -> int:
        """Return how many tokens to prefetch with this call.

        Args:
            batch: The most costs in one call at this rate.
            alone: Whether the call is for a single waiter, and nobody else waits.
        """
        if self._given is not None:
            return math.floor(self._given.limit)
        if not alone:
            self._calls = 0
            return 0
        learned = min((1 << min(self._calls, 16)) - 1, batch - 1, _MOST_LEARNED)
        self._calls += 1
        return learned

    def costs(self, tokens: int) -> list[float]:
        """Cut the tokens into costs: a learned number one by one, so that a part can be granted."""
        return [1.0] * tokens if self._given is None else [float(tokens)]

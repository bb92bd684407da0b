"""How many tokens are reserved before a request needs them, and for how long they are kept.

Strategy. Either the user gives both (`prefetch="50/100ms"`: 50 tokens, kept for 100 ms), or the
number is learned: each call reserves about twice as many beyond the waiters as the call before, as
long as all of them are used. It is learned in two cases.

- A single task that asks again each time in the same turn of the loop would need a call for each
  request. What it does not use within the turn is returned, so nothing is used late.
- Of a far store, as many tokens are reserved as pass in a round trip, also if fewer tasks wait:
  as long as requests join the queue. They are used at their instants, or returned.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiothrottle.rate import Rate

__all__ = ["Prefetch"]

# Tokens that are learned to be worth reserving for a single task, at the most.
_MOST_LEARNED = 63
# Seconds that a reservation may be used late. The store counts it at its instant: a request that
# starts much later starts together with those that the store grants then.
_PATIENCE = 0.02


class Prefetch:
    """The tokens to reserve beyond those of the waiters.

    Args:
        given: The tokens, and for how long they are kept. None: the number is learned.

    >>> prefetch = Prefetch(None)
    >>> [prefetch.learned(30) for _ in range(6)]
    [0, 1, 3, 7, 15, 30]
    >>> prefetch.reset()
    >>> prefetch.joined = 5
    >>> prefetch.learned_ahead(30), prefetch.learned_ahead(30)
    (0, 0)
    >>> prefetch.joined = 5
    >>> prefetch.learned_ahead(30)
    5
    """

    __slots__ = ("_fetched", "_learned", "given", "joined")

    def __init__(self, given: "Rate | None") -> None:
        #: The tokens that the user gives, and for how long they are kept; None: it is learned.
        self.given: Rate | None = given
        #: Requests that have joined the queue since the last call.
        self.joined: int = 0
        # The number for the next call, and that of the last one.
        self._learned = self._fetched = 0

    @property
    def is_learned(self) -> bool:
        """Whether the number is learned, and the last call prefetched tokens."""
        return self._fetched > 0

    @property
    def is_due(self) -> bool:
        """Whether to prefetch a learned number although no waiter lacks a token."""
        return self._learned > 0 and self.joined > 0

    @property
    def patience(self) -> float:
        """Seconds that a reservation may be used late."""
        return _PATIENCE if self.given is None else max(_PATIENCE, self.given.period)

    def reset(self) -> None:
        """Learn anew: the queue was empty, or the store has failed."""
        self._learned = self._fetched = 0

    def shrink(self) -> None:
        """Prefetch less with the next call: some tokens were not used in time."""
        self._learned //= 2

    def learned(self, most: int, asking: int = 1) -> int:
        """Return how many costs to prefetch with this call, `most` at the most; and learn.

        Args:
            most: The number that is of use.
            asking: Requests that ask.
        """
        self._fetched = min(self._learned, most)
        self._learned = min(2 * self._learned + asking, max(most, asking))
        return self._fetched

    def learned_ahead(self, most: int) -> int:
        """Return the same of a far store: none unless requests have joined since the last call."""
        joined, self.joined = self.joined, 0
        return self.learned(most, joined) if joined else 0

    @staticmethod
    def of_single_task(batch: int) -> int:
        """Return how many tokens are worth prefetching for one task, at the most."""
        return min(batch - 1, _MOST_LEARNED)

"""The health of a store: whether it answers, and when to try it.

There is one `Health` for each store, for all limiters on it.

Invariant: while the store fails one limiter tries it, at growing intervals, on behalf of all; an
outage is logged once.
"""

import itertools
import logging
import random

from aiothrottle.algorithms.timestamps import until
from aiothrottle.errors import StoreUnavailable
from aiothrottle.stores.process_count import ProcessCounter
from aiothrottle.stores.store import Store
from aiothrottle.texts import duration

__all__ = ["Health"]

_LOG = logging.getLogger("aiothrottle")

# Of all stores of this process.
_OUTAGES = itertools.count(1)

# Seconds between two tries. With a second for a call that is not answered, the timeout of the
# stores, every process finds within two seconds that the store is back.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 0.5
# By up to this part a pause is longer or shorter, so that processes do not all try at once.
_JITTER = 0.25


class Health:
    """Whether a store answers."""

    __slots__ = (
        "_loop",
        "_name",
        "_reported_at",
        "_try_at",
        "counter",
        "error",
        "failures",
        "is_tried",
        "outage",
    )

    def __init__(self, store: Store) -> None:
        self._name = type(store).__name__
        #: Counts the processes that use the store.
        self.counter: ProcessCounter = ProcessCounter()
        self._reported_at: float | None = None
        #: The number of the last outage, or of the present one.
        self.outage: int = 0
        self._loop: object = self
        self.move_to(None)

    @classmethod
    def of(cls, store: Store) -> "Health":
        """Return the health of the store."""
        health: Health | None = getattr(store, "_health", None)
        if health is None:
            health = cls(store)
            object.__setattr__(store, "_health", health)  # a user's own store may be frozen
        return health

    def move_to(self, loop: object) -> None:
        """Begin anew if that is another loop: its clock may be another one."""
        if loop is self._loop:
            return
        self._loop = loop
        #: Calls that failed one after the other.
        self.failures: int = 0
        #: The error of the last of them.
        self.error: StoreUnavailable | None = None
        self._try_at = 0.0
        #: Whether a limiter is trying the store now.
        self.is_tried: bool = False
        self.counter.restart()

    def pause(self, now: float) -> float:
        """Seconds until it is time to try again."""
        return until(self._try_at, now) if self.failures else 0.0

    def call_failed(self, now: float, error: StoreUnavailable) -> None:
        """Note a failed call. Of several that were under way together one counts."""
        self.error = error
        if self.pause(now) == 0.0:
            doublings = min(self.failures, 20)  # an outage of hours has thousands of failures
            pause = min(_FIRST_PAUSE * 2**doublings, _LONGEST_PAUSE)
            self._try_at = now + pause * random.uniform(1 - _JITTER, 1 + _JITTER)
            self.failures += 1

    def call_answered(self, now: float) -> None:
        """Note an answer to a limiter whose calls never failed: the others may call no more."""
        if self.failures and self.pause(now) == 0.0:  # else it may be older than the failure
            self.end_outage(now)

    def begin_outage(self, now: float, choice: str, reason: str) -> None:
        """Log that the store fails, unless that is logged already."""
        if self._reported_at is None:
            self._reported_at = now
            self.outage = next(_OUTAGES)
            # The reason is in the words of a server: escaped and cut, it forges no line.
            _LOG.warning("%s fails, on_store_error=%r: %.500r", self._name, choice, reason)

    def end_outage(self, now: float) -> None:
        """Log that the store is back, unless that is logged; every limiter may try it now."""
        self.failures, self.error = 0, None
        if self._reported_at is not None:
            _LOG.info("%s is back after %s", self._name, duration(now - self._reported_at))
            self._reported_at = None

"""What this process knows of a store: whether it answers, when to try again, who else uses it.

There is one for each store, for all the limiters on it: when the store is away one of them tries,
at growing intervals, on behalf of all, and one line is logged.
"""

import itertools
import logging
import os
import random
import secrets

from aiothrottle.algorithms.timestamps import until
from aiothrottle.errors import StoreUnavailable
from aiothrottle.stores.process_count import ProcessCount
from aiothrottle.stores.store import Store
from aiothrottle.texts import duration

__all__ = ["Health"]

_LOG = logging.getLogger("aiothrottle")

# Of all stores of this process.
_OUTAGES = itertools.count(1)

# Seconds between two tries. With a second for a call that is not answered, the timeout of the
# stores, whoever is back is found within two.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 0.5
# By up to this part a pause is longer or shorter, so that the processes do not all come at once.
_SPREAD = 0.25

# Under this key the processes sign. No limiter has it by chance.
_PROCESSES = "aiothrottle.processes"
# Seconds between two signatures, at first and later, and for which one counts.
_FIRST_SIGNED, _LAST_SIGNED, _COUNTED = 0.1, 10.0, 30.0


class Health:
    """How a store is."""

    __slots__ = (
        "_between",
        "_loop",
        "_name",
        "_reported_at",
        "_sign_at",
        "_token",
        "_try_at",
        "error",
        "failures",
        "outage",
        "processes",
        "tried",
    )

    def __init__(self, store: Store) -> None:
        self._name = type(store).__name__
        self._token = secrets.token_hex(8)
        #: How many processes use the store, this one included, as far as is known.
        self.processes: int = 1
        self._reported_at: float | None = None
        #: The last one, or the one under way.
        self.outage: int = 0
        self._loop: object = self
        self.move_to(None)

    @classmethod
    def of(cls, store: Store) -> "Health":
        """Give the one of the store."""
        health: Health | None = getattr(store, "_health", None)
        if health is None:
            health = cls(store)
            object.__setattr__(store, "_health", health)  # a user's own may be frozen
        return health

    def move_to(self, loop: object) -> None:
        """Begin anew if that is another loop: its clock may be another one."""
        if loop is self._loop:
            return
        self._loop = loop
        #: Calls that failed one after the other.
        self.failures: int = 0
        #: Why the last one did.
        self.error: StoreUnavailable | None = None
        self._try_at = 0.0
        #: Whether somebody tries just now.
        self.tried: bool = False
        self._sign_at: float | None = None
        self._between = _FIRST_SIGNED

    def pause(self, now: float) -> float:
        """Seconds until it is time to try again."""
        return until(self._try_at, now) if self.failures else 0.0

    def failed(self, now: float, error: StoreUnavailable) -> None:
        """Hear of a call that failed. Of those that were under way together one counts."""
        self.error = error
        if self.pause(now) == 0.0:
            doublings = min(self.failures, 20)  # hours away are failures by the thousand
            pause = min(_FIRST_PAUSE * 2**doublings, _LONGEST_PAUSE)
            self._try_at = now + pause * random.uniform(1 - _SPREAD, 1 + _SPREAD)
            self.failures += 1

    def went(self, now: float, choice: str, reason: str) -> None:
        """Log that the store is away, unless that was said."""
        if self._reported_at is None:
            self._reported_at = now
            self.outage = next(_OUTAGES)
            # The reason is in the words of a server: escaped and cut, it forges no line.
            _LOG.warning("%s fails, on_store_error=%r: %.500r", self._name, choice, reason)

    def answered(self, now: float) -> None:
        """Hear of an answer to a limiter that never missed one: those that did may ask no more."""
        if self.failures and self.pause(now) == 0.0:  # else it may be older than the failure
            self.came(now)

    def came(self, now: float) -> None:
        """Log that it is back, unless that was said; all who are without it may try now."""
        self.failures, self.error = 0, None
        if self._reported_at is not None:
            _LOG.info("%s is back after %s", self._name, duration(now - self._reported_at))
            self._reported_at = None

    def should_sign(self, now: float) -> bool:
        """Tell whether it is time to sign, and take it for done."""
        if self._sign_at is not None and now < self._sign_at:
            return False
        self._sign_at = now + self._between * random.uniform(1 - _SPREAD, 1 + _SPREAD)
        self._between = min(2 * self._between, _LAST_SIGNED)
        return True

    async def sign(self, store: Store) -> None:
        """Register this process, and count the registered ones. Raises what the store does."""
        # The process is part of the name: a child that was forked has the same token.
        count = ProcessCount(f"{os.getpid():x}-{self._token}", _COUNTED)
        answer = await store.record(_PROCESSES, count)
        self.processes = max(1, int(answer.remaining))

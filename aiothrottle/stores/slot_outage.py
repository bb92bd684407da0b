"""A store of shared slots that fails: when to call it again, and the slots to use meanwhile.

Invariant: `slots` is a number only while the store fails and the fallback serves. A slot that is
used then is reported to the store with the first claim that it answers.
"""

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from aiothrottle._core.semaphore import NO_LIMIT
from aiothrottle.errors import StoreUnavailable
from aiothrottle.events import StoreDown, StoreUp
from aiothrottle.stores.health import FIRST_PAUSE, Outage
from aiothrottle.stores.share import slots_of_share
from aiothrottle.stores.store import OnStoreError

if TYPE_CHECKING:
    from aiothrottle.stores.shared_concurrency import SharedConcurrency
    from aiothrottle.stores.slots import SlotStore
    from aiothrottle.stores.store import Key

# Seconds after an error that is no outage.
_PAUSE = 1.0
# Calls per second of all limiters of the process together, while a server fails for many of them.
# The first one that is answered notifies the others.
_RETRIES_PER_SECOND = 20.0


class SlotOutage:
    """What one limiter knows of the outages of its store.

    Args:
        store: The store that may fail.
        key: The key of the record.
        choice: What serves then: `on_store_error`.
        local_share: The share of this process, with "local"; None: the slots that it held.
        report: Called with the event when the store fails or is back.
        retry: Called when the server has answered another limiter.

    The last two are methods, and held weakly.
    """

    __slots__ = ("__weakref__", "_key", "_local_share", "_outage", "failures", "slots")

    def __init__(
        self,
        store: "SlotStore",
        key: "Key",
        *,
        choice: OnStoreError,
        local_share: float | None,
        report: Callable[[StoreDown | StoreUp | None], None],
        retry: Callable[[], None],
    ) -> None:
        self._key = key
        self._outage = Outage(store, choice, report=report, probe=self._probe, returned=retry)
        self._local_share = local_share
        #: Calls that failed one after the other.
        self.failures: int = 0
        #: How many slots may be used without the store; None while the fallback does not serve.
        self.slots: int | None = None

    @property
    def store_up(self) -> bool:
        """Whether the store answered the last call."""
        return not self._outage.is_down

    @property
    def serves(self) -> bool:
        """Whether the fallback serves."""
        return self.slots is not None

    def _probe(self) -> bool:
        """Return False: it claims again by itself."""
        return False

    def call_failed(self, now: float, error: Exception, lease: float) -> float:
        """Note a failed call. Return the seconds until the next one."""
        self.failures += 1
        outage, pause = self._outage, _PAUSE
        if isinstance(error, StoreUnavailable):
            outage.move_to(asyncio.get_running_loop())
            outage.find(self._key)
            outage.call_failed(now, self._key, error)
            pause = 2.0 * max(FIRST_PAUSE, outage.health.pause())  # a claim costs more than a probe
        fair = outage.health.followers / _RETRIES_PER_SECOND
        return max(min(pause, lease / 3), fair) * random.uniform(0.5, 1.0)

    def call_answered(self, now: float) -> None:
        """Note an answer: the store counts again."""
        self.forget_failures()
        if self._outage.is_down:
            self._outage.call_answered(now)

    def forget_failures(self) -> None:
        """Begin anew, as there is nothing to call for; the store counts as failing until then."""
        self._outage.unfollow()
        self.failures, self.slots = 0, None

    def falls_back(self, error: Exception) -> bool:
        """Return whether the fallback serves after that error; otherwise the waiters get it."""
        return self._outage.choice != "raise" and isinstance(error, StoreUnavailable)

    def error_for(self, error: Exception) -> Exception:
        """Return the error of the waiters: what failed, and what becomes of them."""
        if isinstance(error, StoreUnavailable):
            return self._outage.error_for(self._key, error)
        return error

    def begin_fallback(self, shared: "SharedConcurrency", held: int) -> None:
        """Let the fallback serve.

        Args:
            shared: The slots of all processes.
            held: The slots that this limiter holds.
        """
        if self._outage.choice == "open":
            self.slots = NO_LIMIT
        elif self._outage.choice == "closed":
            self.slots = 0
        elif self._local_share is not None:
            self.slots = slots_of_share(shared.limit, self._local_share)
        else:
            # What each held when the store failed is not more than all may have together.
            self.slots = shared.per_process or max(1, held)

    def end_fallback(self) -> None:
        """Grant nothing without the store."""
        self.slots = None

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
from aiothrottle.stores.health import Health
from aiothrottle.stores.share import slots_of_share
from aiothrottle.stores.store import OnStoreError

if TYPE_CHECKING:
    from aiothrottle.stores.shared_concurrency import SharedConcurrency
    from aiothrottle.stores.slots import SlotStore
    from aiothrottle.stores.store import Key

__all__ = ["SlotOutage"]

# Seconds after a failed call: the first pause is twice this, and pauses double up to the longest.
_RETRY, _LONGEST_RETRY = 0.1, 1.0
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
    """

    __slots__ = (
        "__weakref__",
        "_choice",
        "_down_since",
        "_health",
        "_key",
        "_local_share",
        "_report",
        "_retry",
        "_store",
        "failures",
        "slots",
    )

    def __init__(
        self,
        store: "SlotStore",
        key: "Key",
        *,
        choice: OnStoreError,
        local_share: float | None,
        report: Callable[[StoreDown | StoreUp], None],
        retry: Callable[[], None],
    ) -> None:
        self._store = store
        self._key = key
        # Of the server that has the key, as of the last failed call.
        self._health = Health.of(store)
        self._choice = choice
        self._local_share = local_share
        self._report = report
        self._retry = retry
        # When the store began to fail, if it fails.
        self._down_since: float | None = None
        #: Calls that failed one after the other.
        self.failures: int = 0
        #: How many slots may be used without the store; None while the fallback does not serve.
        self.slots: int | None = None

    @property
    def store_up(self) -> bool:
        """Whether the store answered the last call."""
        return self._down_since is None

    @property
    def serves(self) -> bool:
        """Whether the fallback serves."""
        return self.slots is not None

    @property
    def needs_probe(self) -> bool:
        """Whether others have to try the server for it: it does so itself."""
        return False

    def probe(self) -> None:
        """Never run: see `needs_probe`."""

    def server_returned(self) -> None:
        """Call again: the server has answered another limiter."""
        self._retry()

    def call_failed(self, now: float, error: Exception, lease: float) -> float:
        """Note a failed call. Return the seconds until the next one."""
        self.failures += 1
        if isinstance(error, StoreUnavailable):
            if self._down_since is None:
                self._health = Health.of(self._store, self._key)
                self._health.move_to(asyncio.get_running_loop())
            self._health.follow(self)
            self._health.begin_outage(self._choice, str(error))
            if self._down_since is None:
                self._down_since = now
                self._report(StoreDown(None, error, self._health.outage))
        pause: float = min(_RETRY * 2 ** min(self.failures, 16), _LONGEST_RETRY, lease / 3)
        pause = max(pause, self._health.followers / _RETRIES_PER_SECOND)
        return pause * random.uniform(0.5, 1.0)

    def call_answered(self, now: float) -> None:
        """Note an answer: the store counts again."""
        self.forget_failures()
        if self._down_since is not None:
            self._health.end_outage()
            # The clock may be that of another loop.
            after, self._down_since = max(0.0, now - self._down_since), None
            self._report(StoreUp(None, after))

    def forget_failures(self) -> None:
        """Begin anew, as there is nothing to call for; the store counts as failing until then."""
        self._health.unfollow(self)
        self.failures, self.slots = 0, None

    def falls_back(self, error: Exception) -> bool:
        """Return whether the fallback serves after that error; otherwise the waiters get it."""
        return self._choice != "raise" and isinstance(error, StoreUnavailable)

    def begin_fallback(self, shared: "SharedConcurrency", held: int) -> None:
        """Let the fallback serve.

        Args:
            shared: The slots of all processes.
            held: The slots that this limiter holds.
        """
        if self._choice == "open":
            self.slots = NO_LIMIT
        elif self._choice == "closed":
            self.slots = 0
        elif self._local_share is not None:
            self.slots = slots_of_share(shared.limit, self._local_share)
        else:
            # What each held when the store failed is not more than all may have together.
            self.slots = shared.per_process or max(1, held)

    def end_fallback(self) -> None:
        """Grant nothing without the store."""
        self.slots = None

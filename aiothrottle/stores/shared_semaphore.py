"""The shared semaphore: slots that an engine leases from a store, where all processes share them.

The user writes `SharedConcurrency` in place of a concurrency limit, as with `AdaptiveConcurrency`,
beside a `store` and a `key`. A plain number stays the limit of this process: adding a store to a
program changes nothing about its slots.

Strategy. For the engine the leased slots are its concurrency limit: it begins with none. A request
without a free slot waits in the queue, as always. This file decides what is claimed and when
(`due_in`, `order`), and a `Caller` makes the calls: how many slots are held, and how many more are
of use. One call carries all that was released and all that is wanted since the last one. Up to its
share of the limit an owner uses a released slot again, without a call. Beyond that the slot goes
back at once, even if a request waits here: others may have waited longer, and the next call asks
for it again. Only as many slots are wanted as the rate can use soon.

While any are held or wanted, the claim is renewed each third of the lease; while slots are used
again, twice a second, as the share may have changed. The store wakes the waiters, or they ask again
after a pause, which may be longer than a request: where there are fewer slots than owners, so that
no owner has a share, a slot that was granted after such pauses is used for half a second.

If the store has given slots of this limiter to others, as a renewal came too late, the requests
under way continue and still count: the limit is exceeded until as many have ended, and one line is
logged.

Invariant: the store knows of at least as many slots as the engine has, or a claim is due; without
the store the engine has as many as the fallback allows. Once waiters have no slot,
the store was asked to wake them, or the pauses between their calls are bounded.
"""

import asyncio
import logging
import math
import os
import random
import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from aiothrottle._core.semaphore import NO_LIMIT
from aiothrottle.amounts import ROUNDING
from aiothrottle.errors import StoreUnavailable, twin
from aiothrottle.stores.caller import SHORTEST_BREAK, Order
from aiothrottle.stores.health import FIRST_PAUSE
from aiothrottle.stores.outage import Outage
from aiothrottle.stores.slots import Claim

if TYPE_CHECKING:
    from aiothrottle._core.bucket import LocalBucket
    from aiothrottle._core.observers import Observers
    from aiothrottle._core.semaphore import Semaphore
    from aiothrottle.stores.slots import Granted, SlotStore
    from aiothrottle.stores.store import SharedConcurrency

_LOG = logging.getLogger("aiothrottle")

# The most slots that are wanted at a time: so no waiter is behind more requests of one process.
_MOST_WANTED = 64
# Seconds between two calls for waiters that the store cannot wake: the first pause, by how much it
# grows, and the longest. Half of it is jitter.
_PAUSE, _GROWTH, _LONGEST_PAUSE = 0.01, 1.5, 0.5
# Seconds after an error that is no outage.
_PAUSE_AFTER_ERROR = 1.0
# Calls per second of all limiters of the process together, while a server fails for many of them.
# The first one that is answered notifies the others.
_RETRIES_PER_SECOND = 20.0


@dataclass(slots=True, eq=False, repr=False)
class SharedSemaphore:
    """The leased slots of one engine."""

    #: The engine's semaphore, which has the leased slots.
    semaphore: "Semaphore"
    #: Has the clock.
    bucket: "LocalBucket"
    #: Have the name for errors.
    observers: "Observers"
    #: What the user asked for: an update makes a claim due.
    shared: "SharedConcurrency"
    store: "SlotStore"
    #: Has the key of the record, and what serves while the store fails: with "local" and without a
    #: share, the slots that this process held. It reports to the engine.
    outage: Outage
    #: Returns how many waiters would start if they had slots, at most so many; None if the engine
    #: is gone.
    startable: Callable[[int], int | None]
    # What the last claim was for.
    _claimed: "SharedConcurrency | None" = field(init=False, default=None)
    # Whether the last call failed; and how many slots were held when the fallback began to
    # serve, None while it does not.
    _has_failed: bool = field(init=False, default=False)
    _held_before: int | None = field(init=False, default=None)
    _is_closed: bool = field(init=False, default=False)
    # When the next claim is due, if nothing changes before.
    _ask_at: float = field(init=False, default=math.inf)
    # The random part of the owner's name, the name, and the number of its last claim.
    _letters: str = field(init=False, default_factory=partial(secrets.token_hex, 8))
    _owner: str = field(init=False, default="")
    _number: int = field(init=False, default=0)
    # How many slots the store has as held and as wanted; None while that is uncertain, as a
    # claim is under way or was not answered. Then the slots that the store may have granted
    # have to be returned, until the lease of the last claim for any has expired.
    _known: tuple[int, int] | None = field(init=False, default=(0, 0))
    _leased_at: float = field(init=False, default=-math.inf)
    # How many slots may be used again without a claim, and until when. The share may have changed
    # by `_knows_until`: a slot that is used again after that makes a claim due (`_is_outdated`).
    _share: int = field(init=False, default=0)
    _keeps_until: float = field(init=False, default=-math.inf)
    _knows_until: float = field(init=False, default=-math.inf)
    _is_outdated: bool = field(init=False, default=False)
    # Until when a slot beyond the share is used again.
    _slice_until: float = field(init=False, default=-math.inf)
    # Whether the store wakes the owner, and whether it has since the last claim.
    _listens: bool = field(init=False, default=False)
    _is_woken: bool = field(init=False, default=False)
    # The next pause between two calls if it does not.
    _pause: float = field(init=False, default=_PAUSE)
    # A mark for each request that uses a slot only if one is free now (`try_acquire`, `peek`),
    # and the futures of those that need a call for that, until one that began later has ended.
    _trying: set[object] = field(init=False, default_factory=set[object])
    _tries: list[asyncio.Future[None]] = field(init=False, default_factory=list[Any])

    # ---- what the engine asks --------------------------------------------------------------------

    def is_idle(self, now: float) -> bool:  # noqa: ARG002 - leases run by the clock of the store
        """Return whether no slot is leased or wanted."""
        return self._known == (0, 0)

    @property
    def most(self) -> int:
        """The most slots that the engine may have."""
        shared = self.shared
        return min(shared.limit, shared.per_process or shared.limit)

    def tidy(self, now: float) -> None:
        """Give up free slots whose lease may expire before the store answers.

        While the fallback serves, use as many as it allows without the store.
        """
        if self._known is None and now >= self._keeps_until:
            self.semaphore.add(-self.semaphore.free)
        if self._held_before is not None:
            held, wanted = self._count()
            most = self._slots_without_store(self._held_before)
            self.semaphore.add(max(0, min(wanted, most - held)))

    def slot_released(self) -> None:
        """Keep the slot for the next waiter if it belongs to the share, else return it."""
        now, slots = self.bucket.clock(), self.semaphore.slots
        if self._keeps(slots, now):
            self._is_outdated = now >= self._knows_until
        elif slots > 1 or now >= self._slice_until:
            self.semaphore.add(-1)  # the next call returns it

    def _keeps(self, slots: int, now: float) -> bool:
        """Return whether so many slots belong to the share, by a lease that has not expired."""
        return 0 < slots <= min(self._share, self.most) and now < self._keeps_until

    def closed_for(self, now: float) -> float:
        """Return the seconds until a failing store is asked again, if no slot is used meanwhile."""
        # It may be asked now, but has not answered yet.
        is_closed = self._held_before is not None and self.outage.choice == "closed"
        return max(FIRST_PAUSE, self._ask_at - now) if is_closed else 0.0

    @asynccontextmanager
    async def try_lease(self, *, asks: bool) -> AsyncGenerator[None]:
        """Lease a free slot, if there is one, for a request that does not wait in the queue.

        Args:
            asks: Whether the store may be asked for it.

        Raises:
            StoreUnavailable: The store does not answer.
        """
        trying, mark = self._trying, object()
        trying.add(mark)
        try:
            self.tidy(self.bucket.clock())
            if asks and not (self.semaphore.free or self._held_before is not None):
                answered = asyncio.get_running_loop().create_future()
                self._tries.append(answered)
                self.outage.report(None)
                try:
                    await answered
                finally:
                    del answered  # the traceback of its error has this frame
            trying.discard(mark)  # it takes the slot before it waits for anything else
            yield
        finally:
            trying.discard(mark)
            self.outage.report(None)

    # ---- what is claimed, and when ---------------------------------------------------------------

    def due_in(self, now: float) -> float:
        """Return the seconds until a claim is due: 0.0 is now, infinity: it is not known."""
        held, wanted = self._count()
        if not (held or wanted):
            gives_up = self._is_closed and self._has_failed
            if gives_up or (self._known is None and now >= self._leased_at + self.shared.lease):
                self._rest()  # what could not be returned expires, or has expired
                return math.inf
        if self._has_failed:  # new waiters ask at once; otherwise the pause has to end
            is_due = self.outage.is_back or (bool(wanted) and self._held_before is None)
        else:
            # Only who wants a slot has a use for being woken: a store may wake without a reason.
            is_stale = wanted and (self._is_woken or self._claimed is not self.shared)
            is_stale = is_stale or self._is_outdated
            is_due = bool(is_stale or self._tries) or self._is_news(held, wanted, now)
        return 0.0 if is_due else max(0.0, self._ask_at - now)

    def _count(self) -> tuple[int, int]:
        """Return how many slots are held and of use, and how many more would be of use."""
        semaphore = self.semaphore
        of_use = (self.startable(_MOST_WANTED) or 0) + len(self._trying)
        free = semaphore.free
        most = _MOST_WANTED
        if self.shared.per_process is not None:
            most = min(most, self.shared.per_process - semaphore.slots)
        held = semaphore.slots - max(0, free - of_use)
        return held, max(0, min(of_use - free, most))

    def _is_news(self, held: int, wanted: int, now: float) -> bool:
        """Return whether the store has to know at once how many slots are held and wanted."""
        if self._known is None:
            return True
        known_held, known_wanted = self._known
        if held == known_held >= self._share and self._keeps(held, now):
            return bool(wanted) != bool(known_wanted)  # how many is for the next claim
        return (held, wanted) != self._known

    def order(self, now: float) -> Order | float:
        """Return the claim that is due now, or the seconds until one is.

        Free slots that are of no use go back with it.
        """
        if wait := self.due_in(now):
            return wait
        outage = self.outage
        outage.find()
        # Other limiters may have found that the store fails: then it is not asked for each key.
        if now < self._ask_at and (error := outage.too_early()):
            if self._has_failed and outage.choice == "raise":
                return Order(_raise(error), bool, self._rejected)
            assert outage.health.error is not None
            return Order(_raise(outage.health.error), bool, self._failed)
        held, wanted = self._count()
        self.semaphore.add(held - self.semaphore.slots)
        self._is_woken = self._is_outdated = False
        self._known = None
        if held or wanted:
            self._leased_at = now
        self._number += 1
        shared = self._claimed = self.shared
        claim = Claim(self._owner, shared.limit, held, wanted, shared.lease, self._number)
        call = self.store.claim(self.outage.key, claim)
        return Order(call, partial(self._granted, claim, len(self._tries)), self._failed)

    def _granted(self, claim: Claim, tries: int, granted: "Granted") -> None:
        now = self.bucket.clock()
        if granted.lost and self._held_before is None:
            _LOG.warning(
                "%d of the shared slots of %r were not renewed in time: others may have them too",
                *(granted.lost, self.outage.key),
            )
        self._forget_failures()
        self.outage.call_answered()
        self.semaphore.add(granted.granted)
        held, wanted = claim.held + granted.granted, claim.wanted - granted.granted
        self._known = (held, wanted)
        self._share, self._knows_until = granted.share, now + _LONGEST_PAUSE
        self._keeps_until = self._leased_at + claim.lease / 2
        if granted.granted and not granted.share and self._pause > _PAUSE:
            self._slice_until = min(now + _LONGEST_PAUSE, self._keeps_until)
        if granted.granted or not wanted:
            self._pause = _PAUSE
        if held or wanted:
            self._ask_at = now + self.shared.lease / 3
            if wanted:
                self._ask_at = min(self._ask_at, now + self._patience(granted.retry_after))
        else:
            self._rest()
        self._settle(tries)

    def _settle(self, tries: int, error: Exception | None = None) -> None:
        """Let the first of the requests that try find a free slot, or raise the error in each."""
        settled, self._tries = self._tries[:tries], self._tries[tries:]
        for future in settled:
            if future.done():
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(twin(error, self.observers.label))

    def _patience(self, retry_after: float) -> float:
        """Seconds after which to ask again if the store does not wake the waiters before.

        Args:
            retry_after: Seconds until a lease may expire.
        """
        if not self._listens:  # a wake-up before that call is lost
            self._listens = self._is_woken = self.store.listen(self._owner, self._woken)
        patience = retry_after + SHORTEST_BREAK
        if not self._listens:
            patience = min(patience, self._pause * random.uniform(0.5, 1.0))
            self._pause = min(self._pause * _GROWTH, _LONGEST_PAUSE)
        return patience

    def _woken(self) -> None:
        """Claim, as the store has woken the waiters; while it fails, its return does that."""
        self._is_woken = True
        if not self._has_failed:
            self.outage.report(None)

    # ---- while the store fails -------------------------------------------------------------------

    def _failed(self, error: Exception) -> Exception | None:
        """Return the error for the waiters, or let the fallback serve; and claim again later."""
        now, outage = self.bucket.clock(), self.outage
        self._has_failed = True
        pause = _PAUSE_AFTER_ERROR
        if isinstance(error, StoreUnavailable):
            outage.call_failed(error)
            pause = 2.0 * max(FIRST_PAUSE, outage.health.pause())  # a claim costs more than a probe
            error = outage.error_for(error)
        else:
            outage.call_answered()  # it has answered all the same
        fair = len(outage.health.followers) / _RETRIES_PER_SECOND
        pause = max(min(pause, self.shared.lease / 3), fair) * random.uniform(0.5, 1.0)
        self._ask_at = now + pause
        if isinstance(error, StoreUnavailable) and outage.choice != "raise":
            if self._held_before is None:
                self._held_before = self.semaphore.slots
            self.tidy(now)
            self._settle(len(self._tries))
            return None
        self._held_before = None
        return self._rejected(error)

    def _rejected(self, error: Exception) -> Exception:
        """Raise the error in the requests that try, and return it for the waiters."""
        self._settle(len(self._tries), error)
        return error

    def _slots_without_store(self, held_before: int) -> int:
        """Return how many slots the fallback allows."""
        shared, choice, local_share = self.shared, self.outage.choice, self.outage.local_share
        if choice != "local":
            return NO_LIMIT if choice == "open" else 0
        if local_share is not None:
            # The product may be off by a rounding: 0.29 * 100 is below 29.
            return max(1, math.floor(shared.limit * local_share + ROUNDING))
        # What each held when the store failed is not more than all may have together.
        return shared.per_process or max(1, held_before)

    def _forget_failures(self) -> None:
        """Begin anew, as the store answers, or there is nothing to call for."""
        self.outage.unfollow()
        self._has_failed, self._held_before = False, None

    def _rest(self) -> None:
        """Have no claim due until something changes: the store has nothing of this owner."""
        self._known = (0, 0)
        self._forget_failures()  # the store counts as failing until the next answer
        self._ask_at = math.inf
        self._is_woken = False
        self._stop_listening()

    def _stop_listening(self) -> None:
        if self._listens:
            self.store.unlisten(self._owner)
            self._listens = False

    # ---- the end, and loops ----------------------------------------------------------------------

    def restart(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin anew on another loop, with the requests that are still in flight."""
        self.outage.move_to(loop)
        self.semaphore.add(-self.semaphore.free)
        self._share = 0
        self._trying, self._tries = set(), []  # the requests of the old one are dead
        self._stop_listening()
        # The process is part of the name: a forked child has the same letters.
        self._owner = f"{os.getpid():x}x{self._letters}"
        if self._ask_at < math.inf:
            self._ask_at = -math.inf  # the clock may be another one

    def stop(self) -> None:
        """Claim nothing more: the engine is closed."""
        self._is_closed = True


async def _raise(error: Exception) -> None:
    try:
        raise error
    finally:
        del error  # its traceback has this frame

"""The engine of a limiter: arrive, grant, resume, release, cancel, in this order.

Strategy. With an empty queue, a free slot and credit in the bucket a request takes the fast path
and never comes here (`Permit.__aenter__`). Any other request joins the queue and waits on a future,
until the consumer calls `serve`, which grants to it.

A grant takes a slot and wakes the waiter, no more. Its tokens are taken after it has resumed, so
the timestamp of a token is never earlier than its request, and a waiter that is cancelled in
between gives back only the slot. Until then it stays in the queue, which keeps new requests off the
fast path and the order first in, first out. Each change of limits and pauses, and each token that
is taken out of turn, begins a new epoch: grants of an older epoch are decided again.

Invariants: every waiter is queued, granted or gone; a queue that is not empty has a consumer; state
changes only in synchronous code, so no await can lose anything.
"""

import asyncio
import math
from asyncio import Future, get_running_loop
from threading import get_ident
from typing import TYPE_CHECKING, Any, cast

from aiothrottle import events
from aiothrottle._core import trying
from aiothrottle._core.bucket import LocalBucket
from aiothrottle._core.charges import charge_more, refund
from aiothrottle._core.consumer import Consumer
from aiothrottle._core.dispatcher import Dispatcher
from aiothrottle._core.limits import Limits
from aiothrottle._core.lost import LostPermits
from aiothrottle._core.observers import Observers
from aiothrottle._core.pause import Pause
from aiothrottle._core.rejects import Rejects
from aiothrottle._core.semaphore import Semaphore
from aiothrottle._core.snapshot import statistics_of
from aiothrottle._core.threads import check_loop, check_thread
from aiothrottle._core.verdict import Verdict
from aiothrottle._core.wait_queue import Waiter, WaitQueue
from aiothrottle.amounts import as_costs, positive
from aiothrottle.errors import CostTooHigh, LimiterClosed, ThrottleTimeout, too_high, twin

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from aiothrottle._core.feedback import Feedback
    from aiothrottle._core.shared import SharedSlots, SharedTokens
    from aiothrottle._core.starter import Starter
    from aiothrottle.algorithms import Algorithm
    from aiothrottle.statistics import Statistics

__all__ = ["Engine", "fail", "is_granted"]


class Engine:
    """The parts of one limiter, and the order of steps."""

    __slots__ = (
        "__weakref__",
        "_given_clock",
        "_lost",
        "_patient",
        "bucket",
        "chained",
        "closed",
        "consumer",
        "debug",
        "dispatcher",
        "epoch",
        "feedback",
        "key",
        "leased",
        "limits",
        "loop",
        "observers",
        "pause",
        "queue",
        "rejects",
        "rejects_waiters",
        "resources",
        "semaphore",
        "shared",
        "thread",
    )

    def __init__(
        self,
        algorithm: "Algorithm[Any]",
        concurrency_limit: int | None,
        clock: "Callable[[], float]",
        *,
        max_queue: int | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.bucket: LocalBucket = LocalBucket(algorithm, clock)
        self.semaphore: Semaphore = Semaphore(concurrency_limit)
        self.queue: WaitQueue = WaitQueue()
        self.consumer: Consumer = Consumer()
        self.dispatcher: Dispatcher = Dispatcher()
        self.rejects: Rejects = Rejects(max_queue)
        self.pause: Pause = Pause()
        self.observers: Observers = Observers()
        #: The controllers that adapt to outcomes, if there are any.
        self.feedback: Feedback | None = None
        #: Leases the slots, if processes share a concurrency limit.
        self.leased: SharedSlots | None = None
        #: Reserves the tokens in a store, if processes share a rate.
        self.shared: SharedTokens | None = None
        #: The limits that the user asked for.
        self.limits: Limits = limits or Limits()
        #: The resources that a cost may name: of this limiter and of those above it. Without any,
        #: a cost is a number.
        self.resources: tuple[str, ...] = ()
        #: Its key in a `KeyedRateLimiter`.
        self.key: Hashable = None
        self.closed: bool = False
        #: Whether it was closed without draining.
        self.rejects_waiters: bool = False
        #: Whether other limiters have to grant as well: then it grants one request at a time, and
        #: watches each release of a slot.
        self.chained: bool = False
        self.loop: asyncio.AbstractEventLoop | None = None
        #: The thread of the loop.
        self.thread: int | None = None
        #: Whether the loop is in debug mode, or not known yet: then permits are watched.
        self.debug: bool = True
        self._given_clock = clock
        #: Counts the changes that affect decisions.
        self.epoch: int = 0
        self._lost: LostPermits = LostPermits()
        # Whether no request is rejected for the length of the queue or of its wait.
        self._patient: bool = max_queue is None and self.bucket.max_wait == math.inf

    # ---- state -----------------------------------------------------------------------------------

    @property
    def engine(self) -> "Engine":
        """This engine; a chain has the engine that it begins with."""
        return self

    @property
    def capacity(self) -> float:
        """The greatest cost that the limit can ever admit."""
        return self.bucket.capacity

    @property
    def waiting(self) -> int:
        """The number of requests that wait."""
        return self.queue.count - len(self.rejects)

    @property
    def resuming(self) -> int:
        """The number of slots that waiters hold which have not resumed yet."""
        return self.dispatcher.resuming

    @property
    def in_flight(self) -> int:
        """The number of permits that are held."""
        return self.semaphore.taken - self.dispatcher.resuming

    @property
    def is_bounded(self) -> bool:
        """Whether there is a concurrency limit."""
        return self.semaphore.limit is not None

    @property
    def engines(self) -> "tuple[Engine, ...]":
        """This engine; a chain has those above it as well."""
        return (self,)

    @property
    def takes_outcomes(self) -> bool:
        """Whether reports of outcomes have an effect."""
        return self.feedback is not None or self.pause.awaits_trial

    @property
    def shares_rate(self) -> bool:
        """Whether the rate is counted in a store."""
        return self.shared is not None

    @property
    def store_up(self) -> bool | None:
        """Whether the store answered the last call; None: there is no store."""
        parts = [part for part in (self.shared, self.leased) if part is not None]
        return all(part.store_up for part in parts) if parts else None

    def is_forgettable(self) -> bool:
        """Return whether a new engine would behave alike: idle, no pause, no spent tokens."""
        now = self.now()
        return (
            not (self.queue.count or self.consumer.task)
            # Without a limit slots do not count. A permit that is held keeps its engine alive.
            and not (self.is_bounded and self.in_flight)
            and not (self.closed or self.limits.are_changed_by_user)
            and now >= self.pause.opens_at
            and self.bucket.reset_after(now) <= 0.0
            and (self.feedback is None or self.feedback.is_forgettable(now))
            and (self.leased is None or self.leased.is_idle)
            and (self.shared is None or self.shared.is_idle(now))
        )

    def now(self) -> float:
        """Read the clock, and charge all started requests, so that the bucket may decide."""
        return self.bucket.now()

    # ---- deciding --------------------------------------------------------------------------------

    def decide(
        self, now: float, cost: float, *, ahead: float = 0.0, has_slot: bool = False
    ) -> float:
        """Decide when a request may start.

        This is the one decision, for new requests, waiters, resumed waiters, `try_acquire` and
        `peek`. The caller keeps the order of the queue.

        Args:
            now: The time, just read by `now`.
            cost: Tokens.
            ahead: Tokens of requests that start before it.
            has_slot: Whether it has taken a slot already.

        Returns:
            Seconds; 0.0 is now, infinity if a slot is missing.
        """
        if self.semaphore.taken >= self.semaphore.slots + has_slot:
            return math.inf
        if now < self.pause.opens_at:
            return self.pause.closed_for(now)
        return self.bucket.delay(now, cost, ahead)

    def decide_at_once(self, waiter: Waiter, now: float) -> float:
        """Decide about a new request, which never overtakes a waiter: 0.0 if it may start now.

        Raises:
            LimiterClosed: The limiter is closed.
        """
        if self.closed:
            raise LimiterClosed(key=self.key)
        if self.queue.count:
            return math.inf
        if self.shared is not None:
            self.shared.drop_stale(now)
        return self.decide(now, waiter.cost)

    def estimate(self, now: float, waiter: Waiter, ahead: float | None = None) -> float:
        """Return the seconds until pauses and rates admit the request, behind others.

        Slots do not count, as it is not known when one is released, nor does the trial after a
        pause.

        Args:
            now: The time, just read by `now`.
            waiter: The request.
            ahead: Tokens of the requests ahead of it; None: of those ahead in the queue.
        """
        if ahead is None:
            ahead = self.queue.cost_ahead(waiter)
        pause = self.pause.left(now)
        wait = self.bucket.delay(now + pause, waiter.cost, ahead)
        if math.isinf(wait):  # this algorithm has no estimate for more than its capacity
            wait = self.bucket.delay(now + pause, waiter.cost)
        if self.shared is not None and math.isinf(wait):
            return max(pause, self.shared.estimate(now, waiter.cost, ahead))
        return pause + wait

    def cost_ahead(self, waiter: Waiter) -> float:
        """Return the cost of all waiters that precede a request that arrives now."""
        return self.queue.cost_ahead(waiter)

    # ---- arriving, waiting, starting -------------------------------------------------------------

    def arrive(
        self, waiter: Waiter, *, as_head: bool = False, chain: "Starter | None" = None
    ) -> "Future[None] | None":
        """Start the request if it may start now, else queue it.

        The caller awaits the future and then calls `resume`; after any exception it calls `cancel`.

        Args:
            waiter: The request.
            as_head: It is the head of another queue: it has queued there, and is not rejected for
                the length of this queue.
            chain: Decides and starts in place of this engine alone.

        Returns:
            None if it has started, else the future to wait on.

        Raises:
            LimiterClosed, CostTooHigh, QueueFull, ThrottleTimeout: The request is rejected.
        """
        loop = get_running_loop()
        if self.loop is not loop:
            (chain or self).bind()
        if self.queue.count:
            now = self.bucket.clock()
        else:
            now = self.bucket.now()
            entry = chain or self
            if entry.decide_at_once(waiter, now) <= 0.0:
                entry.start(waiter, now)
                return None
        if self.closed:
            raise LimiterClosed(key=self.key)
        if self.limits.are_updated and (error := self._too_high(waiter.cost)):
            raise error  # the limit was lowered since the permit was made
        waiter.at = now
        if not self._patient or waiter.timeout is not None:
            self.rejects.check(self, waiter, now, (chain or self).estimate, as_head=as_head)
        # Not by `loop.create_future`, which is one more call for the same future.
        future: Future[None] = Future(loop=loop)
        try:
            self.queue.add(waiter, future)
            if self.shared is not None:
                self.shared.joined(waiter)
            # With several priorities the new waiter may be the head.
            if self.consumer.task is None or self.queue.others:
                self.wake()
            elif self.leased is not None:
                self.leased.refresh()
        except BaseException:
            self.cancel(waiter)
            raise
        return future

    def start(self, waiter: Waiter, now: float) -> None:
        """Take a slot and the tokens of a new request that may start."""
        waiter.at = now
        self.bucket.take(now, waiter.cost)
        self.semaphore.taken += 1
        waiter.started = True
        if self.pause.awaits_trial:
            self.start_trial(waiter, now)
        if self.observers.listeners:
            self.report_grant(waiter.cost, 0.0)
        elif (
            not self.chained
            and not self.pause.awaits_trial  # the next request has to wait
            and (self.shared is None or self.shared.may_grant_credit)
        ):
            self.bucket.open_credit(now)

    def resume(self, waiter: Waiter) -> "Future[None] | None":
        """Start a granted waiter, or return the future to wait on next."""
        bucket = self.bucket
        now = bucket.clock()
        started = bucket.started
        if started is not None:
            if started.cost == 1.0:  # as in `take_started`, without a call
                bucket.started = None
                started.at = now
                bucket.timestamps.append(now)
            else:
                bucket.take_started(started, now)
        dispatcher = self.dispatcher
        if dispatcher.epoch != self.epoch and not self._may_start(waiter):
            return self._stay(waiter)
        dispatcher.resuming -= 1
        bucket.started = waiter
        self.queue.remove(waiter)
        if not dispatcher.resuming:
            self._last_has_started()
        waited = now - waiter.at
        waiter.waited = waited if waited > 0.0 else 0.0
        waiter.at = now
        waiter.started = True
        observers = self.observers
        observers.waits.recent.append(waiter.waited)
        if observers.listeners:
            self.report_grant(waiter.cost, waiter.waited)
        return None

    def report_grant(self, cost: float, waited: float) -> None:
        """Emit `Granted`; there is a listener."""
        costs = as_costs(cost, self.resources) if self.resources else {}
        self.observers.emit(events.Granted(self.key, cost.real, waited, costs))

    def _last_has_started(self) -> None:
        assert self.loop is not None
        self.loop.call_soon(self._all_started)
        if not self.queue.count:
            self.wake()  # ends the consumer: the loop may stop with the task of this waiter

    def _all_started(self) -> None:
        """Take the tokens of the last waiter, and serve, unless a timer is set for that."""
        if not self.consumer.has_timer and self.consumer.task is not None:
            self.turn()
            return
        try:
            self.now()
        except Exception as error:  # noqa: BLE001 - an algorithm that fails, fails the waiters
            self.fail_all(error)

    def _may_start(self, waiter: Waiter) -> bool:
        """Decide again about a waiter that was granted in an older epoch, if it is the head."""
        if self.rejects_waiters or self.queue.head is not waiter:
            return False
        now = self.now()
        if self.decide(now, waiter.cost, has_slot=True) > 0.0:
            return False
        if self.pause.awaits_trial:
            self.start_trial(waiter, now)
        return True

    def _stay(self, waiter: Waiter) -> "Future[None]":
        """Take back a grant after which the waiter may not start, and let it wait again.

        Returns:
            The future to wait on.

        Raises:
            LimiterClosed, CostTooHigh: The waiter is rejected.
        """
        self._take_back()
        if self.rejects_waiters:
            error: Exception | None = LimiterClosed(key=self.key)
        else:
            error = self._too_high(waiter.cost)
        if error is not None:
            self._leave(waiter, resumed=True)
            raise error
        future = waiter.future = Future(loop=self.loop)
        self.wake()
        return future

    def cancel(self, waiter: Waiter) -> None:
        """Remove the waiter at any point, without a trace."""
        future = waiter.future
        # An engine that has moved to another loop has removed it already.
        if future is not None:
            resumed = is_granted(future)
            if resumed:
                self._take_back()
                loop = self.loop
                if self.bucket.started is not None and loop is not None and not loop.is_closed():
                    # This waiter, or the last of its batch, would have taken those tokens.
                    loop.call_soon(self._all_started)
            self._leave(waiter, resumed=resumed)

    def _take_back(self) -> None:
        """Undo a grant that was not used."""
        self.dispatcher.resuming -= 1
        self.semaphore.taken -= 1

    def _leave(self, waiter: Waiter, *, resumed: bool) -> None:
        """Remove the waiter from the queue, and wake the consumer if the order changes."""
        # While waiters are resuming, the consumer's timer may be for this waiter.
        affected = resumed or self.dispatcher.resuming or self.queue.head is waiter
        self.queue.remove(waiter)
        if affected:
            self.wake()
        if self.leased is not None:
            self.leased.refresh()

    # ---- after the start -------------------------------------------------------------------------

    def slot_released(self, waiter: Waiter | None = None) -> None:
        """Handle the release of a slot, while the semaphore is watched."""
        if self.pause.ends_with(waiter):
            self.end_trial()  # its outcome was not reported
        if self.dispatcher.starved:
            self.wake()
        self.watch()
        self.dispatcher.slot_released()
        if self.leased is not None:
            self.leased.slot_released()

    def release(self, waiter: Waiter) -> None:
        """Release the slot of a request that has started."""
        self.semaphore.taken -= 1
        if self.semaphore.watched:
            self.slot_released(waiter)

    def watch(self) -> None:
        """Set whether each release of a slot calls `slot_released`."""
        starved = self.dispatcher.starved
        tried = self.pause.awaits_trial and self.pause.trial is not None
        self.semaphore.watched = starved or self.chained or self.leased is not None or tried

    def await_trial(self) -> None:
        """Grant one request when the pause ends, and the others when that one is over."""
        self.pause.await_trial()
        self.reconsider()

    def start_trial(self, waiter: Waiter, now: float) -> None:
        """Note the start of a request while a trial is awaited."""
        self.pause.start(waiter, now)
        self.watch()

    def end_trial(self) -> None:
        """Grant all again: the request that went ahead is over, and was not throttled."""
        self.pause.end_trial()
        self.wake()

    def pass_on(self, waiter: Waiter | None) -> None:
        """Let another request go ahead if this one went ahead and failed."""
        if self.pause.pass_on(waiter):
            self.wake()

    def abandon(self, release: "Callable[[], None]") -> bool:
        """Release a permit that is garbage. Returns whether there is a concurrency limit.

        The collector runs in any thread, at any point of any code, including this. To count one
        slot less is safe anywhere; the next grant is decided on the loop.

        Args:
            release: Releases the permit.
        """
        if not (self.is_bounded or self.semaphore.watched) and self.thread == get_ident():
            release()
            return False
        self._lost.add(release, self.loop)
        return self.is_bounded

    def undo(self, waiter: Waiter) -> None:
        """Undo the start of a request that was not sent."""
        refund(self.bucket, waiter, self.now(), waiter.cost)
        self.observers.withdrawn += 1
        self.pause.pass_on(waiter)
        self.release(waiter)
        self.wake()

    def settle(self, waiter: Waiter, cost: float) -> None:
        """Charge the request `cost` in place of its earlier cost."""
        now = self.now()
        if more := positive(cost - waiter.cost):
            charge_more(self.bucket, waiter, now, more)
            self.epoch += 1
        if less := positive(waiter.cost - cost):
            refund(self.bucket, waiter, now, less)
            self.wake()
        waiter.cost = cost
        if self.shared is not None:
            self.shared.flush()

    async def record(self, cost: float) -> None:
        """Take tokens for a request that was sent already, whether they fit or not."""
        self.bind()
        if self.shared is None:
            self.charge(cost)
        else:
            await self.shared.record(cost)

    def charge(self, cost: float) -> None:
        """Take tokens out of turn."""
        self.bucket.charge(self.now(), cost)
        self.epoch += 1

    # ---- try_acquire, peek -----------------------------------------------------------------------

    async def try_start(self, waiter: Waiter) -> Verdict:
        """Start the request if it may start now; it never waits in the queue."""
        return await trying.try_start(self, waiter)

    async def peek(self, waiter: Waiter) -> Verdict:
        """Return the verdict of `try_start`, and change nothing."""
        return await trying.peek(self, waiter)

    def verdict(self, wait: float, *, allowed: bool = False) -> Verdict:
        """Combine a decision with the present state of the bucket."""
        now = self.now()
        return Verdict(allowed, self.bucket.remaining(now), wait, self.bucket.reset_after(now))

    # ---- rejecting -------------------------------------------------------------------------------

    def timed_out(self, waiter: Waiter) -> ThrottleTimeout:
        """Count a rejected waiter whose timeout has passed, and return the error to raise."""
        self.reject("timeout")
        wait = self.estimate(self.now(), waiter)
        return ThrottleTimeout(wait, timeout=waiter.timeout, key=self.key)

    def reject(self, reason: events.Rejection) -> None:
        """Count a rejected request."""
        self.observers.rejected += 1
        if self.observers.listeners:
            self.observers.emit(events.Rejected(self.key, reason))

    def _too_high(self, cost: float) -> CostTooHigh | None:
        return too_high(cost, self.capacity, key=self.key)

    # ---- serving ---------------------------------------------------------------------------------

    def has_waiters(self) -> bool:
        """Return whether the queue has waiters."""
        return self.queue.count > 0

    def wake(self) -> None:
        """Wake the consumer to serve the queue after a change."""
        if self.loop is not None and not self.loop.is_closed():
            self.consumer.wake(self, self.loop)

    def turn(self) -> None:
        """Serve the queue once, now."""
        assert self.loop is not None
        self.consumer.turn(self, self.loop)

    def consumer_ended(self, *, swept: bool) -> None:
        """Handle the end of the consumer: the queue is empty."""
        self.dispatcher.end()
        if self.shared is not None and not self.queue.count:
            self.shared.queue_is_empty(swept=swept)

    def fail_all(self, error: Exception) -> None:
        """Raise the error in all waiters."""
        for waiter in self.queue:
            if waiter not in self.rejects:
                fail(waiter, twin(error, self.key))

    def serve(self) -> float | None:
        """Grant to all waiters that may start now. Returns the seconds until the next, if known."""
        if self.leased is not None:
            self.leased.refresh()  # while the store fails there may be slots at once
        if self.shared is not None:
            # The store is called before the waiters run that are granted now.
            until_call = self.shared.prepare(self.now())
            wait = self.dispatcher.serve(self)
            if wait is not None:
                wait = min(wait, until_call)
            return None if wait == math.inf else wait  # the reserver serves again
        return self.dispatcher.serve(self)

    def startable(self, most: int) -> int:
        """Return how many waiters would start if they had slots, at most `most`."""
        if self.rejects_waiters or self.bucket.clock() < self.pause.opens_at:
            return 0
        waiting = self.waiting - self.dispatcher.resuming
        if not waiting:
            return 0
        if self.pause.awaits_trial:
            most = 1
        if self.shared is not None:
            return min(waiting, self.shared.startable_soon(most))
        return min(waiting, max(1, self.bucket.startable(self.now(), most)))

    # ---- changing the limits ---------------------------------------------------------------------

    def resize(self, concurrency_limit: int | None) -> None:
        """Change the concurrency limit; requests in flight keep their slots."""
        self.semaphore.resize(concurrency_limit)
        self.reconsider()

    def use(self, algorithm: "Algorithm[Any]") -> None:
        """Replace the algorithm, also for waiters; spent tokens stay spent."""
        own = algorithm if self.shared is None else self.shared.use(algorithm)
        self.bucket.use(own, self.now())
        self.reconsider()
        self._patient = not self.rejects.bounds_queue and self.bucket.max_wait == math.inf
        for waiter in self.queue:
            if error := too_high(waiter.cost, algorithm.capacity, key=self.key):
                fail(waiter, error)

    def reconsider(self) -> None:
        """Begin a new epoch, and wake the consumer."""
        self.epoch += 1
        self.bucket.flush()
        self.wake()

    def lease_slots(self, leased: "SharedSlots") -> None:
        """Use leased slots only; the engine must be new, and have none."""
        self.leased = leased
        self.watch()

    def share_rate(self, shared: "SharedTokens") -> None:
        """Use tokens only that are reserved in a store; the engine must be new."""
        self.shared = shared

    def listen(self, listener: events.Listener) -> None:
        """Add a listener for all events from now on."""
        self.observers.add(listener)
        self.now()  # voids the credit: entries on credit make no event

    def report_store(
        self,
        change: events.StoreDown | events.StoreUp,
        source: "SharedTokens | SharedSlots",
    ) -> None:
        """Emit `StoreDown` or `StoreUp`.

        If both the tokens and the slots are in the store, it reports the first failure of either,
        and the recovery of both.
        """
        parts = [part for part in (self.shared, self.leased) if part is not None]
        others_up = all(part.store_up for part in parts if part is not source)
        if self.observers.listeners and others_up:
            change.key = self.key
            self.observers.emit(change)

    # ---- the loop --------------------------------------------------------------------------------

    def bind(self) -> None:
        """Bind the engine to the running loop.

        Raises:
            RuntimeError: It belongs to another loop that is open.
        """
        loop = get_running_loop()
        self.check_loop(loop)
        if self.loop is not loop:
            self._move_to(loop)

    def check_thread(self) -> None:
        """Raise RuntimeError if the loop is open and this is not its thread."""
        self.thread = check_thread(self.loop, self.thread)

    def check_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Raise RuntimeError if the engine belongs to another loop that is open."""
        check_loop(self.loop, loop)

    def _move_to(self, loop: asyncio.AbstractEventLoop) -> None:
        self._lost.release()  # the old loop may have been closed before that
        # The waiters of the old loop are dead, and so is its consumer. The bucket lives on.
        self.semaphore.taken -= self.dispatcher.resuming
        self.dispatcher.forget()
        if self.leased is not None:
            self.leased.restart()
        self.queue.clear()
        self.rejects.clear()
        self.pause.pass_on(self.pause.trial)
        self.consumer.forget()
        self.loop = loop
        self.thread = get_ident()
        self.debug = loop.get_debug()
        # A loop with its own time, a `VirtualTimeLoop`, replaces the clock.
        clock = self._given_clock
        if (clock_for := getattr(loop, "clock_for", None)) is not None:
            clock = cast("Callable[[], float]", clock_for(clock))
        if clock != self.bucket.clock:
            # Timestamps of another clock are void; the rest of a pause is kept.
            self.now()
            self.pause.shift(clock() - self.bucket.clock())
            self.bucket.restart(clock)
            if self.feedback is not None:
                self.feedback.restart()
                if self.feedback.slots is not None and not self.limits.rate_unknown:
                    self.semaphore.resize(int(self.feedback.slots.state.limit))
        if self.shared is not None:
            self.shared.restart()

    async def close(self, *, drain: bool) -> None:
        """Reject new requests, and without `drain` the waiters; leave no task."""
        loop = get_running_loop()
        self.check_loop(loop)
        self.closed = True
        self.bucket.flush()
        if not drain:
            self.rejects_waiters = True
            self.epoch += 1
            if self.loop is loop:
                for waiter in self.queue:
                    if waiter not in self.rejects:
                        fail(waiter, LimiterClosed(key=self.key))
        self.wake()
        while (task := self.consumer.task) is not None and self.loop is loop:
            # Another task follows if this one is cancelled before its first step.
            await asyncio.wait([task])
        if self.leased is not None and self.loop is loop:
            await self.leased.close()
        if self.shared is not None and self.loop is loop:
            await self.shared.close()

    def statistics(self) -> "Statistics":
        """Return the counts so far, and the present state."""
        return statistics_of(self)


def fail(waiter: Waiter, error: Exception) -> None:
    """Raise the error in the waiter, if it still waits."""
    future = waiter.future
    if future is not None and not future.done():
        future.set_exception(error)


def is_granted(future: "Future[None]") -> bool:
    """Return whether the waiter on the future was granted."""
    return future.done() and not future.cancelled() and future.exception() is None

"""The engine of a limiter: arrive, grant, resume, release, cancel, in this order.

Strategy. With an empty queue, a free slot and credit in the bucket a request takes the fast path
and never comes here (`Permit.__aenter__`). Any other request joins the queue and waits on a future.

The consumer, a background task, serves the queue. It runs only while the queue has waiters, so an
idle limiter has no task; and it never polls: it sleeps until something changes (`wake`), with a
timer for the instant at which the head may start. Each turn grants to all waiters that may start.

A grant takes a slot and wakes the waiter, no more. Its tokens are taken after it has resumed, so
the timestamp of a token is never earlier than its request, and a waiter that is cancelled in
between gives back only the slot. Until then it stays in the queue, which keeps new requests off the
fast path and the order first in, first out. Each change of limits and pauses, and each token that
is taken out of turn, begins a new epoch: grants of an older epoch are decided again.

With a parent a request queues here first. Once granted here, the head joins the queue of the engine
above, one request at a time; so the engines below take turns there. When all have granted, all are
charged, in one synchronous step; if one rejects by then, none is charged.

Invariants: every waiter is queued, granted or gone; a queue that is not empty has a consumer; at
most one request of an engine stands in the queue above; state changes only in synchronous code, so
no await can lose anything.
"""

import asyncio
import math
import sys
import weakref
from asyncio import Future, current_task, get_running_loop
from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextlib import AsyncExitStack, nullcontext, suppress
from contextvars import Context
from copy import copy
from dataclasses import InitVar, dataclass, field
from functools import partial
from inspect import CO_ASYNC_GENERATOR
from threading import get_ident
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar, cast

from aiothrottle import events
from aiothrottle._core.adaptation import Adaptation
from aiothrottle._core.bucket import LocalBucket
from aiothrottle._core.feedback import Feedback, PauseRule
from aiothrottle._core.limits import ConcurrencyLimit, Limits, Plan, RateLimit, Unchanged
from aiothrottle._core.observers import Listener, Observers
from aiothrottle._core.pause import Pause
from aiothrottle._core.semaphore import Semaphore
from aiothrottle._core.stall import Stall
from aiothrottle._core.wait_queue import (
    Charge,
    Head,
    Queue,
    TurnQueue,
    Waiter,
    WaitQueue,
    fail,
    is_granted,
)
from aiothrottle._statuses import FORBIDDEN
from aiothrottle.algorithms.server_quota import ReportedQuota
from aiothrottle.amounts import Resource, as_costs, least, positive, resources_of
from aiothrottle.errors import (
    CostTooHigh,
    LimiterClosed,
    QueueFull,
    StoreUnavailable,
    ThrottleTimeout,
    in_another_thread,
    nested,
    no_asyncio,
    too_high,
    twin,
)
from aiothrottle.rate import Rate, RateLike
from aiothrottle.statistics import MANY_WAITS, BoundBy, Statistics

if TYPE_CHECKING:
    from aiothrottle.stores.caller import Caller
    from aiothrottle.stores.shared_bucket import SharedBucket
    from aiothrottle.stores.shared_semaphore import SharedSemaphore

_Answer = TypeVar("_Answer")

# The module whose frames stand between a block and its engine.
_PERMIT = "aiothrottle.permit"
# The code that enters a permit into an exit stack.
_EXIT_STACK = AsyncExitStack.enter_async_context.__code__
# Some loops cannot sleep longer.
_LONGEST_NAP = 86400.0
# Waiters that are woken in one turn: more would keep the loop from its sockets.
_BATCH = 256
# Seconds. The least wait between two batches: waiters that start one by one would cost two turns of
# the loop each, and its timers are no finer than a millisecond anyway.
_SHORTEST_NAP = 0.0005


class Verdict(NamedTuple):
    """Whether a request may start now, and the present state of the limit."""

    allowed: bool
    remaining: float
    retry_after: float
    reset_after: float


@dataclass(slots=True, eq=False, repr=False, weakref_slot=True)
class Engine:
    """The parts of one limiter, and the order of steps."""

    plan: InitVar[Plan]
    given_clock: Callable[[], float]
    #: The limits that the user asked for.
    limits: Limits
    max_queue: int | None = None
    #: The engine of the parent, which has to grant as well.
    above: "Engine | None" = None
    bucket: LocalBucket = field(init=False)
    semaphore: Semaphore = field(init=False)
    queue: Queue = field(init=False, default_factory=WaitQueue)
    pause: Pause = field(init=False, default_factory=Pause)
    observers: Observers = field(init=False, default_factory=Observers)
    #: Changes these parts as outcomes, the server and the user ask for it.
    adaptation: Adaptation = field(init=False)
    #: Leases the slots, if processes share a concurrency limit.
    leased: "SharedSemaphore | None" = field(init=False, default=None)
    #: Reserves the tokens in a store, if processes share a rate.
    shared: "SharedBucket | None" = field(init=False, default=None)
    #: Make the calls of these two: first of the slots, which tokens are reserved for.
    callers: "tuple[Caller, ...]" = field(init=False, default=())
    # The request that stands in the queue above.
    _climber: Waiter | None = field(init=False, default=None)
    #: The resources that a cost may name: of this limiter and of those above it. Without any,
    #: a cost is a number.
    resources: tuple[str, ...] = field(init=False)
    # Whether the limiter above has no resources, and so counts requests only.
    _narrows: bool = field(init=False, default=False)
    #: The consumer, while it runs; its alarm while it sleeps; the timer for its next turn.
    consumer: "asyncio.Task[None] | None" = field(init=False, default=None)
    _alarm: "Future[None] | None" = field(init=False, default=None)
    _timer: asyncio.TimerHandle | None = field(init=False, default=None)
    # The epoch in which the waiters that have not resumed yet were granted.
    _granted_in: int = field(init=False, default=0)
    #: Counts the changes that affect decisions.
    epoch: int = field(init=False, default=0)
    # Whether the head of the queue lacks only a slot, and what watches a queue that does.
    _starved: bool = field(init=False, default=False)
    _stall: Stall | None = field(init=False, default=None)
    # Rejected requests in the queue that are still to be charged.
    _charges: int = field(init=False, default=0)
    # Whether the limits were changed, so that a permit may be older than they are.
    _is_changed: bool = field(init=False, default=False)
    # How to release the permits that were dropped without release. Made here: an allocation may
    # start a collection that drops further permits.
    _lost: list[Callable[[], None]] = field(init=False, default_factory=list[Callable[[], None]])
    closed: bool = field(init=False, default=False)
    #: Whether it was closed without draining.
    rejects_waiters: bool = field(init=False, default=False)
    loop: asyncio.AbstractEventLoop | None = field(init=False, default=None)
    #: The thread of the loop.
    thread: int | None = field(init=False, default=None)
    #: Whether the loop is in debug mode, or not known yet: then permits are watched.
    debug: bool = field(init=False, default=True)

    def __post_init__(self, plan: Plan) -> None:
        """Make the parts."""
        self.bucket = LocalBucket(plan.algorithm, self.given_clock)
        self.semaphore = Semaphore(self.limits.slots)
        self.observers.name = self.limits.name
        self.adaptation = Adaptation(
            self.limits, self.bucket, self.semaphore, self.pause, self.observers, plan
        )
        self.resources = self.limits.resources
        if (above := self.above) is not None:
            self._narrows = bool(self.resources and not above.resources)
            self.resources = tuple(dict.fromkeys((*self.resources, *above.resources)))
            if isinstance(above.queue, WaitQueue):
                above.queue = TurnQueue(above.queue)
        self.watch()

    def fresh(self) -> "Engine":
        """Return another engine with the same arguments, which are not checked again.

        This one must be unused and have no store, whose records have a key each.
        """
        engine = Engine(
            self.adaptation.plan,
            self.given_clock,
            limits=copy(self.limits),
            max_queue=self.max_queue,
            above=self.above,
        )
        engine.adaptation.pattern = self.adaptation.feedback
        return engine

    # ---- state -----------------------------------------------------------------------------------

    @property
    def feedback(self) -> Feedback | None:
        """The controllers that adapt to outcomes, if there are any."""
        return self.adaptation.feedback

    @property
    def key(self) -> Hashable:
        """Its key in a `KeyedRateLimiter`."""
        return self.observers.key

    @property
    def capacity(self) -> float:
        """The greatest cost that this limiter and those above can ever admit."""
        capacity = self.bucket.capacity
        return capacity if self.above is None else least(capacity, self.above.capacity)

    @property
    def waiting(self) -> int:
        """The number of requests that wait."""
        return self.queue.count - self._charges

    @property
    def in_flight(self) -> int:
        """The number of permits that are held."""
        return self.semaphore.taken - self.queue.resuming

    @property
    def is_bounded(self) -> bool:
        """Whether there is a concurrency limit, here or above."""
        above = self.above
        return self.semaphore.limit is not None or (above is not None and above.is_bounded)

    @property
    def takes_outcomes(self) -> bool:
        """Whether reports of outcomes have an effect, here or above."""
        return (
            self.adaptation.takes_outcomes
            or self.pause.awaits_trial
            or (self.above is not None and self.above.takes_outcomes)
        )

    @property
    def store_up(self) -> bool | None:
        """Whether the store answered the last call; None: there is no store."""
        callers = self.callers
        return not any(caller.part.outage.is_down for caller in callers) if callers else None

    @property
    def is_in_use(self) -> bool:
        """Whether it is kept for a reason that time alone does not end."""
        return bool(
            self.queue.count
            or self.consumer
            # Without a limit slots do not count. A permit that is held keeps its engine alive.
            or (self.semaphore.limit is not None and self.in_flight)
            or self.closed
            or self.limits.are_updated
        )

    @property
    def forgettable_in(self) -> float:
        """Seconds after which time alone may make it forgettable; infinity: it is in use."""
        if self.is_in_use and self._timer is None:
            return math.inf
        return self.bucket.reset_after(self.bucket.now())

    def is_forgettable(self) -> bool:
        """Return whether a new engine would behave alike: idle, no pause, no spent tokens."""
        if self.is_in_use:
            return False
        now = self.bucket.now()
        return (
            now >= self.pause.opens_at
            and self.bucket.reset_after(now) <= 0.0
            and self.adaptation.is_forgettable(now)
            and all(caller.is_idle(now) for caller in self.callers)
        )

    def statistics(self) -> Statistics:
        """Return the counts so far, and the present state."""
        now = self.bucket.now()
        bucket, observers, semaphore = self.bucket, self.observers, self.semaphore
        guard = self.feedback and self.feedback.guard
        observers.waits.count_recent()
        granted = bucket.granted - observers.withdrawn
        limit, remaining = bucket.capacity, bucket.remaining(now)
        resources = resources_of(limit, remaining, self.resources)
        of_each = [*resources.values()] or [Resource(limit, remaining)]
        learned = guard.burst.size if guard else math.inf
        return Statistics(
            granted=granted,
            rejected=observers.rejected,
            throttled=observers.throttled,
            retries=observers.retries,
            pauses=observers.pauses,
            waiting=self.waiting,
            in_flight=self.in_flight,
            **observers.waits.fields(granted),
            paused_for=max(self.pause.left(now), bucket.quota_spent_for(now)),
            quota_remaining=bucket.quota_remaining(now),
            utilisation=max(each.utilisation for each in of_each),
            rate_limit=min((it.limit / it.period for it in self.adaptation.rates()), default=None),
            concurrency_limit=semaphore.limit,
            guard=guard.measured.seconds if guard else self.adaptation.plan.fixed_guard,
            burst=learned if learned < math.inf else self.limits.burst_of_requests,
            store_up=self.store_up,
            bound_by=self._bound_by(now),
            resources=resources,
        )

    def _bound_by(self, now: float) -> BoundBy | None:
        """Return why a request would have to wait now, as `Statistics.bound_by` says it."""
        if self.store_up is not None and not self.queue.count:
            return None  # tokens and slots of a store are here only while somebody waits
        if self.store_up is False:
            return "store"
        if now < self.pause.opens_at:
            return "pause"
        if self.semaphore.taken >= self.semaphore.slots:
            return "slots"
        bound_by = self.bucket.bound_by(now, self.queue.head.cost if self.queue.count else 1.0)
        if bound_by == "rate" and self.feedback is not None and self.feedback.rate is not None:
            return "learned rate"
        if bound_by is None and self.above is not None:
            return self.above._bound_by(self.above.bucket.now())
        return bound_by

    # ---- deciding --------------------------------------------------------------------------------

    def decide(
        self, now: float, cost: float, *, ahead: float = 0.0, has_slot: bool = False
    ) -> float:
        """Decide when a request may start, as far as this engine is concerned.

        This is the one decision, for new requests, waiters, resumed waiters, `try_acquire` and
        `peek`. The caller keeps the order of the queue.

        Args:
            now: The time, just read by `LocalBucket.now`.
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

    def _decide_at_once(self, now: float, cost: float) -> float:
        """Decide about a new request, which never overtakes a waiter: 0.0 if it may start now."""
        if self.closed:
            raise LimiterClosed(**self.observers.label)
        if self.queue.count:
            return math.inf
        if self.shared is not None and self.shared.reserved.ready:
            self.shared.drop_stale(now)
        if self.semaphore.closed:
            self.semaphore.open_late(now)
        wait = self.decide(now, cost)
        if self.above is not None and wait <= 0.0:
            return self.above._decide_at_once(self.above.bucket.now(), self._cost_above(cost))
        return wait

    def estimate(self, now: float, waiter: Waiter, ahead: float | None = None) -> float:
        """Return the seconds until pauses and rates admit the request, here and above.

        Slots do not count, as it is not known when one is released, nor does the trial after a
        pause.

        Args:
            now: The time, just read by `LocalBucket.now`.
            waiter: The request.
            ahead: Tokens of the requests ahead of it; None: of those ahead in the queue.
        """
        if ahead is None:
            ahead = self.queue.cost_ahead(waiter)
        wait = self._estimate_here(now, waiter, ahead)
        if self.above is None:
            return wait
        ahead = self._cost_above(ahead)
        climber = self._climber
        if climber is not None and climber.above is not None and not climber.above.started:
            ahead -= climber.above.cost  # it stands in the queue above already
        head = self._head_of(waiter)
        ahead = positive(ahead) + self.above.queue.cost_ahead(head)
        return max(wait, self.above.estimate(self.above.bucket.now(), head, ahead))

    def _estimate_here(self, now: float, waiter: Waiter, ahead: float) -> float:
        pause = self.pause.left(now)
        wait = self.bucket.delay(now + pause, waiter.cost, ahead)
        if math.isinf(wait):  # this algorithm has no estimate for more than its capacity
            wait = self.bucket.delay(now + pause, waiter.cost)
        if self.shared is not None and math.isinf(wait):
            return max(pause, self.shared.estimate(now, waiter.cost, ahead))
        return pause + wait

    def limiting(self, waiter: Waiter) -> "Engine":
        """Return the engine that admits the request last: this one, or one above."""
        if self.above is not None:
            now = self.bucket.now()
            wait = self.estimate(now, waiter)
            here = self._estimate_here(now, waiter, self.queue.cost_ahead(waiter))
            if wait > here or (not wait and self.semaphore.free):
                return self.above.limiting(self._head_of(waiter))
        return self

    # ---- arriving, waiting, starting -------------------------------------------------------------

    def arrive(self, waiter: Waiter) -> "Future[None] | None":
        """Start the request if it may start now, else queue it.

        The caller awaits the future and then calls `resume`; after any exception it calls `cancel`.

        Returns:
            None if it has started, else the future to wait on.

        Raises:
            LimiterClosed, CostTooHigh, QueueFull, ThrottleTimeout: The request is rejected.
        """
        try:
            loop = get_running_loop()
        except RuntimeError:
            raise no_asyncio() from None
        if self.loop is not loop:
            self.bind()
        bucket = self.bucket
        now = bucket.clock()
        if not self.queue.count:
            if bucket.timestamps or bucket.started is not None:
                now = bucket.now()
            bucket.credit = 0
            if self.leased is not None:
                self.leased.tidy(now)
            if self._decide_at_once(now, waiter.cost) <= 0.0:
                self._start(waiter, now)
                return None
        if self.closed:
            raise LimiterClosed(**self.observers.label)
        if self._is_changed and (error := self._too_high(waiter.cost)):
            raise error  # the limit was lowered since the permit was made
        waiter.at = now
        if waiter.timeout is not None or self.max_queue is not None or bucket.max_wait < math.inf:
            self._check_wait(waiter, bucket.now())
        if self.semaphore.filled_by is not None and waiter.is_patient:
            holder = self.semaphore.filled_by()
            if holder is not None and holder is current_task(loop):
                raise nested(self.observers.title)  # it would wait for itself
        # Not by `loop.create_future`, which is one more call for the same future.
        future: Future[None] = Future(loop=loop)
        try:
            self.queue.add(waiter, future)
            needs_call = self.shared is not None and self.shared.joined(waiter)
            # With several priorities the new waiter may be the head.
            if needs_call or self.consumer is None or self.queue.others or self.leased is not None:
                self.wake()
        except BaseException:  # such as a RecursionError: nobody would take the waiter out
            self.cancel(waiter)
            raise
        return future

    def _start(self, waiter: Waiter, now: float) -> None:
        """Take a slot and the tokens of a new request that may start, here and above."""
        waiter.at = now
        if self.above is not None:
            waiter.above = self._head_of(waiter)
            self.above._start(waiter.above, self.above.bucket.now())
        opens_credit = (
            self.above is None
            and not self.observers.listeners
            and not self.pause.awaits_trial  # the next request has to wait
            and (self.shared is None or self.shared.may_grant_credit)
            and self.leased is None  # the lease of a free slot may expire
        )
        try:
            self.bucket.take(now, waiter.cost, opens_credit=opens_credit)
        except BaseException:  # of an algorithm that fails
            self._descend(waiter)
            raise
        self.semaphore.taken += 1
        waiter.started = True
        if self.pause.awaits_trial:
            self.start_trial(waiter, now)
        if self.observers.listeners or self.above is not None:
            self._report_start(waiter)

    def resume(self, waiter: Waiter) -> "Future[None] | None":
        """Start a granted waiter, or return the future to wait on next."""
        if self.above is not None and not self.rejects_waiters:
            future = self._climb(waiter)
            if future is not None:
                return future
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
        if self._granted_in != self.epoch and not self._may_start(waiter):
            return self._stay(waiter)
        self._climber = None
        self.queue.resuming -= 1
        bucket.started = waiter
        waited = now - waiter.at
        waiter.waited = waited if waited > 0.0 else 0.0
        waiter.at = now
        self.queue.remove(waiter)
        if not self.queue.resuming:
            assert self.loop is not None
            self.loop.call_soon(self._all_started)
            if not self.queue.count:
                self.wake()  # ends the consumer: the loop may stop with the task of this waiter
        waiter.started = True
        observers = self.observers
        if observers.listeners or self.above is not None or isinstance(waiter, Head):
            self._report_start(waiter)
        else:
            observers.waits.recent.append(waiter.waited)
        return None

    def _report_start(self, waiter: Waiter) -> None:
        """Count the wait and emit `Granted`, here and above.

        A head is reported when its request starts below: until then it may be taken back.
        """
        if isinstance(waiter, Head):
            return
        engine: Engine | None = self
        at: Waiter | None = waiter
        while engine is not None and at is not None:
            if at.waited:
                engine.observers.waits.recent.append(at.waited)
            if engine.observers.listeners:
                engine.report_grant(at.cost, at.waited)
            engine, at = engine.above, at.above

    def report_grant(self, cost: float, waited: float) -> None:
        """Emit `Granted`; there is a listener."""
        costs = as_costs(cost, self.resources) if self.resources else {}
        self.observers.emit(events.Granted(self.key, cost.real, waited, costs))

    def _all_started(self) -> None:
        """Take the tokens of the last waiter, and serve, unless a timer is set for that."""
        waits = self.observers.waits
        if len(waits.recent) >= MANY_WAITS:
            waits.count_recent()
        if self.queue.count and self._timer is None and self.consumer is not None:
            self.turn()
            return
        try:
            self.bucket.now()
        except Exception as error:  # noqa: BLE001 - an algorithm that fails, fails the waiters
            self.fail_all(error)

    def _may_start(self, waiter: Waiter) -> bool:
        """Decide again about a waiter that was granted in an older epoch, if it is the head."""
        if self.rejects_waiters or self.queue.head is not waiter:
            return False
        now = self.bucket.now()
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
            error: Exception | None = LimiterClosed(**self.observers.label)
        else:
            error = self._too_high(waiter.cost)
        if error is not None:
            self._leave(waiter, resumed=True)
            raise error
        future = waiter.future = Future(loop=self.loop)
        self.wake()
        self._climber = None
        self._descend(waiter)
        return future

    def cancel(self, waiter: Waiter) -> None:
        """Remove the waiter at any point, here and above, without a trace."""
        if self._climber is waiter:
            self._climber = None
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
        self._descend(waiter)  # last, as an algorithm above may fail to take tokens back

    def _take_back(self) -> None:
        """Undo a grant that was not used."""
        self.queue.resuming -= 1
        self.semaphore.taken -= 1

    def _leave(self, waiter: Waiter, *, resumed: bool) -> None:
        """Remove the waiter from the queue, and wake the consumer if the order changes."""
        # While waiters are resuming, the timer may be for this waiter. With priorities the head is
        # not found in constant time; the consumer looks for it once for all that leave in a turn.
        queue = self.queue
        affected = resumed or queue.resuming or len(queue.others) > 0 or queue.head is waiter
        queue.remove(waiter)
        if affected:
            self.wake()
        if self.leased is not None:
            self.call_store()

    # ---- the engine above ------------------------------------------------------------------------

    def _head_of(self, waiter: Waiter) -> Head:
        """Return what stands for the request in the queue above."""
        return Head(self._cost_above(waiter.cost), waiter)

    def _cost_above(self, cost: float) -> float:
        """Return what a cost is for the limiter above."""
        return cost.real if self._narrows else cost

    def _climb(self, waiter: Waiter) -> "Future[None] | None":
        """Take the granted waiter a step further above. Returns the future to wait on there."""
        above = self.above
        assert above is not None
        try:
            if waiter.above is None:
                waiter.above = self._head_of(waiter)
                self._climber = waiter
                return above.arrive(waiter.above)
            return None if waiter.above.started else above.resume(waiter.above)
        except ThrottleTimeout as error:
            raise self._time_out(error.retry_after, error.timeout, waiter) from None

    def _descend(self, waiter: Waiter) -> None:
        """Leave the queue above, or give back the grant from above."""
        head, waiter.above = waiter.above, None
        if head is not None and self.above is not None:
            if head.started:
                self.above.undo(head)
            else:
                self.above.cancel(head)

    # ---- after the start -------------------------------------------------------------------------

    def note_block(self) -> None:
        """Note which task took the last slot, for a block: until a slot is released.

        Not if the block is in an async generator, which may be left behind, and then garbage; nor
        for an exit stack, which another task may close.
        """
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_globals.get("__name__") == _PERMIT:
            frame = frame.f_back
        task, semaphore = current_task(self.loop), self.semaphore
        most = semaphore.slots + semaphore.closed if self.leased is None else self.leased.most
        if semaphore.taken < most:
            return  # another one opens within a second, or is leased
        code = frame.f_code
        if task is not None and code is not _EXIT_STACK and not code.co_flags & CO_ASYNC_GENERATOR:
            semaphore.filled_by = weakref.ref(task)
            semaphore.watched = True

    def slot_released(self, waiter: Waiter | None = None) -> None:
        """Handle the release of a slot, while the semaphore is watched."""
        self.semaphore.filled_by = None
        if self.pause.is_trial(waiter) and not self.pause.is_held:
            self.end_trial()  # its outcome was not reported
        if self._starved:
            self.wake()
        self.watch()
        if self._stall is not None:
            self._stall.flows = True
        if self.leased is not None:
            self.leased.slot_released()
            self.call_store()
        if self.above is not None and waiter is not None and waiter.above is not None:
            self.above.release(waiter.above)

    def release(self, waiter: Waiter) -> None:
        """Release the slot of a request that has started, here and above."""
        self.semaphore.taken -= 1
        if self.semaphore.watched:
            self.slot_released(waiter)

    def watch(self) -> None:
        """Set whether each release of a slot calls `slot_released`."""
        self.semaphore.watched = (
            self._starved
            or self.above is not None
            or self.leased is not None
            or (self.pause.awaits_trial and self.pause.trial is not None)
            or self.semaphore.filled_by is not None
        )

    def abandon(self, release: Callable[[], None]) -> bool:
        """Release a permit that is garbage. Returns whether there is a concurrency limit.

        The collector runs in any thread, at any point of any code, including this. To count one
        slot less is safe anywhere; the next grant is decided on the loop.

        Args:
            release: Releases the permit.
        """
        bounded = self.is_bounded
        if not (bounded or self.semaphore.watched) and self.thread == get_ident():
            release()
            return False
        self._lost.append(release)
        try:
            if self.loop is not None:
                self.loop.call_soon_threadsafe(self._release_lost)
        except RuntimeError:  # the loop is closed, so no code of it can be interrupted
            self._release_lost()
        return bounded

    def _release_lost(self) -> None:
        while self._lost:
            self._lost.pop()()

    def undo(self, waiter: Waiter) -> None:
        """Undo the start of a request that was not sent, here and above."""
        head, waiter.above = waiter.above, None
        self.bucket.refund(waiter, self.bucket.now(), waiter.cost)
        self.observers.withdrawn += 1
        self.pause.pass_on(waiter)
        self.release(waiter)
        self.wake()
        if head is not None and self.above is not None:
            self.above.undo(head)

    def settle(self, waiter: Waiter, cost: float) -> None:
        """Charge the request `cost` in place of its earlier cost, here and above."""
        now = self.bucket.now()
        if more := positive(cost - waiter.cost):
            self.bucket.charge_more(waiter, now, more)
            self.epoch += 1
        if less := positive(waiter.cost - cost):
            self.bucket.refund(waiter, now, less)
            self.wake()
        waiter.cost = cost
        self.call_store()
        if self.above is not None and waiter.above is not None:
            self.above.settle(waiter.above, self._cost_above(cost))

    async def record(self, cost: float) -> None:
        """Take tokens for a request that was sent already, whether they fit or not."""
        self.bind()
        if self.shared is None:
            self.charge(cost)
            return
        self.shared.note(await self._named(self.shared.store.execute("record", (cost,))))

    def charge(self, cost: float) -> None:
        """Take tokens out of turn, here and above."""
        self.charge_here(cost)
        if self.above is not None:
            self.above.charge(self._cost_above(cost))

    def charge_here(self, cost: float) -> None:
        """Take tokens out of turn, but none above."""
        self.bucket.charge(self.bucket.now(), cost)
        self.epoch += 1

    # ---- try_acquire, peek -----------------------------------------------------------------------

    async def try_start(self, waiter: Waiter, *, peek: bool = False) -> Verdict:
        """Start the request if it may start now; it never waits in the queue.

        Args:
            waiter: The request.
            peek: Whether to return the verdict only, and change nothing.

        Raises:
            LimiterClosed: The limiter is closed.
        """
        self.bind()
        # A slot of a store, if one is free.
        asks = not (self.queue.count or self.closed)
        async with nullcontext() if self.leased is None else self.leased.try_lease(asks=asks):
            waiter.at = now = self.bucket.now()
            allowed = self._decide_at_once(now, waiter.cost) <= 0.0
            # With a store, by tokens that are reserved already.
            if self.shared is not None and (peek or not (allowed and waiter.cost)):
                return await self._try_shared(self.shared, waiter, now, peek=peek)
            if allowed:
                if not peek:
                    self._start(waiter, now)
                return self._verdict(0.0, allowed=True)
            if not peek:
                self.observers.reject("no room")
            return self._verdict(max(self.estimate(now, waiter), self._slots_closed_for()))

    async def _try_shared(
        self, shared: "SharedBucket", waiter: Waiter, now: float, *, peek: bool
    ) -> Verdict:
        """Do the same with the tokens in the store.

        Raises:
            StoreUnavailable: The store does not answer.
        """
        cost = waiter.cost
        wait = max(self.decide(now, 0.0), self.bucket.quota_delay(now, cost))
        rejected = bool(self.queue.count) or wait > 0.0  # not by the store
        if peek or rejected:
            if not peek:
                self.observers.reject("no room")
            wait = max(self.estimate(now, waiter), self._slots_closed_for()) if rejected else 0.0
            answer = await self._named(shared.store.execute("peek", (cost,)))
            shared.note(answer)
            if not self._has_reserved(cost):
                wait = max(wait, answer.retry_after)
            return Verdict(not (rejected or wait), answer.remaining, wait, answer.reset_after)
        self.semaphore.taken += 1  # keeps the slot during the call of the store
        if self.pause.awaits_trial:
            self.start_trial(waiter, now)  # and no other request goes ahead meanwhile
        try:
            call = shared.store.execute("reserve", (cost,))
            unused = partial(shared.give_back_unused, cost)
            *_, caller = self.callers  # that of the tokens
            answer = await self._named(caller.ask(call, unused))
            now = shared.note(answer)
            if answer.instants or self._has_reserved(cost):
                waiter.at, waiter.started = now, True
                shared.take(now, cost, answer)
        finally:
            if not waiter.started:
                self.pass_on(waiter)
                self.release(waiter)
        if not waiter.started:
            self.observers.reject("no room")
        elif self.observers.listeners:
            self.report_grant(cost, 0.0)
        wait = 0.0 if waiter.started else answer.retry_after
        return Verdict(waiter.started, answer.remaining, wait, answer.reset_after)

    def _has_reserved(self, cost: float) -> bool:
        """Return whether tokens were prefetched for a cost, which no waiter needs."""
        now = self.bucket.now()
        return bool(cost) and not self.queue.count and self.bucket.delay(now, cost) <= 0.0

    def _slots_closed_for(self) -> float:
        """Return the seconds for which a slot is missing here or above, as far as known."""
        semaphore, now = self.semaphore, self.bucket.clock()
        wait = 0.0
        if not semaphore.free and self.leased is not None:
            wait = self.leased.closed_for(now)
        elif not semaphore.free and semaphore.closed:
            wait = semaphore.opens_in(now)
        return wait if self.above is None else max(wait, self.above._slots_closed_for())

    async def _named(self, call: Awaitable[_Answer]) -> _Answer:
        """Wait for an answer of the store; its error names the limiter."""
        try:
            return await call
        except StoreUnavailable as error:
            error.key, error.name = self.key, self.observers.name
            raise

    def _verdict(self, wait: float, *, allowed: bool = False) -> Verdict:
        """Combine a decision with the state of the buckets: the tightest one counts."""
        now = self.bucket.now()
        remaining, reset_after = self.bucket.remaining(now), self.bucket.reset_after(now)
        if self.above is not None:
            above = self.above._verdict(wait)
            remaining = least(remaining, above.remaining)
            reset_after = max(reset_after, above.reset_after)
        return Verdict(allowed, remaining, wait, reset_after)

    # ---- rejecting -------------------------------------------------------------------------------

    def _check_wait(self, waiter: Waiter, now: float) -> None:
        """Reject a request if the queue is full, or if its estimated wait is too long.

        Raises:
            QueueFull, ThrottleTimeout: The request is rejected.
        """
        full = (
            self.max_queue is not None
            and self.waiting >= self.max_queue
            and not isinstance(waiter, Head)  # it has queued below
        )
        longest = self.bucket.max_wait
        if not full and waiter.timeout is None and longest == math.inf:
            return
        wait = self.estimate(now, waiter)
        timeout = longest if waiter.timeout is None else min(waiter.timeout, longest)
        if full:
            self.observers.reject("queue full")
            raise QueueFull(self.waiting, wait, **self.observers.label)
        if wait > longest and self.shared is not None:
            self.shared.charge_reject(waiter.cost)
            self.call_store()
        elif wait > longest:
            self._queue_charge(waiter, now)
        elif wait <= timeout:
            return
        raise self._time_out(wait, timeout, waiter)

    def _queue_charge(self, waiter: Waiter, now: float) -> None:
        """Have a rejected request charged, if the algorithm does that, behind those ahead of it."""
        cost = self.bucket.cost_of_reject(now, waiter.cost, self.queue.cost_ahead(waiter))
        if cost:
            charge = Charge(cost, waiter.priority)
            charge.at = now
            self.queue.add(charge, Future(loop=self.loop))
            self._charges += 1
            if self.queue.count == self._charges:
                self._charge_at_head(now)
                self.wake()  # ends the consumer, as the queue is empty

    def _charge_at_head(self, now: float) -> None:
        """Take the tokens of the rejected requests at the head of the queue, and remove them."""
        while self._charges and isinstance(head := self.queue.head, Charge):
            self.bucket.charge(now, head.cost)
            self._charges -= 1
            self.queue.remove(head)

    def timed_out(self, waiter: Waiter) -> ThrottleTimeout:
        """Count a waiter whose timeout has passed, and return the error to raise."""
        return self._time_out(self.estimate(self.bucket.now(), waiter), waiter.timeout, waiter)

    def _time_out(self, wait: float, timeout: float | None, waiter: Waiter) -> ThrottleTimeout:
        """Count a rejected waiter, and return its error, which names a limiter above as the cause.

        Args:
            wait: Seconds that the waiter would have to wait.
            timeout: Seconds that it may.
            waiter: The waiter.
        """
        self.observers.reject("timeout")
        by = self.limiting(waiter)
        title = None if by is self else by.observers.title
        has_slot = self.semaphore.free > 0
        troubles = (caller.trouble(wait, has_slot=has_slot) for caller in self.callers)
        return ThrottleTimeout(
            wait or by.pause.closed_for(by.bucket.now()),  # until the trial is over
            timeout=timeout,
            limited_by=title,
            store_error=next(filter(None, troubles), ""),
            **self.observers.label,
        )

    def _too_high(self, cost: float) -> CostTooHigh | None:
        return too_high(cost, self.bucket.capacity, self.observers.label)

    # ---- the consumer ----------------------------------------------------------------------------

    def wake(self) -> None:
        """Wake the consumer to serve the queue after a change; start it if there is none."""
        loop = self.loop
        if loop is None or loop.is_closed():
            return
        if self._alarm is not None:
            # Not checked with `done()`: a garbage collection may release a slot, and so set the
            # result, between the check and the call.
            with suppress(asyncio.InvalidStateError):
                self._alarm.set_result(None)
        elif self.consumer is None and self.queue.count:
            # A plain Task, not by the loop's task factory: an eager task would run here and now.
            # In an empty context: it works for all waiters, not only for the first one.
            self.consumer = asyncio.Task(
                self._consume(loop), loop=loop, name="aiothrottle consumer", context=Context()
            )
            self.consumer.add_done_callback(self._consumer_ended, context=Context())

    async def _consume(self, loop: asyncio.AbstractEventLoop) -> None:
        while self.queue.count:
            self.turn()
            if not self.queue.count:
                return
            alarm = self._alarm = loop.create_future()
            try:
                await alarm
            except asyncio.CancelledError:
                # asyncio.run cancels all tasks at its end. That is meant for the waiters, which
                # need this task until they have left.
                if not self.queue.count:
                    raise
            finally:
                # The task of a closed loop is collected late; it must not clear a newer alarm.
                if self._alarm is alarm:
                    self._alarm = None

    def _consumer_ended(self, task: "asyncio.Task[None]") -> None:
        if self.consumer is task:
            self.consumer = None
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self.queue.count:
                self.wake()  # the task was cancelled before its first step
            if self._stall is not None:
                self._stall.end()
            shared = self.shared
            if shared is not None and not self.queue.count:
                now = self.bucket.now()  # what just started has used a reservation, or owes tokens
                if shared.queue_is_empty(now):
                    self.call_store(after=task)

    def turn(self) -> None:
        """Serve the queue once, and set the timer for the next time."""
        assert self.loop is not None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        try:
            if self.callers:
                now = self.bucket.now()
                for caller in self.callers:
                    caller.part.tidy(now)
                    caller.start(now)  # before the waiters run that are granted now
            seconds = self._grant()
        except Exception as error:  # noqa: BLE001 - an algorithm that fails, fails the waiters
            self.fail_all(error)
            return
        if not self.queue.count:
            self.wake()  # the task, to its end
        elif seconds < math.inf:
            seconds = min(seconds, _LONGEST_NAP)
            self._timer = self.loop.call_later(seconds, self.turn, context=Context())

    def fail_all(self, error: Exception) -> None:
        """Raise the error in all waiters."""
        for waiter in self.queue:
            fail(waiter, twin(error, self.observers.label))

    def call_store(self, *, after: "asyncio.Task[None] | None" = None) -> None:
        """Make the calls of the store that are due.

        Args:
            after: The consumer, which has ended: the loop may be closing.
        """
        for caller in self.callers:
            caller.start(after=after)

    def store_answered(self, error: Exception | None) -> None:
        """Serve the queue after a call of the store, or raise its error in all waiters."""
        if error is not None:
            self.fail_all(error)
        elif self.queue.count:
            self.turn()

    def tokens_answered(self, error: Exception | None) -> None:
        """Do the same after a call for tokens, and reject the waiters that wait in vain."""
        self.store_answered(error)
        assert self.shared is not None
        if self.shared.first_deadline == math.inf:
            return
        for waiter, wait in self.shared.in_vain():
            fail(waiter, self._time_out(wait, waiter.timeout, waiter))

    def _grant(self) -> float:
        """Grant to all waiters that may start now.

        Returns the seconds until the next may start; infinity: not known, or another event serves
        the queue before, such as a released slot or the answer of a store.

        One decision holds for a batch of waiters with a cost of 1. While granted waiters have not
        resumed, nothing else is granted, so it holds unless a new epoch has begun.
        """
        self._starved = False  # the next release ends the watch
        if self.queue.resuming:
            return math.inf  # the last of them makes the consumer serve again
        now = self.bucket.now()
        if self._charges:
            self._charge_at_head(now)
        if now < self.pause.opens_at:
            return self.pause.closed_for(now)
        semaphore = self.semaphore
        if semaphore.closed:
            semaphore.open_late(now)
        granted, cost, wait = 0, 0.0, 0.0
        self._granted_in = self.epoch
        most = 1 if self.above is not None or self.queue.takes_turns else _BATCH
        if self.pause.awaits_trial:
            most, self._granted_in = 1, -1  # decided again as it resumes, and becomes the trial
        # Waiters with a cost of 1 that may start without a further decision.
        sure = 0 if self._charges else semaphore.slots - semaphore.taken
        if sure > 0:
            sure = min(sure, self.bucket.startable(now, most))
        for waiter in self.queue:
            future = waiter.future
            if future is None or future.done():
                continue  # it is cancelled, and about to leave
            tokens = waiter.cost
            if granted >= sure or tokens != 1.0:
                sure = 0  # it holds for costs of 1 only
                if isinstance(waiter, Charge):
                    break  # it is charged when the waiters ahead of it have started
                if semaphore.taken >= semaphore.slots and self._starve():
                    return semaphore.opens_in(now) if semaphore.closed else math.inf
                wait = self.decide(now, tokens, ahead=cost)
                if wait > 0.0:
                    break
            cost += tokens
            semaphore.taken += 1
            self.queue.resuming += 1
            future.set_result(None)
            granted += 1
            if granted == most:
                break
        if wait > 0.0 and granted > 1:
            wait = max(wait, _SHORTEST_NAP)
        return wait or math.inf

    def _starve(self) -> bool:
        """Watch each release of a slot from now on. Returns False if a slot is free by then."""
        assert self.loop is not None
        self._starved = True
        self.watch()
        if self.semaphore.taken < self.semaphore.slots:
            self._starved = False  # a garbage collection released a slot before the watch
            return False
        stall = self._stall = self._stall or Stall()
        if stall.timer is None:
            seconds = stall.begin(self.loop.time())
            look = partial(self._check_stall, self.loop, stall)
            stall.timer = self.loop.call_later(seconds, look, context=Context())
        return True

    def _check_stall(self, loop: asyncio.AbstractEventLoop, stall: Stall) -> None:
        """Look for slots that are garbage, while the head lacks only a slot of this engine."""
        stall.timer = None
        if not (self._starved and self.queue.count and self.in_flight):
            return  # the timer is set when the head lacks a slot again
        wait = self._estimate_here(self.bucket.now(), self.queue.head, 0.0)
        if seconds := stall.overdue(loop.time(), wait):
            self.observers.log_stall(seconds, self.waiting)
        again = stall.look(loop, wait)
        if again is not None:
            again = min(again, _LONGEST_NAP)
            stall.timer = loop.call_later(again, self._check_stall, loop, stall)

    def startable(self, most: int) -> int:
        """Return how many waiters would start if they had slots, at most `most`."""
        if self.rejects_waiters or self.bucket.clock() < self.pause.opens_at:
            return 0
        waiting = self.waiting - self.queue.resuming
        if not waiting:
            return 0
        if self.pause.awaits_trial:
            most = 1
        if self.shared is not None:
            return min(waiting, most, self.shared.batching.soon)
        return min(waiting, max(1, self.bucket.startable(self.bucket.now(), most)))

    # ---- outcomes --------------------------------------------------------------------------------

    def pause_for(self, seconds: float, reason: events.Reason) -> None:
        """Grant nothing for so many seconds from now; a pause is never shortened."""
        self.adaptation.pause_for(seconds, reason)
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
        """Let another request go ahead if this one went ahead and failed, here or above."""
        if self.pause.pass_on(waiter):
            self.wake()
        if self.above is not None and waiter is not None:
            self.above.pass_on(waiter.above)

    def hold_trial(self, waiter: Waiter | None) -> None:
        """Have the others wait for the report of this request if it is the trial.

        A response may release its permit before it is known whether the server throttled.
        """
        self.pause.hold_trial(waiter, self.bucket.clock())
        if self.above is not None:
            self.above.hold_trial(waiter and waiter.above)

    def report_success(
        self, waiter: Waiter | None, cost: float, sent_at: float, held: bool, own: bool = True
    ) -> None:
        """Record a request that was not throttled, here and above.

        Arguments go by position here and in what it calls, as every request of a session passes.

        Args:
            waiter: The request; None: it started on credit.
            cost: Its tokens.
            sent_at: When it was sent.
            held: Whether its permit is held.
            own: Whether it is a request of this limiter, not of one below.
        """
        if self.pause.awaits_trial and self.pause.is_trial(waiter):
            self.end_trial()
        bucket, semaphore, adaptation = self.bucket, self.semaphore, self.adaptation
        feedback = adaptation.active or adaptation.feedback
        if feedback is not None:
            in_flight = semaphore.taken + (not held)  # its slot may be taken again by now
            changes = feedback.succeeded(
                bucket.clock(), sent_at, cost, in_flight, self.pause.began_at, own, bucket
            )
            # A limiter with a guard has a rate, and never gives its feedback up.
            follows = changes or semaphore.closed or feedback.guard is None
            if follows and adaptation.succeeded(feedback, changes, sent_at):
                self.reconsider()
        above = self.above
        if above is not None:
            sent_at += above.bucket.clock() - self.bucket.clock()  # it may have another clock
            above.report_success(waiter and waiter.above, cost, sent_at, held, own=False)

    def report_failure(
        self,
        waiter: Waiter | None,
        age: float,
        status: int | None,
        rule: PauseRule,
        *,
        held: bool,
    ) -> bool:
        """Record a request that failed `age` seconds after its start, here and above.

        Args:
            waiter: The request; None: it started on credit.
            age: Seconds since it was sent.
            status: That of its response, which did not say that the server throttled; None: there
                was no response.
            rule: How long pauses are.
            held: Whether its permit is held.

        Returns:
            Whether the server seems to throttle without saying so: the engine is paused.
        """
        in_flight = self.semaphore.taken + (not held)  # its slot may be taken again by now
        self.bucket.now()  # counts what started on credit
        successes = self.bucket.granted - in_flight
        seconds = self.adaptation.silent_pause(age, successes)
        if seconds is not None:
            at = self.bucket.clock() - age
            # A trial that fails the first time may be one of many in an outage.
            learns = not self.pause.is_trial(waiter) or self.adaptation.limits_silently
            self.report_throttled(at, seconds, rule, "failures", held=held, learns=learns)
            return True
        if self.pause.is_trial(waiter):
            if status is not None:
                self.end_trial()
            elif self.pause.pass_on(waiter):
                self.wake()
        if status != FORBIDDEN and self.adaptation.failed(age):
            self.reconsider()
        if self.above is not None:
            self.above.report_failure(waiter and waiter.above, age, status, rule, held=held)
        return False

    def report_throttled(
        self,
        sent_at: float,
        seconds: float | None,
        rule: PauseRule,
        reason: events.Reason,
        *,
        held: bool,
        everywhere: bool = False,
        learns: bool = True,
    ) -> float:
        """Pause after a throttled request. The engines above learn from it.

        Args:
            sent_at: When it was sent.
            seconds: Duration of the pause; None: it doubles with each pause in a row.
            rule: How long pauses are.
            reason: "retry-after" if the server sent the duration.
            held: Whether its permit is held.
            everywhere: Whether the engines above pause too.
            learns: Whether the engines learn from it.

        Returns:
            Seconds for which the engine is paused because of it; 0.0: it is not.
        """
        self.observers.throttled += 1
        if self.observers.listeners:
            self.observers.emit(
                events.Throttled(self.key, seconds if reason == "retry-after" else None)
            )
        age = self.bucket.clock() - sent_at
        paused = self.adaptation.pause_after(sent_at, seconds, rule, reason)
        pause = paused or self.pause.left(self.bucket.clock())
        in_flight = self.semaphore.taken + (not held)  # its slot may be taken again by now
        if self.bucket.quotas and self.bucket.was_early(sent_at):
            learns = False  # neither its rate nor its burst was too high
        changed = learns and self.adaptation.throttled(age, pause, in_flight, own=True)
        if changed or paused:
            self.reconsider()
        above = self.above
        while above is not None:
            at = above.bucket.clock() - age  # it may have another clock
            paused_too = everywhere and above.adaptation.pause_after(at, seconds, rule, reason)
            changed = learns and above.adaptation.throttled(age, pause, in_flight, own=False)
            if changed or paused_too:
                above.reconsider()
            above = above.above
        return paused

    # ---- changing the limits ---------------------------------------------------------------------

    def adopt_rate(self, rates: Sequence[Rate]) -> None:
        """Adopt the rate that the server reported, if the engine's rate is adaptive."""
        if self.adaptation.adopt_rate(rates):
            self.reconsider()

    def expect_outcomes(self) -> None:
        """Begin with a small burst, which opens with the reported outcomes."""
        if self.adaptation.expect_outcomes():
            self.reconsider()

    def update(
        self,
        rate_limit: RateLimit | Literal[Unchanged.UNCHANGED] | None,
        concurrency_limit: ConcurrencyLimit | Literal[Unchanged.UNCHANGED] | None,
    ) -> None:
        """Change the limits, as `RateLimiter.update` does.

        Raises:
            TypeError, ValueError: A limit is wrong; nothing is changed.
        """
        if self.adaptation.update(rate_limit, concurrency_limit, self.shared, self.leased):
            self._limits_have_changed()
        self.call_store()

    def follow(self, rates: Sequence[RateLike]) -> None:
        """Keep to the rates that the server has reported.

        Raises:
            TypeError, ValueError: A rate is wrong; nothing is changed.
        """
        if self.adaptation.follow(rates, self.in_flight):
            self._limits_have_changed()

    def infer(self, sent_at: float, quotas: Sequence[ReportedQuota]) -> None:
        """Keep to the rates that follow from the quotas which the server reports.

        Args:
            sent_at: When the request was sent.
            quotas: What its response reports of the requests, with their limits.
        """
        if self.adaptation.infer(sent_at, quotas, self.in_flight):
            self._limits_have_changed()

    def _limits_have_changed(self) -> None:
        """Decide again about all waiters, of which some may cost too much by now."""
        self.reconsider()
        self._is_changed = True
        for waiter in self.queue:
            if error := self._too_high(waiter.cost):
                fail(waiter, error)

    async def reset(self) -> None:
        """Forget the tokens that were spent, as `RateLimiter.reset` does."""
        self.bind()
        if self.shared is not None:
            await self._named(self.shared.store.clear())
            self.shared.forget()
        else:
            self.adaptation.reset()
        self.reconsider()

    def reconsider(self) -> None:
        """Begin a new epoch, and wake the consumer."""
        self.epoch += 1
        self.bucket.credit = 0
        self.wake()

    # ---- observers -------------------------------------------------------------------------------

    def listen(self, listener: Listener) -> None:
        """Add a listener for all events from now on."""
        self.observers.add(listener)
        self.bucket.now()  # voids the credit: entries on credit make no event

    def store_changed(self, change: events.StoreDown | events.StoreUp | None) -> None:
        """Call the store if it is time to, serve the queue, and emit the event.

        If both the tokens and the slots are in the store, it reports the first failure of either,
        and the recovery of both.
        """
        self.call_store()
        self.wake()
        if change is not None and self.observers.listeners:
            down = [caller for caller in self.callers if caller.part.outage.is_down]
            if len(down) == isinstance(change, events.StoreDown):
                change.key = self.key
                self.observers.emit(change)

    # ---- the loop --------------------------------------------------------------------------------

    def bind(self) -> None:
        """Bind the engine and those above to the running loop, or raise and change nothing.

        Raises:
            RuntimeError: It belongs to another loop that is open, or no loop runs.
        """
        loop = running_loop()
        if loop is None:
            raise no_asyncio()
        self.check_loop(loop)
        engine: Engine | None = self
        while engine is not None:
            if engine.loop is not loop:
                engine._move_to(loop)
            engine = engine.above

    def check_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Raise RuntimeError if this engine or one above belongs to another loop that is open."""
        own = self.loop
        if own is not loop and own is not None and not own.is_closed():
            raise RuntimeError(
                f"this limiter belongs to {own!r}, which is still open, and cannot serve {loop!r} "
                "as well: use one limiter for each loop, or close the first loop"
            )
        if self.above is not None:
            self.above.check_loop(loop)

    def check_thread(self) -> None:
        """Raise RuntimeError if the loop is open and this is not its thread."""
        self.thread = check_thread(self.loop, self.thread)

    def _move_to(self, loop: asyncio.AbstractEventLoop) -> None:
        if self.loop is not None:
            self._leave_loop()
        self.loop = loop
        self.thread = get_ident()
        self.debug = loop.get_debug()
        # A loop with its own time, a `VirtualTimeLoop`, replaces the clock.
        clock = self.given_clock
        if (clock_for := getattr(loop, "clock_for", None)) is not None:
            clock = cast("Callable[[], float]", clock_for(clock))
        if clock != self.bucket.clock:
            # Timestamps of another clock are void; the rest of a pause is kept.
            self.bucket.now()
            self.pause.shift(clock() - self.bucket.clock())
            self.bucket.restart(clock)
            self.adaptation.restart()
        for caller in self.callers:
            caller.restart(loop)

    def _leave_loop(self) -> None:
        """Forget the waiters of the old loop, which are dead, and its consumer."""
        self._release_lost()  # the loop may have been closed before that
        self.semaphore.taken -= self.queue.resuming
        self.queue.resuming = 0
        self._stall = self._climber = None
        self.queue.clear()
        self._charges = 0
        self.pause.pass_on(self.pause.trial)
        self.consumer = self._alarm = self._timer = None

    async def close(self, *, drain: bool) -> None:
        """Reject new requests, and without `drain` the waiters; leave no task."""
        loop = running_loop()
        if loop is None:
            raise no_asyncio()
        self.check_loop(loop)
        highest = self._climber
        while not drain and highest is not None:  # wherever above its request waits
            fail(highest, LimiterClosed(**self.observers.label))
            highest = highest.above
        self.closed = True
        self.bucket.credit = 0
        if not drain:
            self.rejects_waiters = True
            self.epoch += 1
            if self.loop is loop:
                for waiter in self.queue:
                    fail(waiter, LimiterClosed(**self.observers.label))
        self.wake()
        while (task := self.consumer) is not None and self.loop is loop:
            # Another task follows if this one is cancelled before its first step.
            await asyncio.wait([task])
        if self.loop is loop:
            for caller in self.callers:
                await caller.close()


def check_thread(loop: asyncio.AbstractEventLoop | None, thread: int | None) -> int | None:
    """Raise if the loop is open and this is not its thread: no other thread could wake waiters.

    Args:
        loop: The loop of a limiter; None: it has none yet.
        thread: The last known thread of the loop.

    Returns:
        The present thread of the loop.

    Raises:
        RuntimeError: The loop runs in another thread, or may run there.
    """
    here = get_ident()
    if loop is None or thread == here or loop.is_closed():
        return thread
    if running_loop() is not loop:
        raise in_another_thread(loop)
    return here


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread, if any."""
    try:
        return get_running_loop()
    except RuntimeError:
        return None

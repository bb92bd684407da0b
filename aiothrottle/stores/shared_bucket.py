"""The shared bucket: the tokens that an engine reserves in a store, where all processes share them.

Strategy. The engine's own bucket knows only what is reserved: its algorithm (`Reserved`) grants
what the store has granted, as soon as it is ready. This file decides what the store is asked for
and when (`due_in`, `order`), and the engine's `Caller` makes the calls: it returns reservations
that nobody needs, records what is owed, and reserves tokens for the waiters at the head of the
queue, for many of them in one call. A reservation belongs to no particular request: the head of the
queue takes it when it is ready.

The store answers with durations. Here they begin when the answer is read, which is later than when
the store made it: so no request starts too early, however long the answer took.

Of a far store more is reserved, and earlier: what is left has to last for the round trip of the
next call. While nobody waits, the tokens of one round trip are kept, as they could not be reserved
again in time; the first of them that is not used in time returns them all.

Invariant: a reservation is used within the patience of `Prefetch`, or is returned to the store;
when nobody waits, only tokens are kept that the user wants to be prefetched, or that are ready
within the round trip of a far store.
"""

import asyncio
import logging
import math
import random
from collections.abc import Awaitable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from aiothrottle._core.wait_queue import is_granted
from aiothrottle.algorithms import PerResource
from aiothrottle.algorithms.protocol import Algorithm, until
from aiothrottle.amounts import covers, positive
from aiothrottle.errors import StoreUnavailable, reason_of
from aiothrottle.stores.batching import MOST_AHEAD, Batching
from aiothrottle.stores.caller import SHORTEST_BREAK, Order, weakly
from aiothrottle.stores.outage import FailoverStore, Outage
from aiothrottle.stores.record import seal
from aiothrottle.stores.reserved import Reservation, Reserved, ReservedState
from aiothrottle.stores.store import Answer

if TYPE_CHECKING:
    from aiothrottle import events
    from aiothrottle._core.bucket import LocalBucket
    from aiothrottle._core.pause import Pause
    from aiothrottle._core.semaphore import Semaphore
    from aiothrottle._core.wait_queue import Queue, Waiter
    from aiothrottle.rate import Rate

_logger = logging.getLogger("aiothrottle")

# A call comes later by up to this part of the time between two tokens, and these seconds.
_TURN, _LONGEST_TURN = 0.1, 0.01
# Seconds. Timers are no finer: a timeout that is as long as the wait is no reason to reject.
_TIMER = 0.001
# Reservations that are returned to a far store at a time.
_MOST_RETURNED = 32
# Seconds that a reservation may be used late. The store counts it at its instant: a request that
# starts much later starts together with those that the store grants then.
_PATIENCE = 0.02
# Where tokens come back at any time, rejected waiters ask again after half of the time that is
# reserved ahead, and up to that part of their wait: at random, so each process gets its part.
_AGAIN = 0.1
# Seconds for which a rejection counts: another process may have deleted the record since.
_VALID = 60.0
# The last calls, of which the shortest counts.
_CALLS = 8
# Seconds. A shorter round trip needs no care: the tokens of one call last for several. It is
# rounded up to a multiple of the step, so that it seldom changes.
_NEAR, _STEP = 0.005, 0.001


class Prefetch:
    """How many tokens are reserved before a request needs them, and for how long they are kept.

    Either the user gives both (`prefetch="50/100ms"`: 50 tokens, kept for 100 ms), or the number is
    learned: each call reserves about twice as many beyond the waiters as the call before, as long
    as all of them are used. It is learned in two cases.

    - Tasks that ask again each time in the same turn of the loop would need a call for each round
      of requests. What is left when the queue is empty is returned.
    - Of a far store, as many tokens are reserved as pass in a round trip, also if fewer tasks wait:
      as long as requests join the queue. They are used at their instants, or returned.

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

    __slots__ = ("fetched", "given", "joined", "next", "patience")

    def __init__(self, given: "Rate | None") -> None:
        #: The tokens that the user gives, and for how long they are kept; None: it is learned.
        self.given: Rate | None = given
        #: Seconds that a reservation may be used late.
        self.patience: float = _PATIENCE if given is None else max(_PATIENCE, given.period)
        #: Requests that have joined the queue since the last call.
        self.joined: int = 0
        self.reset()

    def reset(self) -> None:
        """Learn anew: the queue was empty, or the store has failed."""
        #: The learned number of the last call, and that for the next one.
        self.fetched: int = 0
        self.next: int = 0

    def learned(self, most: int, asking: int = 1) -> int:
        """Return how many costs to prefetch with this call, `most` at the most; and learn.

        Args:
            most: The number that is of use.
            asking: Requests that ask.
        """
        self.fetched = min(self.next, most)
        self.next = min(2 * self.next + asking, max(most, asking))
        return self.fetched

    def learned_ahead(self, most: int) -> int:
        """Return the same of a far store: none unless requests have joined since the last call."""
        joined, self.joined = self.joined, 0
        return self.learned(most, joined) if joined else 0


class RoundTrip:
    """How long a call to the store takes, as one limiter measures it.

    The shortest of the recent calls is the way to the store and back. The others took longer
    because the machine, the store or this process was busy, or because they connected first: so
    one call alone tells nothing.

    >>> round_trip = RoundTrip()
    >>> [round_trip.note(seconds) for seconds in (0.3, 0.1, 0.2)]
    [False, True, False]
    >>> round_trip.seconds
    0.1
    >>> round_trip.note(0.001), round_trip.seconds
    (True, 0.0)
    """

    __slots__ = ("_recent", "seconds")

    def __init__(self) -> None:
        #: Seconds; 0.0 if the store is near, and before the first call.
        self.seconds: float = 0.0
        self._recent: tuple[float, ...] = ()

    def note(self, seconds: float) -> bool:
        """Record a call, in seconds; return whether the round trip has changed."""
        self._recent = (*self._recent[1 - _CALLS :], seconds)
        before, shortest = self.seconds, min(self._recent)
        is_far = shortest > _NEAR and len(self._recent) > 1
        self.seconds = math.ceil(shortest / _STEP - _STEP) * _STEP if is_far else 0.0
        return self.seconds != before


class SharedBucket:
    """The tokens of one engine in a store.

    Args:
        bucket: The engine's bucket, which has a `Reserved` algorithm.
        queue: Its waiters.
        semaphore: Its slots: nothing is reserved for a waiter that has none.
        pause: Its pause.
        algorithm: The algorithm that decides in the store.
        outage: Has the store, and what serves while it fails. It reports to the engine.
        max_reservation: Seconds ahead that tokens are reserved, at the most; None: what suits.
        prefetch: Tokens to reserve before a request needs them, and how long they are kept.
    """

    def __init__(
        self,
        bucket: "LocalBucket",
        queue: "Queue",
        semaphore: "Semaphore",
        pause: "Pause",
        algorithm: Algorithm[Any],
        *,
        outage: Outage,
        max_reservation: float | None = None,
        prefetch: "Rate | None" = None,
    ) -> None:
        self._bucket = bucket
        self._queue = queue
        self._semaphore = semaphore
        self._pause = pause
        #: Whether the store fails. What the store had rejected is void when that changes.
        self.outage: Outage = outage
        self._changed, outage.report = outage.report, weakly(self._store_changed)
        #: What the store has granted, the state of the bucket's algorithm.
        self.reserved: ReservedState = bucket.own[1]
        #: The store, or its fallback.
        self.store: FailoverStore = FailoverStore(outage, algorithm, bucket.clock)
        self._max_reservation = max_reservation
        self._prefetch = Prefetch(prefetch)
        #: Whether new requests may use reservations without a further decision: else each
        #: reservation is checked for its age.
        self.may_grant_credit: bool = prefetch is not None
        self._round_trip = RoundTrip()
        self._is_closed = False
        #: No timeout of a waiter ends earlier; infinity: none has a timeout.
        self.first_deadline: float = math.inf
        # Whether tokens could not be returned or counted, for which one line is logged.
        self._has_failed = False
        # Tokens granted since the last one that was not ready at once; the seconds by which the
        # next call may come later, and until when it waits for that: see `_note_others`.
        self._tokens, self._turn, self._turn_until = 0.0, 0.0, -math.inf
        self.use(algorithm)

    def check(self, algorithm: Algorithm[Any]) -> None:
        """Raise ValueError if the record in the store cannot continue with the algorithm."""
        if seal(algorithm) != seal(self.algorithm):
            raise ValueError(
                f"the record in the store is one of {self.algorithm!r}, and update() cannot make "
                f"it one of {algorithm!r}: make a limiter with another key"
            )

    def use(self, algorithm: Algorithm[Any]) -> Algorithm[Any]:
        """Continue with another algorithm; the record in the store stays.

        Returns:
            The algorithm for the engine's bucket.
        """
        #: The algorithm that decides in the store.
        self.algorithm: Algorithm[Any] = algorithm
        self.store.use(algorithm)
        self._size_calls()
        # Seconds that others have reserved ahead, if that is more than `max_reservation`.
        self._others_ahead = 0.0
        self.ask_again()
        return Reserved(algorithm)

    def _size_calls(self) -> None:
        """Size the calls to suit the algorithm and the store."""
        #: How much one call asks for.
        self.batching: Batching = Batching.of(
            self.algorithm, self._max_reservation, self._round_trip.seconds
        )

    # ---- what the engine asks --------------------------------------------------------------------

    def is_idle(self, now: float) -> bool:
        """Return whether nothing is reserved, due or to be remembered."""
        reserved = self.reserved
        is_empty = not (reserved.ready or reserved.returned or reserved.owed)
        return is_empty and self.store.is_forgettable(now)

    def estimate(self, now: float, cost: float, ahead: float) -> float:
        """Seconds until tokens that are not reserved may be there, as far as it is known."""
        ready = self.reserved.ready
        wait = until(ready[-1].at, now) if ready else 0.0
        if now < self._valid_until and (ahead or covers(cost, self._rejected_cost)):
            wait = max(wait, until(self._rejected_until, now))
        return max(wait, self._bucket.quota_delay(now, cost))

    def drop_stale(self, now: float) -> None:
        """Return the reservations that are too old for a new request."""
        self.reserved.give_back_older(now - self._prefetch.patience)

    def joined(self, waiter: "Waiter") -> bool:
        """Note that a waiter has joined the queue. Returns whether it needs a call at once."""
        self._prefetch.joined += 1
        if waiter.timeout is not None:
            self.first_deadline = min(self.first_deadline, waiter.at + waiter.timeout)
        return False

    def in_vain(self) -> "Iterator[tuple[Waiter, float]]":
        """Yield the waiters that cannot start within their timeout, and the seconds until they can.

        Arrivals are rejected by the engine. Of those here it is known only since the last answers.
        """
        now = self._bucket.now()
        pause = self._pause.left(now)
        if now + pause + self.estimate(now, 1.0, ahead=1.0) <= self.first_deadline:
            return
        self.first_deadline = math.inf
        reserved, ahead = self.reserved.tokens, 0.0
        for waiter in self._queue:
            future, cost = waiter.future, waiter.cost
            if future is None or (future.done() and not is_granted(future)):
                continue
            if waiter.timeout is not None and not future.done():
                if covers(reserved, ahead + cost):
                    wait = pause + self._bucket.delay(now + pause, cost, ahead)
                else:  # behind all that is reserved, or rejected
                    wait = max(pause, self.estimate(now, cost, ahead))
                deadline = waiter.at + waiter.timeout
                if now + wait > deadline + _TIMER:
                    yield waiter, wait
                    continue
                self.first_deadline = min(self.first_deadline, deadline)
            ahead += cost

    def tidy(self, now: float) -> None:
        """Return what is too old to be used, or cannot be used soon.

        While nobody waits that is all but prefetched tokens, of which those for a round trip of a
        far store are kept until the first of them is too old.
        """
        reserved, prefetch, queue = self.reserved, self._prefetch, self._queue
        if now < self._pause.opens_at:
            reserved.give_back()
        if queue.resuming:
            return
        keeps = not self._is_closed and (
            prefetch.given is not None or (prefetch.fetched > 0 and self.batching.way > 0)
        )
        too_old = now - prefetch.patience
        is_late = bool(reserved.ready) and reserved.ready[0].at <= too_old
        if is_late:
            reserved.give_back_older(too_old)
        if queue.count:
            # Without a free slot it is unknown when they can be used.
            keeps = keeps or not prefetch.fetched or self._semaphore.free > 0
        else:
            keeps = keeps and (prefetch.given is not None or not is_late)
            if keeps:
                kept = 0.0 if prefetch.given else self._round_trip.seconds
                reserved.give_back_later(now + kept)
            if self.outage.is_down:
                self.store.is_wanted = False
                self.ask_again()  # the next waiter finds out anew, and needs the store
        if not keeps:
            prefetch.reset()
            if reserved.ready:
                reserved.give_back()

    def queue_is_empty(self, now: float) -> bool:
        """Return what was reserved for waiters, and whether there is anything to call for."""
        self.tidy(now)
        reserved = self.reserved
        return bool(reserved.returned or reserved.ready or reserved.owed)

    def charge_reject(self, cost: float) -> None:
        """Count a request in the store that the algorithm rejects without a call."""
        # Of no instant: nobody can return it.
        self.reserved.owed.append(Reservation(math.nan, cost, math.nan))

    def ask_again(self) -> None:
        """Forget what the store, or its fallback, has rejected, and learn the prefetch anew."""
        # A call for such a cost, or a greater one, is of no use before `_ask_at`.
        self._rejected_cost, self._rejected_until, self._ask_at = 0.0, -math.inf, -math.inf
        self._valid_until = -math.inf
        self._prefetch.reset()

    def _store_changed(self, change: "events.StoreDown | events.StoreUp | None") -> None:
        """Ask again at once: rejections of the store, or of its fallback, are void."""
        self.ask_again()
        self._changed(change)

    # ---- what the store is asked for, and when ---------------------------------------------------

    def due_in(self, now: float) -> float:
        """Return the seconds until a call is due: 0.0 is now, infinity: it is not known."""
        return self._due(now, most=1)[0]

    def order(self, now: float) -> Order | float:
        """Return the call that is due now, or the seconds until one is."""
        wait, costs = self._due(now)
        if wait > 0.0:
            return wait
        reserved = self.reserved
        if reserved.returned:
            return self._refund()
        if reserved.owed:
            owed = reserved.owed[0]
            call = self.store.execute("record", (owed.cost,))
            return Order(call, partial(reserved.counted, owed, owed.cost), self._failed_to_settle)
        if not costs:
            return Order(self.store.maintain(), self._maintained, self._failed_to_settle)
        missing, ahead = len(costs), self._ahead()
        costs += self._prefetched(now, costs)
        return Order(
            self.store.execute("reserve", costs, ahead),
            partial(self._granted, costs, missing, ahead, now),
            self._failed_to_reserve,
        )

    def _due(self, now: float, most: int | None = None) -> tuple[float, list[float]]:
        """Return the seconds until a call is due, and the costs to reserve by it.

        Args:
            now: The time.
            most: How many costs, at the most; None: as many as suit one call.
        """
        reserved, wait, costs = self.reserved, math.inf, list[float]()
        ready, waits = reserved.ready, self._queue.count > 0
        if ready and not waits:
            self.tidy(now)
        if waits and not (reserved.returned or reserved.owed):
            costs = self._missing(now, self._room(now) if most is None else most)
        if reserved.returned or reserved.owed:
            return 0.0, []
        if costs:
            wait = self._bucket.quota_delay(now, costs[0]) if self._bucket.quotas else 0.0
            if now < self._ask_at and covers(costs[0], self._rejected_cost):
                wait = max(wait, until(self._ask_at, now))
            if self._turn and not wait:
                self._turn_until = now + random.uniform(0.0, self._turn)
                self._turn = 0.0
            wait = max(wait, self._turn_until - now)
        elif ready and not waits:  # prefetched tokens are kept so long
            wait = max(SHORTEST_BREAK, until(ready[0].at + self._prefetch.patience, now))
        if self.outage.is_down or self.store.recorded is not None:
            of_store = self.store.due_in(now)
            if of_store < wait:
                return of_store, []
        return wait, costs

    def _waiters(self) -> "Iterable[Waiter]":
        """Return the waiters that tokens are reserved for, in order."""
        return self._queue

    def _missing(self, now: float, most: int) -> list[float]:
        """Return the costs at the head of the queue that are not reserved, the first `most`.

        There are none while enough is still reserved, for waiters without a free slot, and in a
        pause. If all waiters have theirs, but more is to be prefetched, it is one cost.
        """
        if now < self._pause.opens_at:
            return []
        reserved, batching, waiters = self.reserved, self.batching, self._waiters()
        free = self._semaphore.slots - self._semaphore.taken
        tokens = left = reserved.tokens if reserved.ready else 0.0
        if batching.way:
            left = self._left(now)
        is_enough = left.real > batching.low
        begun, cost, asked, most_tokens = False, 0.0, 0.0, max(most, batching.part)
        costs: list[float] = []
        for waiter in waiters:
            future = waiter.future
            if future is None:
                continue
            if not future.done():
                if free <= 0 or len(costs) == most or asked >= most_tokens:
                    break
                free -= 1
            elif future.cancelled() or future.exception() is not None:
                continue  # it was not granted
            cost = waiter.cost
            if not cost:
                continue
            is_reserved = not costs and tokens and (tokens == cost or covers(tokens, cost))
            if is_reserved and (begun or reserved.serves(cost, self._prefetch.patience)):
                if not begun and is_enough:
                    return []
                tokens -= cost
            else:
                if tokens and not begun and positive(tokens) and not self._queue.resuming:
                    # Parts, each ready at another time: they would never be usable all at once.
                    reserved.give_back()
                costs.append(cost)
                asked += cost.real
                tokens = 0.0
            begun = True
        if not costs and cost and batching.way and not is_enough:
            prefetch = self._prefetch
            if prefetch.next and prefetch.joined:
                costs.append(cost)
        return costs

    def _room(self, now: float) -> int:
        """Return the most costs to ask for now."""
        batching = self.batching
        return batching.room(self._left(now)) if batching.way else batching.batch

    def _left(self, now: float) -> float:
        """Return the tokens that are reserved beyond those that the queue takes now.

        Of several resources those of requests: a call asks for a number of requests.
        """
        reserved = self.reserved
        ready = math.fsum([each.cost.real for each in reserved.ready if each.at <= now])
        return reserved.tokens.real - min(ready, self._queue.cost.real)

    def _prefetched(self, now: float, costs: list[float]) -> list[float]:
        """Return the costs to reserve beyond those of the waiters."""
        prefetch, batching = self._prefetch, self.batching
        if isinstance(self.algorithm, PerResource):
            return []  # the next request may need others
        if prefetch.given is not None:
            tokens = self._remaining(now, costs, math.floor(prefetch.given.limit))
            return [float(tokens)] if tokens else []
        if batching.way:
            most = int((self._room(now) - math.fsum(costs)) / costs[-1])
            return costs[-1:] * prefetch.learned_ahead(max(0, most))
        prefetch.joined = 0
        semaphore = self._semaphore
        if self._queue.count > semaphore.slots - semaphore.taken:  # the next one waits for a slot
            prefetch.reset()
            return []
        learned = prefetch.learned(batching.batch - len(costs), len(costs))
        # One by one, so that a part can be granted.
        return [1.0] * self._remaining(now, costs, learned) if learned else []

    def _remaining(self, now: float, costs: list[float], most: int) -> int:
        """Return how many of `most` tokens remain, as far as known, beside the costs."""
        reserved = self.reserved
        known = now < reserved.known_until
        remaining = reserved.remaining if known else self._bucket.capacity
        return max(0, min(most, math.floor(remaining - math.fsum(costs))))

    # ---- reserving -------------------------------------------------------------------------------

    def _ahead(self) -> float:
        """Return how many seconds ahead the next call may reserve."""
        if self.reserved.settles:
            return self.batching.ahead_of_refunds
        least = self.batching.max_reservation
        return least if self._max_reservation is not None else max(least, self._others_ahead)

    def _granted(
        self, costs: list[float], missing: int, ahead: float, begun: float, answer: Answer
    ) -> None:
        """Keep what the store has granted: of the costs, the first are missing."""
        taken = len(answer.instants)
        now = self.note(answer)
        self._note_others_ahead(answer, ahead)
        if not isinstance(self.algorithm, PerResource):  # of which any one can be spent
            self._note_others(answer, math.fsum(costs[:taken]))
        if self._round_trip.note(now - begun):
            self._size_calls()
        if taken < missing:
            self._rejected_cost = costs[taken]
            self._rejected_until = now + answer.retry_after
            valid = math.inf if self.outage.is_down else _VALID
            self._valid_until = now + valid
            # The return of the store voids this, see `ask_again`.
            wait = self.store.retry_in(costs[taken], answer.retry_after, self._ahead())
            if self.reserved.settles:  # here, and so in the other processes
                soonest = self.batching.ahead_of_refunds / 2.0
                wait = min(wait, soonest + random.uniform(0.5, 1.0) * _AGAIN * wait)
            wait = min(wait, random.uniform(0.5, 1.0) * valid)
            self._ask_at = now + max(SHORTEST_BREAK, wait)
        self.reserved.hold(now, costs[:taken], answer.instants, answer.now)

    def _failed_to_reserve(self, error: Exception) -> Exception:
        self.ask_again()
        return error

    def note(self, answer: Answer) -> float:
        """Note the state of the record. Return the time."""
        now, reserved = self._bucket.clock(), self.reserved
        reserved.remaining, reserved.known_until = answer.remaining, now + answer.reset_after
        return now

    def _note_others_ahead(self, answer: Answer, ahead: float) -> None:
        """Learn how far ahead the processes have reserved.

        Where one token for each process takes longer than `ahead`, the last ones would be rejected
        in turns, and tokens go to the process that asks at the right instant: so they queue too.
        """
        if not answer.instants:
            if 0.0 < answer.retry_after < math.inf:
                self._others_ahead = min(max(2.0 * ahead, answer.retry_after), MOST_AHEAD)
        elif answer.instants[-1] - answer.now < self._others_ahead / 4:
            self._others_ahead /= 2.0

    def _note_others(self, answer: Answer, tokens: float) -> None:
        """Let the other processes call first now and then, if they use most of the limit.

        Where there are ten tokens for eight processes, two of them are left over. All processes
        call at the same instant, when their reservations are ready, and the fastest one would get
        another token each time. Those of a far store do not.

        After a wait for a slower one of several limits a process that is alone comes late, too.
        """
        self._tokens += tokens
        wait = answer.instants[-1] - answer.now if answer.instants else 0.0
        if wait > 0.0:
            interval = self.batching.interval
            has_others = wait > 2.0 * self._tokens * interval and not self.batching.way
            self._turn = min(_TURN * interval, _LONGEST_TURN) if has_others else 0.0
            self._tokens = 0.0

    # ---- returning -------------------------------------------------------------------------------

    def _refund(self) -> Order:
        """Return one reservation; of a far store several at once, in order.

        Cancelled, it does not return them again: done twice, that would free tokens of others.
        """
        returned = self.reserved.returned
        count = min(len(returned), _MOST_RETURNED if self.batching.way else 1)
        refunds = [
            self.store.execute("refund", (each.cost,), each.instant)
            for each in [returned.popleft() for _ in range(count)]
        ]
        call: Awaitable[Any] = refunds[0]
        if count > 1:
            call = asyncio.gather(*refunds, return_exceptions=True)
        return Order(call, self._refunded, self._failed_to_settle)

    def _refunded(self, results: Answer | list[Answer | BaseException]) -> None:
        for result in results if isinstance(results, list) else ():
            if isinstance(result, Exception):
                self._failed_to_settle(result)
                break

    def _maintained(self, _: None) -> None:
        self.ask_again()  # what was rejected may be granted by now

    def _failed_to_settle(self, error: Exception) -> None:
        """Give up what was to be returned, which stays spent, and what was owed.

        No caller waits for the error.
        """
        self.reserved.returned.clear()
        self.reserved.owed.clear()
        # That a store does not answer is logged already, once for all limiters: see `Health`.
        if not (self._has_failed or isinstance(error, StoreUnavailable)):
            self._has_failed = True
            _logger.warning(
                "tokens of %.200r could not be returned (they stay spent) or counted: %.300r",
                *(self.outage.key, reason_of(error, None)),
            )

    # ---- requests that do not wait, the end, and loops -------------------------------------------

    def take(self, now: float, cost: float, answer: Answer) -> None:
        """Take the tokens of a request that does not wait: just granted, or else prefetched."""
        self._bucket.now()  # a request that just started has used a reservation
        if cost and answer.instants:  # ahead of those of the waiters that have come since
            self.reserved.ready.appendleft(Reservation(now, cost, answer.instants[0]))
        self._bucket.take(now, cost)

    def give_back_unused(self, cost: float, answer: Answer) -> None:
        """Return what the store has granted to a request that was cancelled meanwhile."""
        for instant in answer.instants:
            self.reserved.returned.append(Reservation(math.nan, cost, instant))

    def forget(self) -> None:
        """Forget all that the store has granted: the record was deleted."""
        self._bucket.now()  # a request that just started has used a reservation
        self.reserved.forget()
        self.ask_again()

    def restart(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin anew on another loop."""
        self.store.restart(loop, self._bucket.clock)
        self._tokens, self._turn, self._turn_until = 0.0, 0.0, -math.inf
        self.ask_again()
        self._bucket.now()  # a request that just started has used a reservation
        self.reserved = self._bucket.own[1]

    def stop(self) -> None:
        """Return all that is reserved, also what is prefetched: the engine is closed."""
        self._is_closed = True
        self.store.stop()

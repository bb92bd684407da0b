"""The outages of a store as one limiter meets them: the choice of `on_store_error`.

Strategy. An `Outage` knows whether the store fails, for the tokens or the slots of a limiter: each
failure of the server begins, is reported and ends there once.

For tokens `FailoverStore` chooses what answers. While the store fails no request waits for it: the
fallback answers, and `Health` has the server tried. When it is back, what was spent meanwhile and
still counts is recorded there before it grants anything, and refunded when it would have left a
record of windows. For a while this process keeps to its share as well, until the other processes
are back, too: so the return is no burst.

Calls that are due for the store itself (`due_in`, `maintain`) are made by the limiter's `Caller`.

Invariant: a failed call raises, or the fallback answers it; never both.
"""

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextvars import Context
from dataclasses import dataclass, field, replace
from typing import Any

from aiothrottle.algorithms import Algorithm
from aiothrottle.algorithms.protocol import until
from aiothrottle.amounts import common, total
from aiothrottle.errors import StoreUnavailable
from aiothrottle.events import StoreDown, StoreUp
from aiothrottle.stores.caller import weakly
from aiothrottle.stores.fallback import Fallback, Here, Spent, expires
from aiothrottle.stores.health import Health, loop_time, meanwhile, message_of
from aiothrottle.stores.store import Answer, Key, Method, OnStoreError, Step, Store

# Seconds within which all processes that call find that the store is back: see `Health`.
_ALL_BACK = 2.0
_TO_A_REFUND = Answer(0.0, (), 0.0, 0.0, 0.0)  # `Store.refund` returns none


@dataclass(slots=True, eq=False, repr=False, weakref_slot=True)
class Outage:
    """The outages of a server as one limiter meets them, with its tokens or its slots.

    `report` and `probe` do not keep the limiter alive.
    """

    #: The store that may fail, and the key of the limiter's record.
    store: Store
    key: Key
    #: What serves while the store fails: `on_store_error`.
    choice: OnStoreError
    #: The part of the limit that this process may use alone then, with "local"; None: what suits.
    local_share: float | None
    #: Called with the event when the store fails or is back, and with None when it is time to ask
    #: again, for example as the server has answered another limiter (`is_back`).
    report: Callable[[StoreDown | StoreUp | None], None]
    #: Returns a call that tries the server if the limiter has a reason to. None: the limiter calls
    #: by itself.
    probe: Callable[[], Callable[[], Awaitable[None]] | None] | None = None
    #: The last call that is of no request: a probe, what was spent, or the count of processes.
    task: asyncio.Task[None] | None = field(init=False, default=None)
    #: The health of the server that has the key, as of the last call.
    health: Health = field(init=False)
    _loop: asyncio.AbstractEventLoop | None = field(init=False, default=None)
    #: Whether the store fails, as far as this limiter knows.
    is_down: bool = field(init=False, default=False)
    _down_since: float = field(init=False, default=0.0)
    #: Whether the server has answered a probe, or another limiter, since it failed for this
    #: one. It may have failed again for others since: their records may be the reason.
    is_back: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        """Begin without a loop."""
        self.health = Health.of(self.store, self.key, None)

    def find(self) -> None:
        """Find the health of the server that has the key now: keys may move."""
        if not self.is_down and self.store.node_of(self.key) != self.health.node:
            self.health = Health.of(self.store, self.key, self._loop)

    def too_early(self) -> StoreUnavailable | None:
        """Return the error of a request, without a call, if the server fails and was just asked."""
        health = self.health
        if health.error is None or health.failures < 2:
            return None
        if health.take_turn():
            self.begin()  # so that an answer ends the outage, for all
            return None
        return self.error_for(health.error, "not asked again yet; ")

    def call_failed(self, error: StoreUnavailable) -> None:
        """Note a failed call."""
        self.is_back = False
        self.health.call_failed(error)
        self.health.begin_outage(self.choice, message_of(error), self.key)
        self.follow()  # perhaps again: the server had answered another limiter
        self.begin()

    def error_for(self, error: StoreUnavailable, more: str = "") -> StoreUnavailable:
        """Return the error for the requests: what failed, and what becomes of them."""
        ours = StoreUnavailable(f"{message_of(error)}; {more}{meanwhile(self.choice, self.key)}")
        ours.__cause__ = error.__cause__
        return ours

    def trouble(self, *, is_calling: bool) -> str:
        """Return why requests wait for the store, and not for the limit; "" if they do not.

        Args:
            is_calling: Whether they wait for the answer to a call.
        """
        error = self.health.error
        if self.is_down and error is not None and self.choice != "open":
            return str(self.error_for(error))
        if is_calling:
            return f"{self.health.name} has not answered yet, key {self.key!r:.200}"
        return ""

    def begin(self) -> None:
        """Go on without the store, as it fails for this limiter or for another one."""
        if not self.is_down:
            self.is_down, self._down_since = True, loop_time()
            self.follow()
            assert self.health.error is not None
            self.report(StoreDown(None, self.health.error, self.health.outage))

    def call_answered(self) -> None:
        """Note an answer: if the store has failed, the outage is over, for all limiters.

        With a probe only its answer ends it: a call may be from before the outage, and the store
        has to get what was spent.
        """
        if self.is_down:
            if self.probe is None:
                self.end()
                self.health.end_outage()
        elif self.health.failures and self.health.pause() == 0.0:  # else older than the failure
            self.health.end_outage()

    def end(self) -> None:
        """Go on with the store."""
        if self.is_down:
            self.is_down = self.is_back = False
            # The loop may be another one, with a time of its own.
            self.report(StoreUp(None, max(0.0, loop_time() - self._down_since)))

    def move_to(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin anew on another loop, which may have a time of its own."""
        self._loop, self.health = loop, Health.of(self.store, self.key, loop)
        self.task, self.is_back = None, False

    # ---- as a follower ---------------------------------------------------------------------------

    def follow(self) -> None:
        """Try the server in turns with the others, and be notified when it is back."""
        self.health.followers[self] = None
        if self.probe is not None:
            self.health.probe_later()

    def server_answered(self) -> None:
        """Note that the server has answered a probe, or another limiter."""
        self.is_back = self.is_down
        self.report(None)

    def unfollow(self) -> None:
        """Try it no more, and be notified no more."""
        self.health.followers.pop(self, None)

    async def close(self) -> None:
        """Leave no task, and try the server no more until the next call."""
        self.unfollow()
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait([self.task])

    def begin_call(self, call: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Begin a call that is of no request, in place of another one."""
        if self.task is not None:
            self.task.cancel()
        # As with the consumer of a limiter: a plain Task, in an empty context.
        self.task = asyncio.Task(call, loop=self._loop, name="aiothrottle store", context=Context())
        return self.task


# ---- the tokens of a limiter ---------------------------------------------------------------------


class FailoverStore:
    """The store of one limiter, or its fallback.

    Args:
        outage: Has the store that may fail, and what serves then.
        algorithm: Decides in the store.
        clock: Returns the time in seconds.
    """

    def __init__(
        self, outage: Outage, algorithm: Algorithm[Any], clock: Callable[[], float]
    ) -> None:
        #: Whether the store fails, and what serves then.
        self.outage: Outage = outage
        if outage.choice != "raise":
            outage.probe = weakly(self._probe_if_needed)
        self._clock = clock
        self._fallback = Fallback(outage, algorithm)
        # Whether a call was made.
        self._is_used = False
        #: Whether requests in an outage have asked for the store since its last probe.
        self.is_wanted: bool = False
        # Records the spent tokens as the store is back: nothing is granted meanwhile.
        self._returning: asyncio.Task[None] | None = None
        #: What was recorded when the store was back, and for which instant, if it expires.
        self.recorded: tuple[Spent, float] | None = None
        self._share_until = -math.inf  # until then the share holds as well as the store

    def use(self, algorithm: Algorithm[Any]) -> None:
        """Continue with another algorithm."""
        self._fallback.use(algorithm, self._clock())

    def _share_holds(self) -> bool:
        """Return whether the share holds as well as the store."""
        return self._clock() < self._share_until

    # ---- a step ----------------------------------------------------------------------------------

    async def execute(self, method: Method, costs: Sequence[float], seconds: float = 0.0) -> Answer:
        """Do a step in the store, or in its fallback; the arguments are those of `Step`.

        Raises:
            StoreUnavailable: The store does not answer, and nothing serves meanwhile.
        """
        step, outage = Step(method, costs, seconds), self.outage
        has_share = outage.choice == "local"
        # What was granted here is given back here. After the return it is recorded in the store for
        # an instant that is not known: it stays spent there, as does in an outage what the store
        # has granted.
        if not (isinstance(step.seconds, Here) or await self._is_away()):
            try:
                if has_share and method in {"reserve", "peek"} and self._share_holds():
                    return await self._ask_both(step)
                algorithm = self._fallback.algorithm
                answer = await step.sent_to(outage.store, outage.key, algorithm)
            except StoreUnavailable as error:
                self._begin_outage()
                outage.call_failed(error)
                if outage.choice == "raise":
                    raise outage.error_for(error) from error.__cause__
            except Exception:
                outage.call_answered()  # it is an error of this record, not of the server
                raise
            else:
                outage.call_answered()
                if answer is None:
                    return _TO_A_REFUND
                if has_share and not (outage.is_down or self._share_holds()):
                    self._note_answer(answer, step.costs[: len(answer.instants)])
                return answer
        return self._fallback.apply(self._clock(), step)

    async def _ask_both(self, step: Step) -> Answer:
        """Ask the share, and the store for what the share grants."""
        outage, fallback = self.outage, self._fallback
        here = fallback.apply(self._clock(), Step(step.method, step.costs))
        granted, taken = step.costs[: len(here.instants)], 0
        if step.method == "reserve":
            if not granted:
                return here
            step = Step("reserve", granted)
        try:
            answer = await step.sent_to(outage.store, outage.key, fallback.algorithm)
            assert answer is not None
            taken = len(answer.instants)
        finally:
            for cost, instant in zip(granted[taken:], here.instants[taken:], strict=True):
                fallback.refund(self._clock(), cost, instant)
        outage.call_answered()
        wait = max(answer.retry_after, here.retry_after)
        return replace(answer, retry_after=wait)

    async def clear(self) -> None:
        """Forget the record, in the store and here."""
        outage = self.outage
        try:
            await outage.store.clear(outage.key)
        except StoreUnavailable as error:
            more = f"the record of {outage.key!r:.200} may still be there"
            ours = StoreUnavailable(f"{message_of(error)}; {more}")
            raise ours from error.__cause__
        self.recorded = None
        self._fallback.forget()
        if outage.is_down:
            self._fallback.begin_outage()

    def _note_answer(self, answer: Answer, taken: Sequence[float]) -> None:
        """Keep the share as full as the record, by an answer that has taken those costs."""
        self._fallback.note_answer(self._clock(), answer, total(taken))
        is_idle = self.outage.task is None or self.outage.task.done()
        if is_idle and self._fallback.must_count():
            self.outage.begin_call(self._count_processes())

    # ---- away and back ---------------------------------------------------------------------------

    async def _is_away(self) -> bool:
        """Return whether the fallback has to answer; make sure that the store is tried again."""
        outage = self.outage
        outage.find()
        if outage.choice == "raise":
            if outage.health.failures and (error := outage.too_early()):
                outage.begin()
                try:
                    raise error
                finally:
                    del error  # its traceback has this frame
            return False
        is_first, self._is_used = not self._is_used, True
        # Other limiters have found that the store fails: once is enough before the first call.
        if outage.health.failures >= (1 if is_first else 2):
            self._begin_outage()
            outage.begin()
        await self._return()
        if outage.is_down:
            self.is_wanted = True
            outage.follow()
        return outage.is_down

    def _begin_outage(self) -> None:
        if not self.outage.is_down:
            self._fallback.begin_outage()
            self.recorded = None  # what is not refunded by now stays spent

    def retry_in(self, cost: float, retry_after: float, ahead: float = 0.0) -> float:
        """Seconds after which to ask again for a cost that was rejected; infinity: see `changed`.

        Args:
            cost: Tokens.
            retry_after: Seconds until it may start, as the answer says.
            ahead: Seconds ahead of which the store grants tokens.
        """
        if self.outage.is_down:
            self.is_wanted = True  # a request waits for the store
            return self._fallback.patience(self._clock(), cost)
        return retry_after if self._share_holds() else retry_after - ahead

    def _probe_if_needed(self) -> Callable[[], Awaitable[None]] | None:
        """Return a call of the store if requests need it, or it has to get what was spent."""
        is_needed = self.is_wanted or self._fallback.total(self._clock())
        return self._probe if is_needed else None

    async def _probe(self) -> None:
        store, key, algorithm = self.outage.store, self.outage.key, self._fallback.algorithm
        try:
            await store.peek(key, algorithm, 0.0)
            # A server that is read-only, and one whose disk is full, answers all but a change.
            token = common(1.0, algorithm.capacity)
            answer = await store.reserve(key, algorithm, (token,))
            token, instant = (token, *answer.instants) if answer.instants else (0.0, answer.now)
            await store.refund(key, algorithm, token, instant)
        except StoreUnavailable:
            self.is_wanted = False
            self.outage.report(None)  # requests that still wait ask again
            raise

    async def _return(self) -> None:
        """Continue with the store if it is back, once it has got what was spent here."""
        outage, fallback = self.outage, self._fallback
        while outage.is_back and fallback.total(self._clock()):
            if self._returning is None or self._returning.done():
                self._returning = outage.begin_call(self._record_spent())
            await asyncio.wait([self._returning])
        if outage.is_back:
            self.is_wanted, fallback.spent = False, None
            if outage.choice == "local" and not fallback.reserves_ahead:
                self._share_until = self._clock() + _ALL_BACK
            outage.end()

    async def _record_spent(self) -> None:
        outage, fallback, spent = self.outage, self._fallback, self._fallback.spent
        store, key, algorithm = outage.store, outage.key, fallback.algorithm
        assert spent is not None
        try:
            most = fallback.most_counting(self._clock())
            if outage.choice == "open":  # it may have been any number
                most = (await store.peek(key, algorithm, 0.0)).remaining
            if cost := spent.cap(most):
                answer = await store.record(key, algorithm, cost)
                self.recorded = (spent, answer.now) if expires(algorithm) else None
        except StoreUnavailable as error:
            outage.call_failed(error)
            return
        except Exception:  # noqa: BLE001, S110 - the next call raises the same
            pass
        fallback.spent = None

    # ---- what is due for the store itself --------------------------------------------------------

    def due_in(self, now: float) -> float:
        """Return the seconds until `maintain` has something to do; infinity: it is not known."""
        if self.outage.is_back:
            return 0.0
        return math.inf if self.recorded is None else until(self.recorded[0].expires_at, now)

    async def maintain(self) -> None:
        """Return to the store, or refund there what would have left its record by now."""
        if self.outage.is_back:
            await self._return()
            return
        assert self.recorded is not None
        spent, instant = self.recorded
        cost = spent.pop_expired(self._clock())
        if spent.expires_at == math.inf:
            self.recorded = None
        # It stays spent; the next call raises the same.
        with contextlib.suppress(StoreUnavailable, ValueError):
            store, key, algorithm = self.outage.store, self.outage.key, self._fallback.algorithm
            await store.refund(key, algorithm, cost, instant)

    async def _count_processes(self) -> None:
        # The count stays as it was. A TypeError: the store takes its own algorithms only.
        with contextlib.suppress(StoreUnavailable, TypeError, ValueError):
            await self.outage.health.counter.register(self.outage.store)

    # ---- the end, and loops ----------------------------------------------------------------------

    def restart(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float]) -> None:
        """Continue on another loop, perhaps by another clock, for which no instant is valid."""
        if clock != self._clock:
            self._clock = clock
            self._fallback.forget()
            self.recorded = None
            self._share_until = -math.inf
            self.outage.is_down = False
        self._returning = None
        self.is_wanted = False
        self.outage.move_to(loop)

    def stop(self) -> None:
        """Record and refund nothing more; a call after that begins anew."""
        self.recorded = None
        if self._fallback.spent is not None:
            self._fallback.begin_outage()

    def is_forgettable(self, now: float) -> bool:
        """Return whether a new one would do the same."""
        return self.recorded is None and self._fallback.is_forgettable(now)

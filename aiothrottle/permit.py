"""A permit: one slot and the tokens of one request, from the grant to the release."""

import asyncio
import math
import sys
import warnings
from asyncio import get_running_loop
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Self, cast

from aiothrottle._core import outcomes
from aiothrottle._core.feedback import LONGEST_PAUSE, PauseRule
from aiothrottle._core.wait_queue import Waiter
from aiothrottle.amounts import REQUESTS, Amounts, Cost, as_costs, read_cost
from aiothrottle.checks import check_number
from aiothrottle.errors import ThrottleTimeout, no_copy
from aiothrottle.redact import shown
from aiothrottle.reported_quota import ReportedQuota
from aiothrottle.texts import number

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import TracebackType

    from aiothrottle._core.entry import Entry

__all__ = [
    "ONE",
    "Permit",
    "Request",
    "WatchedPermit",
    "acquired",
    "is_first_report",
    "report_answer",
    "request_of",
]

#: The default cost. It is compared by identity, so a default cost needs no check.
ONE = 1.0

# Seconds. A timeout that is as long as the wait must not come first, and timers are no finer.
_GRACE = 0.001


class Request(NamedTuple):
    """The request of a permit: what a report of its outcome needs to know."""

    #: Where it arrived.
    entry: "Entry"
    #: None: it started on credit.
    waiter: Waiter | None
    #: When it was sent, by the clock of its limiter; NaN: not yet.
    sent_at: float
    #: Its tokens.
    cost: float
    #: Whether its permit is held.
    held: bool


class Permit:
    """The right to send one request: ``async with limiter.throttle()`` waits for it.

    The end of the block, or `release`, gives the slot back; the tokens are spent. A permit is for
    one block.
    """

    __slots__ = ("_at", "_entry", "_given", "_held", "_reported", "_waiter")

    # Made by RateLimiter.throttle, which sets `_entry` and `_held`: an __init__ would be a sixth of
    # the time of a permit, and each attribute that has to be set is a part of that.
    _entry: "Entry"
    # None: not acquired yet, and may take the fast path; False: not held yet, or released.
    _held: bool | None
    _at: float  # set on the fast path: when it was granted
    _waiter: Waiter  # set on any other path
    _reported: bool  # set when the outcome of its request was reported
    _given: bool  # set by `acquire`, and unset when it is entered

    async def __aenter__(self) -> Self:
        entry = self._entry
        # The fast path, inlined because every request takes it: no waiter, credit in the bucket
        # and a free slot. No future, no task, no timer.
        bucket, semaphore = entry.bucket, entry.semaphore
        if (
            bucket.credit
            and semaphore.taken < semaphore.slots
            and entry.loop is get_running_loop()
            and self._held is None
        ):
            self._at = now = bucket.clock()
            bucket.credit -= 1
            bucket.timestamps.append(now)
            semaphore.taken += 1
            self._held = True
            return self
        # The engine decides in synchronous code; here the request only waits.
        if self._held is None:
            self._held = False
            waiter = self._waiter = Waiter()
        else:
            own = self._waiter_of_its_own()
            if own is None:
                return self
            waiter = own
        future = entry.arrive(waiter)
        if future is None:
            self._held = True
            return self
        try:
            while True:
                await future
                future = entry.resume(waiter)
                if future is None:
                    self._held = True
                    return self
        except BaseException:
            del future  # it may carry the exception, whose traceback carries this frame: no cycle
            entry.cancel(waiter)
            raise

    async def __aexit__(
        self,
        exc_type: "type[BaseException] | None",
        exc: BaseException | None,
        traceback: "TracebackType | None",
    ) -> None:
        if self._held:
            self._held = False
            entry = self._entry
            semaphore = entry.semaphore
            semaphore.taken -= 1
            if semaphore.watched:
                waiter = getattr(self, "_waiter", None)
                if exc_type is not None and issubclass(exc_type, asyncio.CancelledError):
                    entry.pass_on(waiter)
                entry.slot_released(waiter)

    # A type checker rejects a wrong use only if it does not see these methods.
    if not TYPE_CHECKING:

        def __await__(self) -> NoReturn:
            self._given = False  # no warning besides the error
            raise TypeError(
                "a permit is not awaited: write `async with limiter.throttle():` around the "
                "request, or `permit = await limiter.acquire()` and `permit.release()`"
            )

        def __enter__(self) -> NoReturn:
            self._given = False
            raise TypeError(
                "a permit is entered with `async with`, not with `with`: write "
                "`async with limiter.throttle():` around the request"
            )

        def __exit__(self, *exc_info: object) -> None:
            """Never run: without it the error of `with` is about this method."""

    def _waiter_of_its_own(self) -> Waiter | None:
        """Return the waiter that the permit was made with; None: `acquire` holds it already.

        Raises:
            RuntimeError: The permit was used before.
        """
        if not self._was_acquired:
            return self._waiter
        if self._held and getattr(self, "_given", False):
            self._given = False
            return None
        raise RuntimeError(f"{self!r} was used before: call throttle() for each block")

    @property
    def cost(self) -> float:
        """Tokens of the request; after `settle`, its final cost. Of resources, the requests."""
        return self._tokens.real

    @property
    def costs(self) -> dict[str, float]:
        """Tokens of each resource; empty for a limiter without resources."""
        return as_costs(self._tokens, self._entry.engine.resources)

    @property
    def _tokens(self) -> float:
        waiter = getattr(self, "_waiter", None)
        return ONE if waiter is None else waiter.cost

    @property
    def _was_acquired(self) -> bool:
        """Whether the permit was entered or acquired."""
        return hasattr(self, "_at") or hasattr(getattr(self, "_waiter", None), "at")

    @property
    def _was_granted(self) -> bool:
        """Whether the permit is held or was released; not so if its request was cancelled."""
        waiter = getattr(self, "_waiter", None)
        return hasattr(self, "_at") if waiter is None else waiter.started

    @property
    def waited(self) -> float:
        """Seconds that the request waited."""
        waiter = getattr(self, "_waiter", None)
        return 0.0 if waiter is None else waiter.waited

    @property
    def _sent_at(self) -> float:
        """When the permit was granted, by the clock of its limiter."""
        waiter = getattr(self, "_waiter", None)
        return self._at if waiter is None else waiter.at

    def release(self) -> None:
        """Give the slot back. Idempotent; any thread may call it."""
        engine = self._entry.engine
        if get_ident() == engine.thread or engine.loop is None or engine.loop.is_closed():
            self._release()
        else:
            # A garbage collection in another thread calls this too.
            engine.loop.call_soon_threadsafe(self._release)

    def settle(self, cost: Cost) -> None:
        """Set the final cost of the request: the difference is refunded, or charged.

        A higher cost makes a debt, for which later requests wait. A refund counts at the instant
        of the grant, so each window gets back what was taken from it. The permit may have been
        released: the cost of a streamed answer may be known only then.

        Args:
            cost: Tokens, 0 or more; there is no upper bound. Of a limiter with resources, a
                mapping: a resource that it does not name keeps its cost.

        Raises:
            TypeError: The cost is not a number; or not a mapping, if the limiter has resources.
            ValueError: The cost is below zero or not finite, or of an unknown resource.
            RuntimeError: The permit was never held.

        >>> async def ask(limiter, model, prompt):
        ...     async with limiter.throttle(cost=1000) as permit:  # tokens, an estimate
        ...         answer = await model(prompt)
        ...         permit.settle(answer.tokens_used)
        """
        engine = self._entry.engine
        if engine.resources:
            cost = read_cost(cost, engine.resources, self._tokens)
        check_number("a cost", cost, "tokens")
        if not self._was_granted:
            raise RuntimeError(f"{self!r} cannot be settled: it was never held")
        engine.check_thread()
        self._entry.settle(self._charged(), cast("float", cost))

    def _charged(self) -> Waiter:
        """Return the waiter with the charges; a permit of the fast path gets one here."""
        if hasattr(self, "_at"):
            self._entry.engine.now()  # flushes its timestamp, if that is still pending
            waiter = self._waiter = Waiter()
            waiter.at = self._at
            waiter.started = True
            del self._at
        return self._waiter

    def update_quota(
        self,
        remaining: float,
        reset_after: float,
        *,
        evenly: bool = False,
        resource: str = REQUESTS,
    ) -> None:
        """Keep the limiter to the quota that the server reported in its response.

        The limiter becomes tighter until the server resets the quota, and never looser than its
        own rate. A quota that its own rate does not exceed by then changes nothing. Requests that
        were sent since are subtracted; of several reports on one window the lowest counts. The
        permit may have been released.

        Args:
            remaining: Tokens that the server has left, 0 or more.
            reset_after: Seconds until the server resets the quota.
            evenly: Whether the remaining tokens are spread over that time, or may be used at once.
                The first report decides.
            resource: The resource of the limiter that it is about.

        Raises:
            TypeError: An argument is not a number.
            ValueError: An argument is negative or not finite; or the limiter has no such resource.
            RuntimeError: The permit was never held.

        >>> async def fetch(limiter, session, url):
        ...     async with limiter.throttle() as permit, session.get(url) as response:
        ...         remaining = float(response.headers["X-RateLimit-Remaining"])
        ...         permit.update_quota(remaining, reset_after=60)
        """
        check_number("remaining", remaining, "tokens")
        check_number("reset_after", reset_after, "seconds")
        resources = dict.fromkeys((REQUESTS, *self._entry.engine.resources))
        if resource not in resources:
            raise ValueError(
                f"resource must be one of this limiter's, {' or '.join(resources)}, got "
                f"{shown(resource)}"
            )
        self._check_acquired("no server can have reported a quota for it")
        outcomes.update_quota(
            self._entry.engine,
            ReportedQuota(remaining, reset_after, resource),
            sent_at=self._sent_at,
            cost=self._tokens,
            held=self._held is True,
            evenly=evenly,
        )

    def report_success(self) -> None:
        """Report that the server has answered the request, with any status but a 429.

        Adaptive limits learn from it (`AdaptiveRate`, `AdaptiveConcurrency`, the self-tuning
        guard); it has no effect on others. The sessions and transports of this package report
        every response. Report when the response arrives; only the first report of a permit counts.
        The permit may have been released.

        Raises:
            RuntimeError: The permit was never held.

        >>> async def ask(limiter, call):
        ...     async with limiter.throttle() as permit:
        ...         answer = await call()
        ...         permit.report_success()
        ...         return answer
        """
        if self._entry.takes_outcomes and self._is_first_report():
            self._report_answer()

    def report_throttled(self, retry_after: float | None = None) -> None:
        """Report that the server has throttled the request, with a 429 for example.

        It pauses the limiter for all its requests, and adaptive limits learn from it. If the server
        throttles many requests at once, the first report makes the pause, with some jitter; the
        others extend it only with a longer `retry_after`. Without a `retry_after`, or with one
        below 0.1 seconds, the pause is half a second, doubled with each pause in a row. No pause is
        longer than two minutes; call `RateLimiter.pause` for a longer one.

        After the pause one request goes ahead. The others follow when it is reported as a success,
        or released without a report, or after five seconds.

        Args:
            retry_after: Seconds that the server asked to wait. None, ``math.nan`` and numbers that
                are not above 0 mean that the server sent no duration.

        Raises:
            TypeError: `retry_after` is neither a number nor None.
            RuntimeError: The permit was never held.

        >>> async def ask(limiter, call):
        ...     async with limiter.throttle() as permit:
        ...         response = await call()
        ...         if response.status == 429:
        ...             permit.report_throttled(retry_after=2.0)
        """
        if isinstance(retry_after, bool) or not isinstance(retry_after, int | float | None):
            raise TypeError(f"retry_after must be seconds or None, got {retry_after!r}")
        seconds = None
        if retry_after is not None and retry_after > 0:
            seconds = min(retry_after, LONGEST_PAUSE)
        if self._is_first_report():
            from_server = seconds is not None
            outcomes.report_throttled(
                self._entry, self._sent_at, seconds, PauseRule(), from_server=from_server
            )

    def _report_answer(self) -> None:
        """Report a success, for a caller that reports only once.

        It does not check for an earlier report, which would take as long as the rest.
        """
        entry = self._entry
        if entry.takes_outcomes:
            waiter = getattr(self, "_waiter", None)
            age = entry.bucket.clock() - self._sent_at
            outcomes.report_success(entry, waiter, self.cost, age, held=self._held is True)

    def _request(self) -> "Request":
        """Return what a report of the outcome needs to know of the request."""
        sent_at = self._sent_at if self._was_acquired else math.nan
        waiter = getattr(self, "_waiter", None)
        return Request(self._entry, waiter, sent_at, self._tokens, held=self._held is True)

    def _is_first_report(self) -> bool:
        """Return whether this is the first report of the outcome of the request."""
        self._check_acquired("no request can have ended")
        if getattr(self, "_reported", False):
            return False
        self._reported = True
        return True

    def _check_acquired(self, consequence: str) -> None:
        if not self._was_acquired:
            raise RuntimeError(f"{self!r} was not held yet: {consequence}")
        self._entry.engine.check_thread()

    def _release(self) -> None:
        if self._held:
            self._held = False
            entry = self._entry
            entry.semaphore.taken -= 1
            if entry.semaphore.watched:
                entry.slot_released(getattr(self, "_waiter", None))

    def __reduce__(self) -> NoReturn:
        """Reject pickling and copying."""
        raise no_copy("Permit")

    def __repr__(self) -> str:
        state = "held" if self._held else "released"
        if not self._was_acquired:
            state = "not acquired"
        elif (waiter := getattr(self, "_waiter", None)) is not None and waiter.future is not None:
            state = "waiting"
        tokens = self._tokens
        cost = number(tokens)
        if isinstance(tokens, Amounts):
            cost = ", ".join(f"{number(each)} {name}" for name, each in tokens.by_name.items())
        return f"<Permit of {cost}, {state}>"


class WatchedPermit(Permit):
    """A permit that warns when it is garbage: never entered, or never released.

    `__del__` alone makes an entry by `throttle` a tenth slower. So only these permits are watched:
    all of `acquire` and `try_acquire`, which no block releases; of `throttle`, those with
    arguments, those on a loop in debug mode, and those made before the limiter has a loop.
    """

    __slots__ = ()

    def __init__(
        self, entry: "Entry", waiter: Waiter | None = None, *, granted: bool = False
    ) -> None:
        """Make a permit.

        Args:
            entry: Where its request arrives.
            waiter: The request, if it has a cost, a priority or a timeout, or was granted.
            granted: Whether it was granted; then the caller has to release it.
        """
        self._entry = entry
        self._held = None
        if waiter is not None:
            self._held = granted  # the fast path is for a cost of 1
            self._waiter = waiter
        if granted:
            self._given = True

    def __aenter__(self) -> Any:  # noqa: ANN401 - type checkers differ on that of a coroutine
        if not hasattr(self, "_given"):
            self._given = False  # the block is being entered
        if self._was_acquired or not hasattr(self, "_waiter") or self._waiter.timeout is None:
            return super().__aenter__()
        return self._enter_in_time(self._waiter.timeout)

    async def _acquire(self) -> Self:
        """Wait for the grant. The caller has to release the permit."""
        self._given = False
        await self.__aenter__()
        self._given = True
        return self

    async def _enter_in_time(self, timeout: float) -> Self:
        try:
            async with asyncio.timeout(timeout + _GRACE):
                return await super().__aenter__()
        except ThrottleTimeout:
            raise
        except TimeoutError:
            raise self._entry.timed_out(self._waiter) from None

    # A default argument still exists at the end of the program, when module names do not.
    def __del__(self, is_finalizing: "Callable[[], bool]" = sys.is_finalizing) -> None:
        was_entered = hasattr(self, "_given")
        if (was_entered and not self._held) or is_finalizing():
            return
        if not hasattr(self, "_entry"):
            return  # the permit was not completely made
        text = repr(self)
        if not was_entered:
            warnings.warn(
                f"{text} was never entered, so nothing was limited: write "
                "`async with limiter.throttle():` around the request",
                RuntimeWarning,
                source=self,
                stacklevel=2,
            )
        elif self._entry.abandon(self._release):
            warnings.warn(
                f"{text} was dropped, and its slot given back: call its release(), or write "
                "`async with permit:`",
                ResourceWarning,
                source=self,
                stacklevel=2,
            )


# ---- for the integrations and faces of this package ----------------------------------------------

#: `RateLimiter.acquire`: waits for the grant.
acquired: "Callable[[WatchedPermit], Coroutine[Any, Any, WatchedPermit]]" = (
    WatchedPermit._acquire  # noqa: SLF001 - no part of what a permit shows its users, as below
)
#: Reports a success, for a caller that reports only once.
report_answer: "Callable[[Permit], None]" = Permit._report_answer  # noqa: SLF001
#: Returns whether this is the first report of the outcome of its request.
is_first_report: "Callable[[Permit], bool]" = Permit._is_first_report  # noqa: SLF001
#: Returns its request: where it arrives and when it was sent.
request_of: "Callable[[Permit], Request]" = Permit._request  # noqa: SLF001

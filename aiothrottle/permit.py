"""A permit: one slot and the tokens of one request, from the moment they are granted."""

import asyncio
import sys
import warnings
from asyncio import get_running_loop
from threading import get_ident
from typing import TYPE_CHECKING, Any, NoReturn, Self

from aiothrottle import events
from aiothrottle._core.feedback import JITTER, LONGEST_PAUSE
from aiothrottle._core.wait_queue import Waiter
from aiothrottle.checks import check_number
from aiothrottle.errors import ThrottleTimeout, no_copy
from aiothrottle.texts import number

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from aiothrottle._core.chain import Entry

__all__ = [
    "ONE",
    "Permit",
    "WatchedPermit",
    "granted_permit",
    "make_permit",
    "report_answer",
    "report_pause",
    "report_retry",
]

#: The usual cost: this very object, so that it is known by a look and needs no check.
ONE = 1.0

# Seconds. A timeout that is as long as the wait must not come first, and timers are no finer.
_GRACE = 0.001


class Permit:
    """The right to do one thing: what ``async with limiter.throttle()`` waits for and gives.

    Leaving the block, or `release`, gives the slot back; the tokens are spent. A permit is good
    for one block.
    """

    __slots__ = ("_at", "_entry", "_given", "_held", "_reported", "_waiter")

    # Made by RateLimiter.throttle, which sets `_entry` and `_held`: an __init__ would be a sixth of
    # what a permit costs, and each attribute that has to be set is a part of that.
    _entry: "Entry"
    # None: not asked for yet, and may take the fast path; False: not held, yet or any more.
    _held: bool | None
    _at: float  # set on the fast path: when it was granted
    _waiter: Waiter  # set on any other path
    _reported: bool  # set when the outcome of its request was reported
    _given: bool  # set by `acquire`, and unset when it is entered

    async def __aenter__(self) -> Self:
        entry = self._entry
        # The fast path, spelt out, since every request of every user goes through it: nobody
        # waits, the bucket has credit, and there is a slot. No future, no task, no timer.
        bucket, semaphore = entry.bucket, entry.semaphore
        if (
            bucket.credit
            and semaphore.taken < semaphore.slots
            and entry.loop is get_running_loop()
            and self._held is None
        ):
            self._at = now = bucket.clock()
            bucket.credit -= 1
            bucket.stamps.append(now)
            semaphore.taken += 1
            self._held = True
            return self
        # All that is decided is decided in synchronous code; here it is only waited.
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
                entry.slot_released(getattr(self, "_waiter", None))

    # A type checker rejects both without these, so it is not to see them.
    if not TYPE_CHECKING:

        def __await__(self) -> NoReturn:
            self._given = False  # one error is enough
            raise TypeError(
                "a permit is not awaited: write `async with limiter.throttle():` around the "
                "request, or `permit = await limiter.acquire()` and `permit.release()`"
            )

        def __enter__(self) -> NoReturn:
            self._given = False
            raise TypeError(
                "a permit is waited for, so `with` cannot enter it: write "
                "`async with limiter.throttle():` around the request"
            )

        def __exit__(self, *exc_info: object) -> None:
            """Be there: without it `with` complains of this, and not of what is wrong."""

    def _waiter_of_its_own(self) -> Waiter | None:
        """Give the waiter of a permit that was made with one; None if it is held, from `acquire`.

        Raises:
            RuntimeError: It was used before.
        """
        if not self._was_acquired:
            return self._waiter
        if self._held and getattr(self, "_given", False):
            self._given = False
            return None
        raise RuntimeError(f"{self!r} was used before: call throttle() for each block")

    @property
    def cost(self) -> float:
        """Tokens that it costs; after `settle`, that it has cost."""
        waiter = getattr(self, "_waiter", None)
        return ONE if waiter is None else waiter.cost

    @property
    def _was_acquired(self) -> bool:
        """Whether somebody has begun to wait for it."""
        return hasattr(self, "_at") or hasattr(getattr(self, "_waiter", None), "at")

    @property
    def waited(self) -> float:
        """Seconds that it was waited for."""
        waiter = getattr(self, "_waiter", None)
        return 0.0 if waiter is None else waiter.waited

    @property
    def _sent_at(self) -> float:
        """When it was granted, by the clock of its limiter."""
        waiter = getattr(self, "_waiter", None)
        return self._at if waiter is None else waiter.at

    def release(self) -> None:
        """Give the slot back, if that has not been done. Idempotent; any thread may call it."""
        engine = self._entry.engine
        if get_ident() == engine.thread or engine.loop is None or engine.loop.is_closed():
            self._release()
        else:
            # A garbage collection that runs in some thread ends up here.
            engine.loop.call_soon_threadsafe(self._release)

    def settle(self, cost: float) -> None:
        """Say what it has really cost: the difference is given back, or charged.

        More than was reserved makes a debt: those who come later wait for it. What is given back
        counts from when it was granted, so a window gets back what that window lost.

        Args:
            cost: Tokens, 0 or more; there is no upper bound.

        Raises:
            TypeError: The cost is no number.
            ValueError: The cost is below zero or not finite.
            RuntimeError: The permit is not held: not entered yet, or released.

        >>> async def ask(limiter, model, prompt):
        ...     async with limiter.throttle(cost=1000) as permit:  # tokens, by a guess
        ...         answer = await model(prompt)
        ...         permit.settle(answer.tokens_used)
        """
        check_number("a cost", cost, "tokens")
        if not self._held:
            raise RuntimeError(f"{self!r} cannot be settled: settle it while it is held")
        self._entry.engine.check_thread()
        self._entry.settle(self._charged(), cost)

    def _charged(self) -> Waiter:
        """Give what its charges are kept in; a permit of the fast path has none until then."""
        if hasattr(self, "_at"):
            self._entry.engine.now()  # its token may not be taken yet
            waiter = self._waiter = Waiter()
            waiter.at = self._at
            waiter.started = True
            del self._at
        return self._waiter

    def update_quota(self, remaining: float, reset_after: float, *, evenly: bool = False) -> None:
        """Keep the limiter to the quota that the server reported in its response.

        The limiter becomes tighter until the server resets the quota, and never looser than its
        own rate. Requests that were sent since are subtracted; of several reports on one window
        the lowest counts. The permit may have been released.

        Args:
            remaining: Tokens that the server has left, 0 or more.
            reset_after: Seconds until the server resets the quota.
            evenly: Whether the remaining tokens are spread over that time, or may be used at once.
                The first report of a window decides.

        Raises:
            TypeError: An argument is not a number.
            ValueError: An argument is negative or not finite.
            RuntimeError: The permit was never held.

        >>> async def fetch(limiter, session, url):
        ...     async with limiter.throttle() as permit, session.get(url) as response:
        ...         remaining = float(response.headers["X-RateLimit-Remaining"])
        ...         permit.update_quota(remaining, reset_after=60)
        """
        check_number("remaining", remaining, "tokens")
        check_number("reset_after", reset_after, "seconds")
        self._check_acquired("no server can have reported a quota for it")
        self._entry.engine.update_quota(
            self._sent_at, remaining, reset_after, held=self._held is True, evenly=evenly
        )

    def report_success(self) -> None:
        """Report that the server has answered the request, with whatever status but a 429.

        Limiters that adapt learn from it (`AdaptiveRate`, `AdaptiveConcurrency`, the self-tuning
        guard); it has no effect on others. The sessions and transports of this package report by
        themselves. Report when the response is there; only the first report of a permit counts.
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
            report_answer(self)

    def report_throttled(self, retry_after: float | None = None) -> None:
        """Report that the server has throttled the request, with a 429 for example.

        It pauses the limiter for everyone who shares it, and adaptive limits learn from it. Of
        many requests that are throttled at once, the first one makes the pause, with some jitter;
        the others extend it only by a longer `retry_after`. Without a `retry_after` the pause is
        half a second, doubled with each throttled request in a row. No pause is longer than two
        minutes; call `RateLimiter.pause` for a longer one.

        Args:
            retry_after: Seconds that the server asked to wait. None, a number that is not above 0
                and ``math.nan`` mean that it did not say.

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
        report_pause(
            self, seconds, from_server=seconds is not None, jitter=JITTER, longest=LONGEST_PAUSE
        )

    def _is_first_report(self) -> bool:
        """Tell whether the outcome of the request was not reported before."""
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
        return f"<Permit of {number(self.cost)}, {state}>"


class WatchedPermit(Permit):
    """A permit that notices when it is dropped: never entered, or with its slot.

    `__del__` alone makes an entry by `throttle` a tenth slower. So these are: what `acquire` and
    `try_acquire` give, which no block releases; of what `throttle` gives, those with arguments of
    their own, those on a loop in debug mode, and those before the limiter has met its loop.
    """

    __slots__ = ()

    def __aenter__(self) -> Any:  # noqa: ANN401 - type checkers differ on that of a coroutine
        if not hasattr(self, "_given"):
            self._given = False  # it is entered, or is about to be
        if self._was_acquired or not hasattr(self, "_waiter") or self._waiter.timeout is None:
            return super().__aenter__()
        return self._enter_in_time(self._waiter.timeout)

    async def _enter_in_time(self, timeout: float) -> Self:
        try:
            async with asyncio.timeout(timeout + _GRACE):
                return await super().__aenter__()
        except ThrottleTimeout:
            raise
        except TimeoutError:
            raise self._entry.timed_out(self._waiter) from None

    # A default is still there when the program ends and the names of modules are not.
    def __del__(self, is_finalizing: "Callable[[], bool]" = sys.is_finalizing) -> None:
        was_entered = hasattr(self, "_given")
        if (was_entered and not self._held) or is_finalizing():
            return
        if not hasattr(self, "_entry"):
            return  # it came to nothing before it was made
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


# ---- what the integrations report, beyond the public methods ---------------------------------


def report_answer(permit: Permit) -> None:
    """Report a success for a caller that reports one outcome only: it is not checked here.

    To check for an earlier report takes as long as the rest.
    """
    entry = permit._entry
    if entry.takes_outcomes:
        entry.report_success(permit.cost, entry.bucket.clock() - permit._sent_at)


def report_pause(
    permit: Permit, seconds: float | None, *, from_server: bool, jitter: float, longest: float
) -> bool:
    """Report a throttled request, with the pause of a retry policy.

    Args:
        permit: Of the request.
        seconds: For how long to pause. None: as `Permit.report_throttled` does.
        from_server: Whether the server sent the duration.
        jitter: The pause is longer by up to this part of it, and by a second at the most.
        longest: Seconds that no pause exceeds.

    Returns:
        Whether the limiter is paused for as long as `seconds` now.
    """
    return permit._is_first_report() and permit._entry.report_throttled(
        permit._sent_at, seconds, from_server=from_server, jitter=jitter, longest=longest
    )


def report_retry(
    permit: Permit,
    attempt: int,
    delay: float,
    *,
    status: int | None = None,
    error: Exception | None = None,
) -> None:
    """Emit that the request is going to be sent again.

    Args:
        permit: Of the attempt before.
        attempt: The number of the next attempt; the first one was 1.
        delay: Seconds until then.
        status: Of the response, if there was one.
        error: Why there was none.
    """
    engine = permit._entry.engine
    if engine.observers.listeners:
        engine.observers.emit(events.Retried(engine.key, attempt, delay, status, error))


def make_permit(
    entry: "Entry", cost: float, priority: float, timeout: float | None = None
) -> WatchedPermit:
    """Make a permit that is watched, with a cost, a priority and a timeout of its own."""
    permit = WatchedPermit()
    permit._entry = entry
    permit._held = None
    if cost != ONE or priority or timeout is not None:
        permit._held = False  # the fast path is for those who cost 1
        permit._waiter = Waiter(cost, priority, timeout)
    return permit


def granted_permit(entry: "Entry", waiter: Waiter) -> WatchedPermit:
    """Make a permit of a request that was let in, for somebody who is to release it."""
    permit = WatchedPermit()
    permit._entry = entry
    permit._waiter = waiter
    permit._held = permit._given = True
    return permit

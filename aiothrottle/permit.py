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

__all__ = ["ONE", "Permit", "WatchedPermit", "granted_permit", "make_permit"]

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
        if not self.was_asked_for:
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
    def was_asked_for(self) -> bool:
        """Whether somebody has begun to wait for it."""
        return hasattr(self, "_at") or hasattr(getattr(self, "_waiter", None), "at")

    @property
    def waited(self) -> float:
        """Seconds that it was waited for."""
        waiter = getattr(self, "_waiter", None)
        return 0.0 if waiter is None else waiter.waited

    @property
    def sent_at(self) -> float:
        """When it was granted, by the clock of its limiter."""
        waiter = getattr(self, "_waiter", None)
        return self._at if waiter is None else waiter.at

    @property
    def paused_since(self) -> bool:
        """Whether the limiter was paused after this was granted: that pause is for it too."""
        return self._entry.engine.pause.began_at >= self.sent_at

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

    def told(self, left: float, reset_after: float, *, evenly: bool = False) -> None:
        """Pass on what the server has said in its answer: so much is left of its quota.

        It makes the limiter tighter until the quota is new, and never looser than its own rate. It
        may be said after the permit was released. What was sent since is taken off; of several
        answers about one window the least counts.

        Args:
            left: Tokens that were left, 0 or more.
            reset_after: Seconds until the server starts to count anew.
            evenly: Whether what is left is spread over that time, or may be used up at once. The
                first answer decides.

        Raises:
            TypeError: An argument is no number.
            ValueError: An argument is below zero or not finite.
            RuntimeError: The permit was never held.

        >>> async def fetch(limiter, session, url):
        ...     async with limiter.throttle() as permit, session.get(url) as response:
        ...         permit.told(float(response.headers["X-RateLimit-Remaining"]), reset_after=60)
        """
        check_number("left", left, "tokens")
        check_number("reset_after", reset_after, "seconds")
        if not self.was_asked_for:
            raise RuntimeError(f"{self!r} was not held yet: nothing can have been said about it")
        self._entry.engine.check_thread()
        self._entry.engine.update_quota(
            self.sent_at, left, reset_after, held=self._held is True, evenly=evenly
        )

    def succeeded(self) -> None:
        """Say that the server has dealt with the request, however that ended.

        For limiters that adapt (`AdaptiveRate`, `AdaptiveConcurrency`, ``guard="auto"``); others
        do not mind. The sessions and transports of this package say it by themselves. Say it when
        the response is there, once: what is said after that, of either kind, counts for nothing.
        It may be said after the permit was released.

        Raises:
            RuntimeError: The permit was never held.

        >>> async def ask(limiter, call):
        ...     async with limiter.throttle() as permit:
        ...         answer = await call()
        ...         permit.succeeded()
        ...         return answer
        """
        if self._entry.hears_outcomes and self._report():
            self.answered()

    def answered(self) -> None:
        """Do the same, for a caller that reports one outcome: it is not checked here.

        To check what was reported before takes as long as the rest.
        """
        entry = self._entry
        if entry.hears_outcomes:
            entry.report_success(self.cost, entry.bucket.clock() - self.sent_at)

    def refused(self, retry_after: float | None = None) -> None:
        """Say that the server has refused the request: it was one too many.

        It pauses the limiter, for all who share it, and tells an adaptive limit of it. Of many that
        were refused at once, sent before the pause began, the first makes it, with some jitter;
        the others make it longer only with a `retry_after` that says so. Where the server has not
        said how long, the pause is half a second, and doubles with each refusal in a row. It is
        never longer than two minutes; who wants that calls `RateLimiter.pause`.

        Args:
            retry_after: Seconds that the server asked for. None, 0, what is below, and what is no
                number at all (``math.nan``): it did not say.

        Raises:
            TypeError: `retry_after` is of another kind.
            RuntimeError: The permit was never held.

        >>> async def ask(limiter, call):
        ...     async with limiter.throttle() as permit:
        ...         response = await call()
        ...         if response.status == 429:
        ...             permit.refused(retry_after=2.0)
        """
        if isinstance(retry_after, bool) or not isinstance(retry_after, int | float | None):
            raise TypeError(f"retry_after is a number of seconds or None, not {retry_after!r}")
        seconds = None
        if retry_after is not None and retry_after > 0:
            seconds = min(retry_after, LONGEST_PAUSE)
        told = seconds is not None
        self.refused_for(seconds, told=told, jitter=JITTER, longest=LONGEST_PAUSE)

    def retried(
        self,
        attempt: int,
        delay: float,
        *,
        status: int | None = None,
        error: Exception | None = None,
    ) -> None:
        """Say that the request is going to be sent again: only for who observes the limiter.

        The sessions and transports of this package say it by themselves.

        Args:
            attempt: Which attempt that will be; the first one was 1.
            delay: Seconds until then.
            status: Of the response, if there was one.
            error: Why there was none.

        >>> async def ask(limiter, call):
        ...     for attempt in range(1, 4):
        ...         async with limiter.throttle() as permit:
        ...             try:
        ...                 return await call()
        ...             except ConnectionError as error:
        ...                 permit.retried(attempt + 1, 1.0, error=error)
        ...         await asyncio.sleep(1.0)
        """
        engine = self._entry.engine
        if engine.observers.listeners:
            engine.observers.emit(events.Retried(engine.key, attempt, delay, status, error))

    def refused_for(
        self, seconds: float | None, *, told: bool, jitter: float, longest: float
    ) -> bool:
        """Say the same as `refused`, with a policy of one's own, as a retry has it.

        Args:
            seconds: For how long to pause. None: as long as `refused` does.
            told: Whether that is what the server said.
            jitter: By up to this part of it the pause is longer, and by a second at the most.
            longest: Seconds that no pause exceeds.

        Returns:
            Whether the limiter is paused for as long as `seconds` now.
        """
        if not self._report():
            return False
        return self._entry.report_throttled(
            self.sent_at, seconds, told=told, jitter=jitter, longest=longest
        )

    def _report(self) -> bool:
        """Tell whether this is the first time that it is said how the request ended."""
        if not self.was_asked_for:
            raise RuntimeError(f"{self!r} was not held yet: no request can have ended")
        self._entry.engine.check_thread()
        if getattr(self, "_reported", False):
            return False
        self._reported = True
        return True

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
        if not self.was_asked_for:
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
        if self.was_asked_for or not hasattr(self, "_waiter") or self._waiter.timeout is None:
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

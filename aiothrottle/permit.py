"""A permit: one slot and the tokens of one request, from the moment they are granted."""

import asyncio
from asyncio import get_running_loop
from threading import get_ident
from typing import TYPE_CHECKING, Self

from aiothrottle import events
from aiothrottle.checks import check_number
from aiothrottle.errors import ThrottleTimeout
from aiothrottle.feedback import LONGEST_PAUSE, SPREAD

if TYPE_CHECKING:
    from types import TracebackType

    from aiothrottle.line import Line

__all__ = ["ONE", "ParticularPermit", "Permit", "make_permit"]

#: The usual cost: this very object, so that it is known by a look and needs no check.
ONE = 1.0

# Seconds. A time-out that is as long as the wait must not come first, and timers are no finer.
_GRACE = 0.001


class Permit:
    """The right to do one thing: what ``async with limiter.throttle()`` waits for and gives.

    Leaving the block, or `release`, gives the slot back; the tokens are spent. A permit is good
    for one block.
    """

    __slots__ = ("_at", "_future", "_given", "_held", "_line", "_reported", "_settled", "_waited")

    # Made by RateLimiter.throttle, which sets `_line` and `_held`: an __init__ would be a sixth of
    # what a permit costs, and each attribute that has to be set is a part of that.
    _line: "Line"
    # None: not asked for yet, and may take the fast path; False: not held, yet or any more.
    _held: bool | None
    _at: float  # set when it is asked for: when it came, then when its tokens went
    _waited: float  # set for those who had to
    _future: "asyncio.Future[None] | None"  # so is this: what it waits on, see `Waiters`
    _reported: bool  # and this: how its request ended has been said
    _settled: float  # and this: what it has really cost
    _given: bool  # and this: `acquire` has given it, and nobody has entered it yet

    # What few permits have otherwise; those are a `ParticularPermit`.
    _tokens: float = 1.0  # that it takes when it goes
    _priority: float = 0.0
    _timeout: float | None = None

    async def __aenter__(self) -> Self:
        line = self._line
        # The fast path, spelt out, since every request of every user goes through it: nobody
        # waits, there is a slot, and the bucket has room. No future, no task, no timer.
        if (
            line.room
            and line.taken < line.slots
            and line.loop is get_running_loop()
            and self._held is None
        ):
            self._at = now = line.clock()
            line.room -= 1
            line.stamps.append(now)
            line.taken += 1
            self._held = True
            return self
        # All that is decided is decided in synchronous code; here it is only waited.
        future = line.arrive(self)
        if future is None:
            return self
        try:
            while True:
                await future
                future = line.resume(self)
                if future is None:
                    return self
        except BaseException:
            del future  # it may carry the exception, whose traceback carries this frame: no cycle
            line.give_up(self)
            raise

    async def __aexit__(
        self,
        exc_type: "type[BaseException] | None",
        exc: BaseException | None,
        traceback: "TracebackType | None",
    ) -> None:
        if self._held:
            self._held = False
            line = self._line
            line.taken -= 1
            if line.watched:
                line.slot_freed(self)

    @property
    def cost(self) -> float:
        """Tokens that it costs; after `settle`, that it has cost."""
        return getattr(self, "_settled", self._tokens)

    @property
    def was_asked_for(self) -> bool:
        """Whether somebody has begun to wait for it."""
        return hasattr(self, "_at")

    @property
    def waited(self) -> float:
        """Seconds that it was waited for."""
        return getattr(self, "_waited", 0.0)

    @property
    def paused_since(self) -> bool:
        """Whether the limiter was paused after this was granted: that pause is for it too."""
        return self._line.paused_at >= self._at

    def is_to_be_entered(self) -> bool:
        """Tell, once, whether this is held, but by no block yet: it comes from `acquire`."""
        given = getattr(self, "_given", False)
        self._given = False
        return given

    def release(self) -> None:
        """Give the slot back, if that has not been done. Idempotent; any thread may call it."""
        line = self._line
        if get_ident() == line.thread or line.loop is None or line.loop.is_closed():
            self._release()
        else:
            # A garbage collection that runs in some thread ends up here.
            line.loop.call_soon_threadsafe(self._release)

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
        self._line.settle(self, cost)

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
        self._line.learn(self, left, reset_after, evenly=evenly)

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
        line = self._line
        if (line.feedback is not None or line.parent is not None) and self._report():
            self.answered()

    def answered(self) -> None:
        """Do the same, for whoever says it once and nothing else: that is not looked at here.

        To look for what was said before takes as long as the rest.
        """
        line = self._line
        if line.feedback is not None or line.parent is not None:
            now = line.clock()
            line.succeeded(self, now, now - self._at)

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
        self.refused_for(seconds, told=told, spread=SPREAD, longest=LONGEST_PAUSE)

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
        line = self._line
        if line.listeners:
            line.tell(events.Retried(line.key, attempt, delay, status, error))

    def refused_for(
        self, seconds: float | None, *, told: bool, spread: float, longest: float
    ) -> bool:
        """Say the same as `refused`, with a policy of one's own, as a retry has it.

        Args:
            seconds: For how long to pause. None: as long as `refused` does.
            told: Whether that is what the server said.
            spread: By up to this part of it the pause is longer, and by a second at the most.
            longest: Seconds that no pause exceeds.

        Returns:
            Whether the limiter is paused for as long as `seconds` now.
        """
        if not self._report():
            return False
        return self._line.refused_by_server(
            self, seconds, told=told, spread=spread, longest=longest
        )

    def _report(self) -> bool:
        """Tell whether this is the first time that it is said how the request ended."""
        if not self.was_asked_for:
            raise RuntimeError(f"{self!r} was not held yet: no request can have ended")
        if getattr(self, "_reported", False):
            return False
        self._reported = True
        return True

    def _release(self) -> None:
        if self._held:
            self._held = False
            line = self._line
            line.taken -= 1
            if line.watched:
                line.slot_freed(self)

    def __repr__(self) -> str:
        state = "held" if self._held else "released"
        if not self.was_asked_for:
            state = "not acquired"
        elif self._line.holds_place_of(self):
            state = "waiting"
        return f"<Permit of {self.cost:g}, {state}>"


class ParticularPermit(Permit):
    """A permit with a cost, a priority or a time-out of its own."""

    __slots__ = ("_priority", "_timeout", "_tokens")

    _tokens: float
    _priority: float
    _timeout: float | None

    async def __aenter__(self) -> Self:
        if self._timeout is None:
            return await super().__aenter__()
        try:
            async with asyncio.timeout(self._timeout + _GRACE):
                return await super().__aenter__()
        except ThrottleTimeout:
            raise
        except TimeoutError:
            raise self._line.timed_out(self) from None


def make_permit(
    line: "Line", cost: float, priority: float, timeout: float | None = None
) -> ParticularPermit:
    """Make a permit that is not just any."""
    permit = ParticularPermit()
    permit._line = line
    permit._tokens = cost
    permit._held = False  # the fast path is for those who cost 1
    permit._priority = priority
    permit._timeout = timeout
    return permit

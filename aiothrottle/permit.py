"""A permit: one slot and the tokens of one request, from the grant to the release."""

import asyncio
import sys
import warnings
from asyncio import get_running_loop
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import get_ident
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self, TypeAlias, cast

from aiothrottle._checks import check_choice, check_number, number, shown
from aiothrottle._core.feedback import LONGEST_PAUSE, PauseRule
from aiothrottle._core.wait_queue import Waiter
from aiothrottle._statuses import LEAST_FAILURE
from aiothrottle.algorithms.server_quota import ReportedQuota
from aiothrottle.amounts import REQUESTS, Amounts, Cost, Resource, as_costs, check_cost, read_cost
from aiothrottle.errors import ThrottleTimeout, no_copy

if TYPE_CHECKING:
    from types import TracebackType

    from aiothrottle._core.engine import Engine
    from aiothrottle.events import Reason
    from aiothrottle.headers import Profile, ServerLimits
    from aiothrottle.headers.limits import Headers

# How long the pauses are where no retry policy says so.
_USUAL_RULE = PauseRule()
#: The default cost. It is compared by identity, so a default cost needs no check.
ONE = 1.0

Scope: TypeAlias = Literal["limiter", "all"]

# Seconds. A timeout that is as long as the wait must not come first, and timers are no finer.
_GRACE = 0.001


class Permit:
    """The right to send one request: ``async with limiter.throttle()`` waits for it.

    The end of the block, or `release`, gives the slot back; the tokens are spent. A permit is for
    one block.
    """

    __slots__ = ("_at", "_engine", "_given", "_held", "_reported", "_waiter")

    # The states. A request goes through the engine as a waiter, or takes the fast path without one:
    #
    #   state                             _held   fast path   through the engine
    #   made                              None    no `_at`    no waiter yet
    #   made with a cost, a timeout ...   False   -           the waiter has no `at`
    #   waiting, rejected or cancelled    False   -           the waiter has `at`, is not `started`
    #   held                              True    `_at`       the waiter is `started`
    #   acquired, but not entered yet     True    `_at`       the same, and `_given` is True
    #   released                          False   `_at`       the waiter is `started`
    #
    # A request that a closed limiter rejects leaves its permit in the second state.
    # `settle` gives a waiter to a permit that has none, in place of `_at`.
    #
    # Made by RateLimiter.throttle, which sets `_engine`, `_held` and `_waiter`: an __init__ would
    # be a sixth of the time of a permit, and each attribute that has to be set is a part of that.
    _engine: "Engine"
    _held: bool | None
    _at: float  # when it was granted
    _waiter: Waiter | None
    _reported: bool  # set when the outcome of its request was reported
    _given: bool  # not set before it is entered or acquired: a watched permit warns of that

    async def __aenter__(self) -> Self:
        engine = self._engine
        # The fast path, inlined because every request takes it: no waiter, credit in the bucket
        # and a free slot. No future, no task, no timer.
        bucket, semaphore = engine.bucket, engine.semaphore
        if (
            bucket.credit
            and semaphore.taken < semaphore.for_fast
            and engine.loop is get_running_loop()
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
        future = engine.arrive(waiter)
        try:
            while future is not None:
                await future
                future = engine.resume(waiter)
        except BaseException:  # a cancellation too: the request leaves no trace
            del future  # it may carry the exception, whose traceback carries this frame: no cycle
            engine.cancel(waiter)
            raise
        self._held = True
        if semaphore.taken >= semaphore.slots:
            engine.note_block()
        return self

    async def __aexit__(
        self,
        exc_type: "type[BaseException] | None",
        exc: BaseException | None,
        traceback: "TracebackType | None",
    ) -> None:
        if self._held:
            self._held = False
            engine = self._engine
            semaphore = engine.semaphore
            semaphore.taken -= 1
            if semaphore.watched:
                waiter = self._waiter
                if exc_type is not None and issubclass(exc_type, asyncio.CancelledError):
                    engine.pass_on(waiter)
                engine.slot_released(waiter)

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
        if not self._was_used:
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
        return as_costs(self._tokens, self._engine.resources)

    @property
    def waited(self) -> float:
        """Seconds that the request waited."""
        waiter = self._waiter
        return 0.0 if waiter is None else waiter.waited

    @property
    def _tokens(self) -> float:
        waiter = self._waiter
        return ONE if waiter is None else waiter.cost

    @property
    def _sent_at(self) -> float:
        """When the permit was granted, by the clock of its limiter."""
        waiter = self._waiter
        return self._at if waiter is None else waiter.at

    @property
    def _was_used(self) -> bool:
        """Whether it was entered or acquired, even in vain: it is beyond the first two states."""
        return hasattr(self, "_at") or hasattr(self._waiter, "at")

    @property
    def _was_granted(self) -> bool:
        """Whether it is held or was released."""
        waiter = self._waiter
        return hasattr(self, "_at") if waiter is None else waiter.started

    def release(self) -> None:
        """Give the slot back. Idempotent; any thread may call it."""
        engine = self._engine
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
            cost: Tokens, 0 to 1e12; it may be above the limit. Of a limiter with resources, a
                mapping: a resource that it does not name keeps its cost.

        Raises:
            TypeError: The cost is not a number; or not a mapping, if the limiter has resources.
            ValueError: The cost is below zero, above 1e12 or not finite, or of an unknown resource.
            RuntimeError: The permit was never held.

        >>> async def ask(limiter, model, prompt):
        ...     async with limiter.throttle(cost=1000) as permit:  # tokens, an estimate
        ...         answer = await model(prompt)
        ...         permit.settle(answer.tokens_used)
        """
        engine = self._engine
        if engine.resources:
            cost = read_cost(cost, engine.resources, self._tokens)
        check_cost(cost)
        if not self._was_granted:
            raise RuntimeError(f"{self!r} cannot be settled: it was never held")
        engine.check_thread()
        engine.settle(self._charged(), cast("float", cost))

    def _charged(self) -> Waiter:
        """Return the waiter with the charges; a permit of the fast path gets one here."""
        waiter = self._waiter
        if waiter is None:
            self._engine.bucket.now()  # flushes its timestamp, if that is still pending
            waiter = self._waiter = Waiter()
            waiter.at = self._at
            waiter.started = True
            del self._at
        return waiter

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
        check_choice("evenly", evenly, (True, False))
        resources = dict.fromkeys((REQUESTS, *self._engine.resources))
        if resource not in resources:
            raise ValueError(
                f"resource must be one of this limiter's, {' or '.join(resources)}, got "
                f"{shown(resource)}"
            )
        self._check_granted("no server can have reported a quota for it")
        self._update_quotas([ReportedQuota(remaining, reset_after, resource)], evenly=evenly)

    def _update_quotas(self, quotas: Sequence[ReportedQuota], *, evenly: bool) -> None:
        """Keep the limiter to quotas that are checked already."""
        engine = self._engine
        engine.adaptation.update_quotas(
            quotas,
            sent_at=self._sent_at,
            cost=self._tokens,
            in_flight=engine.in_flight - (self._held is True),  # sent since, or not counted yet
            evenly=evenly,
        )
        engine.reconsider()

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
        if self._engine.takes_outcomes:
            self._check_granted("no request can have ended")
            if self._is_first_report():
                self._report_answer()

    def report_throttled(
        self, retry_after: float | None = None, *, scope: Scope = "limiter"
    ) -> None:
        """Report that the server has throttled the request, with a 429 for example.

        It pauses the limiter for all its requests, and adaptive limits learn from it. If the server
        throttles many requests at once, the first report makes the pause, with some jitter; the
        others extend it only with a longer `retry_after`. Without a `retry_after`, or with one
        below 0.1 seconds, the pause is half a second, doubled with each pause in a row; with a
        learned rate it is three tokens, if the server was open again after the last one. No pause
        is longer than an hour; call `RateLimiter.pause` for a longer one.

        After the pause one request goes ahead. The others follow when it is reported as a success,
        or released without a report, or after five seconds.

        Args:
            retry_after: Seconds that the server asked to wait. None, ``math.nan`` and numbers that
                are not above 0 mean that the server sent no duration.
            scope: What the server has throttled. ``"limiter"``: the requests of this limiter, of a
                `KeyedRateLimiter` those of this key. ``"all"``: every request of the client; the
                limiters above (`parent`) pause too.

        Raises:
            TypeError: `retry_after` is neither a number nor None.
            ValueError: `scope` is another word; or ``"all"`` for a key without a `parent`, which
                alone could pause the other keys.
            RuntimeError: The permit was never held.

        >>> async def ask(limiter, call):
        ...     async with limiter.throttle() as permit:
        ...         response = await call()
        ...         if response.status == 429:
        ...             permit.report_throttled(retry_after=2.0)
        """
        if isinstance(retry_after, bool) or not isinstance(retry_after, int | float | None):
            raise TypeError(f"retry_after must be seconds or None, got {retry_after!r}")
        everywhere = self._is_everywhere(scope)
        seconds = retry_after if retry_after and retry_after > 0 else None
        self._check_granted("no request can have ended")
        self._report_pause(seconds, _USUAL_RULE, everywhere=everywhere)

    def _report_pause(
        self, seconds: float | None, rule: PauseRule, *, everywhere: bool = False
    ) -> float:
        """Report a throttled request, with the pause of a retry policy.

        Args:
            seconds: Seconds that the server asked to wait. None, or 0.0: the pause doubles with
                each one in a row.
            rule: How long pauses are.
            everywhere: Whether the limiters above pause too.

        Returns:
            Seconds for which the limiter is paused because of it; 0.0: it is not.
        """
        if not self._is_first_report():
            return 0.0
        held = self._held is True
        reason: Reason = "retry-after" if seconds else "throttled"
        return self._engine.report_throttled(
            self._sent_at, seconds or None, rule, reason, held=held, everywhere=everywhere
        )

    def _is_everywhere(self, scope: Scope) -> bool:
        """Check a scope, and return whether the limiters above are meant too."""
        check_choice("scope", scope, ("limiter", "all"))
        if scope == "all" and self._engine.above is None and self._engine.key is not None:
            raise ValueError(
                "scope='all' of a key needs a limiter above all keys: give the KeyedRateLimiter "
                "a parent, such as parent=RateLimiter()"
            )
        return scope == "all"

    def report(
        self,
        status: int,
        headers: "Headers",
        *,
        body: str | bytes | None = None,
        profile: "Profile | str | None" = None,
        scope: Scope | None = None,
    ) -> "ServerLimits":
        """Report the response to the request, as the sessions of this package do.

        For code that sends by other means. The limiter keeps to the quota that the response
        reports, follows the server's rates with ``rate_limit="server"``, pauses if the server
        throttled, and learns from the outcome. Report when the response arrives; only the first
        report of an outcome counts. The permit may have been released.

        Args:
            status: The status of the response.
            headers: Its headers, a mapping or pairs.
            body: Its body, for servers that report limits there.
            profile: The rules of the vendor, or its host, as for
                `aiothrottle.headers.parse_rate_limit`.
            scope: As for `report_throttled`. None: what the response says; without a word of it
                this limiter.

        Returns:
            What the response reports. `ServerLimits.throttled` says whether the server throttled,
            and `ServerLimits.wait` for how long it asked to wait.

        Raises:
            TypeError: An argument has a wrong type.
            ValueError: `scope` cannot be used, as for `report_throttled`.
            RuntimeError: The permit was never held.

        >>> async def ask(limiter, client, url):
        ...     async with limiter.throttle() as permit:
        ...         response = await client.get(url)
        ...         limits = permit.report(response.status_code, response.headers)
        ...         return None if limits.throttled else response
        """
        from aiothrottle.server_limits import apply_limits, read_limits  # a parser

        limits = read_limits(status, headers, body, profile)
        everywhere = limits.is_global if scope is None else self._is_everywhere(scope)
        self._check_granted("no response can have arrived")
        apply_limits(self, limits, "at once", LONGEST_PAUSE)
        if limits.throttled:
            self._report_pause(limits.wait, _USUAL_RULE, everywhere=everywhere)
        elif status >= LEAST_FAILURE:
            self._report_failure(status)
        else:
            self.report_success()
        return limits

    def _report_answer(self) -> None:
        """Report a success, for a caller that reports only once.

        It does not check for an earlier report, which would take as long as the rest.
        """
        waiter = self._waiter
        sent_at = self._at if waiter is None else waiter.at
        cost = ONE if waiter is None else waiter.cost.real
        self._engine.report_success(waiter, cost, sent_at, self._held is True)

    def _report_failure(self, status: int | None = None, rule: PauseRule = _USUAL_RULE) -> bool:
        """Report a request that failed, and was not throttled by what the server said.

        An adaptive number of slots learns from it, and a run of failures may be a silent limit.

        Args:
            status: That of the response; None: there was none.
            rule: How long pauses are.

        Returns:
            Whether the limiter takes it for a throttled request, and pauses.
        """
        if not self._is_first_report():
            return False
        age = self._engine.bucket.clock() - self._sent_at
        held = self._held is True
        return self._engine.report_failure(self._waiter, age, status, rule, held=held)

    def _hold_trial(self) -> None:
        """Have others wait for the report of this request if it is the trial."""
        self._engine.hold_trial(self._waiter)

    def _pass_on(self) -> None:
        """Let another request go ahead of the others if this one was to, and was cancelled."""
        self._engine.pass_on(self._waiter)

    def _is_first_report(self) -> bool:
        """Return whether this is the first report of the outcome of the request."""
        if getattr(self, "_reported", False):
            return False
        self._reported = True
        return True

    def _hand_over(self) -> None:
        """Note that no block of this task holds the permit: any task may release it."""
        semaphore = self._engine.semaphore
        if semaphore.filled_by is not None and semaphore.filled_by() is asyncio.current_task():
            semaphore.filled_by = None

    def _check_granted(self, consequence: str) -> None:
        if not self._was_granted:
            raise RuntimeError(f"{self!r} was not held yet: {consequence}")
        self._engine.check_thread()

    def _release(self) -> None:
        if self._held:
            self._held = False
            engine = self._engine
            engine.semaphore.taken -= 1
            if engine.semaphore.watched:
                engine.slot_released(self._waiter)

    def __reduce__(self) -> NoReturn:
        """Reject pickling and copying."""
        raise no_copy("Permit")

    def __repr__(self) -> str:
        state = "held" if self._held else "released"
        if not self._was_granted:
            is_waiting = self._waiter is not None and self._waiter.future is not None
            state = "waiting" if is_waiting else "not acquired"
        tokens = self._tokens
        cost = number(tokens)
        if isinstance(tokens, Amounts):
            cost = ", ".join(f"{number(each)} {name}" for name, each in tokens.by_name.items())
        return f"<Permit of {cost}, {state}>"


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a request may start now, and when. True in a condition if it may start.

    >>> decision = Decision(allowed=False, limit=10, remaining=0, retry_after=0.25, reset_after=1.0)
    >>> "send" if decision else f"in {decision.retry_after} s"
    'in 0.25 s'
    """

    #: Whether the request may start now.
    allowed: bool
    #: The greatest cost that the limit can ever admit, in tokens. Of a limiter with resources,
    #: here and in `remaining` those of ``requests``, infinity if these have no limit.
    limit: float
    #: Tokens that are free now, without those that this request took.
    remaining: float
    #: Seconds until pauses and rates allow it, closed slots open, and a failing store is asked. A
    #: rejection with 0.0 lacks only a slot that another request holds, or the outcome of the one
    #: that goes ahead after a pause; it is not known when that comes.
    retry_after: float
    #: Seconds until all tokens are free again.
    reset_after: float
    #: The permit, where `try_acquire` granted one. With a concurrency limit, release it.
    permit: Permit | None = None
    #: The limit of each resource, and what is free; empty for a limiter without resources.
    resources: Mapping[str, Resource] = field(default_factory=dict[str, Resource])

    def __bool__(self) -> bool:
        return self.allowed


class WatchedPermit(Permit):
    """A permit that warns when it is garbage: never entered, or never released.

    `__del__` alone makes an entry by `throttle` a tenth slower. So only these permits are watched:
    all of `acquire` and `try_acquire`, which no block releases; of `throttle`, those with
    arguments, those on a loop in debug mode, and those made before the limiter has a loop.
    """

    __slots__ = ()

    def __init__(
        self, engine: "Engine", waiter: Waiter | None = None, *, granted: bool = False
    ) -> None:
        """Make a permit.

        Args:
            engine: Where its request arrives.
            waiter: The request, if it has a cost, a priority or a timeout, or was granted.
            granted: Whether it was granted; then the caller has to release it.
        """
        self._engine = engine
        # The fast path is for a cost of 1.
        self._held = None if waiter is None else granted
        self._waiter = waiter
        if granted:
            self._given = True

    def __aenter__(self) -> Any:  # noqa: ANN401 - type checkers differ on that of a coroutine
        if not hasattr(self, "_given"):
            self._given = False  # the block is being entered
        waiter = self._waiter
        if waiter is None or waiter.timeout is None or self._was_used:
            return super().__aenter__()
        return self._enter_in_time(waiter, waiter.timeout)

    async def _acquire(self) -> Self:
        """Wait for the grant. The caller has to release the permit."""
        self._given = False
        await self.__aenter__()
        self._hand_over()
        self._given = True
        return self

    async def _enter_in_time(self, waiter: Waiter, timeout: float) -> Self:
        try:
            async with asyncio.timeout(timeout + _GRACE):
                return await super().__aenter__()
        except ThrottleTimeout:
            raise
        except TimeoutError:
            raise self._engine.timed_out(waiter) from None

    # A default argument still exists at the end of the program, when module names do not.
    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        was_entered = hasattr(self, "_given")
        if (was_entered and not self._held) or is_finalizing():
            return
        if not hasattr(self, "_engine"):
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
        elif self._engine.abandon(self._release):
            warnings.warn(
                f"{text} was dropped, and its slot given back: call its release(), or write "
                "`async with permit:`",
                ResourceWarning,
                source=self,
                stacklevel=2,
            )

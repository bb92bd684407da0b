"""The limits that the user asked for, and their changes while requests wait.

Invariant: a change is checked as a whole before any part of it is applied.
"""

import logging
from collections.abc import Hashable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from aiothrottle import events
from aiothrottle._core.feedback import Feedback
from aiothrottle._core.plan import (
    AUTO,
    AlgorithmChoice,
    ConcurrencyLimit,
    Plan,
    RateLimit,
    check_algorithm,
    check_shareable,
    make_plan,
    names_of,
    number_of,
    slots_of,
)
from aiothrottle.adaptive.pace import Pace
from aiothrottle.adaptive.server_window import ServerWindow
from aiothrottle.algorithms import Unlimited
from aiothrottle.rate import Rate, RateLike, as_rate
from aiothrottle.reported_quota import ReportedQuota
from aiothrottle.stores.shared_concurrency import SharedConcurrency

if TYPE_CHECKING:
    from aiothrottle._core.bucket import LocalBucket
    from aiothrottle._core.observers import Observers
    from aiothrottle._core.semaphore import Semaphore
    from aiothrottle._core.shared import SharedSlots, SharedTokens
    from aiothrottle.algorithms import Algorithm

__all__ = ["SERVER", "UNCHANGED", "Limits", "Unchanged"]

_logger = logging.getLogger("aiothrottle")

# Answers without a report after which the server is taken for one that reports nothing.
_PATIENCE = 20


class Unchanged(Enum):
    """The default of the arguments of `update`: leave the limit as it is."""

    UNCHANGED = "unchanged"


UNCHANGED: Final = Unchanged.UNCHANGED

#: The rate limit that follows the rates that the server reports.
SERVER: Final = "server"


class SlotsHost(Protocol):
    """The engine, as far as its slots can be changed."""

    feedback: Feedback | None
    key: Hashable
    leased: "SharedSlots | None"
    observers: "Observers"
    semaphore: "Semaphore"

    def reconsider(self) -> None: ...
    def resize(self, concurrency_limit: int | None) -> None: ...


class Host(SlotsHost, Protocol):
    """The engine, as far as its limits can be changed."""

    bucket: "LocalBucket"
    shared: "SharedTokens | None"

    @property
    def shares_rate(self) -> bool: ...
    @property
    def in_flight(self) -> int: ...
    def now(self) -> float: ...
    def use(self, algorithm: "Algorithm[Any]") -> None: ...


class Limits:
    """What the user asked for, and what the server has reported."""

    __slots__ = (
        "_answers",
        "_choice",
        "_concurrency_limit",
        "_resources",
        "_window",
        "are_updated",
        "begin_small",
        "rate_unknown",
        "server_rates",
    )

    def __init__(
        self,
        choice: AlgorithmChoice = (None, None, None),
        concurrency_limit: ConcurrencyLimit | None = None,
        resources: Sequence[str] = (),
    ) -> None:
        self._resources: frozenset[str] = frozenset(resources)
        # Kept for `update`, which changes the rate alone.
        self._choice: AlgorithmChoice = choice
        self._concurrency_limit: ConcurrencyLimit | None = concurrency_limit
        #: The rates that the server reported, () before it has; None: not followed.
        self.server_rates: tuple[Rate, ...] | None = None
        #: Whether the server is followed and has reported no rate yet: one request at a time.
        self.rate_unknown: bool = False
        #: Whether they were changed.
        self.are_updated: bool = False
        # What is known of the windows of a server that reports quotas, but no rate.
        self._window: ServerWindow | None = None
        # Answers without a report.
        self._answers: int = 0
        #: Whether a learned burst begins with one token, as every outcome is reported.
        self.begin_small: bool = False

    @property
    def are_changed_by_user(self) -> bool:
        """Whether the user has changed them, so that a new limiter would have other limits."""
        return self.are_updated and self.server_rates is None

    @property
    def slots(self) -> int | None:
        """The number of slots to begin with; None: no limit."""
        return 1 if self.rate_unknown else number_of(self._concurrency_limit)

    def expect_server(self) -> None:
        """Follow the rates that the server is going to report.

        Raises:
            TypeError, ValueError: The choice makes no algorithm for the rates of a server.
        """
        burst, algorithm, guard = self._choice
        check_algorithm(burst, algorithm, 0.0 if guard is None or guard == AUTO else guard)
        # Any rate of the server must make a valid algorithm: reject wrong arguments now.
        make_plan(Rate(1), (None if burst is None else 1.0, algorithm, guard))
        self.server_rates, self.rate_unknown = (), True

    def expect_outcomes(self, engine: Host) -> None:
        """Begin with a small burst, which opens with the reported outcomes."""
        guard = engine.feedback and engine.feedback.guard
        if guard and not self.begin_small:
            guard.begin_small()
            engine.use(guard.build())
        self.begin_small = True

    def update(
        self,
        engine: Host,
        rate_limit: RateLimit | Literal[Unchanged.UNCHANGED] | None,
        concurrency_limit: ConcurrencyLimit | Literal[Unchanged.UNCHANGED] | None,
    ) -> None:
        """Change the limits, as `RateLimiter.update` does.

        Raises:
            TypeError, ValueError: A limit is wrong; nothing is changed.
        """
        plan: Plan | None = None
        if rate_limit is not None and rate_limit is not UNCHANGED:
            self._check_resources(names_of(rate_limit))
        if rate_limit is None and isinstance(self._choice[1], type | None):
            plan = Plan(Unlimited())
        elif rate_limit is not UNCHANGED:
            plan = make_plan(
                rate_limit,
                self._choice,
                shared=engine.shares_rate,
                before=engine.feedback,
                begin_small=self.begin_small,
            )
        if plan is not None and engine.shares_rate:
            check_shareable(plan)
        if engine.leased is not None and plan is not None and not engine.shares_rate:
            raise ValueError(
                "this limiter shares only its slots: to share a rate too, make a new limiter"
            )
        shares = isinstance(concurrency_limit, SharedConcurrency)
        if concurrency_limit is not UNCHANGED and shares != (engine.leased is not None):
            raise ValueError(
                "update() cannot change between a SharedConcurrency and a limit of this process: "
                "make a new limiter"
            )
        feedback = engine.feedback or Feedback()
        if concurrency_limit is not UNCHANGED:
            feedback.slots = slots_of(concurrency_limit)
            self._concurrency_limit = concurrency_limit
            if engine.leased is not None and isinstance(concurrency_limit, SharedConcurrency):
                engine.leased.shared = concurrency_limit
                engine.leased.refresh()
        if plan is not None:
            engine.use(plan.algorithm)
            self.are_updated = True
            self.server_rates, self.rate_unknown = None, False
            feedback.rate, feedback.guard = plan.rate, plan.guard
        engine.feedback = feedback if feedback.is_needed else None
        self._resize(engine)

    def _check_resources(self, names: Sequence[str]) -> None:
        """Raise ValueError if a new rate limit has other resources: waiters have costs in these."""
        if self._resources != frozenset(names):
            has = ", ".join(sorted(self._resources)) or "no resources"
            raise ValueError(
                f"this limiter has {has}, and the new rate_limit {', '.join(names) or 'none'}: "
                "give a rate for each of the same resources, or make a new limiter"
            )

    def follow(self, engine: Host, rates: Sequence[RateLike]) -> None:
        """Keep to the rates that the server has reported.

        Raises:
            TypeError, ValueError: A rate is wrong; nothing is changed.
        """
        reported = tuple(as_rate(rate) for rate in rates)
        if reported and reported != self.server_rates:
            burst, algorithm, guard = self._choice
            if burst is not None:  # a small limit of the server must not raise an error
                fastest = max(reported, key=lambda rate: rate.limit / rate.period)
                assert not isinstance(burst, Mapping)  # the server reports no resources
                burst = min(burst, fastest.in_whole_tokens.limit)
            plan = make_plan(
                list(reported),
                (burst, algorithm, guard),
                before=engine.feedback,
                begin_small=self.begin_small,
            )
            engine.use(plan.algorithm)
            if not self.server_rates:  # what was sent before counts, here but not above
                engine.bucket.take_sent(engine.now(), engine.in_flight)
            feedback = engine.feedback or Feedback()
            feedback.guard = plan.guard
            engine.feedback = feedback if feedback.is_needed else None
            self.server_rates = reported
            if engine.observers.listeners:
                engine.observers.emit(events.QuotaUpdated(engine.key, None, None, reported))
        self.rate_unknown = False
        self._resize(engine)

    def infer(self, engine: Host, sent_at: float, quota: ReportedQuota) -> None:
        """Keep to the rate that follows from the quotas which the server reports.

        Args:
            engine: The engine with these limits.
            sent_at: When the request was sent.
            quota: What its response reports of the requests, with their limit.
        """
        self._window = self._window or ServerWindow()
        rate, probe_at = self._window.observe(engine.bucket.clock(), sent_at, quota)
        if probe_at is not None:
            engine.bucket.expect_reset(probe_at)
            engine.reconsider()
        self.follow(engine, () if rate is None else (rate,))

    def answered(self, engine: SlotsHost) -> None:
        """Count an answer without a report; after many continue without the server's rate."""
        self._answers += 1
        if self._answers != _PATIENCE:
            return
        _logger.warning(
            "%.200r: the server reports no limit in %d answers, so only the concurrency limit "
            "holds (%s); give a rate_limit that you know, or an AdaptiveRate",
            "rate_limit='server'" if engine.key is None else engine.key,
            _PATIENCE,
            self._concurrency_limit or "none is given: one request at a time",
        )
        if self._concurrency_limit is not None:
            self.rate_unknown = False
            self._resize(engine)
            engine.reconsider()
        if engine.observers.listeners:
            engine.observers.emit(events.QuotaMissing(engine.key, _PATIENCE))

    async def reset(self, engine: Host) -> None:
        """Forget the tokens that were spent, as `RateLimiter.reset` does."""
        if engine.shared is not None:
            await engine.shared.reset()
        else:
            now = engine.now()  # flushes, and charges a request that has just started
            engine.bucket.reset()
            pace, state = engine.bucket.own
            if isinstance(pace, Pace) and engine.feedback and engine.feedback.rate:
                pace.follow(state, now, engine.feedback.rate.state.rate)
        engine.reconsider()

    def _resize(self, engine: SlotsHost) -> None:
        """Apply the concurrency limit, unless the server's rate is awaited."""
        slots = engine.feedback and engine.feedback.slots
        number = int(slots.state.limit) if slots else number_of(self._concurrency_limit)
        if not (engine.leased or self.rate_unknown) and engine.semaphore.limit != number:
            engine.resize(number)
            self.are_updated = True

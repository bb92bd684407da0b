"""Reports of outcomes: they pause the engine, and apply the changes of `Feedback`.

Invariant: if the server throttles many requests at once, the first report makes the pause; the
others extend it only if the server asks for a longer one.
"""

import logging
from typing import TYPE_CHECKING, Any, Protocol

from aiothrottle import events
from aiothrottle._core.feedback import Change, Feedback, PauseRule, lasts
from aiothrottle.adaptive.pace import Pace
from aiothrottle.algorithms import PerResource, Unlimited
from aiothrottle.algorithms.all_of import parts_of
from aiothrottle.algorithms.capabilities import used
from aiothrottle.texts import duration

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from aiothrottle._core.bucket import LocalBucket
    from aiothrottle._core.limits import Limits
    from aiothrottle._core.observers import Observers
    from aiothrottle._core.pause import Pause
    from aiothrottle._core.semaphore import Semaphore
    from aiothrottle._core.shared import SharedSlots
    from aiothrottle._core.wait_queue import Waiter
    from aiothrottle.algorithms import Algorithm
    from aiothrottle.rate import Rate
    from aiothrottle.reported_quota import ReportedQuota

__all__ = [
    "adopt_rate",
    "apply",
    "hold_trial",
    "pause_for",
    "report_failure",
    "report_success",
    "report_throttled",
    "update_quota",
]

_logger = logging.getLogger("aiothrottle")

# Seconds. A rate of a longer period is not adopted: requests may come at once, and then none.
_LONGEST_PERIOD = 60.0
# Seconds. A smaller extension of a pause is not reported: each of many 429s may cause one.
_LONGER = 1.0


class Host(Protocol):
    """The engine, as far as an outcome may change it."""

    bucket: "LocalBucket"
    feedback: Feedback | None
    key: "Hashable"
    leased: "SharedSlots | None"
    limits: "Limits"
    observers: "Observers"
    pause: "Pause"
    semaphore: "Semaphore"

    @property
    def in_flight(self) -> int: ...
    def now(self) -> float: ...
    def reconsider(self) -> None: ...
    def await_trial(self) -> None: ...
    def end_trial(self) -> None: ...
    def resize(self, concurrency_limit: int | None) -> None: ...
    def use(self, algorithm: "Algorithm[Any]") -> None: ...


class Entry(Protocol):
    """An engine, or a chain that begins with it."""

    @property
    def engine(self) -> Host: ...
    @property
    def engines(self) -> "Sequence[Host]": ...
    def pass_on(self, waiter: "Waiter | None") -> None: ...


def pause_for(engine: Host, seconds: float, reason: events.Reason) -> None:
    """Grant nothing for so many seconds from now; a pause is never shortened."""
    now = engine.bucket.clock()
    before = engine.pause.left(now)
    engine.pause.extend(now, seconds)
    engine.reconsider()
    left = engine.pause.left(now)
    if left > 0.0 and (before == 0.0 or left - before >= _LONGER):
        name = engine.bucket.algorithm if engine.key is None else engine.key
        # A key may come from an attacker: escaped and cut, it forges no line and fills no disk.
        reasons = events.REASONS
        _logger.info("%.200r is paused for %s: %s", name, duration(left), reasons[reason])
        if engine.observers.listeners:
            engine.observers.emit(events.Paused(engine.key, left, reason))


def report_success(
    entry: Entry, waiter: "Waiter | None", cost: float, age: float, *, held: bool
) -> None:
    """Record a request that was not throttled, in all its engines.

    Args:
        entry: Where the request arrived.
        waiter: The request; None: it started on credit.
        cost: Its tokens.
        age: Seconds since it started.
        held: Whether its permit is held.
    """
    own = True
    for engine in entry.engines:
        if engine.pause.awaits_trial:
            _end_trial(engine, waiter)
        _succeeded(engine, cost, age, own=own, held=held)
        waiter, own = _above(waiter), False


def _succeeded(engine: Host, cost: float, age: float, *, own: bool, held: bool) -> None:
    feedback = engine.feedback
    if feedback is None:
        return
    now = engine.bucket.clock()
    changes = feedback.succeeded(
        now,
        now - age,
        cost,
        in_flight=engine.semaphore.taken + (not held),  # its slot may be taken again by now
        paused_at=engine.pause.began_at,
        own=own,
    )
    guard = feedback.guard
    if (
        guard is not None
        and guard.burst.may_grow
        and (own or guard.of_children)
        and _is_burst_used_up(engine)  # otherwise it teaches nothing
    ):
        changes += guard.succeeded(now, now - age)
    if changes:
        apply(engine, changes)
    if engine.limits.rate_unknown:
        engine.limits.answered(engine)
    elif guard is None and not feedback.is_needed:
        engine.feedback = None


def _is_burst_used_up(engine: Host) -> bool:
    """Return whether the last algorithm of requests, that of a learned burst, admits none now.

    Without a limit of requests there is no burst, only a wider guard, which time alone narrows.
    """
    now = engine.now()
    requests = _of_requests(engine)
    if requests is None:
        return True
    bounded, state = parts_of(*requests)[-1]
    return bounded.delay(state, now, 1.0) > 0.0


def _of_requests(engine: Host) -> "tuple[Algorithm[Any], Any] | None":
    """Return the own algorithm of requests and its state; None: they have no limit."""
    algorithm, state = engine.bucket.own
    if isinstance(algorithm, PerResource):
        return algorithm.of_requests(state)
    return algorithm, state


def _end_trial(engine: Host, waiter: "Waiter | None") -> None:
    """Grant all again if this request went ahead: it got through."""
    if engine.pause.is_trial(waiter):
        engine.end_trial()


def _above(waiter: "Waiter | None") -> "Waiter | None":
    """Return the request at the next engine of a chain."""
    return None if waiter is None else waiter.above


def hold_trial(entry: Entry, waiter: "Waiter | None") -> None:
    """Have the others wait for the report of this request if it is the trial, not for its release.

    A response may release its permit before it is known whether the server throttled.
    """
    for engine in entry.engines:
        engine.pause.hold_trial(waiter, engine.bucket.clock())
        waiter = _above(waiter)


def report_failure(entry: Entry, waiter: "Waiter | None", age: float, *, answered: bool) -> None:
    """Record a request that failed `age` seconds after its start, in all its engines.

    Args:
        entry: Where the request arrived.
        waiter: The request; None: it started on credit.
        age: Seconds since it was sent.
        answered: Whether there was a response, by which the server did not throttle.
    """
    if not answered:
        entry.pass_on(waiter)
    for engine in entry.engines:
        if answered:
            _end_trial(engine, waiter)
        if engine.feedback is not None:
            now = engine.bucket.clock()
            changes = engine.feedback.failed(now, now - age)
            if changes:
                apply(engine, changes)
        waiter = _above(waiter)


def report_throttled(
    entry: Entry,
    sent_at: float,
    seconds: float | None,
    rule: PauseRule,
    *,
    from_server: bool,
) -> bool:
    """Pause after a throttled request. The engines above learn from it, without a pause.

    Args:
        entry: Where the request arrived.
        sent_at: When it was sent.
        seconds: Duration of the pause; None: it doubles with each pause in a row.
        rule: How long pauses are.
        from_server: Whether the server sent the duration.

    Returns:
        Whether the engine is now paused for `seconds`.
    """
    engine = entry.engine
    feedback = engine.feedback = engine.feedback or Feedback()
    if engine.observers.listeners:
        engine.observers.emit(events.Throttled(engine.key, seconds if from_server else None))
    reason: events.Reason = "retry-after" if from_server else "throttled"
    paused = True
    if not (from_server and lasts(seconds)) and _limits_only_slots(engine, feedback):
        paused = False  # fewer requests at once are the answer to that, not a slower rate
    elif engine.pause.began_at < sent_at:
        pause = feedback.pause(seconds, rule)
        pause_for(engine, pause, reason)
    elif from_server and seconds is not None:
        pause_for(engine, min(seconds, rule.longest), reason)
    else:
        paused = False
    if paused:
        engine.await_trial()
    now = engine.bucket.clock()
    left = engine.pause.left(now)
    own = True
    for each in entry.engines:
        _learn(each, now - sent_at, left, own=own)
        own = False
    return paused


def _limits_only_slots(engine: Host, feedback: Feedback) -> bool:
    """Return whether an adaptive number of slots is the only limit."""
    algorithm, _ = engine.bucket.own
    follows_server = engine.limits.server_rates is not None
    return feedback.slots is not None and isinstance(algorithm, Unlimited) and not follows_server


def _learn(engine: Host, age: float, pause: float, *, own: bool) -> None:
    """Record a 429 of a request that started `age` seconds ago, and the pause after it."""
    if engine.feedback is not None:
        now = engine.now()
        requests = _of_requests(engine)
        tokens = 0.0 if requests is None else used(*requests, now)
        changes = engine.feedback.throttled(now, now - age, pause, used=tokens, own=own)
        if changes:
            apply(engine, changes)


def adopt_rate(engine: Host, rates: "Sequence[Rate]") -> None:
    """Adopt the rate that the server reported, if the engine's rate is adaptive.

    Of several the one with the shortest period counts, since an even pace within a day would be too
    slow. Longer ones are quotas, to which `update_quota` keeps.
    """
    short = [rate for rate in rates if rate.period <= _LONGEST_PERIOD]
    if engine.feedback is None or not short:
        return
    rate = min(short, key=lambda rate: rate.period)
    changes = engine.feedback.reported(engine.bucket.clock(), rate.limit / rate.period)
    if changes:
        apply(engine, changes)


def apply(engine: Host, changes: tuple[Change, ...]) -> None:
    """Apply the changes of the controllers."""
    for what, value, before in changes:
        if what == "rate":
            now = engine.now()
            pace, state = engine.bucket.own
            assert isinstance(pace, Pace)
            pace.follow(state, now, value)
            engine.reconsider()
        elif what == "slots":
            if engine.limits.rate_unknown or engine.semaphore.limit is None:
                continue
            engine.resize(int(value))
        else:
            assert engine.feedback is not None
            assert engine.feedback.guard is not None
            engine.use(engine.feedback.guard.build())
        if engine.observers.listeners:
            engine.observers.emit(events.Adapted(engine.key, what, value, before))


def update_quota(
    engine: Host,
    quota: "ReportedQuota",
    *,
    sent_at: float,
    cost: float,
    held: bool,
    evenly: bool,
) -> None:
    """Keep to a quota that the server reported to a request.

    Args:
        engine: The engine of the request.
        quota: The quota.
        sent_at: When the request was sent.
        cost: Its tokens.
        held: Whether its permit is held.
        evenly: Whether what remains is spread until the reset.
    """
    engine.bucket.update_quota(
        engine.now(),
        quota,
        sent_at=sent_at,
        cost=cost,
        in_flight=engine.in_flight - held,  # sent since, or not counted yet
        evenly=evenly,
    )
    engine.reconsider()
    if engine.observers.listeners:
        remaining, reset_after, resource, *_ = quota
        updated = events.QuotaUpdated(engine.key, remaining, reset_after, resource=resource)
        engine.observers.emit(updated)

"""The adaptation: how outcomes, the server's reports and the user's updates change the limits.

It applies to the bucket and the semaphore what `Feedback` has learned and what `Limits` plans.

Invariant: a change that affects decisions is returned as True, and the engine decides again. An
update of the user is checked as a whole before any part of it is applied.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from aiothrottle import events
from aiothrottle._core.bucket import LocalBucket
from aiothrottle._core.feedback import Change, Feedback, PauseRule, lasts
from aiothrottle._core.limits import (
    SERVER,
    UNCHANGED,
    ConcurrencyLimit,
    Limits,
    Plan,
    RateLimit,
    Unchanged,
    check_shareable,
    slots_of,
)
from aiothrottle._core.observers import Observers
from aiothrottle._core.pause import Pause
from aiothrottle._core.semaphore import Semaphore
from aiothrottle.adaptive.evidence import Evidence, LearnedSlots, decided_by
from aiothrottle.adaptive.server_window import ServerWindow
from aiothrottle.adaptive.silent_limit import SilentLimit
from aiothrottle.algorithms import Algorithm, Unlimited
from aiothrottle.algorithms.level import Pace
from aiothrottle.algorithms.server_quota import ReportedQuota
from aiothrottle.rate import Rate, RateLike, as_rate
from aiothrottle.stores.store import SharedConcurrency

if TYPE_CHECKING:
    from aiothrottle.stores.shared_bucket import SharedBucket
    from aiothrottle.stores.shared_semaphore import SharedSemaphore

# Seconds. A smaller extension of a pause is not reported: each of many 429s may cause one.
_LONGER = 1.0
# Seconds. The routine of a quota is not worth a line of the log.
_LONG_SPENT = 10.0
# Seconds. A rate of a longer period is not adopted: requests may come at once, and then none.
_LONGEST_PERIOD = 60.0
# Free slots that open at once when their number is known; of more, a server may limit the rate.
_FEW = 8
# Answers without a report after which the server is taken for one that reports nothing.
_PATIENCE = 20


@dataclass(slots=True, eq=False, repr=False)
class Adaptation:
    """The changes of one limiter's bucket, slots and pause."""

    #: The limits that the user asked for.
    limits: Limits
    bucket: LocalBucket
    semaphore: Semaphore
    pause: Pause
    observers: Observers
    #: The plan in force.
    plan: Plan
    #: Unused controllers, like which its own are made when they are needed. Of many keys, most
    #: never need any.
    pattern: Feedback | None = None
    #: Its controllers, if they are made.
    active: Feedback | None = None

    @property
    def feedback(self) -> Feedback | None:
        """The controllers that adapt to outcomes, if there are any; made by the first access."""
        if self.pattern is not None:
            self.active, self.pattern = self.pattern.fresh(), None
        return self.active

    @feedback.setter
    def feedback(self, feedback: Feedback | None) -> None:
        self.active, self.pattern = feedback, None

    def _needed(self) -> Feedback:
        """Return the controllers, and make some if there are none."""
        if self.active is None:
            self.active = self.feedback or Feedback()
        return self.active

    @property
    def takes_outcomes(self) -> bool:
        """Whether there are controllers that adapt to outcomes."""
        return self.active is not None or self.pattern is not None

    @property
    def heeds_reports(self) -> bool:
        """Whether the server's rates hold: none is given, or that is throttled again and again."""
        limits, active = self.limits, self.active
        if active is not None and active.rate is not None:
            return False  # the rate is learned from what the server does, whatever it says
        if limits.follows_server or limits.learns_rate or limits.server_rates:
            return True
        if active is None or active.evidence is None or active.guard is None:
            return False
        return not active.guard.burst.explains_429s

    def is_forgettable(self, now: float) -> bool:
        """Return whether nothing is learned that is not out of date."""
        return self.active is None or self.active.is_forgettable(now)

    # ---- outcomes --------------------------------------------------------------------------------

    def succeeded(self, feedback: Feedback, changes: tuple[Change, ...], sent_at: float) -> bool:
        """Apply what follows from a request that was not throttled.

        Args:
            feedback: The controllers, which have recorded it.
            changes: What they want to change.
            sent_at: When it was sent.

        Returns:
            Whether decisions change.
        """
        changed = self.apply(changes)
        if self.semaphore.closed and sent_at > self.pause.began_at:
            # Near the limit, one request at a time finds it: several would be throttled.
            if feedback.evidence is None or not feedback.evidence.is_near:
                self.semaphore.open(1)
            changed = True
        if self.limits.rate_unknown:
            self.limits.answers += 1
            if self.limits.answers == _PATIENCE:  # of a server that reports nothing
                return self._continue_without_server() or changed
        elif not (feedback.is_needed or self.semaphore.closed):
            self.feedback = None
        return changed

    def failed(self, age: float) -> bool:
        """Record a request that failed `age` seconds after it was sent, without a 429.

        Returns:
            Whether decisions change.
        """
        feedback = self.feedback
        if feedback is None:
            return False
        now = self.bucket.clock()
        return self.apply(feedback.failed(now, now - age))

    def silent_pause(self, age: float, successes: int) -> float | None:
        """Return the seconds to pause after a failure, if it looks like a limit; None: it does not.

        Args:
            age: Seconds since the request was sent.
            successes: Requests that succeeded, if this is the first failure.
        """
        feedback = self.feedback
        adapts = feedback is not None and feedback.slots is not None
        if adapts or not (self.limits.begin_small and self.limits.learn_rate):
            return None
        feedback = self._needed()
        silent = feedback.silent = feedback.silent or SilentLimit(successes)
        now = self.bucket.clock()
        return silent.failed(now, now - age)

    @property
    def limits_silently(self) -> bool:
        """Whether a run of failures has ended after a pause: a server that limits does that."""
        silent = self.active and self.active.silent
        return bool(silent and silent.events)

    def throttled(self, age: float, pause: float, in_flight: int, *, own: bool) -> bool:
        """Learn from a 429 of a request that was sent `age` seconds ago.

        Args:
            age: Seconds.
            pause: Seconds of the pause after it.
            in_flight: Requests in flight, including this one.
            own: Whether it was a request of this limiter, not of one below.

        Returns:
            Whether decisions change.
        """
        feedback = self.feedback
        if feedback is None:
            return False
        now, guard = self.bucket.now(), feedback.guard
        # The first burst that shrinks is what was used.
        used = 0.0 if guard is None or guard.burst.is_bounded else self.bucket.used(now)
        return self.apply(
            feedback.throttled(
                now,
                now - age,
                pause,
                used=used,
                in_flight=in_flight,
                own=own,
                sent=self.bucket.granted,
                undecided=self.bucket.started_since(decided_by(now, age)),
                of_all=self.bucket.rate_of_all(now) if self.bucket.quotas else 0.0,
            )
        )

    def pause_for(self, seconds: float, reason: events.Reason) -> float:
        """Extend the pause to so many seconds from now; report it if it is longer.

        Returns:
            Seconds until it ends.
        """
        now = self.bucket.clock()
        before = max(self.pause.ends_at, self.limits.spent_until)
        self.pause.extend(now, seconds)
        left = self.pause.left(now)
        if left > 0.0 and (before <= now or self.pause.ends_at - before >= _LONGER):
            self.observers.paused(left, reason)
        return left

    def pause_after(
        self, sent_at: float, seconds: float | None, rule: PauseRule, reason: events.Reason
    ) -> float:
        """Pause after a throttled request, and then let one request go ahead.

        If the server throttles many at once, the first makes the pause; the others extend it only
        if the server asks for a longer one.

        Args:
            sent_at: When it was sent.
            seconds: Duration of the pause; None: it doubles with each pause in a row.
            rule: How long pauses are.
            reason: "retry-after" if the server sent the duration.

        Returns:
            Seconds for which the limiter is paused because of this request; 0.0: it is not.
        """
        feedback = self._needed()
        if feedback.evidence is None:
            feedback.evidence = self._new_evidence(feedback)
        from_server = reason == "retry-after"
        # Fewer requests at once are the answer where an adaptive number of slots is the only limit.
        only_slots = (
            feedback.slots is not None
            and isinstance(self.bucket.own[0], Unlimited)
            and not self.limits.follows_server
        )
        if only_slots and not (from_server and lasts(seconds)):
            return 0.0
        # If others wait for a trial, it has to be made again.
        alone = reason != "failures" and not self.pause.awaits_trial
        if alone and feedback.waits_alone():
            return 0.0
        if self.pause.began_at < sent_at:
            left = self.pause_for(feedback.pause(seconds, rule), reason)
        elif from_server and seconds is not None:
            left = self.pause_for(min(seconds, rule.longest), reason)
        else:
            return 0.0
        self.pause.await_trial()
        self._close_slots()
        return left

    def _new_evidence(self, feedback: Feedback) -> Evidence | None:
        """Return what learns a rate from 429s; None: none is to be learned.

        A known rate may turn out to be too high: then one up to that is learned, as soon as neither
        the burst nor the guard explains the 429s.
        """
        limits, rates = self.limits, self.plan.rates
        if feedback.slots is not None or not (limits.learn_rate and limits.begin_small):
            return None
        slots = LearnedSlots(limits.slots or math.inf)
        self.bucket.record_starts()
        if limits.learns_rate or limits.rate_limit == SERVER:
            return Evidence(slots=slots)
        # Of several resources any one may be the reason of a 429.
        if feedback.guard is None or limits.resources or not rates:
            return None
        return Evidence(min([it.limit / it.period for it in rates]), slots=slots)

    def _close_slots(self) -> None:
        """Close all slots but one, where nothing else says what the server admits at once."""
        if not self.limits.learns_rate or self.limits.shares_slots:
            return
        if self._needed().rate is None:
            self.semaphore.close()

    def adopt_rate(self, rates: Sequence[Rate]) -> bool:
        """Adopt the rate that the server reported, if the rate is adaptive.

        Of several the one with the shortest period counts, since an even pace within a day would be
        too slow. Longer ones are quotas, to which `update_quota` keeps.

        Returns:
            Whether decisions change.
        """
        short = [rate for rate in rates if rate.period <= _LONGEST_PERIOD]
        feedback = self.feedback
        if feedback is None or not short:
            return False
        rate = min(short, key=lambda rate: rate.period)
        return self.apply(feedback.reported(self.bucket.clock(), rate.limit / rate.period))

    def update_quotas(
        self,
        quotas: Sequence[ReportedQuota],
        *,
        sent_at: float,
        cost: float,
        in_flight: int,
        evenly: bool,
    ) -> None:
        """Keep to the quotas that the server reported to a request.

        Args:
            quotas: The quotas.
            sent_at: When the request was sent.
            cost: Its tokens.
            in_flight: Other requests in flight.
            evenly: Whether what remains is spread until the reset.
        """
        now = self.bucket.now()
        self.bucket.update_quotas(
            now, quotas, sent_at=sent_at, cost=cost, in_flight=in_flight, evenly=evenly
        )
        feedback = self.active
        if feedback is not None and feedback.evidence is not None and feedback.rate is None:
            self.apply(feedback.share(now, self.bucket.rate_of_all(now)))
        spent = self.bucket.quota_spent_for(now)
        if spent >= _LONG_SPENT and now + spent - self.limits.spent_until >= _LONGER:
            self.limits.spent_until = now + spent
            self.observers.paused(spent, "quota")
        if self.observers.listeners:
            key = self.observers.key
            for remaining, reset_after, resource, *_ in quotas:
                event = events.QuotaUpdated(key, remaining, reset_after, resource=resource)
                self.observers.emit(event)

    def apply(self, changes: tuple[Change, ...]) -> bool:
        """Apply the changes of the controllers. Returns whether there are any."""
        for what, value, before in changes:
            guard = self.active and self.active.guard  # a learned rate ends it
            if what == "rate":
                self._use_pace(value)
            elif what == "slots":
                if self.limits.rate_unknown or self.limits.shares_slots:
                    continue
                self._use_slots(value)
            elif guard:
                self.use_rate(self.plan.guarded(value) if what == "guard" else None)
                if (slows := guard.slows) != guard.logged:
                    guard.logged = slows
                    if slows:
                        self.observers.log_slower(guard.burst.size, guard.measured.seconds)
                    else:
                        self.observers.log_full_speed()
            else:
                continue
            if self.observers.listeners:
                self.observers.emit(events.Adapted(self.observers.key, what, value, before))
        return bool(changes)

    def _use_slots(self, slots: float) -> None:
        """Use so many slots; infinity: as many as the user allows."""
        number = self.limits.slots if slots == math.inf else int(slots)
        self.semaphore.resize(number, opens=slots - self.semaphore.taken <= _FEW)

    def _use_pace(self, rate: float) -> None:
        """Space requests at that rate, in tokens per second; infinity: as the user's limits say."""
        pace, _ = self.bucket.own
        if isinstance(pace, Pace) and rate < math.inf:
            self.bucket.use(self.bucket.now(), Pace(rate, pace.capacity))
            return
        if rate < math.inf:
            self._use(Plan(Pace(rate, most=self.bucket.capacity)))
        else:
            self._use(self._plan_of_user())
        self.limits.server_rates = ()
        self.semaphore.open(self.semaphore.closed)  # the pace spaces the requests
        self.observers.log_learned_rate(rate)

    # ---- limits ----------------------------------------------------------------------------------

    def rates(self) -> tuple[Rate, ...]:
        """Return the rates in force, without the guard; of resources, those of requests."""
        pace, _ = self.bucket.own
        return (pace.rate,) if isinstance(pace, Pace) else self.plan.rates

    def use_rate(self, algorithm: Algorithm[Any] | None = None) -> None:
        """Use the learned burst, and another algorithm if one is given."""
        feedback = self.feedback
        guard = feedback and feedback.guard
        now = self.bucket.now()
        if guard and guard.burst.is_bounded:
            self.bucket.bind_burst(now, guard.burst.size, guard.interval)
        else:
            self.bucket.bound = None
        if algorithm is not None:
            self.bucket.use(now, algorithm)

    def expect_outcomes(self) -> bool:
        """Begin with a small burst, or one slot, and more with the reported outcomes.

        Returns:
            Whether decisions change.
        """
        if self.limits.begin_small:
            return False
        self.limits.begin_small = True
        feedback = self.feedback
        guard = None if feedback is None else feedback.guard
        if guard is None:
            self._close_slots()
            return False
        guard.begin_small()
        self.use_rate(self.plan.guarded(guard.measured.seconds))
        return True

    def update(
        self,
        rate_limit: RateLimit | Literal[Unchanged.UNCHANGED] | None,
        concurrency_limit: ConcurrencyLimit | Literal[Unchanged.UNCHANGED] | None,
        shared: "SharedBucket | None",
        leased: "SharedSemaphore | None",
    ) -> bool:
        """Change the limits, as `RateLimiter.update` does.

        Args:
            rate_limit: The new rate limit.
            concurrency_limit: The new concurrency limit.
            shared: Reserves the tokens in a store, if processes share a rate.
            leased: Leases the slots, if processes share a concurrency limit.

        Returns:
            Whether decisions change.

        Raises:
            TypeError, ValueError: A limit is wrong; nothing is changed.
        """
        plan = None if rate_limit is UNCHANGED else self._plan_of(rate_limit, shared)
        if concurrency_limit is not UNCHANGED:
            if isinstance(concurrency_limit, SharedConcurrency) != self.limits.shares_slots:
                raise ValueError(
                    "update() cannot change between a SharedConcurrency and a limit of this "
                    "process: make a new limiter"
                )
            slots = slots_of(concurrency_limit)
            feedback = self._needed()
            feedback.slots = slots
            feedback.evidence = feedback.evidence if feedback.rate else None
            self.limits.concurrency_limit = concurrency_limit
            if leased is not None and isinstance(concurrency_limit, SharedConcurrency):
                leased.shared = concurrency_limit
                self.semaphore.filled_by = None  # more slots may be there
        if plan is not None and rate_limit is not UNCHANGED:
            self._use(plan, shared)
            self.bucket.bind_quotas()
            feedback = self._needed()
            feedback.rate, feedback.evidence = plan.rate, None
            self.limits.rate_limit = rate_limit
            self.limits.server_rates, self.limits.rate_unknown = (), False
        self.limits.are_updated = True
        self.observers.name = self.limits.name
        return self._set_slots() or plan is not None

    def _plan_of(self, rate_limit: RateLimit | None, shared: "SharedBucket | None") -> Plan:
        """Check a new rate limit, and return its plan."""
        limits = self.limits
        if rate_limit is not None:
            limits.check_resources(rate_limit)
        plan = limits.plan_for(rate_limit, shared=shared is not None, before=self.feedback)
        if shared is not None:
            check_shareable(plan)
            shared.check(plan.algorithm)
        elif limits.shares_slots:
            raise ValueError(
                "this limiter shares only its slots: to share a rate too, make a new limiter"
            )
        return plan

    def _plan_of_user(self) -> Plan:
        """Return a plan without what was learned or reported."""
        limits = self.limits
        return limits.plan_for(None if limits.follows_server else limits.rate_limit)

    def _use(self, plan: Plan, shared: "SharedBucket | None" = None) -> None:
        """Replace algorithm and guard; spent tokens stay spent."""
        own = plan.algorithm if shared is None else shared.use(plan.algorithm)
        self._needed().guard, self.plan = plan.guard, plan
        self.use_rate(own)

    def follow(self, rates: Sequence[RateLike], in_flight: int) -> bool:
        """Keep to the rates that the server has reported.

        Args:
            rates: The rates; none: only the quotas that it reports hold.
            in_flight: Requests in flight.

        Returns:
            Whether decisions change.

        Raises:
            TypeError, ValueError: A rate is wrong; nothing is changed.
        """
        limits = self.limits
        evidence = self.active and self.active.evidence
        if evidence:
            fastest = evidence.fastest  # a given rate, if there is one
        else:
            fastest = math.inf if limits.follows_server or limits.rate_limit is None else 0.0
        reported = tuple([it for it in map(as_rate, rates) if it.limit / it.period < fastest])
        changed = bool(rates) and reported != limits.server_rates
        if changed and not reported:
            self._use(self._plan_of_user())
        elif changed:
            self._use(limits.plan_for(list(reported), before=self.feedback, of_server=True))
            if not limits.server_rates:  # what was sent before counts, here but not above
                self.bucket.take_sent(self.bucket.now(), in_flight)
            if self.observers.listeners:
                key = self.observers.key
                self.observers.emit(events.QuotaUpdated(key, None, None, reported))
        if changed:
            limits.server_rates = reported
        if not limits.rate_unknown:
            return changed
        limits.rate_unknown = False
        return self._set_slots() or changed

    def infer(self, sent_at: float, quotas: Sequence[ReportedQuota], in_flight: int) -> bool:
        """Keep to the rates that follow from the quotas which the server reports.

        Args:
            sent_at: When the request was sent.
            quotas: What its response reports of the requests, with their limits.
            in_flight: Requests in flight.

        Returns:
            Whether decisions change.
        """
        limits, bucket = self.limits, self.bucket
        rates, changed, is_refuted = list[Rate](), False, False
        known = limits.windows
        limits.windows = {it.name: known.get(it.name) or ServerWindow() for it in quotas}
        for quota in quotas:
            window = limits.windows[quota.name]
            rate, probe_at = window.observe(bucket.clock(), sent_at, quota)
            if window.is_refuted or bucket.has_no_window(quota.name):
                is_refuted = True
                continue
            if rate is not None:
                rates.append(rate)
            if probe_at is not None:
                bucket.expect_reset(quota.name, probe_at)
                changed = True
        if is_refuted and not rates and limits.server_rates:
            self._use(self._plan_of_user())
            limits.server_rates = ()
            return True
        return self.follow(rates, in_flight) or changed

    def _continue_without_server(self) -> bool:
        """Give up waiting for the server's rate. Returns whether decisions change."""
        self.observers.log_silent_server(_PATIENCE, self.limits.concurrency_limit)
        known = self.limits.concurrency_limit is not None
        if known:
            self.limits.rate_unknown = False
            self._set_slots()
        if self.observers.listeners:
            self.observers.emit(events.QuotaMissing(self.observers.key, _PATIENCE))
        return known

    def _set_slots(self) -> bool:
        """Apply the concurrency limit, unless it is shared or the server's rate is awaited.

        Returns:
            Whether the number of slots changes.
        """
        limits, feedback = self.limits, self.feedback
        slots = feedback and feedback.slots
        if feedback and not (feedback.is_needed or limits.rate_unknown):
            self.feedback = None
        number = int(slots.state.limit) if slots else limits.slots
        if limits.shares_slots or limits.rate_unknown or self.semaphore.limit == number:
            return False
        self.semaphore.resize(number)
        return True

    def reset(self) -> None:
        """Forget the tokens that were spent; learned rates stay."""
        self.bucket.now()  # flushes, and charges a request that has just started
        self.bucket.reset()

    def restart(self) -> None:
        """Begin anew with another clock: what was learned by the old one is void."""
        self.semaphore.restart()
        feedback = self.feedback
        if feedback is not None:
            feedback.restart()
            if feedback.rate is not None:
                self._use_pace(feedback.rate.state.rate)
            if self.limits.rate_unknown or self.limits.shares_slots:
                return
            if feedback.slots is not None:
                self._use_slots(feedback.slots.state.limit)
            elif feedback.evidence is not None:
                self._use_slots(math.inf)

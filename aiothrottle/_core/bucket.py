"""The bucket: all limits of the rate, their state and their clock, and the credit of the fast path.

The limiter's own algorithm always holds; beside it the quotas that the server reports, and the
bound of the burst, once a server was found to accept a smaller one. The bound counts requests, and
its burst and rate change often, so the bucket asks it by itself.

Strategy. A call of the algorithm costs more than the rest of an uncontended entry. So the algorithm
returns how many requests with a cost of 1 may start without a further decision, the `credit`; each
of these requests only appends its timestamp to `timestamps`.

The tokens of a waiter that resumes are taken after it has started: it is `started` until then.

Invariant: before any other call of the algorithm, what has started is charged, the pending
timestamps are flushed into it and the credit is void. So each method below needs a `now` that was
read by `now`.
"""

import itertools
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any, Literal, TypeAlias

from aiothrottle._core.wait_queue import Waiter
from aiothrottle.algorithms import Algorithm, Unlimited
from aiothrottle.algorithms.composite import AllOf, PerResource
from aiothrottle.algorithms.level import Level, Pace
from aiothrottle.algorithms.protocol import Capabilities, capabilities, inherit, max_wait, used
from aiothrottle.algorithms.server_quota import ReportedQuota, ServerQuota, ServerQuotaState
from aiothrottle.amounts import REQUESTS, Amounts, amounts, by_name, common, least
from aiothrottle.rate import Rate

# A quota of the server, and what is left of it.
_Quota: TypeAlias = tuple[ServerQuota, ServerQuotaState]

# The most requests that may start on credit before the next call of the algorithm.
_MOST_CREDIT = 256
# The starts that are recorded: more than a server decides about at a time.
_STARTS = 256


@dataclass(slots=True, eq=False, repr=False)
class LocalBucket:
    """The tokens of one limiter, in this process."""

    first: InitVar[Algorithm[Any]]
    clock: Callable[[], float]
    #: The limiter's own algorithm and its state.
    own: tuple[Algorithm[Any], Any] = field(init=False)
    #: This and the server's quotas, as one algorithm, and its state.
    algorithm: Algorithm[Any] = field(init=False)
    state: Any = field(init=False)
    _can: Capabilities = field(init=False)
    #: The greatest cost that can ever be admitted.
    capacity: float = field(init=False)
    #: Seconds. The algorithm rejects requests that would have to wait longer.
    max_wait: float = field(init=False)
    #: The bound of the burst, once there is one, and its state.
    bound: Pace | None = None
    _bounded: Level = field(default_factory=Level)
    #: The server's quotas by resource and name, once they are reported.
    quotas: dict[tuple[str, str], _Quota] = field(default_factory=dict[tuple[str, str], _Quota])
    #: Requests with a cost of 1 that may start now without a decision. Kept small, as Python
    #: is fastest with small integers.
    credit: int = 0
    timestamps: list[float] = field(default_factory=list[float])
    #: The last waiter that resumed: its tokens are not taken yet.
    started: Waiter | None = None
    #: Requests whose tokens were taken, without those in `timestamps`.
    granted: int = 0
    #: When the last of these started, if somebody wants to know it.
    starts: deque[float] | None = None
    # Tokens that were taken before are forgotten, or were never counted: they are not refunded.
    _counts_since: float = -math.inf

    def __post_init__(self, first: Algorithm[Any]) -> None:
        """Start with the algorithm of the limiter."""
        self._adopt(first, first.start())

    def _adopt(self, algorithm: Algorithm[Any], state: Any) -> None:  # noqa: ANN401 - its state
        self.own, self.capacity = (algorithm, state), algorithm.capacity
        if self.quotas:
            quota, of_server = _in_one(self.quotas)
            algorithm, state = AllOf(algorithm, quota), (state, of_server)
        self.algorithm, self.state = algorithm, state
        self._can = capabilities(algorithm)
        self.max_wait = max_wait(algorithm)

    # ---- deciding and charging -------------------------------------------------------------------

    def record_starts(self) -> None:
        """Record from now on when requests start."""
        self.starts = deque(maxlen=_STARTS) if self.starts is None else self.starts

    def started_since(self, at: float) -> int:
        """Return how many of the recorded requests have started since then."""
        starts = self.starts or ()
        return sum(1 for _ in itertools.takewhile(lambda it: it > at, reversed(starts)))

    def now(self) -> float:
        """Read the clock, and charge all started requests, so that the algorithm may decide."""
        now = self.clock()
        if self.started is not None:
            self.take_started(self.started, now)
        if self.timestamps:
            self.flush()
        self.credit = 0
        return now

    def take_started(self, started: Waiter, now: float) -> None:
        """Take the tokens of the last waiter that resumed: by now it has started.

        The system may suspend the process between any two steps. A timestamp that is read before
        the request starts could be too early by as much.
        """
        self.started = None
        started.at = now
        if started.cost == 1.0:
            self.timestamps.append(now)
        else:
            self.flush()
            self.take(now, started.cost)

    def flush(self) -> None:
        """Flush the pending timestamps into the algorithm, and void the credit."""
        self.credit = 0
        if self.timestamps:
            self.granted += len(self.timestamps)
            timestamps, self.timestamps = self.timestamps, []
            self._can.take_each(self.algorithm, self.state, timestamps)
            if self.starts is not None:
                self.starts.extend(timestamps)
            if self.bound is not None:
                self.bound.take_each(self._bounded, timestamps)

    def delay(self, now: float, cost: float, ahead: float = 0.0) -> float:
        """Return the seconds until `cost` may be taken, behind `ahead` tokens; 0.0 is now."""
        if ahead:
            delay = self._can.delay_behind(self.algorithm, self.state, now, cost, ahead)
        else:
            delay = self.algorithm.delay(self.state, now, cost)
        if self.bound is None:
            return delay
        return max(delay, self.bound.delay_behind(self._bounded, now, cost.real, ahead.real))

    def take(self, now: float, cost: float, *, opens_credit: bool = False) -> None:
        """Take the tokens of a request that starts, and open the credit for those after it.

        Args:
            now: The time.
            cost: Tokens.
            opens_credit: Whether later requests may start without a decision.
        """
        self.granted += 1
        self.algorithm.take(self.state, now, cost)
        if self.starts is not None:
            self.starts.append(now)
        most = _MOST_CREDIT if opens_credit else 0
        if self.bound is not None:
            self.bound.take(self._bounded, now, cost.real)
            most = self.bound.allowance(self._bounded, now, most)
        if most:
            self.credit = self._can.allowance(self.algorithm, self.state, now, most)

    def charge(self, now: float, cost: float) -> None:
        """Take tokens whether they fit or not, without counting a request."""
        self.algorithm.take(self.state, now, cost)
        if self.bound is not None:
            self.bound.take(self._bounded, now, cost.real)

    def charge_more(self, waiter: Waiter, now: float, cost: float) -> None:
        """Charge a request that has started, in addition to what it took then."""
        self.charge(now, cost)
        waiter.later_charges = waiter.later_charges or []
        waiter.later_charges.append((now, cost))

    def refund(self, waiter: Waiter, now: float, cost: float) -> None:
        """Refund tokens of a request that has started, its last charge first.

        Each token is refunded at the instant at which it was charged, so each window gets back what
        was taken from it.
        """
        charges, kept = waiter.later_charges or [], list[tuple[float, float]]()
        while charges and cost:
            at, charged = charges.pop()
            if back := common(charged, cost):
                self._refund(now, back, at)
                cost -= back
            if rest := charged - back:  # of other resources, or the charge was greater
                kept.append((at, rest))
        charges += reversed(kept)
        if cost:
            self._refund(now, cost, waiter.at)

    def _refund(self, now: float, cost: float, at: float) -> None:
        if at < self._counts_since:
            return
        self._can.refund(self.algorithm, self.state, now, cost, at)
        if self.bound is not None:
            self.bound.refund(self._bounded, now, cost.real, at)

    def cost_of_reject(self, now: float, cost: float, ahead: float) -> float:
        """Return the tokens that a rejected request takes all the same, behind `ahead` tokens."""
        return self._can.cost_of_reject(self.algorithm, self.state, now, cost, ahead)

    def startable(self, now: float, most: int) -> int:
        """Return how many requests with a cost of 1 may start now, at most `most`."""
        if self.bound is not None:
            most = self.bound.allowance(self._bounded, now, most)
        return most and self._can.allowance(self.algorithm, self.state, now, most)

    # ---- state -----------------------------------------------------------------------------------

    def remaining(self, now: float) -> float:
        """Return the tokens that may be taken now."""
        own, state = self.own
        remaining = own.remaining(state, now)
        for (resource, _), (quota, of_server) in self.quotas.items():
            left = quota.remaining(of_server, now)
            if resource != REQUESTS:
                left = Amounts({REQUESTS: math.inf, resource: left})
            remaining = least(remaining, left)
        return remaining

    def used(self, now: float) -> float:
        """Return the requests that count under the own algorithm; 0.0 if they have no limit."""
        requests = self._requests()
        return 0.0 if requests is None else used(*requests, now)

    def _requests(self) -> tuple[Algorithm[Any], Any] | None:
        """Return the own algorithm of requests and its state; None: they have no limit."""
        algorithm, state = self.own
        return algorithm.of_requests(state) if isinstance(algorithm, PerResource) else self.own

    def reset_after(self, now: float) -> float:
        """Return the seconds until the state is as good as new."""
        seconds = self.algorithm.reset_after(self.state, now)
        if self.bound is None:
            return seconds
        return max(seconds, self.bound.reset_after(self._bounded, now))

    # ---- changing --------------------------------------------------------------------------------

    def bind_burst(self, now: float, burst: float, interval: float) -> None:
        """Bound the burst, or change its bound.

        Args:
            now: The time.
            burst: Tokens.
            interval: Seconds of a token.
        """
        before = self.bound
        if before is None:
            # What the server accepted beyond the burst does not count.
            tokens = min(self.used(now), burst)
        else:
            # Beyond the burst it continues with the same delay.
            tokens = before.used(self._bounded, now)
            tokens = min(tokens, burst + max(0.0, tokens - (before.brim + 1.0)))
        # It counts requests: the algorithm beside it says how great a cost may be, and a heavy one
        # delays the requests behind it. With a burst of 1 they are evenly spaced, to the last bit:
        # a late timer delays the requests behind it.
        self.bound = Pace(Rate(1.0, interval), math.inf, brim=burst - 1.0)
        self._bounded = Level()
        self.bound.take(self._bounded, now, tokens)

    def use(self, now: float, algorithm: Algorithm[Any]) -> None:
        """Replace the own algorithm; spent tokens stay spent."""
        old, state = self.own
        if isinstance(old, Unlimited):
            self._counts_since = now
        if isinstance(old, AllOf) and not isinstance(algorithm, AllOf):
            (state,) = inherit(AllOf(algorithm), old, state, now)
        else:
            state = inherit(algorithm, old, state, now)
        self._adopt(algorithm, state)

    def is_burst_used_up(self) -> bool:
        """Return whether the burst admits no request now.

        Without a limit of requests there is no burst, only a wider guard, which time alone narrows.
        """
        if self.credit:
            return False
        now = self.now()
        if self.bound is not None:
            return self.bound.delay(self._bounded, now, 1.0) > 0.0
        requests = self._requests()
        if requests is None:
            return True
        algorithm, state = requests
        return algorithm.delay(state, now, 1.0) > 0.0

    def bound_by(self, now: float, cost: float) -> Literal["rate", "learned burst", "quota"] | None:
        """Return what keeps a request with this cost from starting; None: it may start."""
        own, state = self.own
        if own.delay(state, now, cost) > 0.0:
            return "rate"
        if self.bound is not None and self.bound.delay(self._bounded, now, cost.real) > 0.0:
            return "learned burst"
        return "quota" if self.quota_delay(now, cost) > 0.0 else None

    def reset(self) -> None:
        """Forget the tokens that were spent; the server's quota stays."""
        algorithm, _ = self.own
        self._counts_since = self.clock()
        self._bounded = Level()
        self._adopt(algorithm, algorithm.start())

    def restart(self, clock: Callable[[], float]) -> None:
        """Start with a new state and another clock: timestamps of the old clock are void."""
        self.clock = clock
        self.quotas = {name: (quota, quota.start()) for name, (quota, _) in self.quotas.items()}
        self.reset()

    # ---- the server's quota ----------------------------------------------------------------------

    def update_quotas(
        self,
        now: float,
        reported: Sequence[ReportedQuota],
        *,
        sent_at: float,
        cost: float,
        in_flight: int,
        evenly: bool,
    ) -> None:
        """Keep to the quotas that a response reports, besides the own algorithm.

        A quota of the same resource that it does not report is one of other requests.

        Args:
            now: The time.
            reported: The quotas.
            sent_at: When the request was sent.
            cost: Its tokens.
            in_flight: Other requests in flight, which a report may not count yet.
            evenly: Whether the remaining tokens are spread over the time until the reset; the
                first report of a quota decides.
        """
        before, tokens = self.quotas, by_name(cost)
        resources = {each.resource for each in reported}
        self.quotas = {key: known for key, known in before.items() if key[0] not in resources}
        for each in reported:
            key = each.resource, each.name
            self.quotas[key] = before.get(key) or _new_quota(in_flight, evenly=evenly)
        if self.quotas.keys() != before.keys():
            self._adopt(*self.own)
        for each in reported:
            key, taken = (each.resource, each.name), tokens.get(each.resource, 0.0)
            quota, state = self.quotas[key]
            refill = each.refill
            if each.resource == REQUESTS:  # the tokens of others are estimates, and settled later
                refill = quota.refill_of(state, now, each, sent_at)
            state.limit = each.limit
            # Counted from the earliest instant at which the server may have answered.
            state.resets_from = sent_at + each.reset_after - each.error
            state.shortest = max(state.shortest, each.reset_after - each.error)
            binds = self._binds(now, each.resource, each.remaining, state, refill)
            quota.update(
                state,
                now,
                # Each request in flight, before the first report, is taken for one like this.
                each.remaining - (0.0 if key in before else in_flight * taken),
                each.reset_after,
                sent_at,
                binds=quota.evenly or binds,
                in_flight=in_flight,
                refill=refill,
                counts=taken > 0.0,
            )

    def _binds(
        self,
        now: float,
        resource: str,
        remaining: float,
        state: ServerQuotaState,
        refill: float,
    ) -> bool:
        """Return whether a quota can hold anything back that the own algorithm does not."""
        if isinstance(self.own[0], Pace) and state.witness.rate_of_all(now):
            return False  # what remains is for the fastest of them, and the rate is for all
        is_limited = by_name(self.own[0].capacity).get(resource, math.inf) < math.inf
        if refill:
            # A reset that is refuted holds nothing back, where there is another limit.
            return state.witness.is_faster or not state.witness.refill or not is_limited
        if not is_limited or self._exceeds(now, resource, remaining, state.resets_from - now):
            return True
        # Behind the earliest reset it binds only a rate that exceeds whole quotas too: any other
        # would stall at each reset that the server rounds.
        return state.limit < math.inf and self._exceeds(now, resource, state.limit, state.shortest)

    def bind_quotas(self) -> None:
        """Keep to the quotas that the own algorithm may exceed by now, until their next reports."""
        now = self.now()
        for (resource, _), (quota, state) in self.quotas.items():
            if now < state.resets_from and not state.refill:
                left = quota.reported(state, now) or 0.0
                state.binds = state.binds or self._binds(now, resource, left, state, 0.0)

    def take_sent(self, now: float, in_flight: int) -> None:
        """Take the tokens of all requests before an algorithm that counts was known."""
        log = max((state.log for _, state in self._of_requests()), key=len, default=())
        unanswered = max(1.0, in_flight)
        for timestamp, cost in log or ((now, unanswered),):
            algorithm, state = self.own
            algorithm.take(state, timestamp, cost)
        if self.bound is not None:  # it began now: what was answered before does not count
            self.bound.take(self._bounded, now, unanswered)

    def quotas_throttled(self, reported: Sequence[ReportedQuota], sent_at: float) -> None:
        """Record a 429 that reports quotas of which nothing remains.

        Args:
            reported: All quotas that it reports.
            sent_at: When its request was sent.
        """
        now = self.now()
        for each in reported:
            known = self.quotas.get((REQUESTS, each.name))
            if each.resource == REQUESTS and known is not None and each.remaining < 1.0:
                quota, state = known
                quota.throttled(state, now, each, sent_at)

    def was_early(self, sent_at: float) -> bool:
        """Return whether a 429 came only as a reset was later than reported."""
        states = (state for _, state in self._of_requests())
        return any(state.reset_at <= sent_at <= state.late_until for state in states)

    def rate_of_all(self, now: float) -> float:
        """Return the requests per second for all clients, if others use a quota too; else 0.0."""
        rates = [state.witness.rate_of_all(now) for _, state in self._of_requests()]
        return min([rate for rate in rates if rate], default=0.0)

    def has_no_window(self, name: str) -> bool:
        """Return whether a quota of requests comes back faster than its reset says."""
        known = self.quotas.get((REQUESTS, name))
        return known is not None and known[1].witness.is_faster

    def expect_reset(self, name: str, at: float) -> None:
        """Let one request find out whether the server has reset a quota of requests by then."""
        if (REQUESTS, name) in self.quotas:
            quota, state = self.quotas[REQUESTS, name]
            quota.expect_reset(state, at)

    def _of_requests(self) -> list[_Quota]:
        return [quota for (resource, _), quota in self.quotas.items() if resource == REQUESTS]

    def _exceeds(self, now: float, resource: str, tokens: float, seconds: float) -> bool:
        """Return whether the limiter's own algorithm admits more tokens within so many seconds.

        If not, a quota of so many tokens holds by itself. It may be less than what the server has
        by now: the report is late, the requests in flight are counted or not, and a window of the
        server ends before one of the limiter does.
        """
        own, state = self.own
        one, before = amounts({resource: 1.0}), amounts({resource: tokens})
        delay = capabilities(own).delay_behind(own, state, now, one, before)
        if self.bound is not None and resource == REQUESTS:
            delay = max(delay, self.bound.delay_behind(self._bounded, now, 1.0, tokens))
        return delay < seconds or delay == math.inf  # a store alone knows

    def quota_delay(self, now: float, cost: float) -> float:
        """Return the seconds until the server's quotas admit the cost."""
        if not self.quotas:
            return 0.0
        quotas, states = _in_one(self.quotas)
        return quotas.delay(states, now, cost)

    def quota_spent_for(self, now: float) -> float:
        """Return the seconds until the server resets the quotas of which it leaves no token."""
        return max((it.spent_for(state, now) for it, state in self.quotas.values()), default=0.0)

    def quota_remaining(self, now: float) -> float | None:
        """Return the requests that the server has left; None: not known."""
        known = (quota.reported(state, now) for quota, state in self._of_requests())
        return min((left for left in known if left is not None), default=None)


def _new_quota(in_flight: int, *, evenly: bool) -> _Quota:
    quota = ServerQuota(evenly=evenly)
    state = quota.start()
    state.unanswered = in_flight + 1.0
    return quota, state


def _in_one(quotas: dict[tuple[str, str], _Quota]) -> tuple[Algorithm[Any], Any]:
    """Return all quotas as one algorithm, and its state."""
    ((resource, _), only), *more = quotas.items()
    if resource == REQUESTS and not more:
        return only
    algorithm = PerResource(*((resource, quota) for (resource, _), (quota, _) in quotas.items()))
    return algorithm, tuple(state for _, state in quotas.values())

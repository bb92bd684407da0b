"""The server's quota: tokens that its responses report as remaining, until it resets."""

import itertools
import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from aiothrottle.algorithms.protocol import until
from aiothrottle.amounts import REQUESTS

# Seconds. Servers round the time until the reset, mostly to whole seconds: two resets that differ
# by less are of the same window.
_SAME_WINDOW = 1.5
# What was taken since a request was sent is looked up among so many; more are hardly ever in
# flight.
_MOST_IN_FLIGHT = 4096
# A wait of fewer units in the last place of the time is due to rounding.
_ULPS = 8.0
# The part of the refill which was seen that is counted on, and the part of that after each 429.
_CAREFUL, _SLOWER = 0.5, 0.7
# The part of a quota that other clients may have used at once after its reset.
_OTHERS = 0.5
# Seconds after a reset in which a request shows what the reset has brought back.
_AT_ONCE = 0.5
# Seconds. What is rounded to whole ones tells no shorter window.
_WHOLE = 1.0
# Seconds by which a reset is taken for later with each event of 429s behind it, up to the second
# that a server cuts off.
_LATER = 0.5
# A reset that is early by a smaller part of itself was rounded.
_ROUNDED = 0.1
# Seconds to the reset of a window that is short, for which a sign of other clients counts, and for
# which what remains is spread after a 429.
_SHORT, _MEMORY, _SPREAD = 4.0, 60.0, 15.0


class ReportedQuota(NamedTuple):
    """One report of the quota of one resource."""

    #: Tokens that remain.
    remaining: float
    #: Seconds until the server resets the quota.
    reset_after: float
    #: The resource of the limiter that it is about.
    resource: str = REQUESTS
    #: Tokens of a whole quota; infinity: not known.
    limit: float = math.inf
    #: Seconds by which the reset may be earlier.
    error: float = 0.0
    #: Whether the server throttled the request.
    throttled: bool = False
    #: Tokens per second to count on before the reset; 0.0: it is refilled then, at once.
    refill: float = 0.0
    #: The server's name for it, if it has several of one resource.
    name: str = ""


@dataclass(slots=True)
class Witness:
    """What the answers of a server show of its resets, whatever it says.

    Tokens that come back one by one are never there all at once, and the reset is no window's: that
    of the next token, of a full bucket, or of a window that the server does not use. Two signs tell
    it. After the reset the quota was not whole, although few had taken from it; or it was whole
    three times within the shortest window that the reset can name.

    A server with windows may show the same where others use its quota: then it throttles what was
    sent too early, and the refill is taken for slower, and for no faster again.

    Where less remains than this client has taken, other clients use the quota.

    >>> witness = Witness(limit=5)
    >>> for at in (0.0, 0.3, 0.6):  # of a bucket
    ...     quota = ReportedQuota(4, 1.0, limit=5, error=1.0)
    ...     refill = witness.observe(quota, at + 0.01, at, taken=1.0)
    >>> round(refill, 2)
    1.64
    """

    #: Tokens of a whole quota.
    limit: float
    #: When the last report arrived, and whether its request was sent before the one before arrived.
    arrived_at: float = -math.inf
    overlaps: bool = False
    #: The last one of an admitted request: when that was sent, what remained, the reset at the
    #: latest, and whether it was zero.
    sent_at: float = -math.inf
    remaining: float = math.inf
    resets_at: float = math.inf
    resets_now: bool = False
    #: When the last two requests were sent after which the quota was whole.
    whole_at: tuple[float, float] = (-math.inf, -math.inf)
    #: The longest reset of the limit, in seconds.
    longest: float = 0.0
    #: Tokens per second that come back, 0.0: not known; and the fastest that it may be.
    refill: float = 0.0
    fastest: float = math.inf
    #: Whether they come back faster than in the shortest window that the reset can name.
    is_faster: bool = False
    #: The last report that left nothing, until the next one: when its request was sent.
    empty_at: float = math.inf
    #: The last report of which no other one arrived on the way: when its request was sent, what
    #: remained, and the requests in flight. And when it was last seen that other clients took.
    since: float = -math.inf
    had: float = -math.inf
    in_flight: float = 0.0
    others_at: float = -math.inf

    def look_for_others(
        self, quota: ReportedQuota, now: float, sent_at: float, taken: float, in_flight: float
    ) -> None:
        """See whether more was taken than by this client.

        Args:
            quota: What a response reports.
            now: When it arrived.
            sent_at: When its request was sent.
            taken: Tokens that were taken since `since`.
            in_flight: Requests in flight, this one included.
        """
        if self.had - quota.remaining > self.in_flight + taken:
            self.others_at = now
        if sent_at >= self.arrived_at:
            self.since, self.had, self.in_flight = sent_at, quota.remaining, in_flight

    def observe(self, quota: ReportedQuota, now: float, sent_at: float, taken: float) -> float:
        """Return the tokens per second by which the quota is refilled; 0.0: at its reset, at once.

        Args:
            quota: What a response reports.
            now: When it arrived.
            sent_at: When its request was sent.
            taken: Tokens that were taken since the request of the last report was sent.
        """
        self.overlaps, self.arrived_at = sent_at < self.arrived_at, now
        if quota.throttled:
            if self.refill and self.empty_at < sent_at:
                self.empty_at = sent_at
                self.refill = self.fastest = self.refill * _SLOWER
            return self.refill
        self.longest = max(self.longest, quota.reset_after, quota.error)
        if self.refill:
            self._measure(quota, now)
        elif not self.overlaps:
            self.refill = _CAREFUL * self._first_sign(quota, now, sent_at, taken)
        if quota.remaining < 1.0:
            self.empty_at = sent_at
        self.sent_at, self.remaining = sent_at, quota.remaining
        self.resets_at, self.resets_now = now + quota.reset_after, quota.reset_after <= 0.0
        return self.refill

    def rate_of_all(self, now: float) -> float:
        """Return the tokens per second for all clients, at the least, if others use the quota too.

        0.0: they do not, or its windows are long: then what remains is the better guide.
        """
        has_others = 0.0 < self.longest <= _SHORT and now - self.others_at < _MEMORY
        return self.limit / self.longest if has_others else 0.0

    def _first_sign(self, quota: ReportedQuota, now: float, sent_at: float, taken: float) -> float:
        """Return the tokens per second that come back at the least, by a sign of it; 0.0: none."""
        remaining, reset_after, _, limit, error, *_ = quota
        seconds = max(reset_after, error)
        if remaining >= limit - 1.0:
            since, *_ = self.whole_at
            self.whole_at = self.whole_at[1], sent_at
            self.is_faster = seconds == error == _WHOLE > now - since > 0.0
            return 2.0 / (now - since) if self.is_faster else 0.0
        moved = sent_at + reset_after - error - self.resets_at
        is_next = moved >= 0.0 and sent_at - self.resets_at < _AT_ONCE
        if not is_next or seconds <= 0.5 * self.longest or remaining + taken >= _OTHERS * limit:
            return 0.0
        is_early = self.resets_at - sent_at > _ROUNDED * seconds
        if is_early and (remaining + taken > self.remaining or moved < _ROUNDED * seconds / limit):
            return 0.0  # of a log that slides, or rounded
        # No window has a reset that moves with the requests, nor one of zero while it goes on.
        self.is_faster = is_early or self.resets_now
        return max(1.0, limit - remaining - 1.0) / seconds  # what remains is rounded down

    def _measure(self, quota: ReportedQuota, now: float) -> None:
        """Measure the refill since nothing was left, with the first answer after that."""
        if self.empty_at < now and not self.overlaps:
            seen = (quota.remaining + 1.0) / (now - self.empty_at)
            self.refill = max(self.refill, min(_CAREFUL * seen, self.fastest))
            self.empty_at = math.inf


@dataclass(slots=True)
class ServerQuotaState:
    """What remains of the quota until `resets_at`, and the log of what was taken.

    `resets_from` is the earliest that the reset may be, as servers round it, and `shortest` are the
    seconds that the window has at least.
    `next_at` is when the next token can be taken, where they are spread evenly: always, or until
    `spread_until`. `binds` is whether the quota is kept to, or only known; `least` the lowest
    report about the window as it was, and `unanswered` the number of requests without a report.
    `witness` is what the answers show.

    A quota that is refilled steadily gains `refill` tokens per second: `remaining` is of `at`, and
    the report is of a request sent at `sent_at`.

    A server that rounds its resets down is closed for up to a second longer: they count as `late`
    seconds later, once it has throttled requests behind the last of them. That was at `reset_at`,
    and what was sent from then until `late_until` was too early.

    After the reset no more than `limit` can be taken before the next report, for as long as the
    longest reset that was reported: `longest`. From `probe_at` on one token can be taken although
    none remains, and at `probed_at` it was; `expected_at` is the `probe_at` that was given.
    """

    remaining: float = math.inf
    resets_at: float = -math.inf
    resets_from: float = -math.inf
    shortest: float = 0.0
    late: float = 0.0
    reset_at: float = math.inf
    late_until: float = -math.inf
    least: float = math.inf
    unanswered: float = 0.0
    binds: bool = True
    refill: float = 0.0
    at: float = -math.inf
    sent_at: float = -math.inf
    limit: float = math.inf
    longest: float = 0.0
    expected_at: float = math.inf
    probe_at: float = math.inf
    probed_at: float = math.inf
    next_at: float = -math.inf
    spread_until: float = -math.inf
    witness: Witness = field(default_factory=lambda: Witness(math.inf))
    log: deque[tuple[float, float]] = field(
        default_factory=lambda: deque[tuple[float, float]](maxlen=_MOST_IN_FLIGHT)
    )


@dataclass(frozen=True, slots=True)
class ServerQuota:
    """No more than the server has reported as remaining, until its quota resets.

    Before the first report every cost can be taken, and after the reset the limit, if it is known:
    this algorithm stands beside another one (`AllOf`), and only makes it tighter.

    Args:
        evenly: Whether what remains is spread over the time until the reset. Otherwise it can be
            taken at once, after which nothing can be taken until the reset.

    >>> algorithm = ServerQuota()
    >>> state = algorithm.start()
    >>> algorithm.update(state, now=100.0, remaining=2, reset_after=30.0, sent_at=99.9)
    >>> algorithm.take(state, now=101.0, cost=2)
    >>> algorithm.delay(state, now=102.0, cost=1), algorithm.delay(state, now=130.0, cost=1)
    (28.0, 0.0)
    """

    evenly: bool = False

    #: Infinity: what the server admits after a reset is unknown.
    capacity: float = field(default=math.inf, init=False, repr=False, compare=False)

    def start(self) -> ServerQuotaState:
        """Return the state before the first report."""
        return ServerQuotaState()

    def update(
        self,
        state: ServerQuotaState,
        now: float,
        remaining: float,
        reset_after: float,
        sent_at: float,
        *,
        binds: bool = True,
        in_flight: float = math.inf,
        refill: float = 0.0,
        counts: bool = True,
    ) -> None:
        """Record what a response reports.

        The report is older than what was taken since its request was sent, so that is subtracted.
        Of several reports about one window the lowest counts, as requests and responses overtake
        each other. That subtracts some requests that the server had counted: once all requests are
        answered, it has counted all, and what remains is exactly the least that it reported.

        A quota that is refilled has no window: there the report of the last request sent counts.
        What was sent since may have been refilled since, but no later than it was taken.

        Args:
            state: Is changed.
            now: Seconds, by the same clock as for `take`.
            remaining: Tokens that remained when the server answered.
            reset_after: Seconds until the quota resets.
            sent_at: When the request was sent.
            binds: Whether it is kept to.
            in_flight: Other requests in flight, answered or not.
            refill: Tokens per second by which it is refilled until the reset.
            counts: Whether the request took any of these tokens.
        """
        # Some requests fail without an answer.
        state.unanswered = min(max(0.0, state.unanswered - counts), in_flight)
        if refill and state.refill and sent_at < state.sent_at:
            return
        least, sent, uncounted = remaining, 0.0, 0.0
        for timestamp, cost in _since(state, sent_at):
            sent += cost
            uncounted = max(uncounted, sent - refill * (now - timestamp))
        remaining -= uncounted
        if refill and state.witness.refill:
            if (state.unanswered or state.witness.overlaps) and now < state.resets_at:
                remaining = min(remaining, self._left(state, now))
            reset_after = (state.limit - remaining) / refill  # full then, whatever the server says
        resets_at = now + reset_after + state.late
        state.longest = max(state.longest, reset_after)
        # What is only known has held nothing back: it may be of the window before.
        if (
            (binds and state.binds)
            and not refill
            and now < state.resets_at
            and sent_at < state.probed_at
            and abs(resets_at - state.resets_at) < _SAME_WINDOW
        ):
            least = min(least, state.least)
            remaining = min(remaining, state.remaining) if state.unanswered else least
            resets_at = max(resets_at, state.resets_at)
        state.remaining, state.resets_at, state.binds = remaining, resets_at, binds
        state.least, state.refill, state.at, state.sent_at = least, refill, now, sent_at
        if sent_at >= state.probed_at:
            state.probed_at = math.inf

    def refill_of(
        self, state: ServerQuotaState, now: float, quota: ReportedQuota, sent_at: float
    ) -> float:
        """Return the tokens per second by which the quota is refilled, by what the answers show.

        Args:
            state: Is changed.
            now: When the report arrived.
            quota: The report.
            sent_at: When its request was sent.
        """
        if quota.refill or quota.limit == math.inf:
            return quota.refill
        witness = state.witness
        if witness.limit != quota.limit:
            witness = state.witness = Witness(quota.limit)
        taken = _taken_since(state, witness.since)
        witness.look_for_others(quota, now, sent_at, taken, state.unanswered)
        return witness.observe(quota, now, sent_at, _taken_since(state, witness.sent_at))

    def throttled(
        self, state: ServerQuotaState, now: float, quota: ReportedQuota, sent_at: float
    ) -> None:
        """Record a 429 that reports nothing remaining.

        The window may not be over, although its reset has passed: see `ServerQuotaState.late`. If
        the windows are short, what remains is spread for a while, as other clients need it too: a
        client that takes all of each window at its begin would throttle the others again and again,
        and never see them.

        Args:
            state: Is changed.
            now: When it arrived.
            quota: What it reports.
            sent_at: When its request was sent.
        """
        is_rounded = quota.error > 0.0
        if is_rounded and quota.reset_after < _WHOLE and 0.0 <= sent_at - state.reset_at < _WHOLE:
            if sent_at <= state.late_until:
                state.late_until = now  # of the same event
            elif state.late < _WHOLE:  # else that is no rounding
                state.late, state.late_until = state.late + _LATER, now
        if state.witness.longest <= _SHORT:
            state.spread_until = now + _SPREAD

    def expect_reset(self, state: ServerQuotaState, at: float) -> None:
        """Let one token be taken at `at`, which shows whether the quota has been reset."""
        if at != state.expected_at:
            state.expected_at = state.probe_at = at

    def delay(self, state: ServerQuotaState, now: float, cost: float) -> float:
        """Seconds until the quota has room, which is now or at the reset."""
        return self.delay_behind(state, now, cost, 0.0)

    def delay_behind(self, state: ServerQuotaState, now: float, cost: float, ahead: float) -> float:
        """Seconds until it has room after the `ahead` tokens; the next quota has room for all."""
        cost, ahead = cost.real, ahead.real  # of resources, the requests
        if not state.binds or cost == 0:
            return 0.0
        if now >= state.resets_at:
            return state.longest if ahead and ahead + cost > state.limit else 0.0
        reset = until(state.resets_at, now)
        missing = ahead + cost - self._left(state, now)
        if missing > 0.0:
            if state.refill:
                wait = missing / state.refill
                return min(reset, wait) if wait > _ULPS * math.ulp(now) else 0.0
            return reset if ahead or cost > 1 else min(reset, until(state.probe_at, now))
        if not self._is_spread(state, now):
            return 0.0
        due = max(now, state.next_at) + ahead * self._interval(state, now)
        return min(reset, until(due, now))

    def take(self, state: ServerQuotaState, now: float, cost: float) -> None:
        """Take `cost` of what remains."""
        cost = cost.real  # of resources, the requests
        state.log.append((now, cost))
        state.unanswered += 1.0
        if now >= state.resets_at > -math.inf:
            state.reset_at = state.resets_at
        if now >= state.resets_at and state.limit < math.inf and state.binds:
            state.remaining, state.resets_at = state.limit, now + state.longest
            state.least, state.at = state.limit, now
        if now < state.resets_at:
            state.remaining, state.at = self._left(state, now), now
            if cost > state.remaining and now >= state.probe_at:
                state.probe_at, state.probed_at = math.inf, now
            if state.binds and self._is_spread(state, now):
                interval = self._interval(state, now)
                state.next_at = max(now, state.next_at) + cost * interval
            state.remaining -= cost

    def remaining(self, state: ServerQuotaState, now: float) -> float:
        """Tokens that it leaves; infinity where it is not kept to."""
        known = self.reported(state, now)
        return math.inf if known is None or not state.binds else known

    def reported(self, state: ServerQuotaState, now: float) -> float | None:
        """Tokens that remain; None if that is unknown."""
        return max(0.0, self._left(state, now)) if now < state.resets_at else None

    def spent_for(self, state: ServerQuotaState, now: float) -> float:
        """Seconds until the reset of a quota that is kept to, if it leaves no token; else 0.0."""
        if not state.binds or state.refill or self._left(state, now) >= 1.0:
            return 0.0
        return until(state.resets_at, now)

    def reset_after(self, state: ServerQuotaState, now: float) -> float:
        """Seconds until the quota resets."""
        return until(state.resets_at, now)

    def _is_spread(self, state: ServerQuotaState, now: float) -> bool:
        return self.evenly or now < state.spread_until

    def _interval(self, state: ServerQuotaState, now: float) -> float:
        """Seconds for each of the tokens that remain."""
        seconds = max(0.0, state.resets_at - max(now, state.next_at))
        return seconds / max(1.0, self._left(state, now) + state.refill * seconds)

    def _left(self, state: ServerQuotaState, now: float) -> float:
        """Tokens that remain at `now`, below zero where more were taken."""
        if not state.refill:
            return state.remaining
        return min(state.limit, state.remaining + state.refill * max(0.0, now - state.at))


def _since(state: ServerQuotaState, at: float) -> Iterator[tuple[float, float]]:
    """Yield when tokens were taken since then, and how many, the last first."""
    return itertools.takewhile(lambda taken: taken[0] > at, reversed(state.log))


def _taken_since(state: ServerQuotaState, at: float) -> float:
    """Return the tokens that were taken since then."""
    return sum(cost for _, cost in _since(state, at))

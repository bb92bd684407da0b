"""The controllers of adaptive limits: pure functions of reported outcomes and their times."""

import math
import random
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiothrottle import AdaptiveConcurrency, AdaptiveRate, AdaptiveThrottling
from aiothrottle.adaptive import SelfTuningGuard
from aiothrottle.adaptive.concurrency import Controller, SlotsState
from aiothrottle.algorithms.level import Pace
from aiothrottle.rate import RateLike

LATENCY = 0.05


class Rated:
    """An adaptive rate in front of a server that throttles all above its limit.

    The server has no window and no burst, so every rate above the limit is throttled at once.
    """

    def __init__(self, initial: RateLike, minimum: RateLike, maximum: RateLike) -> None:
        self.adaptive = AdaptiveRate(initial, minimum, maximum)
        self.state = self.adaptive.start()
        self.now = 0.0

    @property
    def rate(self) -> float:
        return self.state.rate

    def drive(self, seconds: float, *, limit: float = math.inf, demand: float = math.inf) -> None:
        """Send as fast as the rate and the demand allow."""
        end = self.now + seconds
        while self.now < end:
            rate = self.rate
            self.now += 1.0 / min(rate, demand)
            if rate > limit:
                self.throttled(self.now + LATENCY, self.now, pause=1.0)
                self.now += 1.0
            else:
                self.succeeded(self.now + LATENCY, self.now)

    def throttled(self, now: float, sent_at: float, pause: float = 0.0) -> None:
        self.adaptive.throttled(self.state, now, sent_at, pause)

    def succeeded(self, now: float, sent_at: float) -> None:
        self.adaptive.succeeded(self.state, now, sent_at)

    def reported(self, now: float, rate: float) -> None:
        self.adaptive.reported(self.state, now, rate)


WRONG: dict[type[Exception], list[tuple[Callable[..., object], tuple[object, ...]]]] = {
    ValueError: [
        *((AdaptiveRate, it) for it in ((0, 1, 9), (20, 1, 9), (0.5, 1, 9), (5, 9, 1))),
        *((AdaptiveRate, it) for it in ((5, 1, math.inf), (math.nan, 1, 9))),
        *((AdaptiveConcurrency, it) for it in ((0, 0, 1), (1, 2, 3), (4, 1, 3), (1, 1, 10**400))),
        *((AdaptiveConcurrency, (2, 1, 3, *it)) for it in (("vegas",), ("aimd", 1.0))),
        *((AdaptiveThrottling, it) for it in ((0.5,), (math.inf,), (2, 0))),
        *((SelfTuningGuard, (it,)) for it in (0, -1, math.nan, math.inf, 10**400)),
    ],
    TypeError: [
        *((AdaptiveRate, it) for it in ((True, 1, 9), (None, 1, 9))),
        *((AdaptiveConcurrency, it) for it in ((1.0, 1, 3), (True, 1, 3), (2, 1, 3, "aimd", "2"))),
        (AdaptiveThrottling, ("2",)),
        *((SelfTuningGuard, (it,)) for it in (None, True, "1")),
    ],
}


@pytest.mark.parametrize("error", WRONG)
def test_wrong_arguments_raise(error: type[Exception]) -> None:
    for controller, arguments in WRONG[error]:
        with pytest.raises(error):
            controller(*arguments)


def test_average_of_a_slow_rate_includes_the_wait_for_its_first_token() -> None:
    rated = Rated(0.25, 0.01, 1.0)
    rated.throttled(0.1, 0.0)
    assert rated.rate == 0.125
    rated.succeeded(10.1, 10.0)  # the token of the 8 seconds from 2.0 on
    rated.throttled(18.2, 18.0)
    assert rated.rate == pytest.approx(math.sqrt(0.125 * 1 / (18.2 - 2.0)))


def test_rates_are_accepted_in_every_form() -> None:
    adaptive = AdaptiveRate("600/min", minimum="1/s", maximum=100)
    assert (adaptive.initial, adaptive.minimum, adaptive.maximum) == (10.0, 1.0, 100.0)


def test_rate_doubles_before_the_first_429() -> None:
    one = Rated(1, 1, 1000)
    seen = {one.rate}
    while one.now < 12.0:
        one.drive(0.01)
        seen.add(one.rate)
    assert sorted(seen)[:5] == [1, 2, 4, 8, 16]


@pytest.mark.parametrize(
    ("age", "throttled_rate", "rate"),
    [
        (-0.01, 16.0, 9.8),  # a request from before the growth: no more than the rate of then
        (0.05, 32.0, 14.4),  # the second request after it: the rate of before was admitted
        (0.3, 32.0, 16.0),  # a later one: a window or a bucket
    ],
)
def test_first_429_is_due_to_the_growth_if_it_comes_at_once(
    age: float, throttled_rate: float, rate: float
) -> None:
    one = Rated(16, 1, 1000)
    while one.rate == 16:
        one.drive(0.01)
    assert one.rate == 32
    one.throttled(now=one.now + 0.5, sent_at=one.state.step_at + age, pause=0.5)
    assert one.state.throttled_rate == throttled_rate
    assert one.rate == pytest.approx(rate, rel=0.01)


def test_each_event_of_429s_cuts_once() -> None:
    one = Rated(100, 1, 1000)
    one.throttled(now=1.0, sent_at=0.9)
    cut = one.rate
    assert cut < 100
    for sent_at in (0.5, 0.91, 0.99, 1.0):
        one.throttled(now=1.1, sent_at=sent_at)
    assert one.rate == cut
    one.throttled(now=1.2, sent_at=1.1)
    assert one.rate < cut


@pytest.mark.parametrize("limit", [2.5, 5.0, 10.0, 20.0, 40.0, 100.0])
def test_rate_follows_a_limit_that_changes_and_stays_near(limit: float) -> None:
    one = Rated(10, 0.1, 1000)
    one.drive(300, limit=10.0)
    one.drive(300, limit=limit)
    assert 0.8 * limit <= one.rate <= 1.05 * limit
    rates = list[float]()
    while one.now < 1200:
        one.drive(0.01, limit=limit)
        rates.append(one.rate)
    assert 0.85 * limit <= min(rates) <= max(rates) <= 1.02 * limit


def test_429s_at_once_halve_the_rate_each() -> None:
    one, rates = Rated(1000, 1, 1000), [1000.0]
    for i in range(1, 5):
        one.succeeded(i + 0.1, float(i))
        one.throttled(i + 0.3, i + 0.2)
        rates.append(one.rate)
    assert rates == pytest.approx([1000 * 0.5**i for i in range(5)])


def test_unused_rate_does_not_grow_and_is_no_full_window() -> None:
    one = Rated(10, 0.1, 1000)
    one.drive(600, demand=5.0)
    assert one.rate == 10  # searching
    one.drive(60, limit=10.0)
    # The step that begins before the demand falls may still grow.
    one.drive(1.0, demand=0.8 * one.rate)
    rate = one.rate
    one.drive(600, demand=0.8 * rate)
    assert one.rate == rate  # on the cubic
    one = Rated(10, 0.1, 1000)
    one.drive(600, demand=1.0)
    one.throttled(now=600.2, sent_at=600.1, pause=1.0)
    assert (one.rate, one.state.upper) == (5, 10)


@pytest.mark.parametrize("reported_late", [0, 3])
def test_cut_is_the_mean_of_the_bounds(reported_late: int) -> None:
    # Ten in a second were admitted, and forty a second were too many. The eleventh request gets a
    # 429, for up to a second; the response to an earlier request may follow it.
    one = Rated(40, 1e-5, 1000)
    for i in range(10 - reported_late):
        one.succeeded(i / 40 + LATENCY, i / 40)
    one.throttled(now=0.25 + LATENCY, sent_at=0.25, pause=0.7)
    for i in range(10 - reported_late, 10):
        one.succeeded(0.5, i / 40)
    rate = one.rate
    assert rate == pytest.approx(20)
    assert (one.state.lower, one.state.upper) == (rate, 40)
    # Repeated 429s without a Retry-After lead to a pause longer than needed: no bound changes.
    # Meanwhile the next request is late by an eighth of that time at the most.
    one.throttled(now=0.8, sent_at=0.7, pause=4.0)
    assert one.rate == pytest.approx(8.0 / 0.55)
    one.throttled(now=4.9, sent_at=4.8, pause=4.0)
    assert one.rate == pytest.approx(4.0 / 0.55)
    for now in range(100, 10**5, 100):
        one.throttled(now, now - 0.1)
    assert one.rate == pytest.approx(1 / 900)  # or by a quarter of an hour
    assert (one.state.lower, one.state.upper) == (rate, 40)
    one.succeeded(now=1e5, sent_at=1e5 - 0.1)
    assert one.rate == pytest.approx(rate)


@pytest.mark.parametrize(("seconds", "scale"), [(2.0, 15), (30.0, 30), (60.0, 30)])
def test_early_429_makes_the_next_probe_early(seconds: float, scale: float) -> None:
    one = Rated(10, 0.1, 1000)
    one.drive(600, limit=10.0)
    assert one.state.scale == 30
    while one.state.used:  # until it is cut
        one.drive(0.01, limit=10.0)
    one.drive(seconds)
    rate = one.rate
    one.throttled(one.now + 1.0, one.now + 0.9, pause=1.0)
    assert one.state.scale == pytest.approx(scale, rel=0.02)
    assert 0.95 <= one.rate / rate <= 0.98 or seconds == 2.0  # a late one cuts a few percent


def test_long_pauses_make_probes_rarer() -> None:
    one = Rated(10, 0.1, 1000)
    one.throttled(now=0.1, sent_at=0.0, pause=8.0)
    assert one.state.scale == 16  # seconds, two pauses
    one = Rated(10, 0.1, 1000)
    one.drive(600, limit=10.0)
    one.drive(60)
    one.throttled(one.now + 1.0, one.now + 0.9, pause=8.0)
    assert one.state.scale == 96  # twelve
    one = Rated(10, 0.1, 1000)
    for at in (0.0, 1.0, 2.0):  # so the server is closed for two seconds
        one.throttled(at + 0.1, at, pause=0.5)
    one.now = 3.0
    one.drive(12)
    used = one.state.used
    one.throttled(one.now + 0.1, one.now, pause=0.5)
    assert one.state.scale == pytest.approx(2 * used, rel=0.1)


def test_reported_rate_is_what_is_throttled_next() -> None:
    one = Rated(16, 1, 1000)
    while one.rate == 16:
        one.drive(0.01)
    one.reported(one.now, 100.0)
    one.throttled(now=one.now + 1.0, sent_at=one.now + 0.9)
    assert one.state.throttled_rate == pytest.approx(97.0)


@pytest.mark.parametrize(
    ("tokens", "pause", "upper"),
    [
        (10, 1.0, 10),  # ten in a second; at four times that rate 14 were sent before the 429 came
        (9, 1.0, 40),  # a small bucket is not taken for a window
        (10, 0.5, 40),
    ],
)
def test_full_window_is_the_upper_bound(tokens: int, pause: float, upper: float) -> None:
    one = Rated(40, 0.1, 1000)
    for i in range(tokens):
        one.succeeded(i / 40 + LATENCY, i / 40)
    one.throttled(now=0.25 + LATENCY, sent_at=0.25, pause=pause)
    assert one.state.upper == pytest.approx(upper)
    assert upper == 40 or 0.9 * upper <= one.rate < upper


@pytest.mark.parametrize(("pause", "weight"), [(1.0, 0.75), (0.99, 0.5)])
def test_emptied_bucket_cuts_to_near_the_average(pause: float, weight: float) -> None:
    one = Rated(10, 0.1, 1000)
    one.throttled(now=0.1, sent_at=0.0, pause=1.0)
    one.now = 1.5
    one.drive(3.0)
    rate, admitted = one.rate, one.state.admitted
    one.throttled(one.now, one.now - 0.01, pause=pause)
    average = admitted / (one.now + pause - one.state.opened_at)
    assert one.rate == pytest.approx(average**weight * rate ** (1 - weight))


def test_long_outages_reveal_the_limit() -> None:
    # 500 a minute in a window: they are used up within 12 s, and the server is closed for 48.
    one = Rated(42, 0.1, 42)
    for minute in range(4):
        begin, rate = 60.0 * minute, one.rate
        for i in range(500):
            one.succeeded(begin + i / rate + LATENCY, begin + i / rate)
        end = begin + 500 / rate + LATENCY
        one.throttled(end, begin + 500 / rate, pause=begin + 60.0 - end)
    assert 500 / 60 * 0.9 <= one.rate <= 500 / 60 * 1.3


def test_late_answer_shows_that_the_server_was_not_closed() -> None:
    one = Rated(10, 0.1, 100)
    for begin in (0.0, 100.0):
        one.throttled(begin, begin - 0.01, pause=1.0)
        one.throttled(begin + 13.0, begin + 12.9, pause=1.0)
        one.succeeded(begin + 13.1, begin + 5.0)
        one.succeeded(begin + 15.1, begin + 15.0)
        assert one.state.closures == 0


def test_rate_doubles_in_no_less_than_twenty_seconds() -> None:
    one = Rated(10, 0.1, 10_000)
    one.drive(60, limit=10.0)
    rates = [one.rate]
    for _ in range(12):
        one.drive(10.0)
        rates.append(one.rate)
    assert max(b / a for a, b in pairwise(rates)) == pytest.approx(2**0.5, rel=0.05)


def test_limit_of_a_few_a_day_is_found_like_any_other() -> None:
    one = Rated("8/d", "1/d", 1)
    one.drive(60 * 86400.0, limit=4 / 86400)
    assert one.rate * 86400 == pytest.approx(4, rel=0.1)


@pytest.mark.parametrize(
    ("reported", "rate"),
    [(20.0, 19.4), (1.0, 2.0), (500.0, 50.0)],  # a little below it, and within the bounds
)
def test_reported_rate_is_adopted_and_not_exceeded(reported: float, rate: float) -> None:
    one = Rated(10, 2, 50)
    one.reported(0.0, reported)
    assert one.rate == pytest.approx(rate)
    one.drive(600)
    assert one.rate == pytest.approx(rate)


def test_rate_adapts_below_the_reported_one() -> None:
    one = Rated(100, 1, 1000)
    one.reported(0.0, 20.0)
    for i in range(20):
        one.succeeded(0.1 + i / 20, 0.05 + i / 20)
    one.throttled(1.2, 1.1, pause=1.0)
    assert one.rate == pytest.approx(0.97 * 19.4)  # at the reported rate a 429 cuts a little
    one = Rated(100, 1, 1000)
    for _ in range(600):
        one.reported(one.now, 20.0)  # as every response does
        one.drive(1.0, limit=15.0)
    assert 13 <= one.rate <= 15.5


def test_new_rate_moves_the_next_grant() -> None:
    pace = Pace(10.0, 100.0)
    state = pace.start()
    for _ in range(10):
        pace.take(state, 0.0, 1)
    assert pace.reset_after(state, 0.0) == pytest.approx(1.0)
    for now, rate, after in ((0.5, 5.0, 1.0), (0.5, 50.0, 0.1), (2.0, 1.0, 0.0)):
        before, pace = pace, Pace(rate, 100.0)
        state = pace.inherit(before, state, now)
        assert pace.reset_after(state, now) == pytest.approx(after)
    slow = Pace(0.5, 100.0)  # takes a heavy cost
    assert [slow.delay(slow.start(), 0.0, cost) for cost in (60, 101)] == [0.0, math.inf]


@pytest.mark.parametrize(
    ("controller", "many", "first", "least", "most"),
    [("aimd", 2000, 50, 18, 34), ("gradient2", 200, 30, 20, 60)],
)
def test_slots_settle_where_the_server_begins_to_queue(
    controller: Controller, many: int, first: int, least: float, most: float
) -> None:
    # The server works on 20 at once; further ones wait.
    adaptive = AdaptiveConcurrency(4, 1, 200, controller=controller, tolerance=1.5)
    state, now, limits = adaptive.start(), 0.0, list[float]()
    for _ in range(many):
        seconds, slots = 0.1 * max(1.0, state.limit / 20), int(state.limit)
        for _ in range(slots):
            adaptive.succeeded(state, now + seconds, now, in_flight=slots)
        now += seconds + 0.001
        limits.append(state.limit)
    assert all(least <= limit <= most for limit in limits[first:])


def test_fast_first_answers_after_a_cut_are_no_measure() -> None:
    adaptive = AdaptiveConcurrency(80, 1, 100, tolerance=1.5)
    state = adaptive.start()
    adaptive.throttled(state, now=1.0, sent_at=0.5)
    for seconds in (0.01, *[0.1] * 6):
        slots = int(state.limit)
        for _ in range(slots):
            adaptive.succeeded(state, 2.0 + seconds, 2.0, in_flight=slots)
    assert state.limit == 40 + 7


def answer_round(adaptive: AdaptiveConcurrency, state: SlotsState, now: float) -> float:
    """Answer a round within 0.1 s; return the time after it."""
    for _ in range(max(10, int(state.limit))):
        adaptive.succeeded(state, now + 0.2, now + 0.1, in_flight=int(state.limit))
    return now + 0.2


def test_events_of_429s_take_slots_once() -> None:
    adaptive = AdaptiveConcurrency(10, 1, 100)
    state = adaptive.start()
    for sent_at in (0.1, 0.2, 0.3):
        adaptive.throttled(state, now=1.0, sent_at=sent_at)
    assert state.limit == 5.0
    adaptive.throttled(state, now=2.0, sent_at=1.5)
    assert state.limit == 2.5
    state = adaptive.start()
    now = answer_round(adaptive, state, 0.0)  # halved too, if throttled again at once
    adaptive.throttled(state, now + 0.2, now + 0.1)
    adaptive.throttled(state, now + 0.4, now + 0.3)
    assert state.limit == 5


@pytest.mark.parametrize("controller", ["aimd", "gradient2"])
def test_limit_returns_to_the_last_round_and_waits(controller: Controller) -> None:
    adaptive = AdaptiveConcurrency(8, 1, 100, controller=controller)
    state = adaptive.start()
    now = answer_round(adaptive, state, 0.0)
    throttled_at = state.limit
    assert throttled_at > 8
    adaptive.throttled(state, now + 0.2, now + 0.1)
    assert int(state.limit) == int(throttled_at) - 1
    now += 0.2
    for _ in range(63):
        now = answer_round(adaptive, state, now)
    assert state.limit < throttled_at
    for _ in range(3):
        now = answer_round(adaptive, state, now)
    assert state.limit >= throttled_at


def test_round_of_failures_counts_as_throttled_and_is_no_fast_success() -> None:
    adaptive = AdaptiveConcurrency(8, 1, 100)
    state = adaptive.start()
    now = answer_round(adaptive, state, 0.0)
    assert state.limit == 9
    for _ in range(10):
        adaptive.failed(state, now + 0.2, now + 0.1)
    assert state.limit == 8
    state, now = adaptive.start(), 0.0
    for _ in range(200):
        for _ in range(3):
            adaptive.failed(state, now + 0.101, now + 0.1)
        now = answer_round(adaptive, state, now)
    assert state.limit == 100


def test_answers_of_two_kinds_do_not_hold_slots_at_one() -> None:
    chance, adaptive = random.Random(0), AdaptiveConcurrency(1, 1, 32)
    state, limits = adaptive.start(), list[float]()
    for i in range(20_000):
        seconds = 0.005 if chance.random() < 0.5 else 0.2
        adaptive.succeeded(state, i + 1.0, i + 1.0 - seconds, in_flight=int(state.limit))
        limits.append(state.limit)
    assert min(limits[1000:]) >= 8


REPORTS = st.lists(
    st.tuples(
        st.floats(0, 100),  # seconds since the last report
        st.floats(0, 1e6),  # seconds since the request was sent
        st.sampled_from([False, True, None]),  # whether it was throttled, or failed
        st.sampled_from([0.0, 1.0, 120.0, 1e9, 1e300]),  # the pause
        st.integers(0, 1000),  # the cost, or the requests in flight
    ),
    max_size=60,
)


@given(st.sampled_from(["aimd", "gradient2"]), REPORTS)
def test_any_reports_keep_limits_within_their_bounds(
    controller: Controller, reports: list[tuple[float, float, bool | None, float, int]]
) -> None:
    rate, slots = AdaptiveRate(10, 2, 50), AdaptiveConcurrency(5, 2, 9, controller=controller)
    of_rate, of_slots, now = rate.start(), slots.start(), 0.0
    for gap, age, throttled, pause, many in reports:
        now += gap
        if throttled is None:
            slots.failed(of_slots, now, now - age)
        elif throttled:
            rate.throttled(of_rate, now, now - age, pause)
            slots.throttled(of_slots, now, now - age)
        else:
            rate.succeeded(of_rate, now, now - age, many)
            slots.succeeded(of_slots, now, now - age, many + 1)
        assert 2 <= of_rate.rate <= 50
        assert 2 <= of_slots.limit <= 9


def observed(period: float, *round_trips: float) -> SelfTuningGuard:
    guard = SelfTuningGuard(period=period)
    for seconds in round_trips:
        guard.observe(seconds)
    return guard


@pytest.mark.parametrize(
    ("guard", "by_steps"),
    [
        (observed(2.0, 0.1, 5.0), [2 / 9, 1 / 3, 0.5]),  # a tenth, then up to a quarter
        (observed(1.0), [1 / 6, 1 / 9, 1 / 6]),  # nothing is measured yet
        (observed(1.0, 0.1, 0.11), [0.025, 1 / 9, 1 / 6]),
        (observed(60.0, 0.1, 5.1), [1.0, 1.5, 2.25]),  # a second at the most
    ],
)
def test_guard_grows_in_two_steps(guard: SelfTuningGuard, by_steps: list[float]) -> None:
    for steps in (1, 2, 0):
        guard.space(1.0, steps)
        assert guard.seconds == pytest.approx(by_steps[steps])


def test_guard_of_even_spacing_covers_each_interval() -> None:
    guard = observed(1.0, *(0.1 + (i % 10) / 1e4 for i in range(100)))
    assert guard.seconds == pytest.approx(0.001)
    for intervals, seconds in ((20.0, 0.019), (1.0, 0.001)):
        assert guard.space(intervals, 0)
        assert guard.seconds == pytest.approx(seconds)
    long = observed(3600.0, 0.1, 0.3)  # a second in each interval, not in each period
    long.space(100.0, 0)
    assert long.seconds == pytest.approx(50.4)


def test_guard_covers_the_jitter_up_to_a_tenth() -> None:
    guard = observed(1.0, 0.10, 0.11)
    assert guard.seconds == pytest.approx(0.01 * (1 + 3 / 2))
    for i in range(62):  # the more are measured, the less is added
        guard.observe(0.1 + i / 6200)
    assert 0.0105 <= guard.seconds <= 0.012
    guard.observe(5.0)
    assert 1.0 / (1.0 + guard.seconds) == pytest.approx(0.9)
    guard = SelfTuningGuard(period=1.0)
    guard.begin_long()  # until two are measured
    assert guard.seconds == 0.25
    assert [guard.observe(seconds) for seconds in (0.1, 0.101)] == [False, True]
    assert guard.seconds < 0.01


def test_guard_changes_rarely_and_forgets_past_jitter() -> None:
    guard = observed(2.0, 0.1)
    assert sum(guard.observe(0.1 + i / 1e5) for i in range(400)) <= 4
    assert guard.seconds == pytest.approx(0.006)  # a multiple of a thousandth of the period
    guard = observed(1.0, 0.1, 0.2)
    assert sum(guard.observe(0.1) for _ in range(1500)) < 40
    assert guard.seconds == 0.0


def test_failing_server_gets_fewer_requests_until_it_recovers() -> None:
    throttling = AdaptiveThrottling(k=2.0, window=10.0)
    state = throttling.start()
    for i in range(100):
        throttling.request(state, i / 100)
    assert throttling.rejected_share(state, 1.0) == pytest.approx(100 / 101)
    assert 0.0 < throttling.rejected_share(state, 15.0) < 100 / 101
    assert throttling.rejected_share(state, 31.0) == 0.0
    throttling.request(state, 40.0)
    assert throttling.rejected_share(state, 400.0) == 0.0
    throttling = AdaptiveThrottling()
    state = throttling.start()
    for i in range(1000):  # none of those that are accepted
        throttling.request(state, i / 10)
        throttling.accepted(state, i / 10)
        assert throttling.rejected_share(state, i / 10) == 0.0

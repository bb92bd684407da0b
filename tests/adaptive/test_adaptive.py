import math
import random
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiothrottle import AdaptiveConcurrency, AdaptiveRate
from aiothrottle.adaptive import AdaptiveThrottling, SelfTuningGuard
from aiothrottle.adaptive.concurrency import Controller, SlotsState
from aiothrottle.adaptive.extremes import Extremes
from aiothrottle.adaptive.pace import Pace
from aiothrottle.adaptive.rate import RateState

LATENCY = 0.05


def drive(
    adaptive: AdaptiveRate,
    state: RateState,
    seconds: float,
    *,
    limit: float = math.inf,
    demand: float = math.inf,
    begin: float = 0.0,
) -> float:
    """Send as fast as the rate and the demand allow; the server throttles above its limit.

    There is no window and no burst, so every rate above the limit is throttled at once.
    """
    now = begin
    while now < begin + seconds:
        rate = state.rate
        now += 1.0 / min(rate, demand)
        if rate > limit:
            adaptive.throttled(state, now + LATENCY, now, pause=1.0)
            now += 1.0
        else:
            adaptive.succeeded(state, now + LATENCY, now)
    return now


# --- Arguments ---


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((0, 1, 10), ValueError),
        ((20, 1, 10), ValueError),
        ((0.5, 1, 10), ValueError),
        ((5, 10, 1), ValueError),
        ((5, 1, math.inf), ValueError),
        ((math.nan, 1, 10), ValueError),
        ((True, 1, 10), TypeError),
        ((None, 1, 10), TypeError),
    ],
)
def test_rate_begins_between_its_bounds(
    arguments: tuple[float, float, float], error: type[Exception]
) -> None:
    with pytest.raises(error):
        AdaptiveRate(*arguments)


def test_rates_are_accepted_in_every_form() -> None:
    adaptive = AdaptiveRate("600/min", minimum="1/s", maximum=100)
    assert (adaptive.initial, adaptive.minimum, adaptive.maximum) == (10.0, 1.0, 100.0)


# --- The rate ---


def test_rate_doubles_before_the_first_429() -> None:
    adaptive = AdaptiveRate(1, 1, 1000)
    state = adaptive.start()
    seen = {state.rate}
    now = 0.0
    while now < 12.0:
        now = drive(adaptive, state, 0.01, begin=now)
        seen.add(state.rate)
    assert sorted(seen)[:5] == [1, 2, 4, 8, 16]


def test_many_429s_of_one_event_cut_once() -> None:
    adaptive = AdaptiveRate(100, 1, 1000)
    state = adaptive.start()
    adaptive.throttled(state, now=1.0, sent_at=0.9)
    cut = state.rate
    assert cut < 100
    for sent_at in (0.5, 0.91, 0.99, 1.0):
        adaptive.throttled(state, now=1.1, sent_at=sent_at)
    assert state.rate == cut


def test_429_sent_after_the_cut_cuts_again() -> None:
    adaptive = AdaptiveRate(100, 1, 1000)
    state = adaptive.start()
    adaptive.throttled(state, now=1.0, sent_at=0.9)
    cut = state.rate
    adaptive.throttled(state, now=1.2, sent_at=1.1)
    assert state.rate < cut


@pytest.mark.parametrize("limit", [2.5, 10.0, 40.0])
def test_rate_finds_a_limit_and_stays_near(limit: float) -> None:
    adaptive = AdaptiveRate(10, 0.1, 1000)
    state = adaptive.start()
    now = drive(adaptive, state, 300, limit=limit)
    lowest, highest = math.inf, 0.0
    end = now + 600
    while now < end:
        now = drive(adaptive, state, 0.01, limit=limit, begin=now)
        lowest, highest = min(lowest, state.rate), max(highest, state.rate)
    assert 0.85 * limit <= lowest <= highest <= 1.02 * limit


def test_429s_at_once_halve_the_rate_each() -> None:
    adaptive = AdaptiveRate(1000, 1, 1000)
    state = adaptive.start()
    rates = [state.rate]
    for i in range(1, 5):
        adaptive.succeeded(state, i + 0.1, float(i))
        adaptive.throttled(state, i + 0.3, i + 0.2)
        rates.append(state.rate)
    assert rates == pytest.approx([1000 * 0.5**i for i in range(5)])


@pytest.mark.parametrize("factor", [0.25, 0.5, 2.0, 4.0, 10.0])
def test_rate_follows_a_limit_that_changes(factor: float) -> None:
    adaptive = AdaptiveRate(10, 0.1, 1000)
    state = adaptive.start()
    now = drive(adaptive, state, 300, limit=10.0)
    drive(adaptive, state, 300, limit=10.0 * factor, begin=now)
    assert 0.8 * factor * 10 <= state.rate <= 1.05 * factor * 10


def test_unused_rate_does_not_grow() -> None:
    adaptive = AdaptiveRate(10, 0.1, 1000)
    state = adaptive.start()
    drive(adaptive, state, 600, demand=5.0)
    assert state.rate == 10  # searching
    now = drive(adaptive, state, 60, limit=10.0, begin=600)
    # The step that begins before the demand falls may still grow.
    now = drive(adaptive, state, 1.0, demand=0.8 * state.rate, begin=now)
    rate = state.rate
    drive(adaptive, state, 600, demand=0.8 * rate, begin=now)
    assert state.rate == rate  # on the cubic


def test_pause_does_not_count_as_use() -> None:
    adaptive = AdaptiveRate(10, 0.1, 1000)
    state = adaptive.start()
    adaptive.succeeded(state, 0.1, 0.0)
    # Ten in a row, but a minute lies between them.
    for i in range(5):
        adaptive.succeeded(state, 0.2 + i / 10, 0.1 + i / 10)
    for i in range(5):
        adaptive.succeeded(state, 60.2 + i / 10, 60.1 + i / 10)
    assert state.rate <= 30


def test_rate_beyond_the_ceiling_probes_slowly_at_first() -> None:
    adaptive = AdaptiveRate(10, 0.1, 1000)
    state = adaptive.start()
    now = drive(adaptive, state, 400, limit=10.0)
    rates = [state.rate]
    for _ in range(60):
        now = drive(adaptive, state, 1.0, begin=now)
        rates.append(state.rate)
    assert all(a <= b for a, b in pairwise(rates))
    near = [rate for rate in rates if rate > 9.9]
    assert all(b - a < 0.1 for a, b in pairwise(near[:10]))


def begun_too_fast(adaptive: AdaptiveRate, *, reported_late: int = 0) -> RateState:
    """Begin at 40/s with a window of 10/s: the eleventh request gets a 429, for up to a second."""
    state = adaptive.start()
    for i in range(10 - reported_late):
        adaptive.succeeded(state, i / 40 + LATENCY, i / 40)
    adaptive.throttled(state, now=0.25 + LATENCY, sent_at=0.25, pause=0.7)
    for i in range(10 - reported_late, 10):
        adaptive.succeeded(state, 0.5, i / 40)
    return state


def test_cut_is_the_mean_of_the_bounds() -> None:
    # Ten in a second were admitted, and forty a second were too many.
    state = begun_too_fast(AdaptiveRate(40, 0.1, 1000))
    assert state.rate == pytest.approx(20)
    assert (state.lower, state.upper) == (state.rate, 40)


def test_response_to_earlier_request_may_follow_429() -> None:
    adaptive = AdaptiveRate(40, 0.1, 1000)
    late = begun_too_fast(adaptive, reported_late=3)
    assert late.rate == pytest.approx(begun_too_fast(adaptive).rate)


@pytest.mark.parametrize("seconds", [30.0, 120.0])
def test_late_429_cuts_by_a_few_percent(seconds: float) -> None:
    adaptive = AdaptiveRate(10, 0.1, 1000)
    state = adaptive.start()
    now = drive(adaptive, state, 600, limit=10.0)
    while state.used:  # until the rate was cut
        now = drive(adaptive, state, 0.01, limit=10.0, begin=now)
    now = drive(adaptive, state, seconds, begin=now)
    rate = state.rate
    adaptive.throttled(state, now + 1.0, now + 0.9, pause=1.0)
    assert 0.95 <= state.rate / rate <= 0.98


def test_closed_server_does_not_change_the_bounds() -> None:
    adaptive = AdaptiveRate(40, 0.1, 1000)
    state = begun_too_fast(adaptive)
    rate = state.rate
    adaptive.throttled(state, now=0.8, sent_at=0.7)
    assert state.rate == pytest.approx(0.5 * rate)
    assert (state.lower, state.upper) == (rate, 40)


def test_own_pause_does_not_change_the_window() -> None:
    # Repeated 429s without Retry-After lead to a pause longer than needed.
    adaptive = AdaptiveRate(40, 0.1, 1000)
    state = begun_too_fast(adaptive)
    rate = state.rate
    adaptive.throttled(state, now=0.8, sent_at=0.7, pause=8.0)
    adaptive.succeeded(state, now=8.9, sent_at=8.8)
    assert state.rate == pytest.approx(rate)


def test_early_429_makes_the_next_probe_early() -> None:
    adaptive = AdaptiveRate(10, 0.1, 1000)
    state = adaptive.start()
    now = drive(adaptive, state, 600, limit=10.0)
    assert state.scale == 60
    while state.used:  # until the rate was cut
        now = drive(adaptive, state, 0.01, limit=10.0, begin=now)
    now = drive(adaptive, state, 2.0, begin=now)
    adaptive.throttled(state, now + 0.2, now + 0.1, pause=1.0)
    assert state.scale == 30


def test_full_window_is_the_upper_bound() -> None:
    # Ten in a second, and four times that rate: 14 were sent before the 429 was received.
    adaptive = AdaptiveRate(40, 0.1, 1000)
    state = adaptive.start()
    for i in range(10):
        adaptive.succeeded(state, i / 40 + LATENCY, i / 40)
    adaptive.throttled(state, now=0.25 + LATENCY, sent_at=0.25, pause=1.0)
    assert state.upper == pytest.approx(10)
    assert 0.9 * 10 <= state.rate < 10


@pytest.mark.parametrize(("tokens", "pause"), [(9, 1.0), (10, 0.5)])
def test_small_bucket_is_not_taken_for_a_window(tokens: int, pause: float) -> None:
    adaptive = AdaptiveRate(40, 0.1, 1000)
    state = adaptive.start()
    for i in range(tokens):
        adaptive.succeeded(state, i / 40 + LATENCY, i / 40)
    adaptive.throttled(state, now=0.25 + LATENCY, sent_at=0.25, pause=pause)
    assert state.upper == 40


def test_unused_rate_is_no_full_window() -> None:
    adaptive = AdaptiveRate(10, 0.1, 1000)
    state = adaptive.start()
    drive(adaptive, state, 600, demand=1.0)
    adaptive.throttled(state, now=600.2, sent_at=600.1, pause=1.0)
    assert (state.rate, state.upper) == (5, 10)


@pytest.mark.parametrize(("pause", "weight"), [(1.0, 0.75), (0.99, 0.5)])
def test_emptied_bucket_cuts_to_near_the_average(pause: float, weight: float) -> None:
    adaptive = AdaptiveRate(10, 0.1, 1000)
    state = adaptive.start()
    adaptive.throttled(state, now=0.1, sent_at=0.0, pause=1.0)
    begin = 1.5
    now = drive(adaptive, state, 3.0, begin=begin)
    rate, admitted = state.rate, state.admitted
    adaptive.throttled(state, now, now - 0.01, pause=pause)
    average = admitted / (now + pause - state.opened_at)
    assert state.rate == pytest.approx(average**weight * rate ** (1 - weight))


def test_long_outages_reveal_the_limit() -> None:
    # 500 a minute in a window: they are used up within 12 s, and the server is closed for 48.
    adaptive = AdaptiveRate(42, 0.1, 42)
    state = adaptive.start()
    for minute in range(4):
        begin, rate = 60.0 * minute, state.rate
        for i in range(500):
            adaptive.succeeded(state, begin + i / rate + LATENCY, begin + i / rate)
        end = begin + 500 / rate + LATENCY
        adaptive.throttled(state, end, begin + 500 / rate, pause=begin + 60.0 - end)
    assert 500 / 60 * 0.9 <= state.rate <= 500 / 60 * 1.3


def test_rate_doubles_in_no_less_than_twenty_seconds() -> None:
    adaptive = AdaptiveRate(10, 0.1, 10_000)
    state = adaptive.start()
    now = drive(adaptive, state, 60, limit=10.0)
    rates = [state.rate]
    for _ in range(30):
        now = drive(adaptive, state, 10.0, begin=now)
        rates.append(state.rate)
    assert max(b / a for a, b in pairwise(rates)) == pytest.approx(2**0.5, rel=0.05)


# --- A rate that the server reports ---


def test_reported_rate_is_adopted_and_not_exceeded() -> None:
    adaptive = AdaptiveRate(100, 1, 1000)
    state = adaptive.start()
    adaptive.reported(state, 1.0, 20.0)
    assert state.rate == pytest.approx(19.4)
    drive(adaptive, state, 600, begin=1.0)
    assert state.rate == pytest.approx(19.4)


def test_rate_adapts_below_the_reported_one() -> None:
    adaptive = AdaptiveRate(100, 1, 1000)
    state = adaptive.start()
    adaptive.reported(state, 0.0, 20.0)
    now = 0.0
    for _ in range(600):
        now = drive(adaptive, state, 1.0, limit=15.0, begin=now)
        adaptive.reported(state, now, 20.0)  # as every response does
    assert 13 <= state.rate <= 15.5


def test_429_at_the_reported_rate_cuts_a_little() -> None:
    adaptive = AdaptiveRate(100, 1, 1000)
    state = adaptive.start()
    adaptive.reported(state, 0.0, 20.0)
    for i in range(20):
        adaptive.succeeded(state, 0.1 + i / 20, 0.05 + i / 20)
    adaptive.throttled(state, 1.2, 1.1, pause=1.0)
    assert state.rate == pytest.approx(0.97 * 19.4)


def test_reported_rate_stays_within_the_bounds() -> None:
    adaptive = AdaptiveRate(10, 2, 50)
    state = adaptive.start()
    adaptive.reported(state, 0.0, 1.0)
    assert state.rate == 2
    adaptive.reported(state, 1.0, 500.0)
    assert state.rate == 50


REPORTS = st.lists(
    st.tuples(
        st.floats(0, 100),
        st.floats(0, 10),
        st.one_of(st.none(), st.sampled_from([0.0, 1.0, 120.0, 1e9, 1e300])),
        st.floats(0, 1000),
    ),
    max_size=60,
)


@given(REPORTS)
def test_any_reports_keep_the_rate_within_its_bounds(
    reports: list[tuple[float, float, float | None, float]],
) -> None:
    adaptive = AdaptiveRate(10, 2, 50)
    state = adaptive.start()
    now = 0.0
    for gap, age, pause, cost in reports:
        now += gap
        if pause is None:
            adaptive.succeeded(state, now, now - age, cost)
        else:
            adaptive.throttled(state, now, now - age, pause)
        assert 2 <= state.rate <= 50


# --- The pace ---


def test_new_rate_moves_the_next_grant() -> None:
    pace = Pace(10.0, 100.0)
    state = pace.start()
    for _ in range(10):
        pace.take(state, 0.0, 1)
    assert pace.reset_after(state, 0.0) == pytest.approx(1.0)
    pace.follow(state, 0.5, 5.0)
    assert pace.reset_after(state, 0.5) == pytest.approx(1.0)
    pace.follow(state, 0.5, 50.0)
    assert pace.reset_after(state, 0.5) == pytest.approx(0.1)
    pace.follow(state, 2.0, 1.0)
    assert pace.reset_after(state, 2.0) == 0.0


def test_heavy_cost_is_taken_at_any_rate() -> None:
    pace = Pace(0.5, 100.0)
    assert pace.delay(pace.start(), 0.0, 60) == 0.0
    assert pace.delay(pace.start(), 0.0, 101) == math.inf


# --- The number of slots ---


def rounds(
    adaptive: AdaptiveConcurrency, count: int, took: Callable[[float], float]
) -> list[float]:
    """Answer rounds of requests; return the limit after each. `took` maps limit to seconds."""
    state = adaptive.start()
    now = 0.0
    limits: list[float] = []
    for _ in range(count):
        slots = int(state.limit)
        seconds = took(state.limit)
        for _ in range(slots):
            adaptive.succeeded(state, now + seconds, now, in_flight=slots)
        now += seconds + 0.001
        limits.append(state.limit)
    return limits


# The server works on 20 at once; further ones wait.


def test_slots_settle_where_the_server_begins_to_queue() -> None:
    adaptive = AdaptiveConcurrency(4, 1, 200, tolerance=1.5)
    limits = rounds(adaptive, 2000, lambda limit: 0.1 * max(1.0, limit / 20))
    assert all(18 <= limit <= 34 for limit in limits[50:])


def test_gradient2_holds_back_for_some_hundred_rounds() -> None:
    adaptive = AdaptiveConcurrency(4, 1, 200, controller="gradient2", tolerance=1.5)
    limits = rounds(adaptive, 200, lambda limit: 0.1 * max(1.0, limit / 20))
    assert all(20 <= limit <= 60 for limit in limits[30:])


def test_slots_less_than_half_used_do_not_grow() -> None:
    adaptive = AdaptiveConcurrency(10, 1, 100)
    state = adaptive.start()
    for i in range(1000):
        adaptive.succeeded(state, i + 0.1, float(i), in_flight=4)
    assert state.limit == 10


def answer_round(adaptive: AdaptiveConcurrency, state: SlotsState, now: float) -> float:
    """Answer a round within 0.1 s; return the time after it."""
    for _ in range(max(10, int(state.limit))):
        adaptive.succeeded(state, now + 0.2, now + 0.1, in_flight=int(state.limit))
    return now + 0.2


def test_many_429s_of_one_event_take_slots_once() -> None:
    adaptive = AdaptiveConcurrency(10, 1, 100)
    state = adaptive.start()
    for sent_at in (0.1, 0.2, 0.3):
        adaptive.throttled(state, now=1.0, sent_at=sent_at)
    assert state.limit == 5.0
    adaptive.throttled(state, now=2.0, sent_at=1.5)
    assert state.limit == 2.5


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


def test_throttled_again_at_once_halves_the_limit() -> None:
    adaptive = AdaptiveConcurrency(8, 1, 100)
    state = adaptive.start()
    now = answer_round(adaptive, state, 0.0)
    adaptive.throttled(state, now + 0.2, now + 0.1)
    adaptive.throttled(state, now + 0.4, now + 0.3)
    assert state.limit == 4


def test_failures_are_no_fast_successes() -> None:
    adaptive = AdaptiveConcurrency(8, 1, 100)
    state = adaptive.start()
    now = 0.0
    for _ in range(200):
        for _ in range(3):
            adaptive.failed(state, now + 0.101, now + 0.1)
        now = answer_round(adaptive, state, now)
    assert state.limit == 100


def test_round_of_failures_counts_as_throttled() -> None:
    adaptive = AdaptiveConcurrency(8, 1, 100)
    state = adaptive.start()
    now = answer_round(adaptive, state, 0.0)
    assert state.limit == 9
    for _ in range(10):
        adaptive.failed(state, now + 0.2, now + 0.1)
    assert state.limit == 8


def test_answers_of_two_kinds_do_not_hold_slots_at_one() -> None:
    chance = random.Random(0)
    adaptive = AdaptiveConcurrency(1, 1, 32)
    state = adaptive.start()
    limits: list[float] = []
    for i in range(20_000):
        seconds = 0.005 if chance.random() < 0.5 else 0.2
        adaptive.succeeded(state, i + 1.0, i + 1.0 - seconds, in_flight=int(state.limit))
        limits.append(state.limit)
    assert min(limits[1000:]) >= 8


@given(
    st.sampled_from(["aimd", "gradient2"]),
    st.lists(
        st.tuples(
            st.floats(0, 10),
            st.floats(0, 1e6),
            st.integers(1, 50),
            st.sampled_from([False, True, None]),
        )
    ),
)
def test_any_reports_keep_the_slots_within_their_bounds(
    controller: Controller, reports: list[tuple[float, float, int, bool | None]]
) -> None:
    adaptive = AdaptiveConcurrency(5, 2, 9, controller=controller)
    state = adaptive.start()
    now = 0.0
    for gap, age, in_flight, throttled in reports:
        now += gap
        if throttled is None:
            adaptive.failed(state, now, now - age)
        elif throttled:
            adaptive.throttled(state, now, now - age)
        else:
            adaptive.succeeded(state, now, now - age, in_flight)
        assert 2 <= state.limit <= 9


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((0, 0, 1), ValueError),
        ((1, 2, 3), ValueError),
        ((4, 1, 3), ValueError),
        ((1.0, 1, 3), TypeError),
        ((True, 1, 3), TypeError),
        ((2, 1, 3, "vegas"), ValueError),
        ((2, 1, 3, "aimd", 1.0), ValueError),
        ((2, 1, 3, "aimd", math.nan), ValueError),
        ((2, 1, 3, "aimd", "2"), TypeError),
    ],
)
def test_slots_begin_between_their_bounds(
    arguments: tuple[int, int, int], error: type[Exception]
) -> None:
    with pytest.raises(error):
        AdaptiveConcurrency(*arguments)


# --- The guard ---


def test_guard_covers_the_jitter_up_to_a_tenth() -> None:
    guard = SelfTuningGuard(period=1.0)
    for i in range(100):
        guard.observe(0.1 + (i % 10) / 1000)
    assert 0.009 <= guard.seconds <= 0.011
    guard.observe(5.0)
    assert 1.0 / (1.0 + guard.seconds) == pytest.approx(0.9)


def test_guard_grows_to_a_quarter_in_two_steps() -> None:
    guard = SelfTuningGuard(period=2.0)
    guard.observe(0.1)
    guard.observe(5.0)
    assert guard.space(1.0, 1)
    assert guard.seconds == pytest.approx(1 / 3)
    assert guard.space(1.0, 2)
    assert guard.seconds == 0.5
    assert guard.space(1.0, 0)
    assert guard.seconds == pytest.approx(2 / 9)


def test_widened_guard_exceeds_the_measured_jitter() -> None:
    guard = SelfTuningGuard(period=1.0)
    assert guard.space(1.0, 1)  # nothing is measured yet
    assert guard.seconds == pytest.approx(1 / 9)
    guard.observe(0.1)
    guard.observe(0.11)
    assert guard.seconds == pytest.approx(1 / 9)
    guard.space(1.0, 2)
    assert guard.seconds == pytest.approx(1 / 6)


def test_guard_is_within_a_second_until_widened() -> None:
    guard = SelfTuningGuard(period=60.0)
    guard.observe(0.1)
    guard.observe(5.1)
    assert guard.seconds == 1.0
    guard.space(1.0, 2)
    assert guard.seconds == 2.25


def test_guard_of_even_spacing_covers_each_interval() -> None:
    guard = SelfTuningGuard(period=1.0)
    for i in range(100):
        guard.observe(0.1 + (i % 10) / 1e4)
    assert guard.seconds == pytest.approx(0.001)
    assert guard.space(20.0, 0)
    assert guard.seconds == pytest.approx(0.019)
    assert guard.space(1.0, 0)
    assert guard.seconds == pytest.approx(0.001)
    long = SelfTuningGuard(period=3600.0)  # a second in each interval, not in each period
    for seconds in (0.1, 0.3):
        long.observe(seconds)
    long.space(100.0, 0)
    assert long.seconds == pytest.approx(50.4)


def test_guard_begins_long_until_two_are_measured() -> None:
    guard = SelfTuningGuard(period=1.0)
    guard.begin_long()
    assert guard.seconds == 0.25
    assert not guard.observe(0.1)
    assert guard.observe(0.101)
    assert guard.seconds < 0.01


def test_guard_shrinks_with_more_measurements() -> None:
    guard = SelfTuningGuard(period=1.0)
    guard.observe(0.10)
    guard.observe(0.11)
    assert guard.seconds == pytest.approx(0.01 * (1 + 3 / 2))
    for _ in range(62):
        guard.observe(0.105)
    assert 0.0105 <= guard.seconds <= 0.012


def test_guard_is_a_multiple_of_a_thousandth_period() -> None:
    guard = SelfTuningGuard(period=2.0)
    guard.observe(0.1)
    changes = sum(guard.observe(0.1 + i / 1e5) for i in range(400))
    assert guard.seconds == pytest.approx(0.006)
    assert changes <= 4


def test_guard_forgets_past_jitter() -> None:
    guard = SelfTuningGuard(period=1.0)
    guard.observe(0.1)
    guard.observe(0.2)
    changes = sum(guard.observe(0.1) for _ in range(1500))
    assert guard.seconds == 0.0
    assert changes < 40


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200), st.integers(1, 20))
def test_extremes_cover_the_latest_values(values: list[float], size: int) -> None:
    extremes = Extremes(size)
    for value in values:
        before = (extremes.least, extremes.greatest)
        if not extremes.add(value):
            assert (extremes.least, extremes.greatest) == before
    assert extremes.least <= min(values[-size:])
    assert extremes.greatest >= max(values[-size:])
    assert extremes.least >= min(values[-2 * size :])
    assert extremes.greatest <= max(values[-2 * size :])


# --- Adaptive throttling ---


def test_accepted_requests_are_never_rejected_here() -> None:
    throttling = AdaptiveThrottling()
    state = throttling.start()
    for i in range(1000):
        throttling.request(state, i / 10)
        throttling.accepted(state, i / 10)
        assert throttling.rejected_share(state, i / 10) == 0.0


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


@pytest.mark.parametrize(
    ("arguments", "error"),
    [((0.5,), ValueError), ((math.inf,), ValueError), ((2, 0), ValueError), (("2",), TypeError)],
)
def test_throttling_rejects_bad_arguments(
    arguments: tuple[float, ...], error: type[Exception]
) -> None:
    with pytest.raises(error):
        AdaptiveThrottling(*arguments)

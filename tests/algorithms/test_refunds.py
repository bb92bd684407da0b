"""Specifies refunds: they leave the level that a replay with the settled costs would."""

import asyncio
import copy
import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiothrottle import (
    FixedWindow,
    LeakyBucket,
    RateLimiter,
    SlidingWindowCounter,
    SlidingWindowLog,
    TokenBucket,
    WaitUntil,
)
from aiothrottle.algorithms import Algorithm, AllOf, Unlimited
from aiothrottle.algorithms.level import Pace
from tests.algorithms.asking import refund, used
from tests.support.effort import examples
from tests.support.virtually import turns, virtual

Taken: TypeAlias = list[tuple[float, float]]  # (now, cost)
FIVE, HALVES = SlidingWindowLog("5/s"), SlidingWindowCounter("5/s", buckets=2)

# What no search below refunds: algorithm, taken, (now, cost, at) refunded, and what it is like.
REFUNDS: list[tuple[Algorithm[Any], Taken, tuple[float, float, float], Taken]] = [
    # never more than was taken there
    (FIVE, [(0, 1), (0.5, 2)], (0.75, 99, 0.5), [(0, 1)]),
    (FIVE, [(0, 1), (0.5, 2)], (0.75, 1, 0.25), [(0, 1), (0.5, 2)]),
    (TokenBucket("4/s"), [(0, 1)], (0, 99, 0), [(-0.25, 1)]),
    (FixedWindow("5/s"), [(0.25, 1)], (0.75, 9, 0.25), [(0.25, 0)]),
    (HALVES, [(0.25, 1), (0.5, 2)], (0.75, 9, 0.5), [(0.25, 1)]),
    # its window is over
    (FIVE, [(0, 1), (0.5, 2)], (1, 1, 0), [(0, 1), (0.5, 2)]),
    (FixedWindow("5/s"), [(0.25, 1)], (1, 1, 1), [(0.25, 1)]),
    (HALVES, [(0.25, 1)], (1, 1, 1), [(0.25, 1)]),
    (TokenBucket("4/s"), [(0, 1)], (9, 1, 0), [(0, 1)]),
    # reserved for later: each is refunded
    (TokenBucket("4/s"), [(0, 4), (0.25, 1), (0.5, 1)], (0, 1, 0.25), [(0, 4), (0.5, 1)]),
    (TokenBucket("4/s"), [(0, 1), (0.25, 1)], (0, 99, 0.25), [(0, 1)]),
    # the reserved time has moved on
    (WaitUntil(1, 5, 10), [(0, 1), (0.5, 1)], (0.6, 1, 0), [(0, 1), (0.5, 1)]),
    (Unlimited(), [(0, 2)], (0, 1, 0), []),
]


@pytest.mark.parametrize(("algorithm", "taken", "back", "like"), REFUNDS)
def test_refund_leaves_what_was_not_refunded(
    algorithm: Algorithm[Any], taken: Taken, back: tuple[float, float, float], like: Taken
) -> None:
    state, expected = algorithm.start(), algorithm.start()
    for at, cost in taken:
        algorithm.take(state, at, cost)
    for at, cost in like:
        algorithm.take(expected, at, cost)
    now, cost, at = back
    refund(algorithm, state, now, cost, at)

    def answers(of: object, now: float) -> list[float]:
        costs = (part * min(algorithm.capacity, 9) for part in (0.1, 0.6, 1))
        return [
            algorithm.remaining(of, now),
            algorithm.reset_after(of, now),
            *(algorithm.delay(of, now, cost) for cost in costs),
        ]

    for later in (now, now + 0.2, now + 0.9):
        assert answers(state, later) == pytest.approx(answers(expected, later))


# ---- a level, replayed ---------------------------------------------------------------------------


@dataclass
class Charge:
    """The cost of a grant at `at`, as settled by now."""

    at: float
    cost: float


def replayed(charges: list[Charge], now: float, rate: float) -> float:
    """Return the tokens in a bucket that drains, had the charges been so from the beginning."""
    level, at = 0.0, -math.inf
    for charge in charges:
        level = max(0.0, level - (charge.at - at) * rate) + charge.cost
        at = charge.at
    return max(0.0, level - (now - at) * rate)


# (wait in seconds, cost, then the charge that is settled, and by which part)
Life: TypeAlias = list[tuple[float, float, list[tuple[int, float]]]]
LIVES: st.SearchStrategy[Life] = st.lists(
    st.tuples(
        st.one_of(st.sampled_from([0.0, 0.25, 1.0]), st.floats(0, 3)),
        st.one_of(st.sampled_from([0.0, 1.0, 3.0]), st.floats(0, 8)),
        st.lists(st.tuples(st.integers(0, 40), st.sampled_from([0.25, 0.5, 1.0])), max_size=3),
    ),
    max_size=25,
)


@pytest.mark.parametrize(
    ("algorithm", "rate"),
    [
        (TokenBucket("2/s", burst=10), 2.0), (TokenBucket("3/7s", burst=4), 3 / 7),
        (LeakyBucket("2/s"), 2.0), (Pace(2.0, 10.0), 2.0),
    ],
    ids=str,
)  # fmt: skip
@examples(80)
@given(start=st.sampled_from([0.0, 1e6 + 0.1]), life=LIVES)
def test_level_equals_a_replay_with_settled_costs(
    algorithm: Algorithm[Any], rate: float, start: float, life: Life
) -> None:
    """With one charge outstanding or many, settled in any order, in parts or all at once."""
    state, now, charges = algorithm.start(), start, list[Charge]()
    unsure = 1e-7 if start else 1e-8
    for wait, cost, settled in life:
        now += wait
        if cost:
            algorithm.take(state, now, cost)
            charges.append(Charge(now, cost))
        for which, part in settled:
            if charges:
                charge = charges[which % len(charges)]
                back = charge.cost * part
                refund(algorithm, state, now, back, charge.at)
                charge.cost -= back
        level = replayed(charges, now, rate)
        assert algorithm.reset_after(state, now) * rate == pytest.approx(level, abs=unsure)


@examples(80)
@given(life=LIVES, back=st.lists(st.floats(0, 2), min_size=25, max_size=25))
def test_clock_that_steps_back_refunds_not_too_much(life: Life, back: list[float]) -> None:
    for algorithm in (TokenBucket("2/s", burst=10), WaitUntil(0.5, 100, 100)):
        state, now, charges, asked = algorithm.start(), 50.0, list[Charge](), list[float]()
        latest = now
        for (wait, cost, settled), step in zip(life, back, strict=False):
            now += wait - step
            latest = max(latest, now)
            if cost:
                algorithm.take(state, now, cost)
                charges.append(Charge(max([now] + [charge.at for charge in charges]), cost))
                asked.append(now)
            for which, part in settled:
                if charges:
                    place = which % len(charges)
                    amount = charges[place].cost * part
                    refund(algorithm, state, now, amount, asked[place])
                    charges[place].cost -= amount
            assert used(algorithm, state, latest) >= replayed(charges, latest, 2.0) - 1e-9


@pytest.mark.parametrize(("burst", "gap"), [(500, 0.3), (20_000, 0.0001), (20_000, 0.999)])
def test_many_charges_get_nearly_full_refunds(burst: int, gap: float) -> None:
    """More than 64 rising levels are not kept: close ones are merged."""
    algorithm = TokenBucket("1/s", burst=burst)
    state, charges, now = algorithm.start(), list[Charge](), 0.0
    for _ in range(400):
        algorithm.take(state, now, 30.0)
        charges.append(Charge(now, 30.0))
        now += gap
    algorithm.take_each(state, [now + gap * place for place in range(300)])
    charges += [Charge(now + gap * place, 1.0) for place in range(300)]
    now += 300 * gap
    highest = algorithm.used(state, now)
    assert len(algorithm.dump(state)) <= 25 + 64 * 16
    for charge in charges[::29]:  # each alone
        alone = copy.deepcopy(state)
        algorithm.refund(alone, now, charge.cost, charge.at)
        others = [other for other in charges if other is not charge]
        level = replayed(others, now, 1.0)
        assert level - 1e-9 <= algorithm.used(alone, now) <= level + highest / 32
    for charge in charges[::7]:  # one after the other
        algorithm.refund(state, now, charge.cost / 2, charge.at)
        charge.cost /= 2
        level = replayed(charges, now, 1.0)
        assert level - 1e-9 <= algorithm.used(state, now) <= level + highest / 16


def test_batch_keeps_the_refundable_levels_of_single_takes() -> None:
    algorithm = TokenBucket("100/s", burst=1000)
    for gap in (0.0, 0.001, 0.0101, 0.02):
        timestamps = [5.0 + place * gap for place in range(300)]
        timestamps[100:110] = [4.0] * 10  # a clock that steps back
        many, single = algorithm.start(), algorithm.start()
        for first in range(0, 300, 50):
            algorithm.take_each(many, timestamps[first : first + 50])
        for timestamp in timestamps:
            algorithm.take(single, timestamp, 1.0)
        assert many == single


# ---- reservations --------------------------------------------------------------------------------


def test_refunded_reservation_moves_no_later_one() -> None:
    bucket = TokenBucket("1/s", burst=1)
    algorithms: list[Algorithm[Any]] = [bucket, WaitUntil(1, 10, 10), AllOf(bucket)]
    for algorithm in algorithms:
        state = algorithm.start()
        for at in (0.0, 1.0, 2.0):
            algorithm.take(state, at, 1)
        refund(algorithm, state, 0.5, 1, 0.0)
        refund(algorithm, state, 0.5, 1, 1.0)
        assert algorithm.delay(state, 2.0, 1) == 1.0
        refund(algorithm, state, 0.5, 1, 2.0)
        assert algorithm.delay(state, 2.0, 1) == 0.0


def test_reservations_refunded_in_reverse_leave_no_trace() -> None:
    for algorithm in (TokenBucket("10/s", burst=1), WaitUntil(0.1, 10, 10)):
        state = algorithm.start()
        for place in range(6):
            algorithm.take(state, place / 10, 1)
        for place in (5, 4, 3):
            algorithm.refund(state, 0.0, 1, place / 10)
        assert algorithm.reset_after(state, 0.0) == pytest.approx(0.3)
        algorithm.refund(state, 0.0, 1, 0.1)  # there is a reservation behind it
        assert algorithm.reset_after(state, 0.0) == pytest.approx(0.3)


# ---- through a limiter ---------------------------------------------------------------------------


@virtual
async def test_new_rate_keeps_refundable_levels() -> None:
    limiter = RateLimiter("100/10s", algorithm=TokenBucket)
    await limiter.acquire(50)
    slow = await limiter.acquire(40)
    await asyncio.sleep(1)
    limiter.update(rate_limit="100/5s")
    await asyncio.sleep(1)
    slow.settle(0)
    await turns()
    assert (await limiter.peek()).remaining == pytest.approx(100 - 50 + 10 + 20)

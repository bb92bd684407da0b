"""Specifies the waits behind a queue, what a batch may take, and `WaitUntil`, which rejects."""

import itertools
import math
from collections import deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiothrottle import (
    Cooldown,
    FixedWindow,
    LeakyBucket,
    SlidingWindowCounter,
    SlidingWindowLog,
    TokenBucket,
    WaitUntil,
)
from aiothrottle.algorithms import Algorithm, AllOf, Unlimited
from tests.algorithms.asking import allowance, cost_of_reject, delay_behind, take_each
from tests.support.asking import admit
from tests.support.effort import examples


@pytest.mark.parametrize("kind", [SlidingWindowLog, FixedWindow, TokenBucket])
def test_rounding_of_the_costs_ahead_delays_nothing(kind: Any) -> None:
    algorithm = kind("3/s")
    assert 2.2 + 0.2 + 0.6 > 3.0
    assert delay_behind(algorithm, algorithm.start(), 0.0, 0.6, 2.2 + 0.2) == 0.0
    # As much as the rounding itself, but for the last bits.
    for tokens in (1e-9, (1.0 + 1e-9) - 1.0):
        assert delay_behind(kind("1/s"), kind("1/s").start(), 0.0, 1, tokens) == 0.0


@pytest.mark.parametrize(
    "algorithm",
    [
        SlidingWindowLog("3/s"), TokenBucket("4/s", burst=2), LeakyBucket("4/s"),
        LeakyBucket("1000/s"), FixedWindow("3/s"), SlidingWindowCounter("3/s", buckets=2),
        Cooldown(3, 60), WaitUntil(1, 5, 10), Unlimited(),
        AllOf(SlidingWindowLog("3/s"), LeakyBucket("4/s")),
    ],
    ids=repr,
)  # fmt: skip
@examples(25)
@given(
    start=st.sampled_from([0.0, 0.1, 0.9]),
    gaps=st.lists(st.sampled_from([0.0, 0.1, 0.3, 1.1]), max_size=8),
    ahead=st.integers(0, 12),
)
def test_predicted_wait_behind_others_is_exact(
    algorithm: Algorithm[Any], start: float, gaps: list[float], ahead: int
) -> None:
    state, now = algorithm.start(), start
    for gap in gaps:
        now += gap
        admit(algorithm, state, now, 1)
    predicted = now + delay_behind(algorithm, state, now, 1, ahead)
    for _ in range(ahead):
        now += algorithm.delay(state, now, 1)
        algorithm.take(state, now, 1)
    now += algorithm.delay(state, now, 1)
    if isinstance(algorithm, AllOf):
        assert predicted <= now + 1e-6
    else:
        assert predicted == pytest.approx(now, abs=1e-6)


# ---- batches: the oracle tests that an allowance holds, and here that it is all that fits --------


@pytest.mark.parametrize(
    "algorithm",
    [
        SlidingWindowLog("5/s"), TokenBucket("5/s"), FixedWindow("5/s"),
        SlidingWindowCounter("5/s"), Cooldown(5, 1),
        AllOf(SlidingWindowLog("5/s"), TokenBucket("9/s")),
    ],
    ids=repr,
)  # fmt: skip
def test_allowance_is_all_that_fits(algorithm: Algorithm[Any]) -> None:
    state = algorithm.start()
    assert [allowance(algorithm, state, 10.0, most) for most in (3, 99)] == [3, 5]
    take_each(algorithm, state, [10.0, 10.25])
    assert allowance(algorithm, state, 10.25, 99) in {3, 4}
    take_each(algorithm, state, [10.25] * 3)
    assert allowance(algorithm, state, 10.25, 99) <= 1
    assert allowance(algorithm, state, 12.0, 99) == 5


def test_leaky_bucket_allows_two_milliseconds_early() -> None:
    bucket = LeakyBucket("100/s")
    state = bucket.start()
    bucket.take(state, 100.0, 1)
    assert [bucket.allowance(state, now, 9) for now in (100.0, 100.009)] == [0, 1]
    fast = LeakyBucket("1000/s")
    assert fast.allowance(fast.start(), 100.0, 9) == 3
    assert Unlimited().allowance(None, 0.0, 9) == 9


# ---- rejections ----------------------------------------------------------------------------------


def test_rounding_of_a_wait_rejects_nothing() -> None:
    algorithm = WaitUntil(0.1, raise_after=0.5, limit=2)
    waits = list[float]()
    for place in range(50):
        state, now = algorithm.start(), place * 0.1
        algorithm.take(state, now, 1)
        waits.append(algorithm.delay_behind(state, now + 0.1, 1, 5))
    assert waits == pytest.approx([0.5] * 50)
    assert max(waits) > 0.5
    assert all(wait <= algorithm.max_wait for wait in waits)


def test_all_of_combines_the_rejections_of_its_parts() -> None:
    both = AllOf(SlidingWindowLog("10/s"), WaitUntil(1, 5, 10), WaitUntil(1, 6, 10))
    assert both.max_wait == pytest.approx(5)
    assert cost_of_reject(both, both.start(), 0.0, 2, 0.0) == 2
    assert cost_of_reject(both, both.start(), 0.0, 20, 0.0) == 10  # nobody is ahead
    assert cost_of_reject(both, both.start(), 0.0, 20, 4.0) == 6
    one = AllOf(SlidingWindowLog("10/s"))
    assert one.max_wait == math.inf
    assert cost_of_reject(one, one.start(), 0.0, 2, 0.0) == 0.0


class Classic:
    """Wait until, as originally written: each hit sleeps for the wait that it gets."""

    def __init__(self, algorithm: WaitUntil) -> None:
        self.algorithm, self.free_at = algorithm, -math.inf

    def hit(self, now: float) -> float:
        """Return the instant at which the hit starts, infinity if it is rejected."""
        wait = max(0.0, self.free_at - now)
        interval = self.algorithm.interval
        self.free_at = min(max(self.free_at + interval, now + interval), now + self.algorithm.limit)
        return now + wait if wait <= self.algorithm.raise_after else math.inf


class Queued:
    """The same with a queue: tokens are taken at the start, rejected ones stay in the queue."""

    def __init__(self, algorithm: WaitUntil) -> None:
        self.algorithm, self.state = algorithm, algorithm.start()
        self.queue: deque[tuple[int, float]] = deque()  # name (-1: rejected), cost
        self.starts: dict[int, float] = {}

    def serve(self, now: float, then: float) -> None:
        while self.queue:
            name, cost = self.queue[0]
            now += self.algorithm.delay(self.state, now, cost)
            if now > then:
                return
            self.queue.popleft()
            self.algorithm.take(self.state, now, cost)
            if name >= 0:
                self.starts[name] = now

    def hit(self, name: int, now: float) -> None:
        ahead = sum(cost for _, cost in self.queue)
        wait = self.algorithm.delay_behind(self.state, now, 1, ahead)
        if wait <= self.algorithm.max_wait:
            self.queue.append((name, 1))
        else:
            self.starts[name] = math.inf
            rejected_cost = self.algorithm.cost_of_reject(self.state, now, 1, ahead)
            if rejected_cost:
                self.queue.append((-1, rejected_cost))


@examples(100)
@given(
    waits=st.lists(st.integers(0, 6).map(lambda n: max(0, n - 3) * 0.25), max_size=60),
    raise_after=st.integers(0, 6),
    more=st.integers(0, 20).map(lambda n: n * 0.25),
)
def test_queue_starts_requests_when_the_original_would(
    waits: list[float], raise_after: int, more: float
) -> None:
    algorithm = WaitUntil(1, raise_after, raise_after + 1 + more)
    classic, queued = Classic(algorithm), Queued(algorithm)
    times = list(itertools.accumulate(waits, initial=0.0))
    expected = list[float]()
    for name, (before, now) in enumerate(itertools.pairwise(times)):
        queued.serve(before, now)
        expected.append(classic.hit(now))
        queued.hit(name, now)
    queued.serve(times[-1], math.inf)
    assert [queued.starts[name] for name in range(len(waits))] == expected

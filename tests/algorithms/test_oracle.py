"""Each algorithm against a brute-force oracle: the list of all grants, summed anew.

The oracle knows only the promise of the algorithm. It returns the tokens that would remain if a
cost were granted now; algorithm and oracle have to agree on that at every instant of a test.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,  # pyright: ignore[reportUnknownVariableType]
)

from aiothrottle.algorithms import (
    Algorithm,
    AllOf,
    Cooldown,
    FixedWindow,
    LeakyBucket,
    SlidingWindowCounter,
    SlidingWindowLog,
    TokenBucket,
    WaitUntil,
)
from aiothrottle.rate import Rate
from tests.asking import admit, dump, load, refund


@dataclass
class Grant:
    """A grant at the time `at` of a clock that stood still when the caller's stepped back.

    A grant whose cost was refunded stays in the list, because its time still counts.
    """

    asked_at: float
    at: float
    cost: float


Oracle: TypeAlias = Callable[
    [Sequence[Grant], float, float], float
]  # grants, now, cost -> remaining


def rolling(limit: float, period: float) -> Oracle:
    def remaining(grants: Sequence[Grant], now: float, cost: float) -> float:
        seen = max([now] + [g.at for g in grants])
        return limit - cost - math.fsum(g.cost for g in grants if g.at + period > seen)

    return remaining


def fixed(limit: float, period: float, buckets: int = 1) -> Oracle:
    """N in the last so many stretches of the calendar; a single stretch is a fixed window."""
    width = period / buckets

    def remaining(grants: Sequence[Grant], now: float, cost: float) -> float:
        stretch = max([math.floor(g.at / width) for g in grants] + [math.floor(now / width)])
        counted = [g.cost for g in grants if math.floor(g.at / width) > stretch - buckets]
        return limit - cost - math.fsum(counted)

    return remaining


def bucket(burst: float, rate: float) -> Oracle:
    """At most `burst + rate * t` in any t, whenever it begins."""

    def remaining(grants: Sequence[Grant], now: float, cost: float) -> float:
        least, taken = burst - cost, cost
        for grant in reversed(grants):
            taken += grant.cost
            if grant.cost:
                least = min(least, burst + rate * (now - grant.at) - taken)
        return least

    return remaining


def paced(rate: float, tolerance: float) -> Oracle:
    """At most `rate * (t + tolerance)` in any t, but for the last."""

    def remaining(grants: Sequence[Grant], now: float, _: float) -> float:
        least, taken = math.inf, 0.0
        for grant in reversed(grants):
            taken += grant.cost
            if grant.cost:
                least = min(least, rate * (now - grant.at + tolerance) - taken)
        return least

    return remaining


def all_of(*oracles: Oracle) -> Oracle:
    return lambda grants, now, cost: min(remaining(grants, now, cost) for remaining in oracles)


@dataclass(frozen=True)
class Subject:
    """An algorithm, a time that is long for it, and its oracle.

    With `remembers`, the algorithm keeps its whole history, so a refund is exact on any clock.
    Otherwise it is exact on a clock that does not step back, or, without `replays`, at most what
    is surely right.
    """

    algorithm: Algorithm[Any]
    period: float
    remaining: Oracle
    remembers: bool = True
    replays: bool = True
    owes: bool = True

    def __str__(self) -> str:
        return repr(self.algorithm)


SUBJECTS = [
    Subject(SlidingWindowLog("5/s"), 1, rolling(5, 1)),
    Subject(SlidingWindowLog(Rate(2.5, 0.7)), 0.7, rolling(2.5, 0.7)),
    Subject(SlidingWindowLog("0.5/s"), 2, rolling(1, 2)),
    Subject(TokenBucket("5/s"), 1, bucket(5, 5), remembers=False),
    Subject(TokenBucket("5/s", burst=1), 1, bucket(1, 5), remembers=False),
    Subject(TokenBucket(Rate(3, 0.7), burst=2.5), 0.7, bucket(2.5, 3 / 0.7), remembers=False),
    Subject(LeakyBucket("5/s"), 1, paced(5, 0.002), remembers=False),
    Subject(LeakyBucket("2000/s"), 0.01, paced(2000, 0.002), remembers=False),
    Subject(FixedWindow("5/s"), 1, fixed(5, 1)),
    Subject(FixedWindow(Rate(2.5, 0.7)), 0.7, fixed(2.5, 0.7)),
    Subject(SlidingWindowCounter("5/s", buckets=4), 1, fixed(5, 1, 4)),
    Subject(SlidingWindowCounter(Rate(2.5, 0.7)), 0.7, fixed(2.5, 0.7, 10)),
    Subject(SlidingWindowCounter("5/s", buckets=1), 1, fixed(5, 1)),
    Subject(WaitUntil(0.5, 3, 10), 1, paced(2, 0), remembers=False, replays=False, owes=False),
    Subject(Cooldown(3, 60), 60, bucket(3, 3 / 60), remembers=False),
    Subject(Cooldown(7, 1), 1, bucket(7, 7), remembers=False),
    Subject(
        AllOf(SlidingWindowLog("5/s"), FixedWindow(Rate(7, 2)), SlidingWindowCounter(Rate(12, 4))),
        1,
        all_of(rolling(5, 1), fixed(7, 2), fixed(12, 4, 10)),
    ),
    Subject(
        AllOf(SlidingWindowLog("5/s"), TokenBucket("5/s", burst=2)),
        1,
        all_of(rolling(5, 1), bucket(2, 5)),
        remembers=False,
    ),
]

COSTS = st.one_of(
    st.integers(0, 4).map(float), st.sampled_from([0.1, 1 / 3, 0.5, 2.5]), st.floats(0.01, 5)
)
WAITS = st.one_of(st.sampled_from([0.0, 0.05, 0.1, 0.25, 1 / 3, 0.5, 1.0, 2.0]), st.floats(0, 1.5))


class History(RuleBasedStateMachine):
    """Hits, debts, refunds and dumps, in any order, on a clock that may step back."""

    def __init__(self, subject: Subject) -> None:
        super().__init__()
        self.subject = subject
        self.algorithm = subject.algorithm
        self.state = self.algorithm.start()
        self.grants: list[Grant] = []
        self.now = 0.0
        self.exact = True  # the algorithm knows as much as the oracle
        self.steady = True  # the clock has not stepped back

    @initialize(start=st.sampled_from([0.0, 0.1, 1e6 + 0.1]))
    def begin(self, start: float) -> None:
        self.now = start

    @rule(periods=WAITS)
    def wait(self, periods: float) -> None:
        self.now += periods * self.subject.period

    @precondition(lambda self: self.subject.remembers or self.exact)
    @rule(periods=st.sampled_from([0.1, 0.5, 1.0, 3.0]))
    def step_back(self, periods: float) -> None:
        self.now -= periods * self.subject.period
        self.steady = False

    @rule(cost=COSTS)
    def hit(self, cost: float) -> None:
        fits = self.admits(cost, self.now)
        before = dump(self.algorithm, self.state)
        granted = admit(self.algorithm, self.state, self.now, cost)
        assert granted == fits
        if granted:
            self.note(cost)
        else:
            assert dump(self.algorithm, self.state) == before

    @rule(cost=COSTS)
    def hit_when_it_fits(self, cost: float) -> None:
        delay = self.algorithm.delay(self.state, self.now, cost)
        assert (delay == math.inf) == (cost > self.algorithm.capacity)
        if delay == math.inf:
            return
        hair = 1e-4 * self.subject.period
        if delay > 2 * hair:
            assert not self.admits(cost, self.now + delay - hair)
        self.now += delay
        assert self.admits(cost, self.now)
        assert admit(self.algorithm, self.state, self.now, cost)
        self.note(cost)

    @precondition(lambda self: self.subject.owes)
    @rule(cost=COSTS)
    def record(self, cost: float) -> None:
        self.algorithm.take(self.state, self.now, cost)
        self.note(cost)

    @precondition(lambda self: self.grants and (self.subject.remembers or self.steady))
    @rule(data=st.data(), part=st.sampled_from([0.25, 0.5, 1.0, 1.0]))
    def refund(self, data: st.DataObject, part: float) -> None:
        last = len(self.grants) - 1
        grant = self.grants[last - data.draw(st.integers(0, last))]
        cost = grant.cost * part
        if not cost:
            return
        refund(self.algorithm, self.state, self.now, cost, grant.asked_at)
        grant.cost -= cost
        if not self.subject.replays or grant.asked_at != grant.at:
            self.exact = False

    @rule()
    def dump_and_load(self) -> None:
        loaded = load(self.algorithm, dump(self.algorithm, self.state))
        assert loaded == self.state
        self.state = loaded

    def admits(self, cost: float, now: float) -> bool:
        """Compare the algorithm with the oracle; on the edge, rounding decides."""
        fits = self.algorithm.delay(self.state, now, cost) == 0.0
        remaining = self.subject.remaining(self.grants, now, cost)
        unsure = 1e-5 if now > 1e5 else 1e-6
        if cost == 0:
            assert fits
        elif fits:
            assert remaining >= -unsure
            assert cost <= self.algorithm.capacity
        elif self.exact:
            assert remaining <= unsure or cost > self.algorithm.capacity
        return fits

    def note(self, cost: float) -> None:
        if cost:
            latest = max([self.now] + [grant.at for grant in self.grants])
            self.grants.append(Grant(self.now, latest, cost))


@pytest.mark.parametrize("subject", SUBJECTS, ids=str)
def test_algorithm_agrees_with_the_list_of_grants(subject: Subject) -> None:
    class OfSubject(History):
        def __init__(self) -> None:
            super().__init__(subject)

    run_state_machine_as_test(OfSubject, settings=settings(max_examples=30, stateful_step_count=30))

"""Each algorithm against a brute-force oracle: the list of all grants, summed anew.

The oracle knows only the promise of the algorithm. It returns the tokens that would remain if a
cost were granted now; algorithm and oracle have to agree on that at every instant of a test.
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeAlias

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,  # pyright: ignore[reportUnknownVariableType]
)

from aiothrottle import (
    Cooldown,
    FixedWindow,
    LeakyBucket,
    Rate,
    SlidingWindowCounter,
    SlidingWindowLog,
    TokenBucket,
    WaitUntil,
)
from aiothrottle.algorithms import Algorithm, AllOf
from tests.algorithms.asking import allowance, delay_behind, dump, load, refund, take_each, used
from tests.support.asking import admit
from tests.support.effort import examples


@dataclass
class Grant:
    """A grant at the time `at` of a clock that stood still when the caller's stepped back.

    A grant whose cost was refunded stays in the list, because its time still counts.
    """

    asked_at: float
    at: float
    cost: float


# Returns what remains: grants, now, cost.
Oracle: TypeAlias = Callable[[Sequence[Grant], float, float], float]


def rolling(limit: float, period: float) -> Oracle:
    def remaining(grants: Sequence[Grant], now: float, cost: float) -> float:
        seen = max([now] + [grant.at for grant in grants])
        counted = [grant.cost for grant in grants if grant.at + period > seen]
        return limit - cost - math.fsum(counted)

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
    is surely right. With `counts`, what remains is a number, and not all or nothing.
    """

    algorithm: Algorithm[Any]
    period: float
    remaining: Oracle
    remembers: bool = True
    replays: bool = True
    owes: bool = True
    counts: bool = True

    def __str__(self) -> str:
        return repr(self.algorithm)


SUBJECTS = [
    Subject(SlidingWindowLog("5/s"), 1, rolling(5, 1)),
    Subject(SlidingWindowLog(Rate(2.5, 0.7)), 0.7 * 3 / 2.5, rolling(3, 0.7 * 3 / 2.5)),
    Subject(SlidingWindowLog("0.5/s"), 2, rolling(1, 2)),
    Subject(TokenBucket("5/s"), 1, bucket(5, 5), remembers=False),
    Subject(TokenBucket(Rate(3, 0.7), burst=2.5), 0.7, bucket(2.5, 3 / 0.7), remembers=False),
    Subject(LeakyBucket("5/s"), 1, paced(5, 0.002), remembers=False, counts=False),
    Subject(LeakyBucket("2000/s"), 0.01, paced(2000, 0.002), remembers=False, counts=False),
    Subject(FixedWindow("5/s"), 1, fixed(5, 1)),
    Subject(FixedWindow(Rate(2.5, 0.7)), 0.7 * 3 / 2.5, fixed(3, 0.7 * 3 / 2.5)),
    Subject(SlidingWindowCounter("5/s", buckets=4), 1, fixed(5, 1, 4)),
    Subject(SlidingWindowCounter(Rate(2.5, 0.7)), 0.7 * 3 / 2.5, fixed(3, 0.7 * 3 / 2.5, 10)),
    Subject(
        WaitUntil(0.5, 3, 10), 1, paced(2, 0),
        remembers=False, replays=False, owes=False, counts=False,
    ),
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
]  # fmt: skip

COSTS = st.one_of(
    st.integers(0, 4).map(float), st.sampled_from([0.1, 1 / 3, 0.5, 2.5]), st.floats(0.01, 5)
)
WAITS = st.one_of(st.sampled_from([0.0, 0.05, 0.1, 0.25, 1 / 3, 0.5, 1.0, 2.0]), st.floats(0, 1.5))


class History(RuleBasedStateMachine):
    """Hits, debts, refunds, batches and dumps, in any order, on a clock that may step back."""

    def __init__(self, subject: Subject) -> None:
        super().__init__()
        self.subject = subject
        self.algorithm = subject.algorithm
        self.state = self.algorithm.start()
        self.grants: list[Grant] = []
        self.now = 0.0
        self.exact = True  # the algorithm knows as much as the oracle
        self.steady = True  # the clock has not stepped back
        self.refunded = False

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
        self.note_step_back()

    def note_step_back(self) -> None:
        self.steady = False
        # A refund that came too late is not made up for by a clock that steps back.
        self.exact = self.exact and not self.refunded

    @rule(cost=COSTS)
    def hit(self, cost: float) -> None:
        fits = self.admits(cost, self.now)
        before = copy.deepcopy(self.state)
        granted = admit(self.algorithm, self.state, self.now, cost)
        assert granted == fits
        if granted:
            self.note(self.now, cost)
        else:
            assert self.state == before

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
        self.note(self.now, cost)

    @precondition(lambda self: self.subject.owes)
    @rule(cost=COSTS)
    def record(self, cost: float) -> None:
        self.algorithm.take(self.state, self.now, cost)
        self.note(self.now, cost)

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
        self.refunded = True
        if not self.subject.replays or grant.asked_at != grant.at:
            self.exact = False

    @rule(waits=st.lists(WAITS, min_size=5, max_size=5))
    def use_the_allowance(self, waits: list[float]) -> None:
        """What is allowed at once holds at any later timestamps, and in a batch."""
        room = allowance(self.algorithm, self.state, self.now, len(waits))
        assert 0 <= room <= len(waits)
        assert room <= max(0.0, self.algorithm.remaining(self.state, self.now)) + 1e-6
        later = accumulate((wait * self.subject.period for wait in waits), initial=self.now)
        self.take_at(list(later)[1 : room + 1], fits=True)

    @precondition(lambda self: self.subject.owes and (self.subject.remembers or self.exact))
    @rule(waits=st.lists(st.floats(-0.5, 1), max_size=5))
    def record_batch(self, waits: list[float]) -> None:
        self.note_step_back()
        self.take_at([self.now + wait * self.subject.period for wait in waits], fits=False)

    def take_at(self, timestamps: list[float], *, fits: bool) -> None:
        """Take a token at each timestamp: once one by one, and once in a batch."""
        twin = copy.deepcopy(self.state)
        for timestamp in timestamps:
            if fits:  # a timestamp is exact to its last digit
                delay = self.algorithm.delay(self.state, timestamp, 1)
                assert delay <= 99 * math.ulp(timestamp)
            self.algorithm.take(self.state, timestamp, 1)
            self.note(timestamp, 1)
        take_each(self.algorithm, twin, timestamps)
        self.now = max([self.now, *timestamps])
        caught_up = max([self.now] + [grant.at for grant in self.grants])
        expected = self.answers(self.state, caught_up)
        assert self.answers(twin, caught_up) == pytest.approx(expected, abs=1e-6)

    @rule()
    def wait_for_the_reset(self) -> None:
        """From then on the state is equivalent to a fresh one."""
        reset_after = self.algorithm.reset_after(self.state, self.now)
        assert 0.0 <= reset_after < math.inf
        hair = 1e-6 * self.subject.period
        if self.subject.counts and not isinstance(self.algorithm, AllOf) and reset_after > hair:
            early = self.now + reset_after - hair
            assert self.algorithm.remaining(self.state, early) < self.algorithm.capacity
        self.now += reset_after
        if self.is_present:
            fresh = self.algorithm.start()
            assert self.answers(self.state, self.now) == pytest.approx(
                self.answers(fresh, self.now), abs=1e-6
            )

    @rule()
    def dump_and_load(self) -> None:
        data = dump(self.algorithm, self.state)
        loaded = load(self.algorithm, data)
        assert dump(self.algorithm, loaded) == data
        assert self.answers(loaded, self.now) == self.answers(self.state, self.now)
        self.state = loaded

    @rule(back=st.floats(0, 3), cost=COSTS)
    def ask_at_an_earlier_time(self, back: float, cost: float) -> None:
        algorithm, state, now = self.algorithm, self.state, self.now
        past, hair = now - back * self.subject.period, 1e-6 * self.subject.period
        delay, delay_then = algorithm.delay(state, now, cost), algorithm.delay(state, past, cost)
        if delay > 0.0:
            assert past + delay_then >= now + delay - hair
        assert algorithm.remaining(state, past) <= algorithm.remaining(state, now) * (1 + 1e-9)
        reset, reset_then = algorithm.reset_after(state, now), algorithm.reset_after(state, past)
        assert past + reset_then <= now + reset + hair

    @invariant()
    def questions_and_a_cost_of_zero_change_nothing(self) -> None:
        before = copy.deepcopy(self.state)
        self.answers(self.state, self.now)
        assert admit(self.algorithm, self.state, self.now, 0)
        self.algorithm.take(self.state, self.now, 0)
        assert self.state == before

    @invariant()
    def what_remains_is_the_greatest_cost_without_a_delay(self) -> None:
        algorithm, capacity = self.algorithm, self.algorithm.capacity
        remaining = algorithm.remaining(self.state, self.now)
        assert 0.0 <= remaining <= capacity
        assert algorithm.delay(self.state, self.now, remaining * (1 - 1e-6)) == 0.0
        if remaining < capacity * (1 - 1e-6):
            assert algorithm.delay(self.state, self.now, remaining + capacity * 1e-6) > 0.0
        if self.subject.counts and self.exact and self.is_present:
            left = self.subject.remaining(self.grants, self.now, 0)
            assert remaining == pytest.approx(max(0.0, left), abs=1e-5)
            assert used(algorithm, self.state, self.now) == pytest.approx(capacity - left, abs=1e-5)

    def answers(self, state: object, now: float) -> list[float]:
        algorithm = self.algorithm
        costs = [part * algorithm.capacity for part in (0.1, 0.5, 1.0)]
        return [
            *(algorithm.delay(state, now, cost) for cost in costs),
            *(delay_behind(algorithm, state, now, 1, ahead) for ahead in (0, 1, 7)),
            algorithm.remaining(state, now),
            algorithm.reset_after(state, now),
            used(algorithm, state, now),
        ]

    @property
    def is_present(self) -> bool:
        return all(grant.at <= self.now for grant in self.grants)

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
        elif self.exact and self.is_present:
            assert remaining <= unsure or cost > self.algorithm.capacity
        return fits

    def note(self, now: float, cost: float) -> None:
        if cost:
            latest = max([now] + [grant.at for grant in self.grants])
            self.grants.append(Grant(now, latest, cost))


@pytest.mark.parametrize("subject", SUBJECTS, ids=str)
def test_algorithm_agrees_with_the_list_of_grants(subject: Subject) -> None:
    class OfSubject(History):
        def __init__(self) -> None:
            super().__init__(subject)

    run_state_machine_as_test(OfSubject, settings=examples(25, steps=25))

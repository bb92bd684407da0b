"""An algorithm is any class with six members; optional protocols are looked up once per class."""

import math
from dataclasses import dataclass
from typing import Any, cast

import pytest

from aiothrottle import CostTooHigh, Rate, RateLimiter
from aiothrottle.algorithms import (
    Algorithm,
    AllOf,
    Cooldown,
    FixedWindow,
    LeakyBucket,
    SlidingWindowCounter,
    SlidingWindowLog,
    SupportsBatches,
    SupportsInherit,
    SupportsMaxWait,
    SupportsRate,
    SupportsRefund,
    SupportsStorage,
    TokenBucket,
    Unlimited,
    WaitUntil,
)
from aiothrottle.algorithms.capabilities import capabilities
from aiothrottle.algorithms.level import Level
from aiothrottle.algorithms.sliding_window_log import SlidingWindowLogState
from aiothrottle.stores import MemoryStore
from aiothrottle.stores.ledger import Record
from tests.asking import allowance, delay_behind, dump, load, max_wait, refund, take_each, used
from tests.virtually import now, virtual


@dataclass
class OneAtATimeState:
    free_at: float = -math.inf
    taken: int = 0


class OneAtATime:
    """One token a second: the six members, and no base class."""

    capacity = 1.0

    def start(self) -> OneAtATimeState:
        return OneAtATimeState()

    def delay(self, state: OneAtATimeState, now: float, cost: float) -> float:
        if cost > 1:
            return math.inf
        return max(0.0, state.free_at - now) if cost else 0.0

    def take(self, state: OneAtATimeState, now: float, cost: float) -> None:
        if cost:
            state.free_at = max(state.free_at, now) + 1.0
            state.taken += 1

    def remaining(self, state: OneAtATimeState, now: float) -> float:
        return float(state.free_at <= now)

    def reset_after(self, state: OneAtATimeState, now: float) -> float:
        return max(0.0, state.free_at - now)

    def __repr__(self) -> str:
        return "OneAtATime()"


BUILT_IN: list[Algorithm[Any]] = [
    AllOf(SlidingWindowLog("3/s"), TokenBucket("3/s")),
    Cooldown(3, 60),
    FixedWindow("3/s"),
    LeakyBucket("3/s"),
    SlidingWindowCounter("3/s"),
    SlidingWindowLog("3/s"),
    TokenBucket("3/s"),
    Unlimited(),
    WaitUntil(1, 5, 10),
]


@virtual
async def test_six_members_run_a_limiter() -> None:
    limiter = RateLimiter(algorithm=OneAtATime(), max_queue=5)
    started: list[float] = []
    for _ in range(3):
        async with limiter.throttle():
            started.append(now())
    assert started == [0.0, 1.0, 2.0]
    assert (await limiter.peek()).retry_after == 1.0
    with pytest.raises(CostTooHigh):
        await limiter.acquire(2)
    permit = await limiter.acquire()
    permit.settle(0.0)  # nothing is refunded
    permit.release()
    assert (await limiter.peek()).retry_after == 1.0


@virtual
async def test_six_members_stand_beside_others_and_in_memory() -> None:
    limiter = RateLimiter(algorithm=AllOf(OneAtATime(), SlidingWindowLog("2/min")))
    for _ in range(3):
        async with limiter.throttle():
            pass
    assert now() == 60.0
    shared = RateLimiter(algorithm=OneAtATime(), store=MemoryStore(), key="k")
    for _ in range(3):
        async with shared.throttle():
            pass
    assert now() == pytest.approx(62.0, abs=0.01)


@pytest.mark.parametrize("algorithm", [OneAtATime(), *BUILT_IN], ids=repr)
def test_every_algorithm_fits_the_protocol(algorithm: Algorithm[Any]) -> None:
    assert isinstance(algorithm, Algorithm)


@pytest.mark.parametrize("algorithm", BUILT_IN, ids=repr)
def test_built_in_algorithms_can_be_stored(algorithm: Algorithm[Any]) -> None:
    assert isinstance(algorithm, SupportsStorage)


@pytest.mark.parametrize(
    ("protocol", "lacking"),
    [
        (SupportsBatches, {"FixedWindow", "SlidingWindowCounter", "WaitUntil"}),
        (SupportsRefund, {"Unlimited"}),
        (SupportsInherit, {"FixedWindow", "Unlimited"}),
    ],
)
def test_optional_protocols_are_kept_by_most(protocol: type[Any], lacking: set[str]) -> None:
    assert {type(each).__name__ for each in BUILT_IN if not isinstance(each, protocol)} == lacking


@pytest.mark.parametrize(
    ("protocol", "having"),
    [
        (SupportsMaxWait, {"AllOf", "WaitUntil"}),
        (SupportsRate, {"SlidingWindowCounter", "TokenBucket"}),
    ],
)
def test_optional_protocols_are_kept_by_few(protocol: type[Any], having: set[str]) -> None:
    assert {type(each).__name__ for each in BUILT_IN if isinstance(each, protocol)} == having


# ---- invalid algorithms --------------------------------------------------------------------------


class WithoutTake:
    capacity = 1.0
    start = delay = remaining = reset_after = OneAtATime.delay


@pytest.mark.parametrize("algorithm", [WithoutTake, WithoutTake()], ids=["class", "instance"])
def test_missing_members_are_named(algorithm: type[Any] | WithoutTake) -> None:
    with pytest.raises(TypeError, match=r"such as TokenBucket, got .*, which has no take$"):
        RateLimiter(1, algorithm=cast("Any", algorithm))
    if not isinstance(algorithm, type):
        with pytest.raises(TypeError, match=r"each of AllOf must be .*, which has no take$"):
            AllOf(Unlimited(), cast("Any", algorithm))


def test_capacity_may_be_an_attribute_of_instances() -> None:
    class Heavy:
        start, delay, take = OneAtATime.start, OneAtATime.delay, OneAtATime.take
        remaining, reset_after = OneAtATime.remaining, OneAtATime.reset_after

        def __init__(self, rate: Rate) -> None:
            self.capacity = rate.limit

    assert "Heavy" in repr(RateLimiter(1, algorithm=cast("Any", Heavy)))


def test_classes_are_rejected_by_all_of() -> None:
    with pytest.raises(TypeError, match="AllOf needs instances"):
        AllOf(OneAtATime)  # type: ignore[arg-type]


# ---- fallbacks -----------------------------------------------------------------------------------


def test_core_alone_is_asked_each_time() -> None:
    algorithm = OneAtATime()
    state = algorithm.start()
    assert allowance(algorithm, state, 0.0, 9) == 0
    take_each(algorithm, state, [0.0, 1.0])
    assert (state.free_at, state.taken) == (2.0, 2)
    assert delay_behind(algorithm, state, 1.5, 1, 0) == 0.5
    assert delay_behind(algorithm, state, 1.5, 1, 1) == math.inf
    assert max_wait(algorithm) == math.inf


def test_core_alone_refunds_nothing() -> None:
    algorithm = OneAtATime()
    state = algorithm.start()
    algorithm.take(state, 0.0, 1)
    refund(algorithm, state, 0.5, 1, 0.0)
    assert used(algorithm, state, 0.5) == 1.0
    assert used(algorithm, state, 1.0) == 0.0


def test_core_alone_cannot_be_dumped() -> None:
    algorithm = OneAtATime()
    message = r"OneAtATime\(\) has no dump\(state\) and load\(data\)"
    with pytest.raises(TypeError, match=message):
        Record(algorithm.start()).dump(algorithm)
    with pytest.raises(TypeError, match=message):
        load(algorithm, b"")
    both = AllOf(Unlimited(), algorithm)
    with pytest.raises(TypeError, match=message):
        dump(both, both.start())


# ---- derived classes -----------------------------------------------------------------------------


class Strict(SlidingWindowLog):
    """Overrides `delay`, which the inherited batch methods would bypass."""

    __slots__ = ()

    def delay(self, state: SlidingWindowLogState, now: float, cost: float) -> float:
        return max(SlidingWindowLog.delay(self, state, now, cost), 1.0 if cost > 1 else 0.0)


class Counting(TokenBucket):
    """Overrides `take`, and with it `allowance`."""

    __slots__ = ()

    def take(self, state: Level, now: float, cost: float) -> None:
        TokenBucket.take(self, state, now, 2 * cost)

    def allowance(self, state: Level, now: float, most: int) -> int:
        return TokenBucket.allowance(self, state, now, most) // 2


class Same(SlidingWindowLog):
    __slots__ = ()


def test_overridden_delay_is_asked_each_time() -> None:
    algorithm = Strict("5/s")
    state = algorithm.start()
    assert allowance(algorithm, state, 0.0, 9) == 0
    assert delay_behind(algorithm, state, 0.0, 1, 2) == 1.0
    assert capabilities(algorithm).refund is SlidingWindowLog.refund


def test_overridden_take_is_called_for_each() -> None:
    algorithm = Counting("10/s")
    state = algorithm.start()
    assert allowance(algorithm, state, 0.0, 99) == 5
    take_each(algorithm, state, [0.0, 0.0])
    assert algorithm.used(state, 0.0) == 4


def test_derived_class_without_changes_keeps_batches() -> None:
    assert allowance(Same("5/s"), Same("5/s").start(), 0.0, 9) == 5
    assert capabilities(Same("5/s")).take_each is SlidingWindowLog.take_each


def test_lookup_happens_once_per_class() -> None:
    assert capabilities(Same("5/s")) is capabilities(Same("6/s"))

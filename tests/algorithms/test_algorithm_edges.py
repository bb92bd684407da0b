"""The algorithms at their edges: rates below one, exact bounds, what a dump must not contain."""

import math
import struct
from typing import Any

import pytest

from aiothrottle.algorithms import (
    Algorithm,
    AllOf,
    Cooldown,
    FixedWindow,
    LeakyBucket,
    SlidingWindowCounter,
    SlidingWindowLog,
    TokenBucket,
    Unlimited,
    WaitUntil,
)
from aiothrottle.algorithms.dumps import check_dumped
from aiothrottle.algorithms.server_quota import ServerQuota
from aiothrottle.stores.reserved import Reserved
from aiothrottle.testing.store_contract import OneByOne
from tests.asking import allowance, delay_behind, dump, load, used


@pytest.mark.parametrize(
    ("algorithm", "text"),
    [
        (SlidingWindowLog("3/s"), "SlidingWindowLog(rate=Rate(limit=3.0, period=1.0))"),
        (FixedWindow("3/s"), "FixedWindow(rate=Rate(limit=3.0, period=1.0))"),
        (
            SlidingWindowCounter("3/s"),
            "SlidingWindowCounter(rate=Rate(limit=3.0, period=1.0), buckets=10)",
        ),
        (TokenBucket("3/s"), "TokenBucket(rate=Rate(limit=3.0, period=1.0), burst=3.0)"),
        (LeakyBucket("3/s"), "LeakyBucket(rate=Rate(limit=3.0, period=1.0))"),
        (Cooldown(3, 60), "Cooldown(n=3, period=60)"),
        (WaitUntil(1, 5, 10), "WaitUntil(interval=1, raise_after=5, limit=10)"),
        (AllOf(Unlimited(), Cooldown(3, 60)), "AllOf(Unlimited(), Cooldown(n=3, period=60))"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_repr_is_the_source_text(algorithm: Algorithm[Any], text: str) -> None:
    assert repr(algorithm) == text


@pytest.mark.parametrize("kind", [SlidingWindowLog, FixedWindow, SlidingWindowCounter, TokenBucket])
def test_rate_below_one_lengthens_the_period(kind: type[Any]) -> None:
    for rate, limit, seconds in (("0.5/s", 1, 2.0), ("1/s", 1, 1.0), ("1.5/s", 1.5, 1.0)):
        algorithm = kind(rate)
        state = algorithm.start()
        assert algorithm.capacity == limit
        algorithm.take(state, 0.0, limit)
        assert algorithm.delay(state, 0.0, limit) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "algorithm",
    [
        SlidingWindowLog("2/s"),
        FixedWindow("2/s"),
        SlidingWindowCounter("2/s"),
        TokenBucket("2/s"),
        LeakyBucket("2/s"),
        Cooldown(2, 1),
        AllOf(SlidingWindowLog("2/s")),
    ],
    ids=str,
)
def test_cost_of_zero_is_taken_in_debt(algorithm: Algorithm[Any]) -> None:
    state = algorithm.start()
    algorithm.take(state, 100.0, 5)
    assert algorithm.delay(state, 100.0, 0) == 0.0
    assert delay_behind(algorithm, state, 100.0, 0, 3) == 0.0
    assert algorithm.remaining(state, 100.0) == 0.0
    assert allowance(algorithm, state, 100.0, 9) == 0


def test_smallest_cooldown_and_bucket_admit_one() -> None:
    assert Cooldown(1, 60).capacity == 1
    assert SlidingWindowCounter("1/s", buckets=1).buckets == 1


@pytest.mark.parametrize(
    ("number", "options", "may_be"),
    [
        (0.0, {}, True),
        (-5.0, {}, True),
        (math.inf, {}, False),
        (-math.inf, {}, False),
        (math.nan, {}, False),
        (-math.inf, {"fresh": True}, True),
        (math.inf, {"fresh": True}, False),
        (0.0, {"least": 0.0}, True),
        (-0.5, {"least": 0.0}, False),
        (math.inf, {"least": 0.0}, False),
        (3.0, {"whole": True}, True),
        (3.5, {"whole": True}, False),
        (2.0**53 - 1, {"whole": True}, True),
        (2.0**53, {"whole": True}, False),
        (-(2.0**53), {"whole": True}, False),
    ],
)
def test_load_checks_each_number(number: float, options: dict[str, Any], may_be: bool) -> None:
    if may_be:
        check_dumped(number, "TokenBucket", **options)
    else:
        with pytest.raises(ValueError, match="not a dump of TokenBucket"):
            check_dumped(number, "TokenBucket", **options)


@pytest.mark.parametrize(
    ("used", "costs"),
    [(1.0, [2.0, -1.0]), (2.0, [2.0, 0.0]), (math.inf, [2.0, math.inf]), (-1.0, [1.0, 2.0])],
)
def test_load_rejects_impossible_costs(used: float, costs: list[float]) -> None:
    data = struct.pack("<BHdd4d", 0x12, 0, 2.0, used, 1.0, 2.0, *costs)
    with pytest.raises(ValueError, match="not a dump of SlidingWindowLog"):
        SlidingWindowLog("3/s").load(data)


def test_log_emptied_of_costs_survives_dump() -> None:
    algorithm = SlidingWindowLog("3/s")
    state = algorithm.start()
    algorithm.take(state, 0.0, 2.5)
    algorithm.take(state, 5.0, 1)
    again = algorithm.load(algorithm.dump(state))
    assert again == state
    assert algorithm.remaining(again, 5.0) == 2


def test_empty_dump_can_be_the_last_part() -> None:
    class Silent(Unlimited):
        def dump(self, state: None) -> bytes:
            del state
            return b""

        def load(self, data: bytes) -> None:
            assert not data

    algorithm = AllOf(Unlimited(), Silent())
    assert algorithm.load(algorithm.dump(algorithm.start())) == (None, None)


def test_distant_resets_are_two_windows() -> None:
    algorithm = ServerQuota()
    for later, left in ((1.25, 5), (1.5, 9)):
        state = algorithm.start()
        algorithm.update(state, 0.0, 5, 30.0, 0.0)
        algorithm.update(state, 0.0, 9, 30.0 + later, 0.0)
        assert (state.remaining, state.resets_at) == (left, 30.0 + later)


def test_later_reservation_joins_the_last_one() -> None:
    algorithm = Reserved(SlidingWindowLog("10/s"))
    state = algorithm.start()
    algorithm.hold(state, 5.0, [1, 1], [1.0, 2.0], 1.0)
    algorithm.hold(state, 5.5, [2], [2.0], 1.5)
    assert [(slot.cost, slot.at) for slot in state.ready] == [(1, 5.0), (3, 6.0)]


def test_leaky_bucket_allows_two_milliseconds_early() -> None:
    algorithm = LeakyBucket("100/s")
    state = algorithm.start()
    algorithm.take(state, 100.0, 1)
    assert algorithm.allowance(state, 100.0, 9) == 0
    assert algorithm.allowance(state, 100.009, 9) == 1


@pytest.mark.parametrize(
    ("algorithm", "kinds"),
    [
        (SlidingWindowLog("3/s"), (0x11, 0x12)),
        (TokenBucket("3/s"), (0x21, 0x21)),
        (FixedWindow("3/s"), (0x41, 0x41)),
        (SlidingWindowCounter("3/s"), (0x51, 0x51)),
    ],
    ids=str,
)
def test_first_byte_names_the_algorithm(algorithm: Algorithm[Any], kinds: tuple[int, int]) -> None:
    state = algorithm.start()
    assert dump(algorithm, state)[0] == kinds[0]
    assert load(algorithm, dump(algorithm, state)) == algorithm.start()
    algorithm.take(state, 1.0, 2.5)
    assert dump(algorithm, state)[0] == kinds[1]


@pytest.mark.parametrize("kind", [SlidingWindowLog, SlidingWindowCounter])
def test_rounding_of_huge_limit_is_no_token(kind: type[Any]) -> None:
    algorithm = kind("2000000000/s")
    state = algorithm.start()
    algorithm.take(state, 0.0, 2e9)
    assert algorithm.delay(state, 0.0, 1) == 1.0


def test_delay_behind_many_spans_whole_windows() -> None:
    algorithm = SlidingWindowLog("3/min")
    state = algorithm.start()
    # Three are granted a minute: the fourth in a minute, the seventh in two, the tenth in three.
    assert [algorithm.delay_behind(state, 0.0, 1, ahead) for ahead in (2, 3, 5, 6, 9)] == [
        0.0,
        60.0,
        60.0,
        120.0,
        180.0,
    ]


def test_allowance_is_the_tokens_that_left_the_window() -> None:
    algorithm = SlidingWindowLog("3/min")
    state = algorithm.start()
    for now in (0.0, 10.0, 20.0):
        algorithm.take(state, now, 1)
    rooms = [algorithm.allowance(state, now, 9) for now in (59.0, 60.0, 70.0, 80.0)]
    assert rooms == [0, 1, 2, 3]
    assert algorithm.allowance(state, 80.0, 2) == 2
    algorithm.take(state, 61.0, 1)  # entries that have left the window are deleted
    assert [algorithm.allowance(state, now, 9) for now in (61.0, 70.0, 80.0)] == [0, 1, 2]


def test_fractional_cost_counts_beside_unit_costs() -> None:
    algorithm = SlidingWindowLog("99/s")
    state = algorithm.start()
    algorithm.take(state, 0.0, 1)
    for _ in range(20):
        algorithm.take(state, 0.5, 1)
    algorithm.take_each(state, [1.1])  # the first entry has left the window, but is not deleted yet
    assert state.gone == 1
    algorithm.take(state, 1.2, 0.5)
    assert algorithm.used(state, 1.2) == 21.5


def test_cost_of_zero_ignores_the_server_quota() -> None:
    algorithm = ServerQuota()
    state = algorithm.start()
    algorithm.take(state, 0.0, 5)
    algorithm.update(state, 1.0, 0, 30.0, -1.0)  # five requests were sent since
    assert [algorithm.delay(state, 1.0, cost) for cost in (0, 1)] == [0, 30]
    assert algorithm.delay(state, 31.0, 1) == 0


def test_core_alone_has_used_capacity_without_remaining() -> None:
    algorithm = OneByOne()
    state = algorithm.start()
    assert [used(algorithm, state, now) for now in (0.0, 1.0)] == [0, 0]
    algorithm.take(state, 1.0, 1)
    assert [used(algorithm, state, now) for now in (1.0, 2.0)] == [1, 0]


def test_foreign_bytes_are_rejected_by_their_beginning() -> None:
    algorithm = AllOf(SlidingWindowLog("3/s"), TokenBucket("20/min"))
    with pytest.raises(ValueError, match="the bytes are empty"):
        algorithm.load(b"")
    with pytest.raises(ValueError, match="the bytes begin with 01 02"):
        algorithm.load(b"\x01\x02")

"""The algorithms at their edges: rates below one, exact bounds, what no dump may hold."""

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
from aiothrottle.algorithms.reserved import Reserved
from aiothrottle.algorithms.server_quota import ServerQuota
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
def test_a_algorithm_reads_as_it_is_written(algorithm: Algorithm[Any], text: str) -> None:
    assert repr(algorithm) == text


@pytest.mark.parametrize("kind", [SlidingWindowLog, FixedWindow, SlidingWindowCounter, TokenBucket])
def test_below_one_a_period_it_is_one_in_so_much_more_time(kind: type[Any]) -> None:
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
def test_what_costs_nothing_goes_in_debt_too(algorithm: Algorithm[Any]) -> None:
    state = algorithm.start()
    algorithm.take(state, 100.0, 5)
    assert algorithm.delay(state, 100.0, 0) == 0.0
    assert delay_behind(algorithm, state, 100.0, 0, 3) == 0.0
    assert algorithm.remaining(state, 100.0) == 0.0
    assert allowance(algorithm, state, 100.0, 9) == 0


def test_the_least_cooldown_and_the_least_bucket() -> None:
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
def test_what_numbers_a_state_may_hold(
    number: float, options: dict[str, Any], may_be: bool
) -> None:
    if may_be:
        check_dumped(number, "TokenBucket", **options)
    else:
        with pytest.raises(ValueError, match="not a dump of TokenBucket"):
            check_dumped(number, "TokenBucket", **options)


@pytest.mark.parametrize(
    ("used", "costs"),
    [(1.0, [2.0, -1.0]), (2.0, [2.0, 0.0]), (math.inf, [2.0, math.inf]), (-1.0, [1.0, 2.0])],
)
def test_costs_that_no_log_holds(used: float, costs: list[float]) -> None:
    data = struct.pack("<BHdd4d", 0x12, 0, 2.0, used, 1.0, 2.0, *costs)
    with pytest.raises(ValueError, match="not a dump of SlidingWindowLog"):
        SlidingWindowLog("3/s").load(data)


def test_a_log_that_was_emptied_of_its_costs_is_written_and_read() -> None:
    algorithm = SlidingWindowLog("3/s")
    state = algorithm.start()
    algorithm.take(state, 0.0, 2.5)
    algorithm.take(state, 5.0, 1)
    again = algorithm.load(algorithm.dump(state))
    assert again == state
    assert algorithm.remaining(again, 5.0) == 2


def test_an_empty_dump_may_be_the_last_of_several() -> None:
    class Silent(Unlimited):
        def dump(self, state: None) -> bytes:
            del state
            return b""

        def load(self, data: bytes) -> None:
            assert not data

    algorithm = AllOf(Unlimited(), Silent())
    assert algorithm.load(algorithm.dump(algorithm.start())) == (None, None)


def test_resets_that_differ_by_a_second_and_a_half_are_of_two_windows() -> None:
    algorithm = ServerQuota()
    for later, left in ((1.25, 5), (1.5, 9)):
        state = algorithm.start()
        algorithm.update(state, 0.0, 5, 30.0, 0.0)
        algorithm.update(state, 0.0, 9, 30.0 + later, 0.0)
        assert (state.remaining, state.resets_at) == (left, 30.0 + later)


def test_what_is_held_later_joins_the_last_slot() -> None:
    algorithm = Reserved(SlidingWindowLog("10/s"))
    state = algorithm.start()
    algorithm.hold(state, 5.0, [1, 1], [1.0, 2.0], 1.0)
    algorithm.hold(state, 5.5, [2], [2.0], 1.5)
    assert [(slot.cost, slot.at) for slot in state.ready] == [(1, 5.0), (3, 6.0)]


def test_a_leaky_bucket_allows_what_is_due_within_two_milliseconds() -> None:
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
def test_other_processes_know_a_dump_by_its_first_byte(
    algorithm: Algorithm[Any], kinds: tuple[int, int]
) -> None:
    state = algorithm.start()
    assert dump(algorithm, state)[0] == kinds[0]
    assert load(algorithm, dump(algorithm, state)) == algorithm.start()
    algorithm.take(state, 1.0, 2.5)
    assert dump(algorithm, state)[0] == kinds[1]


@pytest.mark.parametrize("kind", [SlidingWindowLog, SlidingWindowCounter])
def test_of_a_very_large_limit_a_rounding_is_still_no_token(kind: type[Any]) -> None:
    algorithm = kind("2000000000/s")
    state = algorithm.start()
    algorithm.take(state, 0.0, 2e9)
    assert algorithm.delay(state, 0.0, 1) == 1.0


def test_behind_so_many_the_window_turns_over_so_often() -> None:
    algorithm = SlidingWindowLog("3/min")
    state = algorithm.start()
    # Three go in each minute: the fourth a minute from now, the seventh two, the tenth three.
    assert [algorithm.delay_behind(state, 0.0, 1, ahead) for ahead in (2, 3, 5, 6, 9)] == [
        0.0,
        60.0,
        60.0,
        120.0,
        180.0,
    ]


def test_the_room_of_a_window_is_what_has_left_it() -> None:
    algorithm = SlidingWindowLog("3/min")
    state = algorithm.start()
    for now in (0.0, 10.0, 20.0):
        algorithm.take(state, now, 1)
    rooms = [algorithm.allowance(state, now, 9) for now in (59.0, 60.0, 70.0, 80.0)]
    assert rooms == [0, 1, 2, 3]
    assert algorithm.allowance(state, 80.0, 2) == 2
    algorithm.take(state, 61.0, 1)  # what is gone is let go of
    assert [algorithm.allowance(state, now, 9) for now in (61.0, 70.0, 80.0)] == [0, 1, 2]


def test_a_part_of_a_token_counts_beside_what_is_still_in_the_window() -> None:
    algorithm = SlidingWindowLog("99/s")
    state = algorithm.start()
    algorithm.take(state, 0.0, 1)
    for _ in range(20):
        algorithm.take(state, 0.5, 1)
    algorithm.take_each(state, [1.1])  # the first one is out, but its place is not let go of yet
    assert state.gone == 1
    algorithm.take(state, 1.2, 0.5)
    assert algorithm.used(state, 1.2) == 21.5


def test_what_costs_nothing_needs_no_word_of_the_server() -> None:
    algorithm = ServerQuota()
    state = algorithm.start()
    algorithm.take(state, 0.0, 5)
    algorithm.update(state, 1.0, 0, 30.0, -1.0)  # five were sent since
    assert [algorithm.delay(state, 1.0, cost) for cost in (0, 1)] == [0, 30]
    assert algorithm.delay(state, 31.0, 1) == 0


def test_a_algorithm_of_the_user_has_used_what_is_not_left_of_its_capacity() -> None:
    algorithm = OneByOne()
    state = algorithm.start()
    assert [used(algorithm, state, now) for now in (0.0, 1.0)] == [0, 0]
    algorithm.take(state, 1.0, 1)
    assert [used(algorithm, state, now) for now in (1.0, 2.0)] == [1, 0]


def test_bytes_of_something_else_are_told_by_how_they_begin() -> None:
    algorithm = AllOf(SlidingWindowLog("3/s"), TokenBucket("20/min"))
    with pytest.raises(ValueError, match="the bytes are empty"):
        algorithm.load(b"")
    with pytest.raises(ValueError, match="the bytes begin with 01 02"):
        algorithm.load(b"\x01\x02")

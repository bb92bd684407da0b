"""The algorithm for reservations of a store: ready, used, owed, and returned tokens."""

import math

import pytest

from aiothrottle.algorithms import SlidingWindowLog
from aiothrottle.stores.reserved import Reservation, Reserved, ReservedState

ALGORITHM = Reserved(SlidingWindowLog("10/s"))


def holding(*slots: tuple[float, float, float]) -> ReservedState:
    """Give a state with (cost, at, instant) ready."""
    state = ALGORITHM.start()
    for cost, at, instant in slots:
        ALGORITHM.hold(state, at, [cost], [instant], instant)
    return state


def ready(state: ReservedState) -> list[tuple[float, float, float]]:
    return [(slot.cost, slot.at, slot.instant) for slot in state.ready]


def returned(state: ReservedState) -> list[tuple[float, float]]:
    return [(slot.cost, slot.instant) for slot in state.returned]


def test_equal_instants_share_a_reservation_unless_ready_later() -> None:
    state = holding((1, 5.0, 1.0), (2, 6.0, 1.0), (1, 5.5, 1.0), (0, 9.0, 9.0), (3, 7.0, 2.0))
    assert ready(state) == [(1, 5.0, 1.0), (3, 6.0, 1.0), (3, 7.0, 2.0)]
    assert state.tokens == 7


def test_zero_cost_without_a_predecessor_is_not_held() -> None:
    assert ready(holding((0, 5.0, 1.0))) == []


def test_delay_is_until_the_last_needed_reservation() -> None:
    # The second is ready before the first, but is served after it all the same.
    state = holding((1, 5.0, 1.0), (1, 4.0, 2.0), (2, 8.0, 3.0))
    assert [ALGORITHM.delay(state, 3.0, cost) for cost in (0, 1, 2, 3, 4, 5)] == [
        0,
        2,
        2,
        5,
        5,
        math.inf,
    ]
    assert ALGORITHM.delay_behind(state, 3.0, 1, 1) == 2.0
    assert ALGORITHM.delay_behind(state, 3.0, 2, 1) == 5.0
    assert ALGORITHM.delay_behind(state, 3.0, 0, 99) == 0.0


def test_rounding_errors_are_not_tokens() -> None:
    state = holding((0.1 + 0.2, 0.0, 1.0))
    assert ALGORITHM.delay(state, 0.0, 0.3) == 0.0
    ALGORITHM.take(state, 0.0, 0.3)
    assert ready(state) == []
    state = holding((0.3, 0.0, 1.0))
    assert ALGORITHM.delay(state, 0.0, 0.1 + 0.2) == 0.0
    ALGORITHM.take(state, 0.0, 0.1 + 0.2)
    assert not state.owed


def test_allowance_ends_at_the_first_unready_reservation() -> None:
    state = holding((2, 5.0, 1.0), (0.5, 5.0, 2.0), (4, 6.0, 3.0), (1, 5.0, 4.0))
    assert ALGORITHM.allowance(state, 4.9, 99) == 0
    assert ALGORITHM.allowance(state, 5.0, 99) == 2
    assert ALGORITHM.allowance(state, 6.0, 99) == 7
    assert ALGORITHM.allowance(state, 6.0, 5) == 5
    assert ALGORITHM.allowance(holding(*[(0.1, 0.0, i) for i in range(10)]), 0.0, 9) == 1


def test_take_uses_first_reservations_and_owes_the_rest() -> None:
    state = holding((2, 5.0, 1.0), (2, 5.0, 2.0), (2, 9.0, 3.0))
    ALGORITHM.take(state, 6.0, 3)
    assert ready(state) == [(1, 5.0, 2.0), (2, 9.0, 3.0)]
    assert list(state.used) == [(6.0, 2, 1.0), (6.0, 1, 2.0)]
    ALGORITHM.take(state, 7.0, 4)  # the third is not ready yet
    assert ready(state) == [(2, 9.0, 3.0)]
    (owed,) = state.owed
    assert (owed.at, owed.cost) == (7.0, 3)
    assert math.isnan(owed.instant)


def test_refund_returns_only_tokens_used_at_that_instant() -> None:
    state = holding((1, 0.0, 1.0), (2, 0.0, 2.0), (1, 0.0, 3.0), (1, 0.0, 4.0))
    ALGORITHM.take(state, 5.0, 1)
    ALGORITHM.take(state, 6.0, 3)
    ALGORITHM.take(state, 7.0, 1)
    ALGORITHM.refund(state, 8.0, 2, 6.0)
    assert returned(state) == [(1, 3.0), (1, 2.0)]
    ALGORITHM.refund(state, 8.0, 99, 6.0)  # returns no more than was used then
    assert returned(state) == [(1, 3.0), (1, 2.0), (1, 2.0)]
    ALGORITHM.refund(state, 8.0, 1, 4.0)  # nothing was used then
    ALGORITHM.refund(state, 8.0, 0, 7.0)
    assert len(state.returned) == 3
    ALGORITHM.refund(state, 8.0, 1, 5.0)
    assert returned(state)[3:] == [(1, 1.0)]


def test_refund_first_cancels_uncounted_tokens() -> None:
    state = holding((1, 0.0, 1.0))
    ALGORITHM.take(state, 5.0, 3)
    ALGORITHM.refund(state, 6.0, 1.5, 5.0)
    assert [slot.cost for slot in state.owed] == [0.5]
    assert returned(state) == []
    ALGORITHM.refund(state, 6.0, 1, 5.0)  # half of it is owed, half was used
    assert [slot.cost for slot in state.owed] == [0]
    assert returned(state) == [(0.5, 1.0)]


def test_refund_during_a_record_call_waits_for_it() -> None:
    state = ALGORITHM.start()
    slot = Reservation(5.0, 3.0, math.nan)
    state.recorded.append(slot)
    ALGORITHM.refund(state, 6.0, 1, 5.0)
    assert returned(state) == []
    state.counted(slot, 3.0, 77.0)
    assert (slot.instant, returned(state)) == (77.0, [(1, 77.0)])
    assert state.returned[0].at == 5.0
    whole = Reservation(6.0, 2.0, math.nan)
    state.counted(whole, 2.0, 78.0)
    assert (whole.instant, len(state.returned)) == (78.0, 1)
    ALGORITHM.refund(state, 7.0, 1, 5.0)  # from now on it is as if it had been used
    assert returned(state)[1:] == [(1, 77.0)]


def test_latest_ready_reservation_is_returned_first() -> None:
    slots = [(1.0, at, at) for at in (1.0, 2.0, 3.0, 4.0)]
    state = holding(*slots)
    state.give_back_later(2.0)
    assert returned(state) == [(1, 4.0), (1, 3.0)]
    state = holding(*slots)
    state.give_back_older(2.0)
    assert returned(state) == [(1, 1.0), (1, 2.0)]
    state.give_back()
    assert returned(state)[2:] == [(1, 4.0), (1, 3.0)]
    assert not state.ready
    state.give_back_later(0.0)
    state.give_back_older(9.0)
    assert len(state.returned) == 4
    state = holding(*slots)
    state.give_back_behind(3)
    state.give_back_behind(4)
    state.give_back_behind(1)
    assert returned(state) == [(1, 4.0), (1, 3.0), (1, 2.0)]


def test_reported_remaining_expires() -> None:
    state = ALGORITHM.start()
    assert (ALGORITHM.remaining(state, 0.0), ALGORITHM.reset_after(state, 0.0)) == (10, 0.0)
    state.remaining, state.known_until = 3, 5.0
    assert (ALGORITHM.remaining(state, 4.0), ALGORITHM.reset_after(state, 4.0)) == (3, 1.0)
    assert (ALGORITHM.remaining(state, 5.0), ALGORITHM.reset_after(state, 6.0)) == (10, 0.0)


def test_new_algorithm_inherits_reservations_only() -> None:
    state = holding((1, 5.0, 1.0))
    assert ALGORITHM.inherit(Reserved(SlidingWindowLog("5/s")), state, 6.0) is state
    old = SlidingWindowLog("10/s")
    spent = old.start()
    old.take(spent, 0.0, 3)
    fresh = ALGORITHM.inherit(old, spent, 0.0)
    assert fresh == ReservedState()


@pytest.mark.parametrize("name", ["used", "recorded"])
def test_used_reservations_are_remembered_up_to_a_bound(name: str) -> None:
    assert getattr(ALGORITHM.start(), name).maxlen == 4096


def test_take_each_equals_single_takes() -> None:
    slots = [(2.5, 5.0, 1.0), (1, 6.0, 2.0), (3, 9.0, 3.0)]
    at_once, one_by_one = holding(*slots), holding(*slots)
    instants = [5.0, 5.5, 6.0, 6.5, 6.5, 9.0]
    ALGORITHM.take_each(at_once, instants)
    for now in instants:
        ALGORITHM.take(one_by_one, now, 1.0)
    assert ready(at_once) == ready(one_by_one)
    assert list(at_once.used) == list(one_by_one.used)
    owed = [(slot.at, slot.cost) for slot in one_by_one.owed]
    assert [(slot.at, slot.cost) for slot in at_once.owed] == owed
    assert sum(cost for _, cost, _ in at_once.used) + sum(cost for _, cost in owed) == 6


def test_take_each_owes_all_without_reservations() -> None:
    state = holding()
    ALGORITHM.take_each(state, [5.0, 5.5])
    assert [(slot.at, slot.cost) for slot in state.owed] == [(5.0, 1.0), (5.5, 1.0)]

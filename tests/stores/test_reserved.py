"""The algorithm for reservations of a store: ready, used, owed, and returned tokens."""

import math

from aiothrottle.algorithms import SlidingWindowLog
from aiothrottle.stores.reserved import Reserved, ReservedState

ALGORITHM = Reserved(SlidingWindowLog("10/s"))


def holding(*slots: tuple[float, float, float]) -> ReservedState:
    """Give a state with (cost, at, instant) ready."""
    state = ALGORITHM.start()
    for cost, at, instant in slots:
        state.hold(at, [cost], [instant], instant)
    return state


def ready(state: ReservedState) -> list[tuple[float, float, float]]:
    return [(slot.cost, slot.at, slot.instant) for slot in state.ready]


def returned(state: ReservedState) -> list[tuple[float, float]]:
    return [(slot.cost, slot.instant) for slot in state.returned]


def owed(state: ReservedState) -> list[tuple[float, float]]:
    return [(slot.at, slot.cost) for slot in state.owed]


def test_reservations_are_shared_and_sorted() -> None:
    state = holding((1, 5.0, 1.0), (2, 6.0, 1.0), (1, 5.5, 1.0), (0, 9.0, 9.0), (3, 7.0, 2.0))
    assert ready(state) == [(1, 5.0, 1.0), (3, 6.0, 1.0), (3, 7.0, 2.0)]
    assert state.tokens == 7
    assert ready(holding((0, 5.0, 1.0))) == []
    state = holding((1, 3.0, 3.0), (1, 4.0, 4.0))
    state.hold(2.0, [1, 1], [2.0, 2.5], 2.0)
    assert [instant for _, _, instant in ready(state)] == [2.0, 2.5, 3.0, 4.0]
    state.give_back_older(2.0)
    state.give_back_older(2.0)
    state.give_back_later(3.0)
    assert returned(state) == [(1, 2.0), (1, 4.0)]
    state.give_back_behind(1)
    assert returned(state)[2:] == [(1, 3.0)]
    ALGORITHM.take(state, 5.0, 2)
    state.forget()
    assert (owed(state), returned(state), list(state.used)) == ([], [], [])


def test_delay_is_that_of_the_last_reservation() -> None:
    # The second is ready before the first, but is served after it all the same.
    state = holding((1, 5.0, 1.0), (1, 4.0, 2.0), (2, 8.0, 3.0))
    delays = [ALGORITHM.delay(state, 3.0, cost) for cost in (0, 1, 2, 3, 4, 5)]
    assert delays == [0, 2, 2, 5, 5, math.inf]
    behind = [ALGORITHM.delay_behind(state, 3.0, *it) for it in ((1, 1), (2, 1), (0, 99))]
    assert behind == [2.0, 5.0, 0.0]
    for held, cost in ((0.1 + 0.2, 0.3), (0.3, 0.1 + 0.2)):
        state = holding((held, 0.0, 1.0))
        assert ALGORITHM.delay(state, 0.0, cost) == 0.0
        ALGORITHM.take(state, 0.0, cost)
        assert (ready(state), owed(state)) == ([], [])


def test_take_each_equals_single_takes() -> None:
    slots = [(2.5, 5.0, 1.0), (1, 6.0, 2.0), (3, 9.0, 3.0)]
    at_once, one_by_one = holding(*slots), holding(*slots)
    instants = [5.0, 5.5, 6.0, 6.5, 6.5, 9.0]
    ALGORITHM.take_each(at_once, instants)
    for now in instants:
        ALGORITHM.take(one_by_one, now, 1.0)
    assert ready(at_once) == ready(one_by_one)
    assert owed(at_once) == owed(one_by_one)
    assert list(at_once.used) == list(one_by_one.used)
    assert sum(cost for _, cost, _ in at_once.used) + sum(cost for _, cost in owed(at_once)) == 6


def test_refund_returns_only_tokens_used_at_that_instant() -> None:
    state = holding((1, 0.0, 1.0), (2, 0.0, 2.0), (1, 0.0, 3.0), (1, 0.0, 4.0))
    for at, cost in ((5.0, 1), (6.0, 3), (7.0, 1)):
        ALGORITHM.take(state, at, cost)
    ALGORITHM.refund(state, 8.0, 2, 6.0)
    assert returned(state) == [(1, 3.0), (1, 2.0)]
    ALGORITHM.refund(state, 8.0, 99, 6.0)  # returns no more than was used then
    assert returned(state)[2:] == [(1, 2.0)]
    ALGORITHM.refund(state, 8.0, 1, 4.0)  # nothing was used then
    ALGORITHM.refund(state, 8.0, 0, 7.0)
    ALGORITHM.refund(state, 8.0, 1, 5.0)
    assert returned(state)[3:] == [(1, 1.0)]
    # What was not counted is cancelled first.
    state = holding((1, 0.0, 1.0))
    ALGORITHM.take(state, 5.0, 3)
    ALGORITHM.refund(state, 6.0, 1.5, 5.0)
    assert (owed(state), returned(state)) == ([(5.0, 0.5)], [])
    ALGORITHM.refund(state, 6.0, 1, 5.0)  # half of it is owed, half was used
    assert (owed(state), returned(state)) == ([(5.0, 0)], [(0.5, 1.0)])

"""Reservations of a store: sorted whenever they arrive, and returned, the latest first."""

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

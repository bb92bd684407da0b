"""What a limiter has reserved in a store: sorted, whenever it arrives, and returned."""

from aiothrottle import SlidingWindowLog
from aiothrottle.stores.reserved import Reserved, ReservedState


def test_reservations_are_shared_sorted_and_returned() -> None:
    algorithm = Reserved(SlidingWindowLog("10/s"))

    def holding(*reserved: tuple[float, float, float]) -> ReservedState:
        state = algorithm.start()
        for cost, at, instant in reserved:
            state.hold(at, [cost], [instant], instant)
        return state

    state = holding((1, 5.0, 1.0), (2, 6.0, 1.0), (1, 5.5, 1.0), (0, 9.0, 9.0), (3, 7.0, 2.0))
    found = [(it.cost, it.at, it.instant) for it in state.ready]
    assert found == [(1, 5.0, 1.0), (3, 6.0, 1.0), (3, 7.0, 2.0)]
    assert state.tokens == 7
    assert not holding((0, 5.0, 1.0)).ready
    state = holding((1, 3.0, 3.0), (1, 4.0, 4.0))
    state.hold(2.0, [1, 1], [2.0, 2.5], 2.0)
    assert [it.instant for it in state.ready] == [2.0, 2.5, 3.0, 4.0]
    state.give_back_older(2.0)
    state.give_back_older(2.0)
    state.give_back_later(3.0)
    state.give_back(behind=1)
    assert [(it.cost, it.instant) for it in state.returned] == [(1, 2.0), (1, 4.0), (1, 3.0)]
    algorithm.take(state, 5.0, 2)
    state.forget()
    assert not any([state.owed, state.returned, state.used])

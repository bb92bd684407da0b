"""The records of stores grant exactly the rate; reservations are sorted, and returned."""

import math
from fractions import Fraction

import pytest

from aiothrottle import LeakyBucket, SlidingWindowLog, TokenBucket
from aiothrottle.stores.record import Record
from aiothrottle.stores.reserved import Reserved, ReservedState

CLOCKS = [0.0, 4321.123, 1e6 + 0.1, 1.7e9 + 0.123]
# Tokens that are forgiven, so that a cost of a tenth fits ten times.
FORGIVEN = Fraction(2, 10**9)


@pytest.mark.parametrize("max_reservation", [0.0, 0.01])
@pytest.mark.parametrize("rate", [10_000, 100_000])
def test_store_grants_exactly_the_rate(rate: int, max_reservation: float) -> None:
    """With wall clock times 10,000/s admitted 0.1 % too many, and 100,000/s 0.2 % too few."""
    for start in CLOCKS:
        for algorithm in (TokenBucket(rate, burst=50), LeakyBucket(rate)):
            early = rate * Fraction(2, 1000) + 1
            at_once = early if isinstance(algorithm, LeakyBucket) else 50
            record, clock, instants = Record(algorithm.start()), start, list[float]()
            while len(instants) < 1000:
                answer = record.reserve(algorithm, clock, [1] * 300, max_reservation)
                instants += answer.instants
                clock = max(
                    math.nextafter(clock, math.inf), clock + answer.retry_after - max_reservation
                )
            took = (Fraction(instants[-1]) - Fraction(start)) * rate
            assert len(instants) == math.floor(at_once + took + FORGIVEN), (algorithm, start)


def test_reservations_are_shared_sorted_and_returned() -> None:
    """Whenever they arrive; the latest is returned first."""
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

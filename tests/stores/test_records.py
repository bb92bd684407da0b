"""Specifies the records of stores: they grant exactly the rate."""

import math
from fractions import Fraction

import pytest

from aiothrottle import LeakyBucket, TokenBucket
from aiothrottle.stores.record import Record

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

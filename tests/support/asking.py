"""Calls of an algorithm that a bucket makes in two steps."""

from typing import Any, TypeVar

from aiothrottle.algorithms import Algorithm, SupportsInherit

State = TypeVar("State")


def admit(algorithm: Algorithm[State], state: State, now: float, cost: float) -> bool:
    if algorithm.delay(state, now, cost) > 0.0:
        return False
    algorithm.take(state, now, cost)
    return True


def inherit(new: SupportsInherit[State], old: Algorithm[Any], state: object, now: float) -> State:
    return new.inherit(old, state, now)

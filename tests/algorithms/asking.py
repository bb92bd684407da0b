"""Every operation on any algorithm, as a bucket calls it: with a fallback where one is missing."""

from collections.abc import Sequence
from typing import Any, TypeVar

from aiothrottle.algorithms import Algorithm
from aiothrottle.algorithms.protocol import capabilities, inherit, max_wait, used

__all__ = [
    "allowance", "cost_of_reject", "delay_behind", "dump", "inherit", "load", "max_wait",
    "refund", "take_each", "used",
]  # fmt: skip

State = TypeVar("State")


def allowance(algorithm: Algorithm[State], state: State, now: float, most: int) -> int:
    return capabilities(algorithm).allowance(algorithm, state, now, most)


def take_each(algorithm: Algorithm[State], state: State, timestamps: Sequence[float]) -> None:
    capabilities(algorithm).take_each(algorithm, state, timestamps)


def delay_behind(
    algorithm: Algorithm[State], state: State, now: float, cost: float, ahead: float
) -> float:
    return capabilities(algorithm).delay_behind(algorithm, state, now, cost, ahead)


def refund(algorithm: Algorithm[State], state: State, now: float, cost: float, at: float) -> None:
    capabilities(algorithm).refund(algorithm, state, now, cost, at)


def cost_of_reject(
    algorithm: Algorithm[State], state: State, now: float, cost: float, ahead: float = 0.0
) -> float:
    return capabilities(algorithm).cost_of_reject(algorithm, state, now, cost, ahead)


def dump(algorithm: Algorithm[State], state: State) -> bytes:
    return capabilities(algorithm).dump(algorithm, state)


def load(algorithm: Algorithm[State], data: bytes) -> Any:
    return capabilities(algorithm).load(algorithm, data)

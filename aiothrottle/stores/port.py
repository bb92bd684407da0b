"""The numbers of an algorithm, as `algorithms.lua` reads them.

Invariant: only the algorithms of this package have numbers here. A class that is derived from one
may decide otherwise than the script.
"""

from collections.abc import Sequence
from typing import Any, Final, Protocol, cast

from aiothrottle.algorithms import (
    AllOf,
    Cooldown,
    FixedWindow,
    LeakyBucket,
    PerResource,
    SlidingWindowCounter,
    SlidingWindowLog,
    TokenBucket,
    Unlimited,
    WaitUntil,
)
from aiothrottle.algorithms.protocol import Algorithm
from aiothrottle.amounts import Amounts, as_costs

__all__ = ["numbers_of", "numbers_of_costs", "read_remaining"]

# Which algorithm of the script decides; the constants follow.
_LEVEL, _ROLLING, _FIXED, _SLIDING = 1, 2, 3, 4
_KINDS: Final[dict[type[Any], int]] = {
    TokenBucket: _LEVEL,
    LeakyBucket: _LEVEL,
    WaitUntil: _LEVEL,
    Cooldown: _LEVEL,
    SlidingWindowLog: _ROLLING,
    FixedWindow: _FIXED,
    SlidingWindowCounter: _SLIDING,
}


class _Ported(Protocol):
    def constants(self) -> tuple[float, ...]: ...


def numbers_of(algorithm: Algorithm[Any]) -> list[float] | None:
    """Return the numbers of an algorithm; None if the script does not know it.

    The first is 0 of one algorithm, 1 of an `AllOf`, and of a `PerResource` 1 more than it has
    resources. There each algorithm begins with the place of its resource, from 1 on.
    """
    numbers: list[float] = [float(type(algorithm) is AllOf)]
    parts: Sequence[Algorithm[Any]] = (algorithm,)
    places: Sequence[tuple[float, ...]] = ((),)
    if type(algorithm) is AllOf:
        parts = algorithm.algorithms
        places = [()] * len(parts)
    elif type(algorithm) is PerResource:
        parts, resources = algorithm.algorithms, algorithm.resources
        numbers = [1.0 + len(resources)]
        places = [(1.0 + resources.index(name),) for name in algorithm.names]
    for place, part in zip(places, parts, strict=True):
        if type(part) is Unlimited:
            continue
        kind = _KINDS.get(type(part))
        if kind is None:
            return None
        numbers += (*place, kind, *cast("_Ported", part).constants())
    return numbers


def numbers_of_costs(algorithm: Algorithm[Any], costs: Sequence[float]) -> Sequence[float]:
    """Return the costs as the script reads them: of a `PerResource`, those of each resource."""
    if type(algorithm) is not PerResource:
        return costs
    resources = algorithm.resources
    return [each for cost in costs for each in as_costs(cost, resources).values()]


def read_remaining(algorithm: Algorithm[Any], numbers: list[float]) -> tuple[float, list[float]]:
    """Return what the script reports as remaining, and the numbers behind it."""
    if type(algorithm) is not PerResource:
        return numbers[0], numbers[1:]
    resources = algorithm.resources
    count = len(resources)
    return Amounts(dict(zip(resources, numbers[:count], strict=True))), numbers[count:]

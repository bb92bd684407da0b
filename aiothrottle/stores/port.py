"""The numbers of an algorithm, as `algorithms.lua` reads them.

Invariant: only the algorithms of this package have numbers here. A class that is derived from one
may decide otherwise than the script.
"""

from typing import Any, Final, Protocol, cast

from aiothrottle.algorithms import (
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
from aiothrottle.algorithms.protocol import Algorithm

__all__ = ["numbers_of"]

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
    """Return the numbers of an algorithm or an `AllOf`; None if the script does not know it."""
    numbers: list[float] = [float(type(algorithm) is AllOf)]
    for part in algorithm.algorithms if type(algorithm) is AllOf else (algorithm,):
        if type(part) is Unlimited:
            continue
        kind = _KINDS.get(type(part))
        if kind is None:
            return None
        numbers += (kind, *cast("_Ported", part).constants())
    return numbers

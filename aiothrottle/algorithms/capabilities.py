"""What an algorithm can do beyond the core protocol, looked up once per class.

Invariant: every `Capabilities` is complete. In place of an optional method that a class lacks
stands a fallback that needs only the six members of `Algorithm` and is always safe.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar

from aiothrottle.algorithms.protocol import Algorithm

__all__ = ["Capabilities", "all_used_now", "capabilities", "inherit", "max_wait", "used"]

State = TypeVar("State")
_Any: TypeAlias = Algorithm[Any]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The optional methods of a class of algorithms; each is called with the instance first."""

    delay_behind: Callable[[Any, Any, float, float, float], float]
    allowance: Callable[[Any, Any, float, int], int]
    take_each: Callable[[Any, Any, Sequence[float]], None]
    refund: Callable[[Any, Any, float, float, float], None]
    cost_of_reject: Callable[[Any, Any, float, float, float], float]
    used: Callable[[Any, Any, float], float]
    inherit: Callable[[Any, _Any, object, float], Any]
    dump: Callable[[Any, Any], bytes]
    load: Callable[[Any, bytes], Any]


def capabilities(algorithm: _Any) -> Capabilities:
    """Return what the algorithm's class can do."""
    return _of_class(type(algorithm))


def max_wait(algorithm: _Any) -> float:
    """Return the longest wait, in seconds, that the algorithm does not reject."""
    longest: float = getattr(algorithm, "max_wait", math.inf)
    return longest


def used(algorithm: _Any, state: object, now: float) -> float:
    """Return the tokens that count at `now`: more than the capacity where there is a debt."""
    return capabilities(algorithm).used(algorithm, state, now)


def inherit(new: Algorithm[State], old: _Any, state: object, now: float) -> State:
    """Return the state of `new` that continues where `old` stands: what was taken stays taken."""
    inherited: State = capabilities(new).inherit(new, old, state, now)
    return inherited


def all_used_now(new: Algorithm[State], old: _Any, state: object, now: float) -> State:
    """Return a state of `new` in which all that counts under `old` was taken at `now`.

    That is safe, as it counts for longer than it would have. A debt stays a debt.
    """
    fresh = new.start()
    spent = used(old, state, now)
    if 0.0 < spent < math.inf:
        debt = max(0.0, spent - old.capacity)
        new.take(fresh, now, min(spent - debt, new.capacity) + debt)
    return fresh


# ---- looking up ----------------------------------------------------------------------------------

# A batch method states again, for many, what these steps do for one.
_RESTS_ON = {"delay_behind": ("delay",), "allowance": ("delay", "take"), "take_each": ("take",)}


@lru_cache(maxsize=256)
def _of_class(kind: type[_Any]) -> Capabilities:
    return Capabilities(
        delay_behind=_method(kind, "delay_behind", _delay_of_sum),
        allowance=_method(kind, "allowance", _none_unasked),
        take_each=_method(kind, "take_each", _take_one_by_one),
        refund=_method(kind, "refund", _no_refund),
        cost_of_reject=_method(kind, "cost_of_reject", _free_reject),
        used=_method(kind, "used", _capacity_without_remaining),
        inherit=_method(kind, "inherit", all_used_now),
        dump=_method(kind, "dump", _no_dump),
        load=_method(kind, "load", _no_load),
    )


def _method(kind: type[_Any], name: str, fallback: Callable[..., Any]) -> Callable[..., Any]:
    """Return the class's method, or the fallback where there is none that can be trusted.

    A class that overrides `delay` or `take` does not want its base's batch methods, which would
    bypass them.
    """
    steps = _RESTS_ON.get(name, ())
    for base in kind.__mro__:
        members = vars(base)
        if name in members:
            method: Callable[..., Any] = getattr(kind, name)
            return method
        if any(step in members for step in steps):
            break
    return fallback


# ---- fallbacks -----------------------------------------------------------------------------------


def _delay_of_sum(algorithm: _Any, state: object, now: float, cost: float, ahead: float) -> float:
    return algorithm.delay(state, now, ahead + cost)


def _none_unasked(algorithm: _Any, state: object, now: float, most: int) -> int:  # noqa: ARG001
    return 0


def _take_one_by_one(algorithm: _Any, state: object, timestamps: Sequence[float]) -> None:
    for now in timestamps:
        algorithm.take(state, now, 1.0)


def _no_refund(algorithm: _Any, state: object, now: float, cost: float, at: float) -> None:
    pass


def _free_reject(
    algorithm: _Any,  # noqa: ARG001
    state: object,  # noqa: ARG001
    now: float,  # noqa: ARG001
    cost: float,  # noqa: ARG001
    ahead: float,  # noqa: ARG001
) -> float:
    return 0.0


def _capacity_without_remaining(algorithm: _Any, state: object, now: float) -> float:
    left = algorithm.remaining(state, now)
    return 0.0 if math.isinf(left) else algorithm.capacity - left


def _no_dump(algorithm: _Any, state: object) -> bytes:  # noqa: ARG001
    raise _not_storable(algorithm)


def _no_load(algorithm: _Any, data: bytes) -> object:  # noqa: ARG001
    raise _not_storable(algorithm)


def _not_storable(algorithm: _Any) -> TypeError:
    return TypeError(
        f"{algorithm!r} has no dump(state) and load(data): a store that keeps bytes needs both"
    )

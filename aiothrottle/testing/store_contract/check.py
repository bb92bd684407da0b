"""The type of a check, and its assertions."""

import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from aiothrottle.stores import Answer, Store
from aiothrottle.testing.manual_clock import ManualClock

__all__ = ["Check", "Make", "about", "close", "listed_in", "raises"]

Make: TypeAlias = Callable[[], Store]
Check: TypeAlias = Callable[[Make, ManualClock], Awaitable[None]]

_C = TypeVar("_C")


def listed_in(checks: list[_C]) -> Callable[[_C], _C]:
    """Return a decorator that appends a check to the list."""

    def put(check: _C) -> _C:
        checks.append(check)
        return check

    return put


@dataclass
class _Wanted:
    """The expected fields of an answer; None is not checked."""

    now: float | None = None
    retry_after: float | None = None
    remaining: float | None = None
    reset_after: float | None = None


def about(answer: Answer, **wanted: float) -> None:
    """Assert fields of the answer, to a microsecond or two: `about(answer, remaining=3.0)`."""
    for name, value in vars(_Wanted(**wanted)).items():
        if value is not None:
            assert close((getattr(answer, name),), (value,)), (name, value, answer)


def close(found: "tuple[float, ...] | list[float]", wanted: tuple[float, ...]) -> bool:
    """Return whether both have the same length and values, to a microsecond or two."""
    # A store may keep microseconds.
    return len(found) == len(wanted) and all(
        math.isclose(one, other, rel_tol=0.0, abs_tol=2e-6) or one == other
        for one, other in zip(found, wanted, strict=True)
    )


async def raises(error: type[Exception], call: Awaitable[object]) -> None:
    """Assert that the call raises that error."""
    with suppress(error):
        answer = await call
        raise AssertionError(f"{call} returned {answer}: it must raise {error.__name__}")

"""What a check of a store is, and how it says what is wrong."""

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
    """Put the check that is decorated at the end of these."""

    def put(check: _C) -> _C:
        checks.append(check)
        return check

    return put


@dataclass
class _Wanted:
    """What an answer should say, where it is asked about."""

    now: float | None = None
    retry_after: float | None = None
    remaining: float | None = None
    reset_after: float | None = None


def about(answer: Answer, **wanted: float) -> None:
    """Assert that the answer says so, to a microsecond or two: `about(answer, remaining=3.0)`."""
    for name, value in vars(_Wanted(**wanted)).items():
        if value is not None:
            assert close((getattr(answer, name),), (value,)), (name, value, answer)


def close(found: "tuple[float, ...] | list[float]", wanted: tuple[float, ...]) -> bool:
    """Tell whether these are as many, and the same to a microsecond or two."""
    # A store may keep microseconds.
    return len(found) == len(wanted) and all(
        math.isclose(one, other, rel_tol=0.0, abs_tol=2e-6) or one == other
        for one, other in zip(found, wanted, strict=True)
    )


async def raises(error: type[Exception], call: Awaitable[object]) -> None:
    """Assert that the call is refused with such an error."""
    with suppress(error):
        answer = await call
        raise AssertionError(f"{call} gave {answer}: it has to raise {error.__name__}")

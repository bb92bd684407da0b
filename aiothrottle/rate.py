"""A rate: so many tokens per period, as a value and as the string that people write."""

import re
from dataclasses import dataclass
from typing import TypeAlias

from aiothrottle.checks import check_number
from aiothrottle.texts import number

__all__ = ["Rate", "RateLike", "as_rate", "no_tuple"]

_UNITS = {
    "ms": 0.001,
    "millisecond": 0.001,
    "s": 1.0,
    "sec": 1.0,
    "second": 1.0,
    "m": 60.0,
    "min": 60.0,
    "minute": 60.0,
    "h": 3600.0,
    "hr": 3600.0,
    "hour": 3600.0,
    "d": 86400.0,
    "day": 86400.0,
    "w": 604800.0,
    "week": 604800.0,
}
_ACCEPTED = (
    "a rate is a number of tokens per second (20), a string ('10/s', '100/min', '1000 per hour', "
    "'5000/24h', '1/250ms') or a Rate"
)
_NUMBER = r"[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?"
_RATE = re.compile(
    rf"\s*(?P<limit>{_NUMBER})\s*(?:/|\bper\b)\s*(?P<count>{_NUMBER})?\s*(?P<unit>[a-z]+)\s*",
    re.ASCII | re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Rate:
    """So many tokens per period.

    Args:
        limit: Tokens per period, above zero.
        period: Seconds, above zero.

    Raises:
        TypeError: One of them is not a number.
        ValueError: One of them is not finite or not above zero.

    >>> Rate(5000, 3600)
    Rate(limit=5000, period=3600)
    >>> Rate.parse("100/min").period
    60.0
    """

    limit: float
    period: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what is no rate, before anything is built on it."""
        check_number("the limit of a rate", self.limit, "tokens", above=0)
        check_number("the period of a rate", self.period, "seconds", above=0)

    @classmethod
    def parse(cls, text: str) -> "Rate":
        """Read a rate as people write it: ``"<tokens>/<period>"`` or ``"<tokens> per <period>"``.

        The period is a unit (ms, s, min, h, d, w, or the word for it), with a number before it
        if it is more than one of them.

        Raises:
            TypeError: It is no text.
            ValueError: The text is no rate.

        >>> Rate.parse("5000/24h")
        Rate(limit=5000.0, period=86400.0)
        """
        if not isinstance(text, str):
            raise TypeError(f"parse() reads a rate from a text such as '10/s', not from {text!r}")
        match = _RATE.fullmatch(text)
        if match is None:
            raise ValueError(f"cannot read {text!r} as a rate: {_ACCEPTED}")
        unit = match["unit"].lower()
        # Words have a plural, letters have none.
        seconds = _UNITS.get(unit) or _UNITS.get(unit.removesuffix("s") if len(unit) > 2 else "")
        if seconds is None:
            raise ValueError(
                f"cannot read {text!r} as a rate: {match['unit']!r} is no unit of time "
                "(ms, s, min, h, d, w)"
            )
        return cls(float(match["limit"]), float(match["count"] or 1) * seconds)

    def __str__(self) -> str:
        """Write the rate as `parse` reads it."""
        return f"{number(self.limit)}/{number(self.period)}s"


RateLike: TypeAlias = Rate | float | str
"""What is accepted wherever a rate is asked for: a number per second, a string, a `Rate`."""


def as_rate(value: RateLike) -> Rate:
    """Give the `Rate` that the value stands for.

    Raises:
        TypeError: The value is of a kind that is no rate.
        ValueError: The value is of such a kind, but no rate.
    """
    if isinstance(value, Rate):
        return value
    if isinstance(value, str):
        return Rate.parse(value)
    if isinstance(value, tuple):
        raise no_tuple(value)
    try:
        return Rate(value)
    except TypeError:
        raise TypeError(f"{value!r} is no rate: {_ACCEPTED}") from None
    except ValueError:
        raise ValueError(f"{value!r} is no rate: it has to be finite and above zero") from None


def no_tuple(value: tuple[object, ...]) -> TypeError:
    """Make the error of a tuple: it may mean a limit and a period, or several rates."""
    write = repr(list(value))
    if len(value) == 2 and all(type(each) in {int, float} for each in value):
        write = repr("{}/{}s".format(*value))
    return TypeError(f"a rate is not a tuple, got {value!r}; write {write} ({_ACCEPTED})")

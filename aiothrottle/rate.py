"""A rate: tokens per period, as a value, and parsed from a string."""

from dataclasses import dataclass
from typing import TypeAlias

from aiothrottle.checks import check_number
from aiothrottle.rate_text import ACCEPTED, read_rate, split_rates
from aiothrottle.redact import shown
from aiothrottle.texts import number

__all__ = ["Rate", "RateLike", "as_rate", "as_rates", "no_tuple"]


@dataclass(frozen=True, slots=True)
class Rate:
    """Tokens per period.

    Args:
        limit: Tokens per period, above zero.
        period: Seconds, above zero.

    Raises:
        TypeError: An argument is not a number.
        ValueError: An argument is not finite or not above zero.

    >>> Rate(5000, 3600)
    Rate(limit=5000, period=3600)
    >>> Rate.parse("100/min").period
    60.0
    """

    limit: float
    period: float = 1.0

    def __post_init__(self) -> None:
        """Check the limit and the period."""
        check_number("the limit of a rate", self.limit, "tokens", above=0)
        check_number("the period of a rate", self.period, "seconds", above=0)

    @classmethod
    def parse(cls, text: str) -> "Rate":
        """Parse a rate: ``"<tokens>/<period>"`` or ``"<tokens> per <period>"``.

        The period is a unit (ms, s, min, h, d, w, or its name), with an optional number before
        it. The number of tokens may have commas between thousands (``"1,000/h"``) or a ``k`` for a
        thousand (``"1k/min"``), and a word for the unit: requests, calls, queries or tokens
        (``"100 requests/minute"``). Short forms such as ``"10 rps"``, ``"100rpm"`` and
        ``"10 qps"`` are accepted too.

        Args:
            text: The rate, such as ``"100/min"``.

        Returns:
            The rate.

        Raises:
            TypeError: `text` is not a string.
            ValueError: `text` is not a rate; the message says what to write.

        >>> Rate.parse("5000/24h")
        Rate(limit=5000.0, period=86400.0)
        """
        if not isinstance(text, str):
            raise TypeError(f"parse() takes a string such as '10/s', got {text!r}")
        return cls(*read_rate(text))

    @property
    def in_whole_tokens(self) -> "Rate":
        """This rate with at least one token per period: a window below that would admit nothing.

        >>> Rate(0.5, 60).in_whole_tokens
        Rate(limit=1, period=120.0)
        """
        return self if self.limit >= 1 else Rate(1, self.period / self.limit)

    def __str__(self) -> str:
        """Return a string that `parse` accepts."""
        return f"{number(self.limit)}/{number(self.period)}s"


RateLike: TypeAlias = Rate | float | str
"""The type of arguments that are a rate: a number per second, a string, a `Rate`."""


def as_rate(value: RateLike) -> Rate:
    """Convert a value to a `Rate`.

    Raises:
        TypeError: The value has a wrong type.
        ValueError: The value has a right type, but is not a rate.
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
        raise TypeError(f"{shown(value)} is not a rate: {ACCEPTED}") from None
    except ValueError:
        raise ValueError(f"rate must be finite and above zero, got {value!r}") from None


def as_rates(value: RateLike) -> list[Rate]:
    """Convert a value to rates: a string may have several, with commas between them.

    Raises what `as_rate` does.

    >>> as_rates("100/minute, 1000/hour")
    [Rate(limit=100.0, period=60.0), Rate(limit=1000.0, period=3600.0)]
    """
    if isinstance(value, str):
        return [Rate.parse(text) for text in split_rates(value)]
    return [as_rate(value)]


def no_tuple(value: tuple[object, ...]) -> TypeError:
    """Return the error of a tuple: it may mean a limit and a period, or several rates."""
    write = repr(list(value))
    if len(value) == 2 and all(type(each) in {int, float} for each in value):
        write = repr("{}/{}s".format(*value))
    return TypeError(f"a rate is not a tuple, got {value!r}; write {write} ({ACCEPTED})")

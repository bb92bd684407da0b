"""A rate: so many tokens per period, as a value and as the string that people write."""

from dataclasses import dataclass
from typing import TypeAlias

from aiothrottle.checks import check_number
from aiothrottle.rate_text import ACCEPTED, read_rate, split_rates
from aiothrottle.redact import shown
from aiothrottle.texts import number

__all__ = ["Rate", "RateLike", "as_rate", "as_rates", "no_tuple"]


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
        if it is more than one of them. The number of tokens may have commas between thousands
        (``"1,000/h"``) or a ``k`` for a thousand (``"1k/min"``), and a word for what is counted:
        requests, calls, queries or tokens (``"100 requests/minute"``). ``"10 rps"``,
        ``"100rpm"``, ``"10 qps"`` and their kin are read as well.

        Raises:
            TypeError: It is no text.
            ValueError: The text is no rate; the message says what to write.

        >>> Rate.parse("5000/24h")
        Rate(limit=5000.0, period=86400.0)
        """
        if not isinstance(text, str):
            raise TypeError(f"parse() reads a rate from a text such as '10/s', not from {text!r}")
        return cls(*read_rate(text))

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
        raise TypeError(f"{shown(value)} is no rate: {ACCEPTED}") from None
    except ValueError:
        raise ValueError(f"{value!r} is no rate: it has to be finite and above zero") from None


def as_rates(value: RateLike) -> list[Rate]:
    """Give the rates that the value stands for: a text may have several, with commas between.

    Raises what `as_rate` does.

    >>> as_rates("100/minute, 1000/hour")
    [Rate(limit=100.0, period=60.0), Rate(limit=1000.0, period=3600.0)]
    """
    if isinstance(value, str):
        return [Rate.parse(text) for text in split_rates(value)]
    return [as_rate(value)]


def no_tuple(value: tuple[object, ...]) -> TypeError:
    """Make the error of a tuple: it may mean a limit and a period, or several rates."""
    write = repr(list(value))
    if len(value) == 2 and all(type(each) in {int, float} for each in value):
        write = repr("{}/{}s".format(*value))
    return TypeError(f"a rate is not a tuple, got {value!r}; write {write} ({ACCEPTED})")

"""A rate: tokens per period, as a value, and the parser of its text.

Texts are "100/min", "1000 per hour", "10 rps", "1,000 requests/minute".
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from aiothrottle._checks import check_number, number, shown


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
        if isinstance(self.limit, str):
            raise TypeError(
                f"a Rate is made of numbers: write Rate.parse({shown(self.limit):.50}), or pass "
                "the text itself wherever a rate is taken"
            )
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
        tidy = " ".join(text.split())
        rate = _read(tidy)
        if rate is None:
            advice = next(_advice(tidy), ACCEPTED)
            raise ValueError(f"cannot read {shown(text)} as a rate: {advice}")
        return cls(*rate)

    @property
    def in_whole_tokens(self) -> "Rate":
        """This rate with the next whole number of tokens, in as much more time.

        A window counts whole requests: one with the limit 1.9 would admit 1 and lose the rest.

        >>> Rate(0.5, 60).in_whole_tokens, Rate(2.5).in_whole_tokens
        (Rate(limit=1, period=120.0), Rate(limit=3, period=1.2))
        """
        # Sums and quotients of whole numbers, such as a third of 3/s, may be a rounding above one.
        whole = max(1, math.ceil(self.limit * (1 - 1e-12)))
        return self if self.limit >= whole else Rate(whole, self.period * whole / self.limit)

    def __str__(self) -> str:
        """Return a string that `parse` accepts, such as ``"100/min"``."""
        period = _NAMES.get(self.period) or f"{number(self.period)}s"
        return f"{number(self.limit)}/{period}"


_NAMES: dict[float, str] = {1: "s", 60: "min", 3600: "h", 86400: "d"}

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


# ---- its text ------------------------------------------------------------------------------------

_UNITS = {
    **dict.fromkeys(("ms", "millisecond"), 0.001),
    **dict.fromkeys(("s", "sec", "second"), 1.0),
    **dict.fromkeys(("m", "min", "minute"), 60.0),
    **dict.fromkeys(("h", "hr", "hour"), 3600.0),
    **dict.fromkeys(("d", "day"), 86400.0),
    **dict.fromkeys(("w", "week"), 604800.0),
}
# Units without a fixed length, and their usual length in days.
_DAYS = {"month": 30, "mo": 30, "quarter": 90, "year": 365, "yr": 365, "y": 365}
ACCEPTED = (
    "a rate is a number of tokens per second (20), a string ('10/s', '100/min', '1000 per hour', "
    "'5000/24h', '1/250ms') or a Rate"
)
# All patterns are matched against strings whose blanks are single spaces, and no two neighbouring
# parts of a pattern match the same character: so the time is linear in the length.
_NUMBER = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+(?:_[0-9]+)*)(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?"
_COUNT = rf"(?P<limit>{_NUMBER})(?: ?(?P<kilo>k))?"
_PER = r"(?: ?/ ?| per )"
_PERIOD = rf"(?:(?P<count>{_NUMBER}) ?)?(?P<unit>[a-z]+)"
_FLAGS = re.ASCII | re.IGNORECASE
_RATE = re.compile(
    rf"{_COUNT}(?: ?(?:r|reqs?|requests?|calls?|query|queries|tokens?))?{_PER}{_PERIOD}", _FLAGS
)
_SHORT = re.compile(rf"{_COUNT} ?[rqt]p(?P<unit>[smhd])", _FLAGS)  # rps, qps, rpm, tpm, ...
# A comma between two digits is a part of a number.
_SEPARATOR = re.compile(r";|,(?![0-9])|(?<![0-9]),", re.ASCII)
# Frequent mistakes, for which the error suggests a correction.
_NUMBER_ALONE = re.compile(_NUMBER, _FLAGS)
_TWO_NUMBERS = re.compile(rf"({_NUMBER}) ?/ ?({_NUMBER})", _FLAGS)
_DECIMAL_COMMA = re.compile(r"([0-9]+),([0-9]+)([^0-9,].*)", re.ASCII)
_BLANK_IN_NUMBER = re.compile(r"(?<=[0-9]) (?=[0-9]{3})", re.ASCII)
_MILLIONS = re.compile(rf"({_NUMBER}) ?m(?:illions?)?(?![a-z])(.*)", _FLAGS)
_OTHER_WORD = re.compile(rf"({_NUMBER}(?: ?k)?) ?([a-z]+)({_PER}.*)", _FLAGS)


def split_rates(text: str) -> list[str]:
    """Split a string at semicolons and commas, except for commas in numbers.

    >>> split_rates("1,000/hour, 100/minute; 5/s")
    ['1,000/hour', ' 100/minute', ' 5/s']
    """
    return _SEPARATOR.split(text)


def _read(text: str) -> tuple[float, float] | None:
    """Return the tokens and the seconds; None if it is not a rate."""
    match = _RATE.fullmatch(text) or _SHORT.fullmatch(text)
    if match is None:
        return None
    unit = match["unit"]
    seconds = _UNITS.get(unit.lower()) or _UNITS.get(_singular(unit))
    if seconds is None:
        return None
    limit = _value(match["limit"]) * (1000 if match["kilo"] else 1)
    return limit, _value(match.groupdict().get("count") or "1") * seconds


def _value(digits: str) -> float:
    return float(digits.replace(",", ""))


def _singular(unit: str) -> str:
    """Return the unit without a plural "s": names of units have one, abbreviations do not."""
    unit = unit.lower()
    return unit.removesuffix("s") if len(unit) > 2 else unit


def _advice(text: str) -> Iterator[str]:
    """Yield corrections, the likeliest first."""
    if text.startswith("-") and _read(text[1:].lstrip()):
        yield "a rate must be above zero, without a sign"
    parts = [part.strip() for part in split_rates(text)]
    if len(parts) > 1 and all(map(_read, parts)):
        yield f"expected one rate, got {len(parts)}; write {parts[0]!r} for the first"
    if _NUMBER_ALONE.fullmatch(text):
        yield from _suggest(f"{text}/s")
    if match := _TWO_NUMBERS.fullmatch(text):
        yield from _suggest(f"{match[1]}/{match[2]}s")
    if match := _DECIMAL_COMMA.fullmatch(text):
        yield from _suggest(f"{match[1]}.{match[2]}{match[3]}")
    yield from _suggest(_BLANK_IN_NUMBER.sub("", text))
    if match := _MILLIONS.fullmatch(text):
        yield from _suggest(f"{number(1e6 * _value(match[1]))}{match[2]}")
    elif match := _OTHER_WORD.fullmatch(text):
        yield from _suggest(f"{match[1]}{match[3]}", f"{match[2]!r:.50} does not mean tokens; ")
    if match := _RATE.fullmatch(text):
        unit = match["unit"]
        if days := _DAYS.get(_singular(unit)):
            period = number(days * _value(match["count"] or "1"))
            limit = f"{match['limit']}{match['kilo'] or ''}"
            yield from _suggest(f"{limit}/{period}d", f"{unit!r} has no fixed length; ")
        yield f"unknown unit {unit!r:.50}; write one of ms, s, min, h, d, w"


def _suggest(text: str, reason: str = "") -> Iterator[str]:
    if _read(text):
        yield f"{reason}write {text!r:.200}"

"""Parsing of rates: "100/min", "1000 per hour", "10 rps", "1,000 requests/minute"."""

import re
from collections.abc import Iterator

from aiothrottle.redact import shown
from aiothrottle.texts import number

__all__ = ["ACCEPTED", "read_rate", "split_rates"]

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
_NUMBER_ALONE = re.compile(rf"({_NUMBER})", _FLAGS)
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


def read_rate(text: str) -> tuple[float, float]:
    """Parse a rate, and return its tokens and seconds.

    Raises:
        ValueError: `text` is not a rate; the message says what to write.

    >>> read_rate("1k requests per minute")
    (1000.0, 60.0)
    """
    tidy = " ".join(text.split())
    rate = _read(tidy)
    if rate is None:
        advice = next(_advice(tidy), ACCEPTED)
        raise ValueError(f"cannot read {shown(text):.200} as a rate: {advice}")
    return rate


def _read(text: str) -> tuple[float, float] | None:
    match = _RATE.fullmatch(text) or _SHORT.fullmatch(text)
    if match is None:
        return None
    seconds = _seconds(match["unit"])
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


def _seconds(unit: str) -> float | None:
    return _UNITS.get(unit.lower()) or _UNITS.get(_singular(unit))


def _advice(text: str) -> Iterator[str]:
    """Yield corrections, the likeliest first."""
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

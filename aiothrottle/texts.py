"""Formats numbers and durations for messages: readable, without exponents."""

from decimal import Decimal

__all__ = ["duration", "number"]

# Each unit, its seconds, and the next smaller unit, to whose whole numbers a duration is rounded.
_UNITS = (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1))
# Seconds. A shorter duration is not written exactly.
_LEAST = 1e-6


def number(value: float, digits: int = 12) -> str:
    """Format a number with at most `digits` significant digits, and without an exponent.

    >>> number(1e7), number(0.1), number(1e-7), number(2 / 3, 3), number(20.0)
    ('10000000', '0.1', '0.0000001', '0.667', '20')
    """
    return f"{Decimal(f'{value:.{digits}g}'):f}"


def duration(seconds: float, digits: int = 3) -> str:
    """Format a duration of 0 seconds or more, in its two largest units or with so many digits.

    >>> duration(3600), duration(5400), duration(90), duration(2.5), duration(0.25)
    ('1 h', '1 h 30 min', '1 min 30 s', '2.5 s', '250 ms')
    >>> duration(0.00312, 2)
    '3.1 ms'
    """
    rounded = float(f"{seconds:.{digits}g}")
    if 0 < rounded < _LEAST:
        return "less than 0.001 ms"
    if 0 < rounded < 1:
        return f"{number(1000 * rounded, 3)} ms"
    for unit, size, smaller, least in _UNITS:
        if size <= rounded < float("inf"):
            count, rest = divmod(round(seconds / least), size // least)
            return f"{count} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{number(rounded)} s"

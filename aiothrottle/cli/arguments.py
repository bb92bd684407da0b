"""Parsers of arguments: each returns a value, or raises an error of one line."""

import argparse
import contextlib
import math
import re
from collections.abc import Callable
from pathlib import Path

from aiothrottle.cli.picture import SUFFIXES, matplotlib_is_missing
from aiothrottle.rate import ACCEPTED, Rate, RateLike, as_rate

__all__ = [
    "header",
    "header_value",
    "method",
    "number",
    "picture",
    "rate",
    "seconds",
    "some_seconds",
    "whole_number",
    "whole_rate",
]

_RATES = "write 20 (per second), 10/s, 100/min, 5000/24h, 1/250ms or '1000 per hour'"
_NAME = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"  # RFC 9110 (5.6.2)
_METHOD = re.compile(_NAME)
_HEADER = re.compile(rf"({_NAME})\s*:\s*+([^\x00-\x08\x0a-\x1f\x7f]*)")


def rate(text: str) -> Rate:
    """Parse a rate; a bare number is per second."""
    given: RateLike = text
    with contextlib.suppress(ValueError):
        given = float(text)
    try:
        return as_rate(given)
    except ValueError as error:
        # The advice of the library is about arguments of Python.
        raise argparse.ArgumentTypeError(str(error).replace(ACCEPTED, _RATES)) from None


def whole_rate(text: str) -> Rate:
    """Parse a rate of whole requests."""
    read = rate(text)
    if read.limit < 1 or read.limit != math.floor(read.limit):
        raise argparse.ArgumentTypeError(
            f"must be a rate of whole requests, got {text!r}; for one in two seconds write 1/2s"
        )
    return read


def whole_number(greatest: int, least: int = 1) -> Callable[[str], int]:
    """Make a parser of whole numbers from `least` to `greatest`."""

    def read(text: str) -> int:
        message = f"must be a whole number from {least} to {greatest}, got {text!r}"
        try:
            whole = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(message) from None
        if not least <= whole <= greatest:
            raise argparse.ArgumentTypeError(message)
        return whole

    return read


def seconds(text: str) -> float:
    """Parse a duration, 0 or more."""
    try:
        read = float(text)
    except ValueError:
        read = math.nan
    if not 0 <= read < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number of seconds, 0 or more, got {text!r}")
    return read


def some_seconds(text: str) -> float:
    """Parse a duration above 0."""
    read = seconds(text)
    if not read:
        raise argparse.ArgumentTypeError(f"must be a number of seconds, above 0, got {text!r}")
    return read


def number(text: str) -> float:
    """Parse a number above 0."""
    try:
        read = float(text)
    except ValueError:
        read = math.nan
    if not 0 < read < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number above 0, got {text!r}")
    return read


def method(text: str) -> str:
    """Parse an HTTP method."""
    if not _METHOD.fullmatch(text):
        raise argparse.ArgumentTypeError(f"must be a method such as GET, got {text!r}")
    return text.upper()


def header(text: str) -> tuple[str, str]:
    """Parse a header as curl does. No line break is accepted: it would inject another header."""
    match = _HEADER.fullmatch(text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"must be 'Name: value', got {text!r}")
    return match[1], match[2]


def header_value(text: str) -> str:
    """Parse the value of a header."""
    return header(f"X: {text}")[1]


def picture(text: str) -> Path:
    """Parse the path of a picture, and check before the run that it can be drawn."""
    path = Path(text)
    if path.suffix.lower() not in SUFFIXES:
        raise argparse.ArgumentTypeError(
            f"must be a file name in {' or '.join(SUFFIXES)}, got {text!r}"
        )
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {str(path.parent)!r}")
    if matplotlib_is_missing():
        raise argparse.ArgumentTypeError(
            "a picture needs matplotlib: pip install 'aiothrottle-client[plot]'"
        )
    return path

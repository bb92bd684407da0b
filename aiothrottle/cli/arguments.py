"""Readers of arguments: each gives a value, or says in a line what is wrong."""

import argparse
import contextlib
import math
import re
from collections.abc import Callable
from pathlib import Path

from aiothrottle.picture import SUFFIXES, matplotlib_is_missing
from aiothrottle.rate import Rate, RateLike, as_rate
from aiothrottle.rate_text import split_rates

__all__ = [
    "header",
    "header_value",
    "method",
    "number",
    "picture",
    "rate",
    "rates",
    "seconds",
    "some_seconds",
    "whole_number",
    "whole_rate",
]

_NAME = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"  # RFC 9110 (5.6.2)
_METHOD = re.compile(_NAME)
_HEADER = re.compile(rf"({_NAME})\s*:\s*+([^\x00-\x08\x0a-\x1f\x7f]*)")


def rate(text: str) -> Rate:
    """Read a rate: a number is one per second."""
    given: RateLike = text
    with contextlib.suppress(ValueError):
        given = float(text)
    try:
        return as_rate(given)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def rates(text: str) -> list[Rate]:
    """Read one rate or several, with commas or semicolons between."""
    return [rate(part) for part in split_rates(text)]


def whole_rate(text: str) -> Rate:
    """Read a rate that a server can keep to in whole requests."""
    read = rate(text)
    if read.limit < 1 or read.limit != math.floor(read.limit):
        raise argparse.ArgumentTypeError(
            f"a server admits whole requests, not {text!r}; one in two seconds is 1/2s"
        )
    return read


def whole_number(greatest: int, least: int = 1) -> Callable[[str], int]:
    """Make a reader of whole numbers from `least` to `greatest`."""

    def read(text: str) -> int:
        message = f"must be a whole number from {least} to {greatest}, not {text!r}"
        try:
            whole = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(message) from None
        if not least <= whole <= greatest:
            raise argparse.ArgumentTypeError(message)
        return whole

    return read


def seconds(text: str) -> float:
    """Read a duration, 0 or more."""
    try:
        read = float(text)
    except ValueError:
        read = math.nan
    if not 0 <= read < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number of seconds, 0 or more, not {text!r}")
    return read


def some_seconds(text: str) -> float:
    """Read a duration above 0."""
    read = seconds(text)
    if not read:
        raise argparse.ArgumentTypeError("must be above 0 seconds")
    return read


def number(text: str) -> float:
    """Read a number above 0."""
    try:
        read = float(text)
    except ValueError:
        read = math.nan
    if not 0 < read < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number above 0, not {text!r}")
    return read


def method(text: str) -> str:
    """Read the name of a method."""
    if not _METHOD.fullmatch(text):
        raise argparse.ArgumentTypeError(f"must be a method such as GET, not {text!r}")
    return text.upper()


def header(text: str) -> tuple[str, str]:
    """Read a header as curl does. Nothing in it may begin another one."""
    match = _HEADER.fullmatch(text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"must be 'Name: value', not {text!r}")
    return match[1], match[2]


def header_value(text: str) -> str:
    """Read the value of a header."""
    return header(f"X: {text}")[1]


def picture(text: str) -> Path:
    """Read the name of a picture, and see that it can be drawn: afterwards it is too late."""
    path = Path(text)
    if path.suffix.lower() not in SUFFIXES:
        raise argparse.ArgumentTypeError(
            f"must be a file name in {' or '.join(SUFFIXES)}, not {text!r}"
        )
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {str(path.parent)!r}")
    if matplotlib_is_missing():
        raise argparse.ArgumentTypeError(
            "a picture needs matplotlib: pip install 'aiothrottle-client[plot]'"
        )
    return path

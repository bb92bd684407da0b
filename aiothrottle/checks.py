"""What is given for a number or a word, and is none that will do, is refused by its name."""

import math
import sys

from aiothrottle.redact import shown
from aiothrottle.texts import number

__all__ = ["check_choice", "check_number", "check_whole"]

# To compare with: math.isfinite raises of an int that is more than any float.
_MOST = sys.float_info.max


def check_number(
    name: str,
    value: object,
    unit: str = "",
    *,
    least: float = 0.0,
    above: float | None = None,
    none: str = "",
) -> None:
    """Refuse what is no finite number, or too small.

    Args:
        name: What the user knows it by.
        value: What was given.
        unit: What it is a number of.
        least: The least that will do. Minus infinity: any.
        above: What it has to be more than, in place of `least`.
        none: What to say of None, where that will do as well.

    Raises:
        TypeError: It is no number, or a bool.
        ValueError: It is too small, infinite or NaN.

    >>> check_number("max_hold", 0, "seconds", above=0, none="None")
    Traceback (most recent call last):
    ValueError: max_hold is a finite number of seconds, above 0, or None, not 0
    """
    if none and value is None:
        return
    error: type[Exception] = TypeError
    # A tuple and no union: that would be made anew at each call.
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if -_MOST <= value <= _MOST and (value >= least if above is None else value > above):
            return
        error = ValueError
    raise error(f"{name} is a finite number{_wanted(unit, least, above, none)}, not {shown(value)}")


def check_whole(
    name: str, value: object, unit: str = "", *, least: float = 1, none: str = ""
) -> None:
    """Refuse what is no whole number, or too small; arguments as for `check_number`.

    >>> check_whole("max_queue", 0, none="None for no limit")
    Traceback (most recent call last):
    ValueError: max_queue is a whole number, 1 or more, or None for no limit, not 0
    """
    if none and value is None:
        return
    error: type[Exception] = TypeError
    if isinstance(value, int) and not isinstance(value, bool):
        if value >= least:
            return
        error = ValueError
    raise error(f"{name} is a whole number{_wanted(unit, least, None, none)}, not {shown(value)}")


def check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    """Refuse what is none of the choices.

    >>> check_choice("jitter", "none", ("full", "decorrelated"))
    Traceback (most recent call last):
    ValueError: jitter is one of 'full', 'decorrelated', not 'none'
    """
    if value not in choices:
        raise ValueError(f"{name} is one of {', '.join(map(repr, choices))}, not {shown(value)}")


def _wanted(unit: str, least: float, above: float | None, none: str) -> str:
    """Say what a number has to be, after the word for it."""
    of = f" of {unit}" if unit else ""
    bound = f", {number(least)} or more" if least > -math.inf else ""
    if above is not None:
        bound = f", above {number(above)}"
    return of + bound + (f", or {none}" if none else "")

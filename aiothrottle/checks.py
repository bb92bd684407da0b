"""Validates numbers and choices. A message has the name, what would be right, and the value."""

import math
import sys

from aiothrottle.redact import shown
from aiothrottle.texts import number

__all__ = ["check_choice", "check_number", "check_whole"]

# math.isfinite raises for an int greater than any float, a comparison does not.
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
    """Reject anything but a finite number that is large enough.

    Args:
        name: The user's name for the value.
        value: The argument.
        unit: The unit of the number.
        least: The smallest valid number. Minus infinity: any.
        above: An exclusive lower bound, in place of `least`.
        none: What the message says about None, if None is valid.

    Raises:
        TypeError: The value is no number, or a bool.
        ValueError: The value is too small, infinite or NaN.

    >>> check_number("max_hold", 0, "seconds", above=0, none="None")
    Traceback (most recent call last):
    ValueError: max_hold must be a finite number of seconds, above 0, or None, got 0
    """
    if none and value is None:
        return
    error: type[Exception] = TypeError
    # A tuple, as a union would be created at each call.
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if -_MOST <= value <= _MOST and (value >= least if above is None else value > above):
            return
        error = ValueError
    wanted = _wanted(unit, least, above, none)
    raise error(f"{name} must be a finite number{wanted}, got {shown(value)}")


def check_whole(
    name: str, value: object, unit: str = "", *, least: float = 1, none: str = ""
) -> None:
    """Reject anything but a whole number that is large enough; arguments as in `check_number`.

    >>> check_whole("max_queue", 0, none="None for no limit")
    Traceback (most recent call last):
    ValueError: max_queue must be a whole number, 1 or more, or None for no limit, got 0
    """
    if none and value is None:
        return
    error: type[Exception] = TypeError
    if isinstance(value, int) and not isinstance(value, bool):
        if value >= least:
            return
        error = ValueError
    wanted = _wanted(unit, least, None, none)
    raise error(f"{name} must be a whole number{wanted}, got {shown(value)}")


def check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    """Reject anything but one of the choices.

    >>> check_choice("jitter", "none", ("full", "decorrelated"))
    Traceback (most recent call last):
    ValueError: jitter must be one of 'full', 'decorrelated', got 'none'
    """
    if value not in choices:
        wanted = ", ".join(map(repr, choices))
        raise ValueError(f"{name} must be one of {wanted}, got {shown(value)}")


def _wanted(unit: str, least: float, above: float | None, none: str) -> str:
    """Return the rest of the message: the unit, the bound and None."""
    of = f" of {unit}" if unit else ""
    bound = f", {number(least)} or more" if least > -math.inf else ""
    if above is not None:
        bound = f", above {number(above)}"
    return of + bound + (f", or {none}" if none else "")

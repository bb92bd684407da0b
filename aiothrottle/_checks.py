"""Checks of arguments, and the texts of their errors: numbers, secrets, names of other libraries.

A message has the name of the argument, what would be right, and the value. No other module decides
what of a value is shown. All of it runs where objects are made, or where something is wrong; only
`check_number` may run for a request.
"""

import functools
import inspect
import math
import re
import sys
from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeVar

_Class = TypeVar("_Class", bound=type[Any])

# ---- numbers and durations as texts --------------------------------------------------------------

# Each unit, its seconds, and the next smaller unit, to whose whole numbers a duration is rounded.
_UNITS = (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1))
# Seconds. A shorter duration is not written exactly.
_LEAST = 1e-6


def number(value: float, digits: int = 12) -> str:
    """Format a number with at most `digits` significant digits, and without an exponent.

    >>> number(1e7), number(0.1), number(1e-7), number(2 / 3, 3), number(20.0)
    ('10000000', '0.1', '0.0000001', '0.667', '20')
    """
    text = f"{value:.{digits}g}"
    if math.isfinite(value) and "e" not in text:
        return text
    from decimal import Decimal

    return f"{Decimal(text):f}"


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


# ---- values as texts, without secrets ------------------------------------------------------------

_HOST = r"(?:\[[0-9a-f:.]+\]|[\w.%-]+)(?::\d{1,5})?"
_HOSTS = re.compile(rf"{_HOST}(?:,{_HOST})*", re.IGNORECASE)
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
# An "@" after the authority may belong to a password with a "/", "?" or "#" in it.
_ADDRESS = re.compile(
    rf"(?P<scheme>{_SCHEME.pattern})(?:[^/?#\s]*@)?(?P<hosts>(?:{_HOSTS.pattern})?)"
    r"(?:[/?#][^@\s]*)?",
    re.IGNORECASE,
)
# The most characters of a value: a message may go to a log, and the value be a whole body.
_LONGEST = 200
# Signs of a possible secret in a text that is no address.
_SECRETIVE = re.compile(r"://|@|passw|secret", re.IGNORECASE)


def redact(text: str) -> str:
    """Return the scheme and the hosts of an address, and nothing that may be a secret.

    For a malformed address, only the scheme is returned.

    >>> redact("redis://me:secret@example.org:6379/0?password=secret")
    'redis://example.org:6379'
    >>> redact("redis://:sec/ret@example.org")
    'redis://***'
    """
    if address := _ADDRESS.fullmatch(text):
        return f"{address['scheme']}{address['hosts']}"
    if _HOSTS.fullmatch(text):
        return text
    scheme = _SCHEME.match(text)
    return f"{scheme[0] if scheme else ''}***"


def shown(value: object) -> str:
    """Return the `repr` of an argument for a message, or less if it may be secret or is long.

    >>> shown(5), shown("redis://:pw@localhost"), shown({"url": "redis://:pw@localhost"})
    ('5', "'redis://localhost'", 'a dict')
    """
    text = repr(value)
    if _SECRETIVE.search(text):
        text = repr(redact(value)) if isinstance(value, str) else f"a {type(value).__qualname__}"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


# ---- numbers and choices -------------------------------------------------------------------------

# math.isfinite raises for an int greater than any float, a comparison does not.
_MOST = sys.float_info.max


def check_number(
    name: str,
    value: object,
    unit: str = "",
    *,
    least: float = 0.0,
    above: float | None = None,
    most: float = _MOST,
    none: str = "",
) -> None:
    """Reject anything but a finite number within bounds.

    Args:
        name: The user's name for the value.
        value: The argument.
        unit: The unit of the number.
        least: The smallest valid number. Minus infinity: any.
        above: An exclusive lower bound, in place of `least`.
        most: The greatest valid number.
        none: What the message says about None, if None is valid.

    Raises:
        TypeError: The value is no number, or a bool.
        ValueError: The value is out of bounds, infinite or NaN.

    >>> check_number("max_hold", 0, "seconds", above=0, none="None")
    Traceback (most recent call last):
    ValueError: max_hold must be a finite number of seconds, above 0, or None, got 0
    """
    if none and value is None:
        return
    error: type[Exception] = TypeError
    # A tuple, as a union would be created at each call.
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if -_MOST <= value <= most and (value >= least if above is None else value > above):
            return
        error = ValueError
    wanted = _wanted(unit, least, above, none, most)
    raise error(f"{name} must be a finite number{wanted}, got {shown(value)}")


def check_whole(
    name: str,
    value: object,
    unit: str = "",
    *,
    least: float = 1,
    most: float = _MOST,
    none: str = "",
) -> None:
    """Reject anything but a whole number within bounds; arguments as in `check_number`.

    >>> check_whole("max_queue", 0, none="None for no limit")
    Traceback (most recent call last):
    ValueError: max_queue must be a whole number, 1 or more, or None for no limit, got 0
    """
    if none and value is None:
        return
    error: type[Exception] = TypeError
    if isinstance(value, int) and not isinstance(value, bool):
        if least <= value <= most:
            return
        error = ValueError
    wanted = _wanted(unit, least, None, none, most)
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


def _wanted(unit: str, least: float, above: float | None, none: str, most: float = _MOST) -> str:
    """Return the rest of the message: the unit, the bounds and None."""
    of = f" of {unit}" if unit else ""
    bound = f", {number(least)} or more" if least > -math.inf else ""
    if above is not None:
        bound = f", above {number(above)}"
    if most < _MOST:
        bound += f", at most {most:g}"
    return of + bound + (f", or {none}" if none else "")


# ---- unknown names -------------------------------------------------------------------------------


@functools.cache
def _hints() -> dict[str, Any]:
    """Return what to write in place of names of other libraries."""
    import tomllib
    from importlib.resources import files

    return tomllib.loads(files("aiothrottle").joinpath("hints.toml").read_text(encoding="utf-8"))


def check_names(
    owner: str, known: Collection[str], given: Mapping[str, object], *, elsewhere: str = ""
) -> None:
    """Raise a TypeError if a given argument is not known; `elsewhere` follows it in the message.

    >>> check_names("ThrottleMiddleware", {"max_hold", "retry"}, {"max_holds": 1})
    Traceback (most recent call last):
    TypeError: ThrottleMiddleware has no argument 'max_holds'; did you mean 'max_hold'?
    >>> check_names("RateLimiter", {"rate_limit"}, {"rate_limit": 10, "period": 60})
    Traceback (most recent call last):
    TypeError: RateLimiter has no argument 'period'; write RateLimiter('10/60s')
    """
    for name in given:
        if name not in known:
            advice = _advice(owner, known, given, name)
            raise TypeError(f"{owner} has no argument {name!r}{elsewhere}{advice}")


def arguments_of(kind: type[Any]) -> list[str]:
    """Return the names of the arguments of a class, without that of ``*positional``."""
    parameters = inspect.signature(kind).parameters.values()
    return [each.name for each in parameters if each.kind is not each.VAR_POSITIONAL]


def explains_arguments(kind: _Class) -> _Class:
    """Decorate a class: an unknown argument raises the error of `check_names`."""
    init: Any = kind.__init__
    known = arguments_of(kind)
    names = frozenset(known)

    @functools.wraps(init)
    def checked(self: object, *args: object, **kwargs: object) -> None:
        if not names.issuperset(kwargs):
            check_names(kind.__name__, names, {**dict(zip(known, args, strict=False)), **kwargs})
        init(self, *args, **kwargs)

    type.__setattr__(kind, "__init__", checked)
    return kind


def no_attribute(owner: object, name: str) -> AttributeError:
    """Make the error of a limiter without an attribute of that name.

    It has the owner too, from which a traceback suggests a similar name.
    """
    kind = type(owner).__name__
    # Python itself asks for private names, often.
    hint = None if name.startswith("_") else _hints()["attributes"].get(name)
    advice = "" if hint is None else f"; write {hint}"
    return AttributeError(
        f"{kind!r} object has no attribute {name!r}{advice}", name=name, obj=owner
    )


def _advice(owner: str, known: Collection[str], given: Mapping[str, object], name: str) -> str:
    from difflib import get_close_matches

    hints = _hints()
    if "rate_limit" in known and name in {*hints["rates"], *hints["periods"]}:
        limit, period = (_first_number(given, hints[which]) for which in ("rates", "periods"))
        if limit is None:
            if name in hints["rates"]:
                return "; write rate_limit="
            return f"; write the period into the rate, such as {owner}('10/60s')"
        if period is None:
            return f"; write {owner}({limit}) for {limit} per second, or {owner}('{limit}/min')"
        return f"; write {owner}('{limit}/{period}s')"
    for mark, instead in hints["arguments"].items():
        if (mark in known or mark == owner) and name in instead:
            return f"; {instead[name]}"
    near = get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _first_number(given: Mapping[str, object], names: Iterable[str]) -> str | None:
    values = (given.get(name) for name in names)
    return next((number(it) for it in values if type(it) is int or type(it) is float), None)

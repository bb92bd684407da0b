"""The arguments that are passed on to an `aiohttp.ClientSession`, checked before it is made."""

import inspect
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any

from aiohttp import ClientSession

__all__ = ["check_arguments"]

_OF_AIOHTTP = [
    name
    for name, parameter in inspect.signature(ClientSession).parameters.items()
    if parameter.kind is not parameter.VAR_KEYWORD
]


def check_arguments(function: Callable[..., Any], names: Iterable[str]) -> None:
    """Refuse what neither the function nor a session of aiohttp knows.

    Raises:
        TypeError: A name is unknown.
    """
    for name in names:
        if name in _OF_AIOHTTP:
            continue
        known = {*_OF_AIOHTTP, *inspect.signature(function).parameters}
        near = get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise TypeError(
            f"{function.__name__} has no argument {name!r}, and aiohttp.ClientSession "
            f"has none either{hint}"
        )

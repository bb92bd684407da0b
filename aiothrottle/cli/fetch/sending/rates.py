"""Rates as options give them, of all requests or of each resource: ``tokens=200000/min``. Pure."""

import argparse
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from aiothrottle.cli.arguments import rate
from aiothrottle.rate import Rate, split_rates

__all__ = ["NamedRate", "Rates", "by_resource", "named_rates"]

Rates: TypeAlias = Sequence[Rate] | Mapping[str, Sequence[Rate]]
"""The rates of a limiter, or of each of its resources."""

_RESOURCE = re.compile(r"\w[\w.-]*")


class NamedRate(NamedTuple):
    """A rate and the resource that it limits; None: it limits requests, and there are no others."""

    resource: str | None
    rate: Rate


def named_rates(text: str) -> list[NamedRate]:
    """Parse one rate or several, separated by commas or semicolons, each with or without a name."""
    return [_named(part) for part in split_rates(text)]


def by_resource(option: str, given: Sequence[NamedRate]) -> Rates:
    """Return the rates of each resource, or a list if none is named.

    Raises:
        ValueError: Only some of the rates have a name.
    """
    named: dict[str, list[Rate]] = {}
    unnamed: list[Rate] = []
    for resource, each in given:
        (unnamed if resource is None else named.setdefault(resource, [])).append(each)
    if named and unnamed:
        first = next(iter(named))
        raise ValueError(
            f"only some of the rates of {option} name a resource, such as {first!r}: name that of "
            "each, such as requests=500/min"
        )
    return named or unnamed


def _named(text: str) -> NamedRate:
    name, equals, rest = text.rpartition("=")
    if not equals:
        return NamedRate(None, rate(text))
    name = name.strip()
    if not _RESOURCE.fullmatch(name):
        raise argparse.ArgumentTypeError(
            f"must be a rate such as 10/s, or with its resource, tokens=200000/min, got {text!r}"
        )
    return NamedRate(name, rate(rest))

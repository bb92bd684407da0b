"""Tokens of several resources at once: what a request costs where a limiter has resources.

Strategy. A cost in one resource is a plain float, everywhere. A cost in several is an `Amounts`: as
a number it is the tokens of `REQUESTS`, so code that counts requests needs no other case; sums and
differences are those of each resource. So plain costs and `Amounts` mix, and a limiter without
resources never meets an `Amounts`.

What is not a sum (a lesser one, a part that is above zero, whether it fits) is a function here.
Invariant: an `Amounts` is never changed, and neither is its mapping.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self, TypeAlias, cast

from aiothrottle._checks import check_number, shown

REQUESTS: Final = "requests"
"""The resource of which a request costs 1 unless its cost says otherwise."""

Cost: TypeAlias = float | Mapping[str, float]
"""What a request costs: tokens, or with resources the tokens of each, ``{"tokens": 1500}``."""

ROUNDING: Final = 1e-9
"""Tokens that are as good as none: the sum of a few costs is off by less."""


MOST: Final = 1e12
"""The greatest cost: sums of some thousands of them are still exact to a thousandth of a token."""


class Amounts(float):
    """Tokens by resource; as a number, those of `REQUESTS`.

    Args:
        named: Tokens by the name of the resource, `REQUESTS` among them.
    """

    __slots__ = ("by_name",)

    #: The tokens of each resource, `REQUESTS` among them. Of a cost, others cost nothing; of a
    #: limit, others have no limit.
    by_name: Mapping[str, float]

    def __new__(cls, named: Mapping[str, float]) -> Self:
        """Make the amounts of a mapping that has `REQUESTS`."""
        self = super().__new__(cls, named[REQUESTS])
        self.by_name = named
        return self

    def __getnewargs__(self) -> tuple[Mapping[str, float]]:  # type: ignore[override]
        """Return what pickling and copying make it of; by default of a float."""
        return (self.by_name,)

    def __add__(self, other: float) -> "Amounts":
        tokens = dict(self.by_name)
        for name, more in by_name(other).items():
            tokens[name] = tokens.get(name, 0.0) + more
        return Amounts(tokens)

    def __radd__(self, other: float) -> "Amounts":
        return self + other

    def __sub__(self, other: float) -> "Amounts":
        return self + -1.0 * other

    def __rsub__(self, other: float) -> "Amounts":
        return self * -1.0 + other

    def __mul__(self, factor: float) -> "Amounts":
        return Amounts({name: tokens * factor for name, tokens in self.by_name.items()})

    def __rmul__(self, factor: float) -> "Amounts":
        return self * factor

    def __truediv__(self, divisor: float) -> "Amounts":
        return Amounts({name: tokens / divisor for name, tokens in self.by_name.items()})

    def __bool__(self) -> bool:
        return any(self.by_name.values())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Amounts) and self.by_name == other.by_name

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(frozenset(self.by_name.items()))

    def __repr__(self) -> str:
        return f"Amounts({dict(self.by_name)!r})"


def amounts(named: Mapping[str, float]) -> float:
    """Return a cost by its tokens of each resource: a plain float if only `REQUESTS` has any.

    Args:
        named: Tokens by the name of the resource.

    >>> amounts({"requests": 1.0, "tokens": 0.0}), amounts({"tokens": 7.0}) + 1.0
    (1.0, Amounts({'tokens': 7.0, 'requests': 1.0}))
    """
    costs = {name: tokens for name, tokens in named.items() if tokens}
    requests = costs.setdefault(REQUESTS, 0.0)
    return requests if len(costs) == 1 else Amounts(costs)


def check_cost(cost: object, resource: str = "tokens") -> None:
    """Reject anything but a number of tokens that can be counted.

    Raises:
        TypeError: The cost is not a number.
        ValueError: The cost is negative, above `MOST` or not finite.
    """
    if isinstance(cost, dict):
        raise TypeError(
            "a cost by resource needs a limiter with these resources, such as "
            f'{{"requests": "500/min", "tokens": "30000/min"}}, got {shown(cast("object", cost))}'
        )
    check_number("a cost", cost, resource, most=MOST)


def read_cost(cost: object, resources: Sequence[str], base: float = 1.0) -> float:
    """Check a cost that a user gives to a limiter with resources, and convert it.

    Args:
        cost: A mapping of resources to tokens.
        resources: The names that it may have.
        base: The cost whose tokens count for resources that the mapping does not name.

    Raises:
        TypeError: It is not a mapping, or a value is not a number.
        ValueError: A resource is unknown, or a value is negative, above `MOST` or not finite.

    >>> read_cost({"tokens": 1500}, ("requests", "tokens"))
    Amounts({'requests': 1.0, 'tokens': 1500.0})
    """
    if not isinstance(cost, (dict, Mapping)):  # a check for a protocol is slow: mostly it is a dict
        raise TypeError(
            f"a cost must be a mapping of the resources {', '.join(resources)} to tokens, such as "
            f"{{{resources[-1]!r}: 2}}, got {shown(cost)}"
        )
    named = dict(by_name(base))
    for name, tokens in cast("Mapping[str, float]", cost).items():
        if name not in resources:
            raise ValueError(
                f"a cost may have the resources {', '.join(resources)}, got {shown(name)}"
            )
        check_cost(tokens, name)
        named[name] = float(tokens)
    return amounts(named)


def by_name(cost: float) -> Mapping[str, float]:
    """Return the tokens by resource: a plain float is of `REQUESTS`."""
    return cost.by_name if isinstance(cost, Amounts) else {REQUESTS: cost}


def as_costs(cost: float, names: Iterable[str], absent: float = 0.0) -> dict[str, float]:
    """Return the tokens of each of the named resources.

    Args:
        cost: A cost, or a limit.
        names: The resources.
        absent: The tokens of a resource that it does not have: infinity for a limit.
    """
    named = by_name(cost)
    return {name: named.get(name, absent) for name in names}


def excess(cost: float, most: float) -> str | None:
    """Return the first resource of which the cost is above the limit `most`; None if it fits.

    >>> excess(Amounts({"requests": 1.0, "tokens": 7.0}), Amounts({"requests": 1.0, "tokens": 5.0}))
    'tokens'
    """
    if not isinstance(most, Amounts):
        return REQUESTS if cost > most else None
    tokens = by_name(cost)
    for name, limit in by_name(most).items():
        if tokens.get(name, 0.0) > limit:
            return name
    return None


def covers(have: float, cost: float) -> bool:
    """Return whether there is enough of each resource for the cost, but for rounding."""
    if isinstance(have, Amounts) or isinstance(cost, Amounts):
        tokens = by_name(have)
        return all(tokens.get(name, 0.0) >= each - ROUNDING for name, each in by_name(cost).items())
    return have >= cost - ROUNDING


def least(first: float, second: float) -> float:
    """Return the lower of two limits, of each resource."""
    if isinstance(first, Amounts) or isinstance(second, Amounts):
        limits = {**by_name(first)}
        for name, limit in by_name(second).items():
            limits[name] = min(limit, limits.get(name, math.inf))
        return Amounts(limits)
    return min(first, second)


def nothing(limit: float) -> float:
    """Return zero of each resource that the limit has."""
    return Amounts(dict.fromkeys(limit.by_name, 0.0)) if isinstance(limit, Amounts) else 0.0


def common(first: float, second: float) -> float:
    """Return the lesser of two costs, of each resource."""
    if isinstance(first, Amounts) or isinstance(second, Amounts):
        tokens = by_name(second)
        return amounts({n: min(each, tokens.get(n, 0.0)) for n, each in by_name(first).items()})
    return min(first, second)


def positive(change: float) -> float:
    """Return the resources of which the change is above zero."""
    if isinstance(change, Amounts):
        return amounts({name: max(0.0, each) for name, each in change.by_name.items()})
    return max(0.0, change)


def total(costs: Sequence[float]) -> float:
    """Return the sum of the costs, rounded once."""
    if Amounts not in set(map(type, costs)):  # in C, as a batch has hundreds
        return math.fsum(costs)
    names = {name: None for cost in costs for name in by_name(cost)}
    return amounts({n: math.fsum(by_name(cost).get(n, 0.0) for cost in costs) for n in names})


@dataclass(frozen=True, slots=True)
class Resource:
    """One resource of a limiter.

    >>> Resource(limit=200.0, remaining=50.0).utilisation
    0.75
    """

    #: The greatest cost that its limit can ever admit, in tokens; infinity: there is no limit.
    limit: float
    #: Tokens that are free now.
    remaining: float

    @property
    def utilisation(self) -> float:
        """The part of the limit that is in use now, from 0 to 1."""
        return 0.0 if math.isinf(self.limit) else 1.0 - self.remaining / self.limit


def resources_of(limit: float, remaining: float, names: Iterable[str]) -> dict[str, Resource]:
    """Return the resources of the names; one that is not limited has an infinite limit."""
    limits, free = as_costs(limit, names, math.inf), as_costs(remaining, names, math.inf)
    return {name: Resource(limits[name], free[name]) for name in limits}

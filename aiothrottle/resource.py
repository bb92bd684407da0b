"""The state of one resource of a limiter: its limit, and what of it is free."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from aiothrottle.amounts import as_costs

__all__ = ["Resource", "resources_of"]


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

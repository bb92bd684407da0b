"""What a server reports of its quota of one resource, as a value."""

import math
from typing import NamedTuple

from aiothrottle.amounts import REQUESTS

__all__ = ["ReportedQuota"]


class ReportedQuota(NamedTuple):
    """One report of the quota of one resource."""

    #: Tokens that remain.
    remaining: float
    #: Seconds until the server resets the quota.
    reset_after: float
    #: The resource of the limiter that it is about.
    resource: str = REQUESTS
    #: Tokens of a whole quota; infinity: not known.
    limit: float = math.inf
    #: Seconds by which the reset may be earlier.
    error: float = 0.0
    #: Whether the server throttled the request.
    throttled: bool = False
    #: Tokens per second to count on before the reset; 0.0: it is refilled then, at once.
    refill: float = 0.0

"""A decision: the answer of `try_acquire` and `peek`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aiothrottle.resource import Resource

if TYPE_CHECKING:
    from aiothrottle.permit import Permit

__all__ = ["Decision"]


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a request may start now, and when. True in a condition if it may start.

    >>> decision = Decision(allowed=False, limit=10, remaining=0, retry_after=0.25, reset_after=1.0)
    >>> "send" if decision else f"in {decision.retry_after} s"
    'in 0.25 s'
    """

    #: Whether the request may start now.
    allowed: bool
    #: The greatest cost that the limit can ever admit, in tokens. Of a limiter with resources,
    #: here and in `remaining` those of ``requests``, infinity if these have no limit.
    limit: float
    #: Tokens that are free now, without those that this request took.
    remaining: float
    #: Seconds until pauses and rates allow it. A rejection with 0.0 lacks only a slot, or the
    #: outcome of the request that goes ahead after a pause; it is not known when that comes.
    retry_after: float
    #: Seconds until all tokens are free again.
    reset_after: float
    #: The permit, where `try_acquire` granted one. With a concurrency limit, release it.
    permit: "Permit | None" = None
    #: The limit of each resource, and what is free; empty for a limiter without resources.
    resources: Mapping[str, Resource] = field(default_factory=dict[str, Resource])

    def __bool__(self) -> bool:
        return self.allowed

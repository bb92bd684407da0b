"""The answer to "may this go?", as a value."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiothrottle.permit import Permit

__all__ = ["Decision"]


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a cost may go, and when; true in a condition if it may. All times are seconds.

    >>> decision = Decision(allowed=False, limit=10, remaining=0, retry_after=0.25, reset_after=1.0)
    >>> "go" if decision else f"in {decision.retry_after} s"
    'in 0.25 s'
    """

    #: Whether it may go now.
    allowed: bool
    #: The greatest cost that can ever be admitted at once, in tokens.
    limit: float
    #: Tokens that may still go now, after this one where it was spent.
    remaining: float
    #: Seconds until the rate allows it: 0.0 if it does so now. A refusal with 0.0 waits for a
    #: slot alone, and when that comes free nobody can know.
    retry_after: float
    #: Seconds until everything that was spent is forgotten.
    reset_after: float
    #: The permit of a cost that `try_acquire` has spent: release it where concurrency is bounded.
    permit: "Permit | None" = None

    def __bool__(self) -> bool:
        return self.allowed

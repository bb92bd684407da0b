"""The verdict: the answer to `try_acquire` and `peek`."""

from typing import NamedTuple

__all__ = ["Verdict"]


class Verdict(NamedTuple):
    """Whether a request may start now, and the present state of the limit."""

    allowed: bool
    remaining: float
    retry_after: float
    reset_after: float

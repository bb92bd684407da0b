"""What aiothrottle raises on purpose: one base, few kinds, each with what a handler needs.

Wrong arguments are plain `ValueError` and `TypeError`; they are not listed here.
"""

__all__ = ["CostTooHigh", "LimiterClosed", "ThrottleError"]


class ThrottleError(Exception):
    """Base of every error that aiothrottle raises on purpose."""


class CostTooHigh(ThrottleError, ValueError):  # noqa: N818 - a state of affairs, not an "Error"
    """The cost is more than the limit can ever admit, so waiting would never end."""

    #: The cost that was asked for, in tokens.
    cost: float
    #: The greatest cost that can ever be admitted, in tokens.
    limit: float

    def __init__(self, cost: float, limit: float) -> None:
        super().__init__(f"a cost of {cost} can never fit: at most {limit:g} tokens go at once")
        self.cost = cost
        self.limit = limit


class LimiterClosed(ThrottleError, RuntimeError):  # noqa: N818 - a state of affairs, not an "Error"
    """The limiter was closed, before the call or while it was waiting."""

    def __init__(self) -> None:
        super().__init__("this limiter is closed: make a new one, or close it later")

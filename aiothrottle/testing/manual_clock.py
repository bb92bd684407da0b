"""A clock for tests, which moves only by `advance`."""

__all__ = ["ManualClock"]


class ManualClock:
    """A clock that moves only by `advance`, forwards or back.

    Args:
        now: Seconds that it shows at first.

    >>> clock = ManualClock(100.0)
    >>> clock.advance(0.5)
    >>> clock()
    100.5
    """

    def __init__(self, now: float = 1000.0) -> None:
        self.now: float = now

    def __call__(self) -> float:
        """Return the time, in seconds."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Move the clock.

        Args:
            seconds: How far; below 0 sets the clock back.
        """
        self.now += seconds

"""The audit of a server: what really arrived, as the other side sees it."""

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Audit", "RecordedRequest", "greatest_count"]


@dataclass(slots=True, eq=False)
class RecordedRequest:
    """One request that arrived.

    Attributes:
        arrived_at: When it arrived, on the clock of `time.monotonic`, in seconds.
        method: Its HTTP method.
        path: Its path, decoded and without the query.
        refused: Whether it was one too many.
        status: The status it was answered with. None as long as it is not answered, and for ever if
            it never is: the server was silent, the client went away, or the server was closed.

    """

    arrived_at: float
    method: str
    path: str
    refused: bool
    status: int | None = None


def greatest_count(instants: Iterable[float], period: float) -> int:
    """Return the greatest number of instants in any half-open window of `period` seconds.

    Two instants exactly `period` apart are not in one window: `b` is in the window that begins
    with `a` as long as `b < a + period`. The instants may come in any order.

    Raises:
        ValueError: `period` is not greater than zero.

    Example:
        >>> greatest_count([0.0, 0.5, 1.0], period=1.0)
        2

    """
    if not period > 0:
        raise ValueError(f"period must be greater than 0 seconds, not {period!r}")
    ordered = sorted(instants)
    greatest = first = 0
    for last, instant in enumerate(ordered):
        while ordered[first] < instant and ordered[first] + period <= instant:
            first += 1
        greatest = max(greatest, last - first + 1)
    return greatest


class Audit:
    """What really happened at a server since it started, or since the last `clear`.

    Attributes:
        requests: Every request that arrived, in the order of arrival.
        greatest_concurrency: The greatest number of exchanges that were open at once, looked at
            whenever a request arrived. An exchange, refused or not, is open from its arrival until
            the whole response, body included, is written or the client is gone.

    """

    def __init__(self) -> None:
        self.requests: list[RecordedRequest] = []
        self.greatest_concurrency: int = 0

    @property
    def sent(self) -> int:
        """How many requests arrived, refused or not."""
        return len(self.requests)

    @property
    def refused(self) -> int:
        """How many of them were refused."""
        return sum(request.refused for request in self.requests)

    @property
    def admitted(self) -> int:
        """How many of them were not refused, whatever their handler made of them."""
        return self.sent - self.refused

    def greatest_count(self, period: float, *, admitted_only: bool = False) -> int:
        """Return the greatest number of arrivals in any half-open window of `period` seconds.

        All arrivals count, refused or not: that is what a client did. With `admitted_only` only
        those that were not refused count: that is what the server put up with. Two requests exactly
        `period` apart are not in one window.

        Raises:
            ValueError: `period` is not greater than zero.

        """
        counted = (r.arrived_at for r in self.requests if not (admitted_only and r.refused))
        return greatest_count(counted, period)

    def record(self, request: RecordedRequest, open_exchanges: int) -> None:
        """Record an arrival; `open_exchanges` counts it too. The server calls this."""
        self.requests.append(request)
        self.greatest_concurrency = max(self.greatest_concurrency, open_exchanges)

    def clear(self) -> None:
        """Forget everything so far. Exchanges that are still open go on counting as open."""
        self.requests.clear()
        self.greatest_concurrency = 0

    def __repr__(self) -> str:
        return (
            f"<Audit: {self.sent} sent, {self.refused} refused, "
            f"at most {self.greatest_concurrency} at once>"
        )

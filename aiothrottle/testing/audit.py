"""The audit of a server: the requests that arrived, as the server sees them."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class RecordedRequest:
    """One request that arrived.

    Attributes:
        arrived_at: When it arrived, on the clock of `time.monotonic`, in seconds.
        method: Its HTTP method.
        path: Its path, decoded and without the query.
        throttled: Whether the server throttled it.
        status: The status of the response; None while there is none, and for ever if the server was
            silent, the client went away, or the server was closed.

    """

    arrived_at: float
    method: str
    path: str
    throttled: bool
    status: int | None = None


def greatest_count(instants: Iterable[float], period: float) -> int:
    """Return the greatest number of instants in any half-open window of `period` seconds.

    Two instants exactly `period` apart are not in one window: `b` is in the window that begins
    with `a` as long as `b < a + period`.

    Args:
        instants: Seconds, in any order.
        period: The length of the window in seconds.

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
    """The requests at a server since its start, or since the last `clear`.

    Attributes:
        requests: Every request that arrived, in the order of arrival.
        greatest_concurrency: The greatest number of exchanges that were open at once, counted
            when a request arrives. An exchange, throttled or not, is open from its arrival until
            the whole response, body included, is written or the client is gone.

    """

    def __init__(self) -> None:
        self.requests: list[RecordedRequest] = []
        self.greatest_concurrency: int = 0

    @property
    def sent(self) -> int:
        """How many requests arrived, throttled or not."""
        return len(self.requests)

    @property
    def throttled(self) -> int:
        """How many requests the server throttled."""
        return sum(request.throttled for request in self.requests)

    @property
    def admitted(self) -> int:
        """How many requests were not throttled, whatever their status."""
        return self.sent - self.throttled

    def greatest_count(self, period: float, *, admitted_only: bool = False) -> int:
        """Return the greatest number of arrivals in any half-open window of `period` seconds.

        All arrivals count, throttled or not: these are what the client sent. Two requests exactly
        `period` apart are not in one window.

        Args:
            period: The length of the window in seconds.
            admitted_only: Count only the requests that were not throttled.

        Raises:
            ValueError: `period` is not greater than zero.

        """
        counted = (r.arrived_at for r in self.requests if not (admitted_only and r.throttled))
        return greatest_count(counted, period)

    def record(self, request: RecordedRequest, open_exchanges: int) -> None:
        """Record an arrival. The server calls this.

        Args:
            request: The request that arrived.
            open_exchanges: The requests without a complete response, this one included.
        """
        self.requests.append(request)
        self.greatest_concurrency = max(self.greatest_concurrency, open_exchanges)

    def clear(self) -> None:
        """Forget all requests so far. Exchanges that are still open still count as open."""
        self.requests.clear()
        self.greatest_concurrency = 0

    def __repr__(self) -> str:
        return (
            f"<Audit: {self.sent} sent, {self.throttled} throttled, "
            f"at most {self.greatest_concurrency} at once>"
        )

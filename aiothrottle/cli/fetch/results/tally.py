"""Counts what a run has done, and formats its summary."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from aiothrottle._checks import duration
from aiothrottle.cli.fetch.results.record import Record
from aiothrottle.statistics import Waits

__all__ = ["Tally", "counted", "percentiles"]

# Latencies that are kept until they are counted.
_RECENT = 1000


@dataclass(slots=True)
class Tally:
    """The counts of a run so far.

    Attributes:
        statuses: URLs by the status of their last response.
        failed: URLs without a complete response, or with the status of an error.
        skipped: URLs that had a record in the output.
        requests: Requests sent: attempts and redirects.
        throttled: Requests that the server throttled.
        waited: Seconds, of all URLs together.
    """

    done: int = 0
    statuses: Counter[int] = field(default_factory=Counter[int])
    failed: int = 0
    skipped: int = 0
    requests: int = 0
    throttled: int = 0
    waited: float = 0.0
    _latencies: Waits = field(default_factory=Waits)

    def answered(self, seconds: float) -> None:
        """Count the latency of a response: the seconds from its request to its headers."""
        recent = self._latencies.recent
        recent.append(seconds)
        if len(recent) >= _RECENT:
            self._latencies.count_recent()

    def latency(self) -> tuple[float, float] | None:
        """Return the median and the 95th percentile of the latencies; None: there are none."""
        latencies = self._latencies
        if latencies.recent:
            latencies.count_recent()
        if not latencies.count:
            return None
        return latencies.percentile(0.5, at_once=0), latencies.percentile(0.95, at_once=0)

    def count(self, record: Record) -> None:
        """Count a finished URL."""
        self.done += 1
        self.failed += record.failed
        self.waited += record.waited
        if record.status is not None:
            self.statuses[record.status] += 1

    def summary(self, seconds: float) -> Iterator[str]:
        """Yield the lines of the summary."""
        speed = f", {self.requests / seconds:.1f} requests/s" if seconds >= 1 else ""
        skipped = f", {self.skipped} were done before" if self.skipped else ""
        yield (
            f"{counted(self.done, 'URL')} in {seconds:.1f} s{speed}: "
            f"{self.done - self.failed} fetched, {self.failed} failed{skipped}."
        )
        if self.requests:
            yield (
                f"{counted(self.requests, 'request')}, {self.throttled} throttled by the server; "
                f"a URL waited {self.waited / max(1, self.done):.2f} s on average."
            )
        if (latency := self.latency()) is not None:
            yield f"Latency: {percentiles(latency)}."
        none = self.done - self.statuses.total()
        statuses = [f"{status}: {count}" for status, count in sorted(self.statuses.items())]
        if self.failed:
            yield f"By status: {', '.join([*statuses, f'none: {none}'] if none else statuses)}."


def counted(count: int, noun: str) -> str:
    """Return the count with its noun, in the plural if needed."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def percentiles(latency: tuple[float, float]) -> str:
    """Format the median and the 95th percentile of latencies in seconds.

    >>> percentiles((0.00312, 1.26))
    'p50 3.1 ms, p95 1.3 s'
    """
    # Two digits: the histogram is off by an eighth.
    median, most = (duration(each, 2) for each in latency)
    return f"p50 {median}, p95 {most}"

"""Counts what a run has done, and formats its summary."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from aiothrottle.cli.fetch.record import Record

__all__ = ["Tally", "counted"]


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
        none = self.done - self.statuses.total()
        statuses = [f"{status}: {count}" for status, count in sorted(self.statuses.items())]
        if self.failed:
            yield f"By status: {', '.join([*statuses, f'none: {none}'] if none else statuses)}."


def counted(count: int, noun: str) -> str:
    """Return the count with its noun, in the plural if needed."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"

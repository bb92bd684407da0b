"""A crawl: several workers on one list, how to stop them, and their progress."""

import asyncio
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from yarl import URL

from aiothrottle.aiohttp.adapter import origin_of
from aiothrottle.aiohttp.session import Sender
from aiothrottle.cli.fetch.reading.jobs import Job, ListError, Reader
from aiothrottle.cli.fetch.reading.lines import Line, Lines
from aiothrottle.cli.fetch.results.folder import Folder
from aiothrottle.cli.fetch.results.output import Output
from aiothrottle.cli.fetch.results.progress import Pauses
from aiothrottle.cli.fetch.results.record import Record
from aiothrottle.cli.fetch.results.tally import Tally
from aiothrottle.cli.fetch.sending.worker import Rules, Worker
from aiothrottle.errors import StoreUnavailable
from aiothrottle.limiter import RateLimiter

if TYPE_CHECKING:
    from aiothrottle.retry import Retry

__all__ = ["Crawl"]


class Crawl:
    """Fetches the URLs of all lines, and writes their records. Runs once.

    Args:
        rules: What is followed and kept of each response.
        sender: Sends the requests.
        lines: The list.
        reader: Parses its lines.
        output: Receives a record of every URL.
        folder: Receives the bodies; None: they are in the records.
        on_failure: Called with the record of every failure.
        on_cut_off: Called with the URL of a body that was cut off and is asked for again, the
            error, and the seconds until then.
    """

    def __init__(
        self,
        rules: Rules,
        *,
        sender: Sender,
        lines: Lines,
        reader: Reader,
        output: Output,
        folder: Folder | None = None,
        on_failure: Callable[[Record], None] = lambda _: None,
        on_cut_off: Callable[[URL, Exception, float], None] | None = None,
    ) -> None:
        self.rules = rules
        self.sender = sender
        self.retry: Retry = sender.retry
        self.lines = lines
        self._reader: Reader = reader
        self.output = output
        self.folder = folder
        self.tally: Tally = Tally()
        self.stopping: bool = False
        self.on_cut_off: Callable[[URL, Exception, float], None] | None = on_cut_off
        self._on_failure = on_failure
        self._workers: list[Worker] = []
        self._throttling = dict[Hashable, None]()
        self._list_error: ListError | None = None
        self._ended_by: StoreUnavailable | None = None

    async def run(self, workers: int) -> None:
        """Fetch all URLs with this number of tasks, each with one URL in memory.

        Raises:
            ListError: The list has another format.
            OSError: Reading the list failed.
            OutputError: Writing the output failed.
            StoreUnavailable: The store of the limits failed.
        """
        self._workers = [Worker(self, number) for number in range(workers)]
        try:
            async with asyncio.TaskGroup() as group:
                for worker in self._workers:
                    group.create_task(worker.run())
        except ExceptionGroup as failures:
            error = failures.exceptions[0]
            raise error from error.__cause__
        finally:
            self.lines.close()
        if self._ended_by is not None:
            raise self._ended_by

    def read(self, line: Line) -> Job | None:
        """Parse a line.

        Raises:
            ListError: The list has another format; from then on for each line.
        """
        if self._list_error is not None:
            raise self._list_error
        try:
            return self._reader.read(line)
        except ListError as error:
            self._list_error = error
            raise

    def stop(self) -> None:
        """Send nothing more, and finish the requests in flight."""
        self.stopping = True
        self.lines.close()
        for worker in self._workers:
            if not worker.busy:
                worker.cancel()

    def end(self, error: StoreUnavailable) -> None:
        """Stop because the store failed; `run` raises the error at its end."""
        self._ended_by = error
        self.stop()

    def abort(self) -> None:
        """Stop at once, and cancel the requests in flight."""
        self.stop()
        for worker in self._workers:
            worker.cancel()

    @property
    def in_flight(self) -> int:
        """The number of requests in flight."""
        return sum(worker.busy for worker in self._workers)

    @property
    def pauses(self) -> Pauses:
        """The number of paused limiters, and the seconds left of the longest pause."""
        limiter = self.sender.admission.limiter
        if isinstance(limiter, RateLimiter):
            seconds = limiter.statistics().paused_for
            return int(seconds > 0), seconds
        # Only hosts that throttled are paused. There may be millions of hosts, so only those are
        # checked, and dropped when their pause ends.
        pauses = {
            host: limiter.statistics(host).paused_for
            for host in self._throttling
            if host in limiter
        }
        self._throttling = {host: None for host, seconds in pauses.items() if seconds > 0}
        return len(self._throttling), max(pauses.values(), default=0.0)

    def throttled(self, url: URL, key: Hashable) -> None:
        """Count a request that the server of the URL has throttled; None: it has no key."""
        self.tally.throttled += 1
        self._throttling[origin_of("", url) if key is None else key] = None

    def count(self, record: Record) -> None:
        """Count a finished URL."""
        self.tally.count(record)
        if record.failed:
            self._on_failure(record)

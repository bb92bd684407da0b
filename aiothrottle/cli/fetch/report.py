"""Prints failures, progress and the summary of a run."""

import asyncio
import time
from collections.abc import Sequence
from typing import TextIO

from aiothrottle.cli.display import GLANCE, Display
from aiothrottle.cli.fetch.results.progress import Meter, Progress
from aiothrottle.cli.fetch.results.record import Record
from aiothrottle.cli.fetch.results.tally import counted
from aiothrottle.cli.fetch.sending.crawl import Crawl
from aiothrottle.cli.terminal import printable
from aiothrottle.rate import Rate

__all__ = ["Report"]

# Failures printed one by one. All are in the output.
_PRINTED = 10
# Seconds between two lines of progress where nothing can be redrawn.
_LOG = 10.0


class Report:
    """Prints what happens.

    Args:
        screen: The stream. On a terminal there is a display, elsewhere a line every ten seconds.
        quiet: Print only failures of the run itself.
        drawn: Whether there may be a display.
        rates: The rate limits of all requests.
    """

    def __init__(
        self,
        screen: TextIO,
        *,
        quiet: bool = False,
        drawn: bool = True,
        rates: Sequence[Rate] = (),
    ) -> None:
        self._quiet = quiet
        self._display = Display(screen, drawn=drawn)
        self._failures = 0
        self._meter = Meter(min(rates, key=lambda it: it.limit / it.period, default=None))
        self._began_at = time.monotonic()

    def say(self, text: str) -> None:
        """Print a line above the display, with control characters escaped."""
        self._display.say(printable(text))

    def failure(self, record: Record) -> None:
        """Print the failure of a URL, unless there were many."""
        self._failures += 1
        if self._quiet or self._failures > _PRINTED + 1:
            return
        if self._failures > _PRINTED:
            self.say("There are more failures; all of them are in the output.")
        else:
            problem = record.error or f"status {record.status}"
            # The error of a line without a URL says which line it is.
            self.say(f"{record.name}: {problem}" if record.name else problem)

    async def watch(self, crawl: Crawl) -> None:
        """Print the progress of the run until cancelled."""
        if self._quiet:
            return
        with self._display as display:
            due = time.monotonic() + _LOG
            while True:
                now = time.monotonic()
                self._meter.mark(now, crawl.tally.requests, crawl.lines.fraction)
                if display.is_live:
                    progress = self._progress(crawl)
                    display.show(progress.parts(), progress.fraction, progress.time_left())
                elif now >= due:
                    due += _LOG
                    display.say(self._progress(crawl).line())
                await asyncio.sleep(GLANCE)

    def facts(self, crawl: Crawl) -> dict[str, str]:
        """Return the progress of the run as numbers with their names."""
        tally, fraction = crawl.tally, crawl.lines.fraction
        facts = {"URLs done": f"{tally.done:,}", "failed": f"{tally.failed:,}"}
        if fraction is not None:
            facts["of the list"] = f"{int(100 * fraction)} %"
        return facts

    def ended(self, crawl: Crawl) -> None:
        """Print the summary."""
        if not self._quiet:
            for line in crawl.tally.summary(time.monotonic() - self._began_at):
                self.say(line)

    def besides(self, records: int) -> None:
        """Print the number of records without a URL in the list, which may be another list's."""
        if records and not self._quiet:
            self.say(
                f"The output also has {counted(records, 'record')} of URLs that are not in this "
                "list."
            )

    def _progress(self, crawl: Crawl) -> Progress:
        tally, meter = crawl.tally, self._meter
        return Progress(
            done=f"{tally.done} done",
            failed=tally.failed,
            throttled=tally.throttled,
            fraction=crawl.lines.fraction,
            left=meter.left,
            rate=meter.rate,
            limit=meter.limit,
            latency=tally.latency(),
            pauses=crawl.pauses,
        )

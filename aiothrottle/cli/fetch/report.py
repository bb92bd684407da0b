"""Prints failures, progress and the summary of a run."""

import asyncio
import time
from datetime import datetime
from typing import TextIO

from aiothrottle.cli.fetch.crawl import Crawl
from aiothrottle.cli.fetch.progress import Pace, progress_line
from aiothrottle.cli.fetch.record import Record
from aiothrottle.cli.fetch.tally import counted
from aiothrottle.cli.terminal import StatusLine, printable

__all__ = ["Report"]

# Failures printed one by one. All are in the output.
_PRINTED = 10
# Seconds between two updates: on a terminal, and in a log.
_GLANCE, _LOG = 0.2, 10.0


class Report:
    """Prints what happens.

    Args:
        screen: The stream. On a terminal there is a progress bar, elsewhere a line every ten
            seconds.
        quiet: Print only failures of the run itself.
    """

    def __init__(self, screen: TextIO, *, quiet: bool = False) -> None:
        self._screen = screen
        self._quiet = quiet
        self._is_terminal = screen.isatty()
        self._status = StatusLine(screen)
        self._failures = 0
        self._pace = Pace()
        self._began_at = time.monotonic()

    def say(self, text: str) -> None:
        """Print a line above the progress bar, with control characters escaped."""
        self._status.clear()
        print(printable(text), file=self._screen, flush=True)

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
        self._line(crawl)
        try:
            while True:
                await asyncio.sleep(_GLANCE if self._is_terminal else _LOG)
                line = self._line(crawl)
                if self._is_terminal:
                    self._status.show(line)
                else:
                    print(line, file=self._screen, flush=True)
        finally:
            self._status.clear()

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

    def _line(self, crawl: Crawl) -> str:
        fraction = crawl.lines.fraction
        self._pace.mark(time.monotonic(), crawl.tally.done, fraction)
        now = datetime.now().astimezone()
        return progress_line(crawl.tally, self._pace, fraction, crawl.pauses, now)

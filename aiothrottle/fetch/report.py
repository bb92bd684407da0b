"""What a person sees of a run: failures, how far it has come, how it ended."""

import asyncio
import time
from datetime import datetime
from typing import TextIO

from aiothrottle.fetch.crawl import Crawl
from aiothrottle.fetch.progress import Pace, progress_line
from aiothrottle.fetch.record import Record
from aiothrottle.fetch.tally import counted
from aiothrottle.terminal import StatusLine, printable

__all__ = ["Report"]

# So many failures are told one by one. All are in the output.
_TOLD = 10
# Seconds between two looks: of a person, and of somebody who reads a log.
_GLANCE, _LOG = 0.2, 10.0


class Report:
    """Tells a person what happens.

    Args:
        screen: Where to write. On a terminal there is a bar that moves, elsewhere a line now and
            then.
        quiet: Tell only what goes wrong with the run itself.
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
        """Write a line above the progress, whatever is in it."""
        self._status.clear()
        print(printable(text), file=self._screen, flush=True)

    def failure(self, record: Record) -> None:
        """Tell of a URL that failed, unless there were many."""
        self._failures += 1
        if self._quiet or self._failures > _TOLD + 1:
            return
        if self._failures > _TOLD:
            self.say("There are more failures; all of them are in the output.")
        else:
            self.say(f"{record.url}: {record.error or f'status {record.status}'}")

    async def watch(self, crawl: Crawl) -> None:
        """Tell how far the run has come, until this is cancelled."""
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
        """Tell how far the run has come, in figures with their names."""
        tally, fraction = crawl.tally, crawl.lines.fraction
        facts = {"URLs done": f"{tally.done:,}", "failed": f"{tally.failed:,}"}
        if fraction is not None:
            facts["of the list"] = f"{int(100 * fraction)} %"
        return facts

    def ended(self, crawl: Crawl) -> None:
        """Sum up."""
        if not self._quiet:
            for line in crawl.tally.summary(time.monotonic() - self._began_at):
                self.say(line)

    def besides(self, records: int) -> None:
        """Tell of what the output had that the list does not name: it may be that of another."""
        if records and not self._quiet:
            self.say(
                f"The output also has {counted(records, 'record')} of what is not in this list."
            )

    def _line(self, crawl: Crawl) -> str:
        fraction = crawl.lines.fraction
        self._pace.mark(time.monotonic(), crawl.tally.done, fraction)
        now = datetime.now().astimezone()
        return progress_line(crawl.tally, self._pace, fraction, crawl.pauses, now)

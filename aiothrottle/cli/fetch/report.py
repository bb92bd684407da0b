"""The messages of a run: failures, progress, the summary, and with --verbose each request and wait.

No header is printed, as it may be secret.
"""

import asyncio
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TextIO

from aiothrottle._checks import duration
from aiothrottle.cli.advice import about
from aiothrottle.cli.fetch.crawl import Crawl, Tally
from aiothrottle.cli.fetch.results import Record
from aiothrottle.cli.options import flag
from aiothrottle.cli.output import described, printable
from aiothrottle.cli.progress import GLANCE, Display, Meter, Part
from aiothrottle.events import REASONS, Event, Granted, Paused, Retried
from aiothrottle.rate import Rate

# Failures printed one by one. All are in the output.
_PRINTED = 10
# Seconds between two lines of progress where nothing can be redrawn.
_LOG = 10.0


@dataclass(kw_only=True)
class Messages:
    """What is printed to standard error.

    Attributes:
        dashboard: serve a live page of the run, on this machine only; its URL is printed at the
            start
        quiet: no progress, no list of failures, no summary; errors that end the run are printed
        verbose: print each request, response and wait to standard error, without headers
    """

    dashboard: bool = flag()
    quiet: bool = flag("-q -s --silent")
    verbose: bool = flag("-v")

    def __post_init__(self) -> None:
        """Reject a contradiction."""
        if self.quiet and self.verbose:
            raise ValueError("--quiet and --verbose: give one of them")


class Report:
    """Prints what happens.

    Args:
        wanted: What to print.
        screen: The stream. On a terminal there is a display, elsewhere a line every ten seconds.
        rates: The rate limits of all requests.
        slots: The concurrency limit of all requests.
        drawn: Whether there may be a display.
    """

    def __init__(
        self, wanted: Messages, screen: TextIO, rates: Sequence[Rate], slots: int, *, drawn: bool
    ) -> None:
        self._quiet = wanted.quiet
        self._display = Display(screen, drawn=drawn)
        self._failures = 0
        self._meter = Meter(min(rates, key=lambda it: it.limit / it.period, default=None))
        self._given = min((it.limit / it.period for it in rates), default=math.inf)
        self._slots = slots
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
        meter, display = self._meter, self._display
        with display.drawing():
            due = time.monotonic() + _LOG
            while True:
                now = time.monotonic()
                meter.mark(now, crawl.tally.requests, crawl.lines.fraction)
                if display.is_live:
                    display.show(self._parts(crawl), meter.fraction, meter.left)
                elif now >= due:
                    due += _LOG
                    percent = "" if meter.fraction is None else f"{int(100 * meter.fraction)} %"
                    texts = [percent, *(text for text, _ in self._parts(crawl)), meter.left]
                    display.say("  ".join(filter(None, texts)))
                await asyncio.sleep(GLANCE)

    def _parts(self, crawl: Crawl) -> list[Part]:
        tally, (count, seconds) = crawl.tally, crawl.pauses
        latency = tally.latency()
        hosts = f"{count} hosts " if count > 1 else ""
        parts = self._meter.parts(
            f"{tally.done} done",
            tally.failed,
            tally.throttled,
            f"latency {latency}" if latency else "",
            f"{hosts}paused for {duration(math.ceil(seconds))}" if count else "",
        )
        if learned := self._learned(crawl):
            parts.append((f"server {learned[0]}", "yellow"))
        return parts

    def _learned(self, crawl: Crawl) -> tuple[str, str, str] | None:
        """Return what the run has learned of the server, as an option, and as an argument."""
        rate, slots = crawl.limits
        if rate is not None and rate < self._given:
            found = about(rate)
            return f"admits about {found}", f"--rate {found}", f'"{found}"'
        if slots is not None and slots < self._slots:
            found = f"works on {slots} at once"
            return found, f"--concurrency {slots}", f"concurrency_limit={slots}"
        return None

    def ended(self, crawl: Crawl) -> None:
        """Print the summary."""
        if self._quiet:
            return
        for line in _summary(crawl.tally, time.monotonic() - self._began_at):
            self.say(line)
        if learned := self._learned(crawl):
            found, option, argument = learned
            self.say(
                f"The server {found}. Next time give {option}, or in a program "
                f"RateLimiter({argument})."
            )

    def besides(self, records: int) -> None:
        """Print the number of records without a URL in the list, which may be another list's."""
        if records and not self._quiet:
            self.say(
                f"The output also has {_counted(records, 'record')} of URLs that are not in this "
                "list."
            )

    # ---- with --verbose

    def observe(self, event: Event) -> None:
        """Print the waits of a limiter: the observer of its events."""
        match event:
            case Granted(waited=seconds) if seconds > 0:
                self.trace("*", f"waited {seconds:.3f} s for the limits")
            case Paused(key=key, seconds=seconds, reason=reason):
                target = "all requests" if key is None else str(key)
                self.trace("*", f"{target} paused for {seconds:.3f} s: {REASONS[reason]}")
            case Retried(delay=delay, attempt=attempt, status=status, error=error):
                why = described(error) if error is not None else f"status {status}"
                self.trace("*", f"{why}: attempt {attempt} in {delay:.3f} s")
            case _:
                pass

    def trace(self, mark: str, text: str) -> None:
        """Print what is sent or received, or why there is a wait, with the seconds so far."""
        self.say(f"{mark} {time.monotonic() - self._began_at:.3f} {text}")


def _summary(tally: Tally, seconds: float) -> Iterator[str]:
    """Yield the lines of the summary."""
    speed = f", {tally.requests / seconds:.1f} requests/s" if seconds >= 1 else ""
    skipped = f", {tally.skipped} were done before" if tally.skipped else ""
    yield (
        f"{_counted(tally.done, 'URL')} in {seconds:.1f} s{speed}: "
        f"{tally.done - tally.failed} fetched, {tally.failed} failed{skipped}."
    )
    if tally.requests:
        yield (
            f"{_counted(tally.requests, 'request')}, {tally.throttled} throttled by the server; "
            f"a URL waited {tally.waited / max(1, tally.done):.2f} s on average."
        )
    if latency := tally.latency():
        yield f"Latency: {latency}."
    none = tally.done - tally.statuses.total()
    statuses = [f"{status}: {count}" for status, count in sorted(tally.statuses.items())]
    if tally.failed:
        yield f"By status: {', '.join([*statuses, f'none: {none}'] if none else statuses)}."


def _counted(count: int, noun: str) -> str:
    """Return the count with its noun, in the plural if needed."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"

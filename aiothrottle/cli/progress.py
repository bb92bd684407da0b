"""The progress of a run: its rate and the time left, drawn at the bottom of a terminal by rich.

Nothing is drawn elsewhere: not into a pipe or a file, not without rich, and not on a terminal that
cannot move its cursor. rich is imported only to draw, as it is large.

Invariant: no command fails because its messages cannot be written.
"""

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator, Coroutine, Generator, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from aiothrottle._checks import duration
from aiothrottle.cli.output import columns_of, paragraph
from aiothrottle.metrics.recorder import Growth
from aiothrottle.rate import Rate

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live
    from rich.text import Text

#: Seconds between two updates.
GLANCE = 0.2

#: A text of one row, and its style in rich's words; "" is no style.
Part = tuple[str, str]

# Seconds over which the rate is averaged: a pause shows, a single slow response does not.
_RATE_OVER = 10.0
# Seconds over which the time left is estimated.
_LEFT_OVER = 30.0
# A terminal echoes Ctrl-C at the end of the last row: it must not wrap there, and a character in
# the last column may.
_MARGIN = len("^C") + 1
_GAP = "  "


class Meter:
    """Measures the rate of the requests, and estimates the time left. The time is an argument.

    Args:
        limit: The rate limit to compare with; None: there is none.
    """

    def __init__(self, limit: Rate | None = None) -> None:
        self._limit = limit
        # Whole periods: a limit may be used up at the beginning of each.
        period = 1.0 if limit is None else limit.period
        self._requests = Growth(period * math.ceil(_RATE_OVER / period))
        self._progress = Growth(_LEFT_OVER)
        #: The finished part of the run, from 0 to 1; None: unknown.
        self.fraction: float | None = None

    def mark(self, now: float, requests: int, fraction: float | None) -> None:
        """Record the progress at a time in seconds."""
        self.fraction = fraction
        self._requests.mark(now, requests)
        self._progress.mark(now, fraction or 0.0)

    @property
    def rate(self) -> float:
        """Requests per period of the limit, never above a limit that is kept; else per second."""
        requests, seconds = self._requests.amount, self._requests.seconds
        if self._limit is None:
            return requests / seconds if seconds else 0.0
        return requests / max(1, math.ceil(seconds / self._limit.period))

    @property
    def left(self) -> str:
        """The time until all is done, as a text; "" if unknown."""
        growth = self._progress.amount
        if growth <= 0:
            return ""
        seconds = (1.0 - (self.fraction or 0.0)) * self._progress.seconds / growth
        return f"{duration(int(seconds))} left"

    def parts(
        self, done: str, failed: int, throttled: int, latency: str = "", paused: str = ""
    ) -> list[Part]:
        """Return the rate among other texts about the run, those that say something."""
        rate = f"{self.rate:.1f}" if self.rate < 100 else f"{self.rate:.0f}"
        speed = f"{rate}/s" if self._limit is None else f"{rate} of {self._limit}"
        parts = [
            (done, "bold"),
            (f"{failed} failed" if failed else "", "red"),
            (f"{throttled} throttled" if throttled else "", "yellow"),
            (speed, ""),
            (latency, ""),
            (paused, "yellow"),
        ]
        return [part for part in parts if part[0]]


@contextlib.asynccontextmanager
async def beside(work: Coroutine[Any, Any, None]) -> AsyncGenerator[None]:
    """Run a coroutine in a task while the block runs."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])  # which raises only if this task is cancelled


class Display:
    """The rows of one command. Nothing is left of them at its end.

    Args:
        screen: The stream.
        drawn: Whether to draw, if the stream is a terminal.
    """

    def __init__(self, screen: TextIO, *, drawn: bool = True) -> None:
        self._screen = screen
        self._drawn = drawn and screen.isatty()
        self._live: Live | None = None
        self._is_lost = False

    @contextlib.contextmanager
    def drawing(self) -> Generator[None]:
        """Draw while the block runs."""
        if self._drawn and not self._is_lost:
            with self._until_lost():
                self._live = _started(self._screen)
        try:
            yield
        finally:
            live, self._live = self._live, None
            if live is not None:
                with self._until_lost():
                    live.stop()

    @property
    def is_live(self) -> bool:
        """Whether it draws now."""
        return self._live is not None

    def show(self, parts: Sequence[Part], fraction: float | None = None, left: str = "") -> None:
        """Replace the rows.

        Args:
            parts: Texts, as many in a row as fit.
            fraction: What is done, from 0 to 1, for a bar above them; None: no bar.
            left: A text beside the bar.
        """
        if self._live is not None:
            width = max(1, self._live.console.width - _MARGIN)
            with self._until_lost():
                self._live.update(_rows(parts, fraction, left, width), refresh=True)

    def say(self, line: str) -> None:
        """Print a line, above the rows, broken at spaces to fit. It must be printable."""
        if self._is_lost:
            return
        text = paragraph(line, columns_of(self._screen))
        with self._until_lost():
            if self._live is None:
                print(text, file=self._screen, flush=True)
            else:
                self._live.console.out(text, highlight=False)

    @contextlib.contextmanager
    def _until_lost(self) -> Generator[None]:
        """Print nothing more once a write failed: the reader is gone, or the disk is full."""
        try:
            yield
        except OSError:
            self._live, self._is_lost = None, True


def _started(screen: TextIO) -> "Live | None":
    try:
        from rich.console import Console
        from rich.live import Live
    except ImportError:  # the extra "cli" is not installed
        return None
    console = Console(file=screen)
    if not console.is_terminal or console.is_dumb_terminal:  # the environment may say so
        return None
    # Neither a thread that draws, nor another stream than ours is touched.
    live = Live(
        console=console,
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    live.start()
    return live


def _rows(parts: Sequence[Part], fraction: float | None, left: str, width: int) -> "RenderableType":
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    rows: list[RenderableType] = []
    if fraction is not None:
        bar = Table.grid(padding=(0, len(_GAP), 0, 0))
        beside = f"{int(100 * fraction):3} %{_GAP if left else ''}{left}"
        room = max(1, width - len(beside) - len(_GAP))
        bar.add_row(ProgressBar(1.0, fraction, room, complete_style="cyan"), beside)
        rows.append(bar)
    return Group(*rows, *_texts(parts, width))


def _texts(parts: Sequence[Part], width: int) -> "list[Text]":
    """Return rows of as many parts as fit; a part that alone is too long is cut off."""
    from rich.text import Text

    rows: list[Text] = []
    for text, style in parts:
        if rows and len(rows[-1]) + len(_GAP) + len(text) <= width:
            rows[-1].append(_GAP)
        else:
            rows.append(Text(no_wrap=True, overflow="ellipsis"))
        rows[-1].append(text, style or None)
    for row in rows:
        row.truncate(width, overflow="ellipsis")
    return rows

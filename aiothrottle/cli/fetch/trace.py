"""Prints each request, response and wait, for --verbose. No headers, since they have secrets.

It observes the session and the limiter, so a run without it pays nothing.
"""

import time
from collections.abc import Callable
from types import SimpleNamespace

import aiohttp
from yarl import URL

from aiothrottle.cli.fetch.results.record import described
from aiothrottle.cli.terminal import without_credentials
from aiothrottle.events import REASONS, Event, Granted, Paused, Retried

__all__ = ["Trace"]


class Trace:
    """Prints what a run sends and waits for.

    Args:
        say: Prints a line.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._begins_at = time.monotonic()

    def config(self) -> aiohttp.TraceConfig:
        """Return the observer of a session."""
        config = aiohttp.TraceConfig()
        config.on_request_start.append(self._start)
        config.on_request_end.append(self._end)
        config.on_request_exception.append(self._fail)
        return config

    def observe(self, event: Event) -> None:
        """Print the waits of a limiter: the observer of its events."""
        match event:
            case Granted(waited=seconds) if seconds > 0:
                self._line("*", f"waited {seconds:.3f} s for the limits")
            case Paused(key=key, seconds=seconds, reason=reason):
                target = "all requests" if key is None else str(key)
                self._line("*", f"{target} paused for {seconds:.3f} s: {REASONS[reason]}")
            case Retried(delay=delay, attempt=attempt, status=status, error=error):
                why = described(error) if error is not None else f"status {status}"
                self._line("*", f"{why}: attempt {attempt} in {delay:.3f} s")
            case _:
                pass

    def cut_off(self, url: URL, error: Exception, delay: float) -> None:
        """Print that a body is incomplete, and the seconds before the next attempt."""
        self._line("*", f"{_shown(url)}: {described(error)}: next attempt in {delay:.3f} s")

    async def _start(
        self, _: object, call: SimpleNamespace, sent: aiohttp.TraceRequestStartParams
    ) -> None:
        call.sent_at = time.monotonic()
        self._line(">", f"{sent.method} {_shown(sent.url)}")

    async def _end(
        self, _: object, call: SimpleNamespace, ended: aiohttp.TraceRequestEndParams
    ) -> None:
        seconds = time.monotonic() - call.sent_at
        self._line("<", f"{ended.response.status} {_shown(ended.url)} in {seconds:.3f} s")

    async def _fail(
        self, _: object, call: SimpleNamespace, failed: aiohttp.TraceRequestExceptionParams
    ) -> None:
        seconds = time.monotonic() - call.sent_at
        why = described(failed.exception)
        self._line("!", f"{_shown(failed.url)}: {why} after {seconds:.3f} s")

    def _line(self, mark: str, text: str) -> None:
        self._say(f"{mark} {time.monotonic() - self._begins_at:.3f} {text}")


def _shown(url: URL) -> str:
    return without_credentials(str(url))

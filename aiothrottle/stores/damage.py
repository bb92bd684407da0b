"""Reports damaged records: in the log, with the key, at most ten lines a minute."""

import logging
import time
from collections.abc import Callable

from aiothrottle.algorithms import SlidingWindowLog

__all__ = ["DamageLog", "report_damage"]

_LOG = logging.getLogger("aiothrottle")
_LINES = SlidingWindowLog("10/min")


class DamageLog:
    """Writes the lines, and counts those that it leaves out.

    Args:
        clock: Returns the time in seconds.
    """

    __slots__ = ("_clock", "_left_out", "_lines")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lines = _LINES.start()
        self._left_out = 0

    def report(self, key: object, reason: str) -> None:
        """Log that the record of the key was damaged, and replaced."""
        now = self._clock()
        if _LINES.delay(self._lines, now, 1) > 0.0:
            self._left_out += 1
            return
        _LINES.take(self._lines, now, 1)
        # The reason may have words of another program: escaped and cut, it forges no line.
        _LOG.warning(
            "the record of %r was damaged, and counts as all spent now: %.300r%s",
            *(key, reason, f" ({self._left_out} more)" if self._left_out else ""),
        )
        self._left_out = 0


report_damage: Callable[[object, str], None] = DamageLog().report
"""Of all stores of this process."""

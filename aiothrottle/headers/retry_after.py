"""Parses the wait that a server asks for: Retry-After in every form, and similar headers."""

from collections.abc import Iterable, Mapping
from datetime import datetime

from aiothrottle.headers.values import (
    CAP,
    EPOCHS_FROM,
    Clock,
    items,
    read_duration,
    read_number,
)

__all__ = ["WAITS", "delay_of", "parse_retry_after", "read_delay", "read_wait"]

# Longer than any real value.
_LONGEST = 100
_DAY = 86400.0
_FARTHEST = 366 * _DAY

_MILLISECONDS = {"retry-after-ms", "x-ms-retry-after-ms", "x-amz-retry-after"}
_PRECISE = (*sorted(_MILLISECONDS), "x-retry-in")
# These count only without any of the others.
_FALLBACKS = (
    "x-retry-after",
    "x-ratelimit-retry-after",
    "x-rate-limit-retry-after",
    "ratelimit-retry-after",
    "rate-limit-retry-after",
)
WAITS = frozenset({"retry-after", *_PRECISE, *_FALLBACKS})
"""Every header with a wait, in lower case."""


def parse_retry_after(value: str, now: datetime) -> float | None:
    """Parse one value of a Retry-After header (RFC 9110, section 10.2.3).

    Args:
        value: Seconds, whole or decimal, or an HTTP-date in any of its three forms. Also
            accepted: other dates with a zone, ISO 8601, durations (``1m30s``), and an epoch in
            seconds or milliseconds.
        now: The current time by the clock of the server, aware: the response's own Date if it
            has one, so that a wrong clock on either side does no harm.

    Returns:
        Seconds from now, 0.0 for a date that has passed, at most 2**31 (RFC 9111, section
        1.2.2); None if the value cannot be parsed.

    >>> from datetime import UTC
    >>> parse_retry_after("120", datetime(2026, 1, 1, tzinfo=UTC))
    120.0
    >>> parse_retry_after("Thu, 01 Jan 2026 00:00:30 GMT", datetime(2026, 1, 1, tzinfo=UTC))
    30.0
    """
    value = value.strip()
    return None if len(value) > _LONGEST else read_delay(value, Clock(now))


def read_wait(fields: Mapping[str, Iterable[str]], clock: Clock) -> float | None:
    """Return the longest wait in the headers of `WAITS`, as every layer's limit must be kept.

    A more precise header replaces Retry-After if that is the same wait, rounded up.
    """
    standard = _longest(fields, ("retry-after",), clock)
    precise = _longest(fields, _PRECISE, clock)
    if standard is None or precise is None:
        wait = precise if standard is None else standard
        return _longest(fields, _FALLBACKS, clock) if wait is None else wait
    return precise if standard - 1.0 < precise else standard


def read_delay(text: str, clock: Clock) -> float | None:
    """Parse one wait; return seconds, at most `CAP`."""
    number = read_number(text)
    if number is not None:
        return delay_of(number, clock)
    seconds = read_duration(text)
    if seconds is None:
        seconds = clock.until(text)
    return None if seconds is None else min(seconds, CAP)


def delay_of(number: float, clock: Clock) -> float:
    """Return the seconds that a number means: a delay, or an epoch if it is near enough."""
    if number < EPOCHS_FROM:
        return number
    for scale in (1.0, 1e3):
        ahead = number / scale - clock.timestamp
        if -_DAY <= ahead <= _FARTHEST:
            return max(0.0, ahead)
    return CAP


def _longest(
    fields: Mapping[str, Iterable[str]], names: Iterable[str], clock: Clock
) -> float | None:
    longest: float | None = None
    for name in names:
        for line in fields.get(name, ()):
            for item in items(line):
                wait = _read(name, item, clock)
                if wait is not None and (longest is None or wait > longest):
                    longest = wait
    return longest


def _read(name: str, item: str, clock: Clock) -> float | None:
    if name in _MILLISECONDS:
        number = read_number(item)
        return None if number is None else min(number / 1000, CAP)
    return read_duration(item) if name == "x-retry-in" else read_delay(item, clock)

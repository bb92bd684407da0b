"""The wait that a server asks for: Retry-After in every form, and the headers beside it."""

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

# Longer than any honest value.
_LONGEST = 100
_DAY = 86400.0
_FARTHEST = 366 * _DAY

_MILLISECONDS = {"retry-after-ms", "x-ms-retry-after-ms", "x-amz-retry-after"}
_PRECISE = (*sorted(_MILLISECONDS), "x-retry-in")
# These count if nothing else was said.
_STAND_INS = (
    "x-retry-after",
    "x-ratelimit-retry-after",
    "x-rate-limit-retry-after",
    "ratelimit-retry-after",
    "rate-limit-retry-after",
)
WAITS = frozenset({"retry-after", *_PRECISE, *_STAND_INS})
"""Every header that holds a wait, in small letters."""


def parse_retry_after(value: str, now: datetime) -> float | None:
    """Read one value of a Retry-After header (RFC 9110, section 10.2.3).

    Args:
        value: Seconds, whole or decimal, or an HTTP-date in any of its three forms. Read as well:
            other dates that name their zone, ISO 8601, durations (``1m30s``), and an epoch in
            seconds or milliseconds.
        now: What time it is where the date comes from: the response's own Date if it has one,
            so that a wrong clock on either side does no harm. Aware.

    Returns:
        Seconds from now, 0.0 for a date that has passed, at most 2**31 (RFC 9111, section
        1.2.2); None for what cannot be read.

    >>> from datetime import UTC
    >>> parse_retry_after("120", datetime(2026, 1, 1, tzinfo=UTC))
    120.0
    >>> parse_retry_after("Thu, 01 Jan 2026 00:00:30 GMT", datetime(2026, 1, 1, tzinfo=UTC))
    30.0
    """
    value = value.strip()
    return None if len(value) > _LONGEST else read_delay(value, Clock(now))


def read_wait(fields: Mapping[str, Iterable[str]], clock: Clock) -> float | None:
    """Read the wait out of the headers of `WAITS`: the longest of several, since one layer's word
    is no leave from another.

    A header that is more precise counts in place of Retry-After if that is its ceiling.
    """  # noqa: D205 - one thought
    announced = _longest(fields, ("retry-after",), clock)
    precise = _longest(fields, _PRECISE, clock)
    if announced is None or precise is None:
        wait = precise if announced is None else announced
        return _longest(fields, _STAND_INS, clock) if wait is None else wait
    return precise if announced - 1.0 < precise else announced


def read_delay(text: str, clock: Clock) -> float | None:
    """Read one wait. Gives seconds, at most `CAP`."""
    number = read_number(text)
    if number is not None:
        return delay_of(number, clock)
    seconds = read_duration(text)
    if seconds is None:
        seconds = clock.until(text)
    return None if seconds is None else min(seconds, CAP)


def delay_of(number: float, clock: Clock) -> float:
    """Give the seconds that a number means: a delay, or an epoch if it is near enough."""
    if number < EPOCHS_FROM:
        return number
    for scale in (1.0, 1e3):
        ahead = number / scale - clock.instant
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

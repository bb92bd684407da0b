"""What a server says about its limits, read from the headers. Pure: the time is an argument."""

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

__all__ = ["parse_http_date", "parse_retry_after"]

_LONGEST = 64
_SECONDS = re.compile(r"[0-9]+(?:\.[0-9]+)?", re.ASCII)


def parse_retry_after(value: str, now: datetime) -> float | None:
    """Read the value of a Retry-After header (RFC 9110, section 10.2.3).

    Args:
        value: Seconds, whole or decimal, or an HTTP-date in any of its three forms.
        now: What time it is where the date comes from: the response's own Date if it has one,
            so that a wrong clock on either side does no harm. Aware.

    Returns:
        Seconds from now, 0.0 for a date that has passed; None for what cannot be read.

    >>> parse_retry_after("120", datetime(2026, 1, 1, tzinfo=UTC))
    120.0
    >>> parse_retry_after("Thu, 01 Jan 2026 00:00:30 GMT", datetime(2026, 1, 1, tzinfo=UTC))
    30.0
    """
    value = value.strip()
    # Longer than any honest value, and than what a parser should be given by a stranger.
    if len(value) > _LONGEST:
        return None
    if _SECONDS.fullmatch(value):
        return float(value)
    moment = parse_http_date(value)
    return None if moment is None else max(0.0, (moment - now).total_seconds())


def parse_http_date(value: str) -> datetime | None:
    """Read an HTTP-date (RFC 9110, section 5.6.7); None for what is none."""
    try:
        moment = parsedate_to_datetime(value)
    except (ValueError, IndexError, OverflowError):
        return None
    # The asctime form, and a zone of -0000, come back naive; both mean UTC.
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)

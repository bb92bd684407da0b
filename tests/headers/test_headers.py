"""Specifies `parse_retry_after` and `parse_http_date`: the forms of RFC 9110, and common others."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiothrottle.headers import parse_http_date, parse_retry_after

NOW = datetime(2026, 11, 20, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0", 0.0),
        ("120", 120.0),
        (" 120 ", 120.0),
        ("1.5", 1.5),
        # The three forms of an HTTP-date, half a minute ahead.
        ("Fri, 20 Nov 2026 12:00:30 GMT", 30.0),
        ("Friday, 20-Nov-26 12:00:30 GMT", 30.0),
        ("Fri Nov 20 12:00:30 2026", 30.0),
        ("Fri, 20 Nov 2026 13:00:30 +0100", 30.0),
        ("Fri, 20 Nov 2026 12:00:30 -0000", 30.0),
        # The past is now.
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
        ("Fri, 20 Nov 2026 11:59:59 GMT", 0.0),
        # Not parseable.
        ("", None),
        ("-1", None),
        ("soon", None),
        ("nan", None),
        ("inf", None),
        ("1e3", None),
        ("12 seconds", None),
        ("1_000", None),
        ("٣", None),  # an Arabic 3, which int() would take
        ("Fri, 31 Feb 2026 12:00:00 GMT", None),
        ("9" * 5000, None),
        ("x" * 5000, None),
    ],
)
def test_retry_after_is_read_as_seconds_or_date(value: str, expected: float | None) -> None:
    assert parse_retry_after(value, NOW) == expected


@given(st.text())
def test_any_text_gives_a_duration_or_none(value: str) -> None:
    seconds = parse_retry_after(value, NOW)
    assert seconds is None or 0.0 <= seconds < float("inf")


@given(st.timedeltas(timedelta(seconds=0), timedelta(days=3650)))
def test_future_date_gives_seconds_until_it(ahead: timedelta) -> None:
    value = (NOW + ahead).strftime("%a, %d %b %Y %H:%M:%S GMT")
    assert parse_retry_after(value, NOW) == int(ahead.total_seconds())


def test_date_in_any_form_is_aware() -> None:
    assert parse_http_date("Fri Nov 20 12:00:00 2026") == NOW
    eastern = datetime(2026, 11, 20, 7, 0, 0, tzinfo=timezone(timedelta(hours=-5)))
    assert parse_http_date("Fri, 20 Nov 2026 07:00:00 EST") == eastern

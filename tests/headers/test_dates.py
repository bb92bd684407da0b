"""Specifies the boundaries of dates: months, zones, offsets, centuries, the longest form."""

from datetime import UTC, datetime, timedelta

import pytest

from aiothrottle.headers.dates import parse_date, parse_http_date

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]


@pytest.mark.parametrize(("number", "month"), list(enumerate(MONTHS, 1)))
def test_every_month_in_each_form(number: int, month: str) -> None:
    date = datetime(2026, number, 7, 8, 9, 10, tzinfo=UTC)
    for text in (
        f"Sun, 07 {month} 2026 08:09:10 GMT",
        f"Sunday, 07-{month}-26 08:09:10 GMT",
        f"sun {month.lower()}  7 08:09:10 2026",
        f"Sun {month} 07 2026 08:09:10 GMT+0000 (Coordinated Universal Time)",
        f"2026-{number:02}-07T08:09:10Z",
        f"2026-{number:02}-07 08:09:10",
    ):
        assert parse_http_date(text, NOW) == date, text


@pytest.mark.parametrize(
    ("zone", "hours"),
    [
        ("Z", 0), ("UT", 0), ("utc", 0), ("GMT", 0),
        ("EST", -5), ("EDT", -4), ("CST", -6), ("CDT", -5),
        ("MST", -7), ("MDT", -6), ("PST", -8), ("pdt", -7),
    ],
)  # fmt: skip
def test_every_zone_that_has_a_name(zone: str, hours: int) -> None:
    date = parse_http_date(f"06 Nov 1994 08:49:37 {zone}")
    assert date == datetime(1994, 11, 6, 8, 49, 37, tzinfo=UTC) - timedelta(hours=hours)


@pytest.mark.parametrize(
    ("offset", "ahead"),
    [
        ("+01", timedelta(hours=1)),
        ("+0130", timedelta(hours=1, minutes=30)),
        ("-01:30", -timedelta(hours=1, minutes=30)),
        ("-2359", -timedelta(hours=23, minutes=59)),
        ("+2400", None),
        ("+0060", None),
    ],
)
def test_offset_is_subtracted(offset: str, ahead: timedelta | None) -> None:
    date = parse_http_date(f"Sun, 06 Nov 1994 08:49:37 {offset}")
    local = datetime(1994, 11, 6, 8, 49, 37, tzinfo=UTC)
    assert date == (None if ahead is None else local - ahead)


def test_leap_second_is_a_second() -> None:
    assert parse_date("Sat, 31 Dec 2016 18:59:60 EST") == datetime(2017, 1, 1, tzinfo=UTC)
    assert parse_date("2016-12-31T23:59:60Z") == datetime(2017, 1, 1, tzinfo=UTC)
    assert parse_date("2016-12-31 23:59:60") == datetime(2017, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("fraction", "microseconds"),
    [("5", 500_000), ("000001", 1), ("123456", 123_456), ("9999999", 999_999)],
)
def test_fractions_down_to_a_microsecond(fraction: str, microseconds: int) -> None:
    date = parse_date(f"2026-11-20T12:00:00.{fraction}Z")
    assert date == NOW + timedelta(microseconds=microseconds)


def test_seconds_may_be_missing() -> None:
    assert parse_date("2026-11-20T12:00Z") == NOW


@pytest.mark.parametrize(("year", "full"), [("68", 2068), ("69", 1969), ("99", 1999), ("00", 2000)])
def test_two_digit_year_without_now_follows_unix(year: str, full: int) -> None:
    date = parse_http_date(f"Sunday, 06-Nov-{year} 08:49:37 GMT")
    assert date == datetime(full, 11, 6, 8, 49, 37, tzinfo=UTC)


@pytest.mark.parametrize(
    ("now", "text", "year"),
    [
        (datetime(2026, 11, 20, 12, tzinfo=UTC), "Friday, 20-Nov-76 12:00:00 GMT", 2076),
        (datetime(2026, 11, 20, 12, tzinfo=UTC), "Friday, 20-Nov-76 12:00:01 GMT", 1976),
        (datetime(2099, 6, 1, tzinfo=UTC), "Friday, 01-Jan-48 00:00:00 GMT", 2148),
        (datetime(2099, 6, 1, tzinfo=UTC), "Friday, 01-Jan-50 00:00:00 GMT", 2050),
        (datetime(2000, 1, 1, tzinfo=UTC), "Friday, 01-Jan-50 00:00:00 GMT", 2050),
        (datetime(2000, 1, 1, tzinfo=UTC), "Friday, 01-Jan-51 00:00:00 GMT", 1951),
    ],
)
def test_two_digit_year_with_now_follows_rfc_9110(now: datetime, text: str, year: int) -> None:
    date = parse_http_date(text, now)
    assert date is not None
    assert date.year == year


def test_now_counts_in_its_own_zone() -> None:
    eastern = datetime.fromisoformat("2026-11-20T07:00:00-05:00")
    assert parse_http_date("Friday, 20-Nov-76 12:00:00 GMT", eastern) == datetime(
        2076, 11, 20, 12, tzinfo=UTC
    )


def test_length_of_a_date_is_bounded() -> None:
    assert parse_date("2026-11-20 12:00") == NOW  # 16 characters
    assert parse_date("2026-1-20 12:00Z") is None
    text = "Fri, 20 Nov 2026 12:00:00 GMT ("
    assert parse_date(text + "x" * (99 - len(text)) + ")") == NOW
    assert parse_date(text + "x" * (100 - len(text)) + ")") is None

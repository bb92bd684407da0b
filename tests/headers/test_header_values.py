"""Specifies the parsing of one value: waits, resets and dates, and the clock they count from."""

from collections.abc import Iterable
from datetime import UTC, datetime

import pytest

from aiothrottle.headers import ServerLimits, parse_http_date
from tests.reading import EPOCH, NOW, read


def wait(*values: str) -> float | None:
    return read(*(("Retry-After", value) for value in values), status=429).retry_after


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("007", 7),
        ("1.5", 1.5),
        ("\t3 ", 3),
        ("2026-11-20 12:01:00+00:00", 60),
        ("2026-11-20T12:01Z", 60),
        ("1m30s", 90),
        ("250ms", 0.25),
        ("999999999", 999999999),
        (f"{EPOCH + 30}", 30),
        (f"{EPOCH - 30}", 0),
        (f"{EPOCH * 1000 + 1500}", 1.5),
        ("4000000000", 2**31),  # an epoch, but in 2096
        ("1" * 5000, 2**31),
        ("1" * 50 + ".5", 2**31),
        ("1" * 100 + ".5", None),
        ("5," * 10_000, None),
        ("", None),
        ("120;x", None),
        ("{{retry_after}}", None),
        ("１２", None),  # noqa: RUF001 - full-width digits
        (".5", None),
        ("5.", None),
        ("\xa05", None),
        ("\x0b5", None),
    ],
)
def test_single_wait_in_every_form(value: str, seconds: float | None) -> None:
    assert wait(value) == seconds


@pytest.mark.parametrize(
    ("values", "seconds"),
    [
        (("30,120",), 120),
        (("120 , 30",), 120),
        (("30,",), 30),
        ((",, 30",), 30),
        (("soon, 30",), 30),
        (("30", "", "x", "20"), 30),
        (("Fri, 20 Nov 2026 12:00:40 GMT, 30",), 40),
        (("30, Friday, 20-Nov-26 12:00:40 GMT",), 40),
    ],
)
def test_longest_of_several_waits_counts(values: Iterable[str], seconds: float) -> None:
    assert wait(*values) == seconds


@pytest.mark.parametrize(
    ("lines", "seconds"),
    [
        ([("Retry-After", "1"), ("retry-after-ms", "412.5")], 0.4125),
        ([("Retry-After", "2"), ("X-Retry-In", "1.5s")], 1.5),
        ([("Retry-After", "2"), ("X-Retry-In", "500ms")], 2),  # not its ceiling
        ([("Retry-After", "2"), ("x-amz-retry-after", "2500")], 2.5),
        ([("Retry-After", "2"), ("x-amz-retry-after", "1e3")], 2),
        ([("x-ms-retry-after-ms", "100"), ("retry-after-ms", "200, 300")], 0.3),
        ([("retry-after-ms", "9" * 400)], 2**31),
        ([("X-Retry-In", "1.5")], None),
        ([("X-RateLimit-Retry-After", "9")], 9),
        ([("X-RateLimit-Retry-After", "9"), ("Retry-After", "4")], 4),
        ([("X-RateLimit-Retry-After", "9"), ("Retry-After", "?")], 9),
        ([("X-Retry-After", str(EPOCH + 9))], 9),
        ([("X-RateLimit-Delay", "9"), ("Beta-Retry-After", "9")], None),
    ],
)
def test_headers_similar_to_retry_after(
    lines: list[tuple[str, str]], seconds: float | None
) -> None:
    assert read(*lines, status=429).retry_after == seconds


def reset(*values: str, name: str = "X-RateLimit-Reset") -> float | None:
    return read(*((name, value) for value in values)).reset_after


@pytest.mark.parametrize("name", ["X-RateLimit-Reset", "ratelimit-reset", "X-Rate-Limit-Reset"])
@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0),
        ("86400", 86400),
        (str(366 * 86400), 366 * 86400),
        (str(366 * 86400 + 1), None),
        ("999999999", None),
        (str(EPOCH + 60), 60),
        (f"{EPOCH + 60}.25", 60.25),
        (str((EPOCH + 60) * 10**3), 60),
        (str((EPOCH + 60) * 10**6), 60),
        (str((EPOCH + 60) * 10**9), 60),
        (str((EPOCH + 60) * 10**12), None),
        (str(EPOCH - 86400), 0),
        (str(EPOCH - 86401), None),
        (str(EPOCH + 400 * 86400), 400 * 86400),
        (str(EPOCH + 400 * 86400 + 1), None),
        ("2026-11-20T12:01:00Z", 60),
        ("2026-11-20t12:01:00z", 60),
        ("2026-11-20 12:01:00", 60),
        ("2026-11-20 12:01:00 UTC", 60),
        ("2026-11-20 13:01:00 +0100", 60),
        ("2026-11-20T12:01:00.123456789Z", 60.123456),
        ("2026-11-20T07:01:00-05:00", 60),
        ("0001-01-01T00:00:00Z", 0),
        ("9999-12-31T23:59:59Z", None),
        ("2026-13-20T12:01:00Z", None),
        ("2026-11-20", None),
        ("Fri, 20 Nov 2026 12:01:00 GMT", 60),
        ("Fri Nov 20 2026 13:01:00 GMT+0100 (CET)", 60),
        ("Fri, 20 Nov 2026 07:01:00 EST", 60),
        ("Fri, 20 Nov 2026 12:01:00 CEST", None),
        ("Fri, 20 Nov 2026 12:01:00 +9900", None),
        ("1s", 1),
        ("6m0s", 360),
        ("12ms", 0.012),
        ("1h2m3.5s", 3723.5),
        ("1d", 86400),
        ("500µs", 0.0005),
        ("9" * 60 + "d", None),
        ("1s2", None),
        ("-1s", None),
        ("60;w=60", 60),
        ("60; W = 60", 60),
        ("17951;76000", None),
        ("2026;-11-20T12:01:00Z", None),
        ("60;", None),
        ("30, 60", 60),
        ("-5", None),
        ("NaN", None),
        ("tomorrow", None),
        ("", None),
    ],
)
def test_reset_is_parsed_by_its_value(name: str, value: str, seconds: float | None) -> None:
    found = reset(value, name=name)
    assert found == (seconds if seconds is None else pytest.approx(seconds, abs=1e-6))


def test_latest_reset_and_lowest_numbers_count() -> None:
    limits = read(
        ("X-RateLimit-Limit", "50"),
        ("X-RateLimit-Limit", "40"),
        ("X-RateLimit-Limit", "?"),
        ("X-RateLimit-Remaining", "3"),
        ("X-RateLimit-Remaining", "7"),
        ("X-RateLimit-Reset", "20"),
        ("X-RateLimit-Reset", "90"),
        ("X-RateLimit-Reset", "?"),
    )
    assert (limits.limit, limits.remaining, limits.reset_after) == (40, 3, 90)


@pytest.mark.parametrize(
    ("text", "date"),
    [
        ("Sun, 06 Nov 1994 08:49:37 GMT", (1994, 11, 6, 8, 49, 37)),
        ("Sunday, 06-Nov-94 08:49:37 GMT", (1994, 11, 6, 8, 49, 37)),
        ("Sun Nov  6 08:49:37 1994", (1994, 11, 6, 8, 49, 37)),
        ("Mon, 06 Nov 1994 08:49:37 GMT", (1994, 11, 6, 8, 49, 37)),  # it was a Sunday
        ("6 November 1994 8:49:37 Z", (1994, 11, 6, 8, 49, 37)),
        ("Sun Nov 6 08:49:37 UTC 1994", (1994, 11, 6, 8, 49, 37)),
        ("Sun, 06 Nov 1994 09:49:37 +0100", (1994, 11, 6, 8, 49, 37)),
        ("Sun, 06 Nov 1994 08:49:37 GMT (comment)", (1994, 11, 6, 8, 49, 37)),
        ("Sat, 31 Dec 2016 23:59:60 GMT", (2017, 1, 1, 0, 0, 0)),
        ("Saturday, 29-Feb-20 00:00:00 GMT", (2020, 2, 29, 0, 0, 0)),
        ("Tuesday, 29-Feb-00 00:00:00 GMT", (2000, 2, 29, 0, 0, 0)),
        ("Sunday, 06-Nov-76 08:49:37 GMT", (2076, 11, 6, 8, 49, 37)),
        ("Saturday, 20-Nov-76 12:00:01 GMT", (1976, 11, 20, 12, 0, 1)),
    ],
)
def test_date_in_any_form(text: str, date: tuple[int, int, int, int, int, int]) -> None:
    assert parse_http_date(text, NOW) == datetime(*date, tzinfo=UTC)


@pytest.mark.parametrize(
    "text",
    [
        "Sun, 06 Nov 1994 08:49:37 XYZ",
        "Sun, 06 Nov 1994 08:49:61 GMT",
        "Sun, 06 Nov 1994 24:49:37 GMT",
        "Sun, 31 Nov 1994 08:49:37 GMT",
        "Sun, 06 Nov 99999 08:49:37 GMT",
        "Sun, 06 Nov 194 08:49:37 GMT",
        "Sun, 06 Xyz 1994 08:49:37 GMT",
        "Sun, 06 Novel 1994 08:49:37 GMT",
        "Sun, 06 Nov 1994 08:49:37",
        "Sun, 06 Nov 1994 08:49",
        "Sun Nov 06 1994 08:49:37 (UTC)",
        "1994-11-6T08:49:37Z",
        "1994-11-06T8:49:37Z",
        "Fri, 31 Dec 9999 23:59:60 GMT",
        "Sun, 06 Nov 1994 08:49:37 GMT (" + "x" * 100 + ")",
    ],
)
def test_invalid_date_is_none(text: str) -> None:
    assert parse_http_date(text, NOW) is None


def test_two_digit_year_around_a_new_century() -> None:
    then = datetime(2099, 6, 1, tzinfo=UTC)
    found = parse_http_date("Friday, 01-Jan-01 00:00:00 GMT", then)
    assert found == datetime(2101, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("dates", "seconds"),
    [
        ([], 60),  # by our clock
        ([("Date", "Fri, 20 Nov 2026 11:59:00 GMT")], 120),
        ([("Date", "Friday, 20-Nov-26 11:59:00 GMT")], 120),
        ([("Date", "yesterday")], 60),
        ([("Date", "Fri, 20 Nov 2026 11:59:00 GMT")] * 2, 60),
        ([("Date", "Fri, 20 Nov 2026 11:59:00 GMT"), ("Age", "0")], 120),
        ([("Date", "Fri, 20 Nov 2026 11:59:00 GMT"), ("Age", "30")], 90),
        ([("Date", "Fri, 20 Nov 2026 11:59:00 GMT"), ("Age", "-3")], 120),
    ],
)
def test_timestamp_counts_from_the_server_clock(
    dates: list[tuple[str, str]], seconds: float
) -> None:
    limits = read(*dates, ("Retry-After", "Fri, 20 Nov 2026 12:01:00 GMT"))
    assert limits.retry_after == seconds


def test_cached_response_reports_only_its_wait() -> None:
    lines = [("X-RateLimit-Limit", "9"), ("x-ratelimit-limit-day", "9"), ("Retry-After", "5")]
    assert read(*lines, ("Age", "1")) == ServerLimits(retry_after=5.0)


def test_now_may_be_in_any_zone() -> None:
    eastern = NOW.astimezone(datetime.strptime("-0500", "%z").tzinfo)
    assert read(("X-RateLimit-Reset", str(EPOCH + 5)), now=eastern).reset_after == 5

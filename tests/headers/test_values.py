"""Specifies the parsing of one value: a wait, a reset, a date, a number, and the server's clock."""

import math
import random
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiothrottle.headers import ServerLimits, parse_http_date, parse_retry_after, profile_for
from aiothrottle.headers.parse import parse_response
from aiothrottle.headers.values import ServerClock
from tests.support.reading import EPOCH, NOW, read
from tests.support.reporting_servers import express_legacy
from tests.support.soundness import assert_seconds

DAY = 86400


# ---- waits ---------------------------------------------------------------------------------------

WAITS: list[tuple[str, float | None]] = [
    ("0", 0), ("007", 7), (" 120 ", 120), ("1.5", 1.5), ("\t3 ", 3),
    # The three forms of an HTTP-date, half a minute ahead; the past is now.
    ("Fri, 20 Nov 2026 12:00:30 GMT", 30),
    ("Friday, 20-Nov-26 12:00:30 GMT", 30),
    ("Fri Nov 20 12:00:30 2026", 30),
    ("Fri, 20 Nov 2026 13:00:30 +0100", 30),
    ("Fri, 20 Nov 2026 12:00:30 -0000", 30),
    ("Fri, 20 Nov 2026 11:59:59 GMT", 0),
    ("2026-11-20 12:01:00+00:00", 60),
    ("2026-11-20T12:01Z", 60),
    ("1m30s", 90), ("250ms", 0.25),
    # A large number is a timestamp if it is near enough, else a long wait.
    (f"{EPOCH + 30}", 30), (f"{EPOCH - 30}", 0), (f"{EPOCH * 1000 + 1500}", 1.5),
    (f"{EPOCH - DAY}", 0), (f"{EPOCH - DAY - 1}", 2**31),
    (f"{EPOCH + 400 * DAY}", 400 * DAY), (f"{EPOCH + 400 * DAY + 1}", 2**31),
    ("999999999", 999_999_999), ("1000000000", 2**31), ("4000000000", 2**31),
    ("1" * 100, 2**31), ("1" * 50 + ".5", 2**31), ("1" * 100 + ".5", None),
    # Not parseable.
    ("", None), ("-1", None), ("soon", None), ("nan", None), ("inf", None), ("1e3", None),
    ("12 seconds", None), ("1_000", None), ("120;x", None), ("{{retry_after}}", None),
    (".5", None), ("5.", None), ("\xa05", None), ("\x0b5", None),
    ("٣", None), ("１２", None),  # noqa: RUF001 - digits of other scripts
    ("Fri, 31 Feb 2026 12:00:00 GMT", None),
    ("x" * 5000, None), ("5," * 10_000, None),
]  # fmt: skip


def test_retry_after_is_read_in_every_form() -> None:
    found = [(text, read(("Retry-After", text), status=429).retry_after) for text, _ in WAITS]
    assert found == WAITS
    stripped = {"\xa05": 5, "\x0b5": 5}  # by the function, more than a header may have around it
    for text, seconds in WAITS:
        assert parse_retry_after(text, NOW) == stripped.get(text, seconds), text


def test_wrong_argument_is_named() -> None:
    for parse in (parse_retry_after, parse_http_date):
        for value in (None, 5, b"5"):
            with pytest.raises(TypeError, match=f"value must be a str, got {value!r}"):
                parse(value, NOW)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="now must be a datetime"):
            parse("5", 1700000000)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="now must have a time zone"):  # local time, or UTC?
            parse("5", datetime(2026, 11, 20))
    with pytest.raises(TypeError, match="host must be a str, got None"):
        profile_for(None)  # type: ignore[arg-type]


@given(st.text())
def test_any_text_gives_a_duration_or_none(value: str) -> None:
    assert_seconds(parse_retry_after(value, NOW))


@pytest.mark.parametrize(
    ("lines", "seconds"),
    [
        ([("Retry-After", "1"), ("retry-after-ms", "412.5")], 0.4125),
        ([("Retry-After", "2"), ("X-Retry-In", "1.5s")], 1.5),
        ([("Retry-After", "2"), ("X-Retry-In", "500ms")], 2),  # not its ceiling
        ([("Retry-After", "2"), ("X-Retry-In", "1s")], 2),
        ([("Retry-After", "2"), ("x-amz-retry-after", "2500")], 2.5),
        ([("Retry-After", "2"), ("x-amz-retry-after", "1e3")], 2),
        ([("x-ms-retry-after-ms", "100"), ("retry-after-ms", "200, 300")], 0.3),
        ([("retry-after-ms", "9" * 400)], 2**31),
        ([("X-Retry-In", "1.5")], None),
        ([("X-RateLimit-Retry-After", "9"), ("Retry-After", "4")], 4),
        ([("X-RateLimit-Retry-After", "9"), ("Retry-After", "?")], 9),
        ([("Rate-Limit-Retry-After", "9")], 9),
        ([("X-Retry-After", str(EPOCH + 9))], 9),
        ([("X-RateLimit-Delay", "9"), ("Beta-Retry-After", "9")], None),
    ],
)
def test_headers_like_retry_after(lines: list[tuple[str, str]], seconds: float | None) -> None:
    assert read(*lines, status=429).retry_after == seconds


# ---- resets --------------------------------------------------------------------------------------

RESETS: list[tuple[str, float | None]] = [
    ("0", 0), (str(366 * DAY), 366 * DAY), (str(366 * DAY + 1), None), ("999999999", None),
    (str(EPOCH + 60), 60), (f"{EPOCH + 60}.25", 60.25), (str((EPOCH + 60) * 10**3), 60),
    (str((EPOCH + 60) * 10**6), 60), (str((EPOCH + 60) * 10**9), 60),
    (str((EPOCH + 60) * 10**12), None),
    (str(EPOCH - DAY), 0), (str(EPOCH - DAY - 1), None),
    (str(EPOCH + 400 * DAY), 400 * DAY), (str(EPOCH + 400 * DAY + 1), None),
    ("2026-11-20T12:01:00Z", 60),
    ("2026-11-20t12:01:00z", 60),
    ("2026-11-20 12:01:00", 60),
    ("2026-11-20 12:01:00 UTC", 60),
    ("2026-11-20 13:01:00 +0100", 60),
    ("2026-11-20T12:01:00.123456789Z", 60.123456),
    ("2026-11-20T07:01:00-05:00", 60),
    ("0001-01-01T00:00:00Z", 0),
    ("9999-12-31T23:59:59Z", None), ("2026-13-20T12:01:00Z", None), ("2026-11-20", None),
    ("Fri, 20 Nov 2026 12:01:00 GMT", 60),
    ("Fri Nov 20 2026 13:01:00 GMT+0100 (CET)", 60),
    ("Fri, 20 Nov 2026 12:01:00 CEST", None), ("Fri, 20 Nov 2026 12:01:00 +9900", None),
    ("1s", 1), ("6m0s", 360), ("12ms", 0.012), ("1h2m3.5s", 3723.5), ("1d", DAY),
    ("500µs", 0.0005), ("500μs", 0.0005), ("500us", 0.0005), ("5000000ns", 0.005),
    ("9" * 60 + "d", None), ("1s2", None), ("-1s", None),
    ("60;w=60", 60), ("60; W = 60", 60), ("17951;76000", None), ("60;", None),
    ("2026;-11-20T12:01:00Z", None),
    ("30, 60", 60), ("-5", None), ("NaN", None), ("tomorrow", None), ("", None),
]  # fmt: skip


@pytest.mark.parametrize("name", ["X-RateLimit-Reset", "ratelimit-reset", "X-Rate-Limit-Reset"])
def test_reset_is_parsed_by_its_value(name: str) -> None:
    found = {text: read((name, text)).reset_after for text, _ in RESETS}
    assert found == pytest.approx(dict(RESETS), abs=1e-6)


@pytest.mark.parametrize(
    ("reset", "error"),
    [
        ("5", 1.0), ("5.25", 0.0), (f"{EPOCH + 5}", 3.0), ("Fri, 20 Nov 2026 12:00:05 GMT", 3.0),
        ("soon", 0.0),
    ],
)  # fmt: skip
def test_reset_error_depends_on_the_form(reset: str, error: float) -> None:
    assert read(("X-RateLimit-Remaining", "5"), ("X-RateLimit-Reset", reset)).reset_error == error


# ---- dates ---------------------------------------------------------------------------------------

MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]


@pytest.mark.parametrize(("number", "month"), list(enumerate(MONTHS, 1)))
def test_every_month_in_each_form(number: int, month: str) -> None:
    date = datetime(2026, number, 7, 8, 9, 10, tzinfo=UTC)
    for text in (
        f"Sun, 07 {month} 2026 08:09:10 GMT",
        f"{date:%A}, 07-{month}-26 08:09:10 GMT",
        f"7 {date:%B} 2026 8:09:10 Z",
        f"sun {month.lower()}  7 08:09:10 2026",
        f"Sun {month} 7 08:09:10 UTC 2026",
        f"Sun {month} 07 2026 08:09:10 GMT+0000 (Coordinated Universal Time)",
        f"2026-{number:02}-07T08:09:10Z",
        f"2026-{number:02}-07 08:09:10",
    ):
        assert parse_http_date(text, NOW) == date, text


ZONES = {
    "Z": 0, "UT": 0, "utc": 0, "GMT": 0, "EST": -5, "EDT": -4, "CST": -6, "CDT": -5, "MST": -7,
    "MDT": -6, "PST": -8, "pdt": -7, "+01": 1, "+0130": 1.5, "-01:30": -1.5, "-2300": -23,
}  # fmt: skip


def test_zones_are_known_and_invalid_dates_none() -> None:
    local = datetime(1994, 11, 6, 8, 49, 37, tzinfo=UTC)
    for zone, hours in ZONES.items():
        date = parse_http_date(f"Sun, 06 Nov 1994 08:49:37 {zone}")
        assert date == local - timedelta(hours=hours), zone
    assert [text for text in NO_DATES if parse_http_date(text, NOW) is not None] == []


@pytest.mark.parametrize(
    ("text", "date"),
    [
        ("Sun, 06 Nov 1994 08:49:37 GMT (comment)", datetime(1994, 11, 6, 8, 49, 37)),
        ("Sat, 31 Dec 2016 18:59:60 EST", datetime(2017, 1, 1)),  # a leap second
        ("2016-12-31T23:59:60Z", datetime(2017, 1, 1)),
        ("2016-12-31 23:59:60", datetime(2017, 1, 1)),
        ("Saturday, 29-Feb-20 00:00:00 GMT", datetime(2020, 2, 29)),
        ("Tuesday, 29-Feb-00 00:00:00 GMT", datetime(2000, 2, 29)),
        ("2026-11-20T12:00:00.5Z", datetime(2026, 11, 20, 12, 0, 0, 500_000)),
        ("2026-11-20T12:00:00.000001Z", datetime(2026, 11, 20, 12, 0, 0, 1)),
        ("2026-11-20T12:00:00.9999999Z", datetime(2026, 11, 20, 12, 0, 0, 999_999)),
        ("2026-11-20 12:00", datetime(2026, 11, 20, 12)),  # the shortest, of 16 characters
        ("Fri, 20 Nov 2026 12:00:00 GMT (" + "x" * 68 + ")", datetime(2026, 11, 20, 12)),
    ],
)
def test_date_in_any_form(text: str, date: datetime) -> None:
    assert parse_http_date(text, NOW) == date.replace(tzinfo=UTC)


NO_DATES = [
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
    "Sun, 06 Nov 1994 08:49:37 +2400",
    "Sun, 06 Nov 1994 08:49:37 +0060",
    "Sun Nov 06 1994 08:49:37 (UTC)",
    "1994-11-6T08:49:37Z",
    "1994-11-06T8:49:37Z",
    "2026-1-20 12:00Z",
    "Fri, 31 Dec 9999 23:59:60 GMT",
    "Fri, 20 Nov 2026 12:00:00 GMT (" + "x" * 69 + ")",  # 101 characters
]


@pytest.mark.parametrize(
    ("now", "text", "year"),
    [
        # Without a clock as Unix has it; else at most 50 years ahead (RFC 9110, section 5.6.7).
        (None, "06-Nov-68 08:49:37", 2068),
        (None, "06-Nov-69 08:49:37", 1969),
        (None, "06-Nov-00 08:49:37", 2000),
        (NOW, "20-Nov-76 12:00:00", 2076),
        (NOW, "20-Nov-76 12:00:01", 1976),
        (NOW.astimezone(datetime.strptime("-0500", "%z").tzinfo), "20-Nov-76 12:00:00", 2076),
        (datetime(2099, 6, 1, tzinfo=UTC), "01-Jan-01 00:00:00", 2101),
        (datetime(2099, 6, 1, tzinfo=UTC), "01-Jan-48 00:00:00", 2148),
        (datetime(2099, 6, 1, tzinfo=UTC), "01-Jan-50 00:00:00", 2050),
        (datetime(2000, 1, 1, tzinfo=UTC), "01-Jan-50 00:00:00", 2050),
        (datetime(2000, 1, 1, tzinfo=UTC), "01-Jan-51 00:00:00", 1951),
        (datetime(2080, 6, 1, tzinfo=UTC), "06-Jan-30 08:49:37", 2030),
        (datetime(2080, 6, 1, tzinfo=UTC), "06-Nov-30 08:49:37", 2030),
        (datetime(2080, 6, 1, tzinfo=UTC), "06-Nov-29 08:49:37", 2129),
        (datetime(2080, 6, 1, tzinfo=UTC), "06-Jan-81 08:49:37", 2081),
    ],
)
def test_century_of_a_two_digit_year(now: datetime | None, text: str, year: int) -> None:
    date = parse_http_date(f"Sunday, {text} GMT", now)
    assert date is not None
    assert date.year == year


# ---- the clock of the server: never ahead of it, and soon hardly behind it ---------------------

AN_HOUR_BEHIND = ("Date", "Fri, 20 Nov 2026 11:00:00 GMT")


@pytest.mark.parametrize(
    ("dates", "seconds"),
    [
        ([], 60),  # by our clock
        ([AN_HOUR_BEHIND], 3660),
        ([("Date", "Friday, 20-Nov-26 11:00:00 GMT")], 3660),
        ([("Date", "yesterday")], 60),
        ([AN_HOUR_BEHIND] * 2, 60),
        ([AN_HOUR_BEHIND, ("Age", "0")], 3660),
        ([AN_HOUR_BEHIND, ("Age", "30")], 3630),
        ([AN_HOUR_BEHIND, ("Age", "30"), ("Age", "20")], 3630),
        ([AN_HOUR_BEHIND, ("Age", "-3")], 3660),
    ],
)
def test_timestamp_counts_from_server_clock(dates: list[tuple[str, str]], seconds: float) -> None:
    limits = read(*dates, ("Retry-After", "Fri, 20 Nov 2026 12:01:00 GMT"))
    assert limits.retry_after == seconds


def test_cached_response_reports_only_its_wait() -> None:
    lines = [("X-RateLimit-Limit", "9"), ("x-ratelimit-limit-day", "9"), ("Retry-After", "5")]
    assert read(*lines, ("Age", "1")) == ServerLimits(retry_after=5.0)


AHEAD = [0.0, 0.37, -3600.5, 7200.9]


def dates(ahead: float, seconds: float, latency: float = 0.02) -> list[tuple[float, float, float]]:
    """Return server time, Date and local time of responses, ten a second."""
    chance = random.Random(1)
    found: list[tuple[float, float, float]] = []
    now = 1_800_000_000.2
    while now < 1_800_000_000.2 + seconds:
        now += 0.2 * chance.random()
        arrived = now + latency * chance.random()
        found.append((now + ahead, math.floor(now + ahead), arrived))
    return found


@pytest.mark.parametrize("ahead", AHEAD)
def test_clock_is_never_ahead_of_the_server_and_soon_exact(ahead: float) -> None:
    clock = ServerClock()
    found = dates(ahead, 600.0)
    behind = [arrived + ahead - clock.earliest(date, arrived) for _, date, arrived in found]
    assert min(behind) >= 0.0
    assert max(behind[:5]) > 0.1
    assert max(behind[300:]) < 0.05


@pytest.mark.parametrize("step", [-3600.0, -5.0, 5.0, 3600.0])
def test_clock_that_is_set_is_followed(step: float) -> None:
    clock = ServerClock()
    for _, date, arrived in dates(0.0, 10.0):
        clock.earliest(date, arrived)
    for _, date, arrived in dates(step, 10.0):
        behind = arrived + step - clock.earliest(date, arrived)
        assert 0.0 <= behind <= 1.03


def test_clock_that_runs_slower_is_followed() -> None:
    clock, found = ServerClock(), dates(0.0, 10.0)
    for _, date, arrived in found:
        clock.earliest(date, arrived)
    # Two hours later it is half a second behind.
    later = found[-1][0] + 7200.0
    assert later - 0.75 <= clock.earliest(math.floor(later - 0.5), later) <= later - 0.5


def test_clock_learns_nothing_from_a_cached_response() -> None:
    clock, date = ServerClock(), ("Date", "Fri, 20 Nov 2026 12:00:00 GMT")
    retry_after = ("Retry-After", "Fri, 20 Nov 2026 12:01:00 GMT")
    now = datetime(2026, 11, 20, 12, 0, 0, tzinfo=UTC)
    server_time = partial(clock.earliest, now=0.0)
    waits = [
        parse_response(429, [date, retry_after, *age], now, server_time=server_time).retry_after
        for age in ([("Age", "2")], [])  # a Date of two seconds ago, and one of now
    ]
    assert waits == [58.0, 60.0]


def test_epoch_reset_becomes_exact() -> None:
    clock, server = ServerClock(), express_legacy()
    errors: list[float] = []
    for now, _, arrived in dates(0.37, 30.0):
        _, headers = server.answer(now)
        set_forward = 2.0 if errors[15:] else 0.0
        local = datetime.fromtimestamp(arrived + set_forward, UTC)
        server_time = partial(clock.earliest, now=arrived)
        limits = parse_response(200, headers, local, server_time=server_time)
        assert limits.reset_after is not None
        assert limits.reset_error == 3.0
        errors.append(limits.reset_after - (float(headers["X-RateLimit-Reset"]) - arrived - 0.37))
    assert min(errors) >= 0.0
    assert max(errors[150:]) < 0.05

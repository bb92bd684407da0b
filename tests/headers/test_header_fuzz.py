"""Any input from a server: no exception, only sound limits, and linear time.

`tests/fuzz_headers.py` does the same, guided by coverage, for any length of time.
"""

import itertools
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiothrottle.headers import (
    PROFILES,
    Items,
    Json,
    Limit,
    Profile,
    parse_http_date,
    parse_rate_limit,
    parse_retry_after,
)
from tests.headers.test_corpus import CASES
from tests.reading import NOW
from tests.soundness import assert_seconds, check

# Every name and every value of the corpus and of the profiles is a piece to combine.
ROWS = [row for profile in PROFILES.values() for row in profile.limits]
NAMES = sorted(
    {name for case in CASES for name, _ in case["headers"]}
    | {name for row in ROWS if isinstance(row, Limit) for name in row.headers}
    | {row.header for row in ROWS if isinstance(row, Json) and row.header}
    | {"x-ratelimit-limit-day", "zendesk-ratelimit-x", "x-mbx-used-weight-1m", "Age", "Date"}
)
VALUES = sorted({value for case in CASES for _, value in case["headers"] if len(value) < 200})
BODIES = sorted({case["body"] for case in CASES if "body" in case})
assert any(isinstance(row, Items) for row in ROWS)

NUMBERS = st.one_of(
    st.integers().map(str),
    st.integers(0, 10**21).map(str),
    st.floats().map(str),
    st.sampled_from(["0", "-1", "1e999", "NaN", "9" * 400, "0" * 400, "²", "1_0"]),
)
PIECES = st.sampled_from(
    [
        ",",
        ";",
        "=",
        '"',
        ":",
        " ",
        "\t",
        "\\",
        "w=",
        "r=",
        "t=",
        "q=",
        "s",
        "ms",
        "d",
        "GMT",
        "Z",
        "T",
    ]
)
VALUE = st.one_of(
    st.text(max_size=60),
    NUMBERS,
    st.sampled_from(VALUES),
    st.lists(st.one_of(NUMBERS, PIECES, st.sampled_from(VALUES)), max_size=8).map("".join),
    st.datetimes().map(str),
    st.binary(max_size=60).map(lambda data: data.decode("utf-8", "surrogateescape")),
)
NAME = st.one_of(st.sampled_from(NAMES), st.text(max_size=80))
KEYS = ["retry_after", "error", "code", "retryDelay", "data", "serverTime", "extensions", "cost"]
DATA = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), VALUE),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(st.sampled_from(KEYS), st.text(max_size=9)), inner, max_size=5),
    ),
)
BODY = st.one_of(
    st.none(),
    st.binary(max_size=200),
    st.text(max_size=200),
    st.sampled_from(BODIES),
    DATA.map(json.dumps),
)


@given(
    status=st.one_of(st.integers(), st.sampled_from([200, 403, 413, 418, 429, 503, 529])),
    headers=st.lists(st.tuples(NAME, VALUE), max_size=8),
    now=st.datetimes(timezones=st.sampled_from([UTC, timezone.min, timezone.max])),
    body=BODY,
    profile=st.one_of(st.none(), st.sampled_from(list(PROFILES.values()))),
)
def test_any_response_gives_sound_limits(
    status: int,
    headers: list[tuple[str, str]],
    now: datetime,
    body: str | bytes | None,
    profile: Profile | None,
) -> None:
    limits = parse_rate_limit(status, headers, now, body, profile)
    check(limits)
    assert limits == parse_rate_limit(status, headers, now, body, profile)


@given(VALUE, st.datetimes(timezones=st.just(UTC)))
def test_any_single_value_gives_sound_limits(value: str, now: datetime) -> None:
    assert_seconds(parse_retry_after(value, now))
    date = parse_http_date(value, now)
    assert date is None or date.tzinfo is not None


# ---- time ------------------------------------------------------------------------------------

Headers = list[tuple[str, str]]
FIELDS = [
    "Retry-After",
    "retry-after-ms",
    "X-RateLimit-Limit",
    "X-RateLimit-Remaining",
    "X-RateLimit-Reset",
    "X-RateLimit-Limit-Day",
    "X-RateLimit-Resource",
    "RateLimit",
    "RateLimit-Policy",
    "Date",
    "Age",
    "zendesk-ratelimit-x",
    "sforce-limit-info",
    "x-sentry-rate-limits",
    "x-app-usage",
    "x" * 9,
]
SHAPES: dict[str, Callable[[int], str]] = {
    "digits": lambda n: "1" * n,
    "digits, then none": lambda n: "1" * n + "x",
    "fractions": lambda n: "1." * (n // 2),
    "durations": lambda n: "1m" * (n // 2),
    "commas": lambda n: "," * n,
    "items": lambda n: "1;w=1," * (n // 6),
    "structured": lambda n: '"a";r=1,' * (n // 8),
    "quotes": lambda n: '"' * n,
    "escapes": lambda n: '"' + "\\" * n,
    "parameters": lambda n: "1" + ";w=1" * (n // 4),
    "spaces": lambda n: "1" + " " * n + "1",
    "weekdays": lambda n: "mon, " * (n // 5),
    "months": lambda n: "Nov " * (n // 4),
    "pairs": lambda n: "a=1/2;" * (n // 6),
    "brackets": lambda n: "[" * n,
    "object": lambda n: '{"a":' * (n // 5),
    "Latin": lambda n: "\xb5" * n,
}
PROFILED = [
    PROFILES[name] for name in ("Zendesk", "Salesforce", "Sentry", "Meta", "Hugging Face", "Strava")
]


def seconds_for(work: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(3):
        begun = time.process_time()
        work()
        best = min(best, time.process_time() - begun)
    return best


def assert_linear(work: Callable[[int], Callable[[], object]]) -> None:
    """25 times the length may take 25 times the time if linear, and 625 times if quadratic.

    Caches, and neighbours on a busy machine, make it more than 25. Clocks of processor time may
    tick in hundredths of a second; the square of 20,000 steps takes longer than that.
    """
    few, many = seconds_for(work(20_000)), seconds_for(work(500_000))
    assert many <= 150 * max(few, 0.01), (few, many)


@pytest.mark.parametrize("shape", SHAPES)
def test_long_value_takes_linear_time(shape: str) -> None:
    def work(length: int) -> Callable[[], object]:
        headers = [(field, SHAPES[shape](length)) for field in FIELDS]
        return lambda: [
            parse_rate_limit(429, headers, NOW, None, profile) for profile in (None, *PROFILED[:2])
        ]

    assert_linear(work)


@pytest.mark.parametrize("shape", SHAPES)
def test_long_body_takes_linear_time(shape: str) -> None:
    def work(length: int) -> Callable[[], object]:
        body = '{"error": ["' + SHAPES[shape](length) + '"]}'
        return lambda: parse_rate_limit(400, [], NOW, body)

    assert_linear(work)


@pytest.mark.parametrize("name", ["X-RateLimit-Limit", "x-ratelimit-remaining-{}", "RateLimit"])
@pytest.mark.parametrize(
    "profile", [None, *PROFILED[:2]], ids=lambda profile: profile.name if profile else "none"
)
def test_many_lines_take_linear_time(name: str, profile: Profile | None) -> None:
    numbers = itertools.count()

    def work(length: int) -> Callable[[], object]:
        # Other names each time: the cache of names is tested elsewhere.
        lines = length // 50
        return lambda: parse_rate_limit(
            429, [(name.format(next(numbers)), "1;w=1") for _ in range(lines)], NOW, None, profile
        )

    assert_linear(work)


def test_deeply_nested_body_does_not_raise() -> None:
    for opening in ("[", '{"error":'):
        check(parse_rate_limit(429, {}, NOW, opening * 100_000))
        check(parse_rate_limit(429, {}, NOW, opening * 900 + "1" + "]" * 900))

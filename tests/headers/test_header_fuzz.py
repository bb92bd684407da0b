"""Any input from a server: no exception, only sound limits, bounded memory; time is elsewhere.

`tests/fuzz/headers.py` does the same, guided by coverage, for any length of time.
"""

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timezone

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
    profile_for,
)
from aiothrottle.headers.parse import LAYOUTS
from aiothrottle.headers.quotas import _POLICIES  # pyright: ignore[reportPrivateUsage]
from aiothrottle.headers.values import Memo
from tests.headers.test_corpus import CASES
from tests.support.effort import examples
from tests.support.reading import NOW, read
from tests.support.soundness import check

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

NUMBERS = st.one_of(
    st.integers().map(str),
    st.integers(0, 10**21).map(str),
    st.floats().map(str),
    st.sampled_from(["0", "-1", "1e999", "NaN", "9" * 400, "0" * 400, "²", "1_0"]),
)
WORDS = ["w=", "r=", "t=", "q=", "s", "ms", "d", "GMT", "Z", "T"]
PIECES = st.sampled_from([*',;=": \t\\', *WORDS])
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


@examples(100)
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
    for _, value in headers:
        date = parse_http_date(value, now)
        assert date is None or date.tzinfo is not None


# ---- more than any honest server sends -----------------------------------------------------------


def test_too_long_names_and_lines_hide_no_others() -> None:
    lines = [(f"x-ratelimit-limit-{'y' * 46}", "5"), (f"x-ratelimit-limit-{'y' * 47}", "1")]
    assert [policy.quota for policy in read(*lines).policies] == [5]
    trio = [("X-RateLimit-Limit", "10"), ("X-RateLimit-Remaining", "3")]
    found = read(("X-RateLimit-Policy", "1," * 20_000), *trio)
    assert (found.limit, found.remaining) == (10, 3)
    lines = [("X-RateLimit-Window", "1" * 8000)] * 3
    found = read(("Age", " " * 9000), *lines, ("Retry-After", "9" * 8000), ("X-Retry-After", "7"))
    assert found.retry_after == 7
    for name in ("Age", "Date", "X-RateLimit-Window", "X-RateLimit-Window-Ms", "RateLimit"):
        assert read(("X-RateLimit-Limit", "x" * 16_384), (name, "1")) == read()


def test_number_of_limits_and_length_of_names_are_bounded() -> None:
    windows = [f"{quota};w={quota}" for quota in range(1, 100)]
    found = read(("X-RateLimit-Limit", ", ".join(["1", *windows])))
    assert [policy.quota for policy in found.policies] == list(range(1, 64))
    policies = ",".join(f'"a{number}";q=1' for number in range(1000))
    assert len(read(("RateLimit-Policy", policies)).policies) == 256
    names = [(f"x-ratelimit-limit-{number}", "1") for number in range(3000)]
    assert [policy.name for policy in read(*names).policies] == list(map(str, range(256)))
    row = Items("acme-[ab]", r"(?P<limit>\d+)", name="{limit}")
    lines = [("Acme-A", ",".join(map(str, range(300)))), ("Acme-B", "7, 999")]
    found = read(*lines, profile=Profile("Acme", limits=(row,)))
    assert [policy.quota for policy in found.policies] == list(range(256))
    assert profile_for("a." * 100 + "api.github.com") is None
    assert profile_for("a" * 120 + ".myshopify.com") is PROFILES["Shopify"]
    assert profile_for("a." * 200 + "myshopify.com") is None


# ---- caches --------------------------------------------------------------------------------------


def size(keys: Iterable[Sequence[str]]) -> int:
    return sum(sum(map(len, key)) for key in keys)


def test_memo_is_bounded_in_number_and_length() -> None:
    lengths = Memo[str, int](len, most=2, longest=3)
    assert [lengths[word] for word in ("a", "bb", "long")] == [1, 2, 4]
    assert set(lengths) == {"a", "bb"}
    assert lengths["ccc"] == 3
    assert set(lengths) == {"ccc"}


def test_changing_names_and_policies_fill_no_memory() -> None:
    for i in range(1000):
        headers = {f"X-RateLimit-Limit-{i}": "1", f"X-{i}-{'x' * (8000 if i % 2 else 4000)}": "1"}
        assert parse_rate_limit(200, headers, NOW).policies[0].name == str(i)
    for i in range(20):  # too many for one response
        parse_rate_limit(200, {f"{i}-{j}": "" for j in range(1000)}, NOW)
    assert size(LAYOUTS) <= 256 * 4096
    for i in range(1100):
        headers = {"RateLimit-Policy": f'"a";q={i};w=1', "RateLimit": '"a";r=0'}
        assert parse_rate_limit(200, headers, NOW).limit == i
        parse_rate_limit(200, {"RateLimit-Policy": f'"{"a" * 1000}{i}";q=1'}, NOW)
    assert size(_POLICIES) <= 1024 * 64

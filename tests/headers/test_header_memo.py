"""The caches of header names and policies are bounded for any names and values."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from aiothrottle.headers import parse_rate_limit
from aiothrottle.headers.fields import LAYOUTS
from aiothrottle.headers.memo import Memo
from aiothrottle.headers.structured import _POLICIES  # pyright: ignore[reportPrivateUsage]

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def size(keys: Iterable[Sequence[str]]) -> int:
    return sum(sum(map(len, key)) for key in keys)


def test_memo_is_bounded_in_number_and_length() -> None:
    lengths = Memo[str, int](len, most=2, longest=3)
    assert [lengths[word] for word in ("a", "bb", "long")] == [1, 2, 4]
    assert set(lengths) == {"a", "bb"}
    assert lengths["ccc"] == 3
    assert set(lengths) == {"ccc"}


def test_changing_header_names_fill_no_memory() -> None:
    for i in range(1000):
        headers = {f"X-RateLimit-Limit-{i}": "1", f"X-{i}-{'x' * (8000 if i % 2 else 4000)}": "1"}
        assert parse_rate_limit(200, headers, NOW).policies[0].name == str(i)
    for i in range(20):  # too many for one response
        parse_rate_limit(200, {f"{i}-{j}": "" for j in range(1000)}, NOW)
    assert size(LAYOUTS) <= 256 * 4096


def test_changing_policies_fill_no_memory() -> None:
    for i in range(1100):
        headers = {"RateLimit-Policy": f'"a";q={i};w=1', "RateLimit": '"a";r=0'}
        assert parse_rate_limit(200, headers, NOW).limit == i
        parse_rate_limit(200, {"RateLimit-Policy": f'"{"a" * 1000}{i}";q=1'}, NOW)
    assert size(_POLICIES) <= 1024 * 64


def test_repeated_lines_in_any_order_keep_their_values() -> None:
    lines = [("X-RateLimit-Limit", "10"), ("Server", "x"), ("x-ratelimit-limit", "5")]
    assert parse_rate_limit(200, lines, NOW).limit == 5
    assert parse_rate_limit(200, lines[::-1], NOW).limit == 5
    assert parse_rate_limit(200, iter(lines[:2]), NOW).limit == 10

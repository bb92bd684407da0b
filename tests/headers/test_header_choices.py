"""Specifies which value counts if a response reports a field twice or in part."""

from datetime import UTC, datetime

import pytest

from aiothrottle.headers import (
    Policy,
    Profile,
    ServerLimits,
    parse_http_date,
    parse_retry_after,
)
from aiothrottle.headers.limits import binding
from tests.reading import EPOCH, NOW, read

DAY = 86400

# --- two families of headers in one response ---


def both(*lines: tuple[str, str]) -> ServerLimits:
    """Read them in either order, which makes no difference."""
    limits = read(*lines)
    assert limits == read(*reversed(lines))
    return limits


def test_missing_field_comes_from_the_other_family() -> None:
    limits = both(("RateLimit-Remaining", "5"), ("X-RateLimit-Limit", "10"))
    assert (limits.limit, limits.remaining) == (10, 5)
    limits = both(("RateLimit-Limit", "10"), ("X-RateLimit-Window", "60"))
    assert (limits.limit, limits.window) == (10, 60)
    limits = both(("RateLimit-Remaining", "5"), ("X-RateLimit-Limit", "10, 10;w=1, 50;w=60"))
    assert limits.policies == (Policy(None, 10, 1.0, 5), Policy(None, 50, 60.0))


def test_first_family_takes_precedence() -> None:
    limits = both(("RateLimit-Limit", "10"), ("X-RateLimit-Limit", "20"))
    assert limits.limit == 10
    limits = both(
        ("RateLimit-Limit", "10"),
        ("RateLimit-Window", "1"),
        ("X-RateLimit-Limit", "10"),
        ("X-RateLimit-Window", "60"),
    )
    assert limits.window == 1
    limits = both(("RateLimit-Limit", "10, 10;w=1"), ("X-RateLimit-Limit", "10, 10;w=60"))
    assert [policy.window for policy in limits.policies] == [1.0]


def test_lowest_remainder_and_latest_reset_count() -> None:
    def of(first: tuple[int, int], second: tuple[int, int]) -> tuple[float | None, float | None]:
        limits = both(
            ("RateLimit-Remaining", str(first[0])),
            ("RateLimit-Reset", str(first[1])),
            ("X-RateLimit-Remaining", str(second[0])),
            ("X-RateLimit-Reset", str(second[1])),
        )
        return limits.remaining, limits.reset_after

    assert of((5, 10), (4, 20)) == (4, 20)
    assert of((4, 20), (5, 10)) == (4, 20)
    # A rounded reset is the same one: the family with the highest precedence has it more exactly.
    assert of((5, 10), (5, 12)) == (5, 10)
    assert of((5, 10), (5, 13)) == (5, 13)


# --- limits with names ---


def test_named_limit_has_its_first_window() -> None:
    (policy,) = read(("X-RateLimit-Limit-Search", "10;w=60, 100;w=3600")).policies
    assert policy == Policy("search", 10, 60.0)


def test_only_a_negative_limit_discards_other_fields() -> None:
    remaining = ("X-RateLimit-Remaining-Search", "5")
    assert read(("X-RateLimit-Limit-Search", "unlimited"), remaining).policies == (
        Policy("search", remaining=5),
    )
    assert read(("X-RateLimit-Limit-Search", "-1"), remaining).policies == ()


def test_profile_windows_fill_only_missing_windows() -> None:
    profile = Profile("Acme", windows=(("cycle", 600.0),))
    lines = [("X-RateLimit-Limit-Cycle", "5"), ("X-RateLimit-Limit-Search", "6")]
    assert read(*lines, profile=profile).policies == (
        Policy("cycle", 5, 600.0),
        Policy("search", 6),
    )
    limits = read(("X-RateLimit-Limit-Cycle", "5;w=60"), profile=profile)
    assert limits.policies == (Policy("cycle", 5, 60.0),)


def test_fraction_of_a_request_is_rounded_down() -> None:
    limits = read(("X-RateLimit-Limit", "10.5"), ("X-RateLimit-Remaining", "4.5"))
    assert (limits.limit, limits.remaining) == (10, 4)


# --- structured fields ---


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("r=4;t=10", "r=5;t=90"),
        ("r=4", "r=5"),
        ("r=5;t=90", "r=5;t=10"),
        ("r=5;t=10", "r=5"),
        ("r=5;t=0", "t=10"),
    ],
)
def test_tighter_of_two_partitions_counts_in_any_order(one: str, other: str) -> None:
    tighter = read(("RateLimit", f'"a";{one}')).policies
    assert read(("RateLimit", f'"a";{one}, "a";{other}')).policies == tighter
    assert read(("RateLimit", f'"a";{other}, "a";{one}')).policies == tighter


def test_reset_of_zero_differs_from_none() -> None:
    limits = read(("RateLimit", '"a";r=5;t=0, "a";r=5'))
    assert limits.policies == (Policy("a", remaining=5, reset_after=0.0, reset_error=1.0),)


def test_invalid_item_leaves_later_items_intact() -> None:
    # Section 3.1 of draft 10 has the parameter "q" be a non-negative integer.
    limits = read(("RateLimit-Policy", '"a";q=x, "b";q=-1, "c";q=5;w=60'), ("RateLimit", '"c";r=3'))
    assert limits.policies == (Policy("c", 5, 60.0, 3),)


@pytest.mark.parametrize("policy", ["5;w=60", "5;Window=60", "5;W=60"])
def test_older_drafts_allow_long_numbers_and_upper_case(policy: str) -> None:
    assert read(("RateLimit-Policy", policy)).policies == (Policy(None, 5, 60.0),)


# --- bodies and words ---


def test_negative_wait_in_a_body_is_ignored() -> None:
    assert read(status=429, body='{"retry_after":-0.5}').retry_after is None
    assert read(status=429, body='{"retry_after":0.5}').retry_after == 0.5


def test_throttle_seconds_of_one_is_one_second() -> None:
    assert read(status=429, body='{"ThrottleSeconds":1}').retry_after == 1
    assert read(status=429, body='{"ThrottleSeconds":0.5}').retry_after == 0.5


def test_label_longer_than_64_characters_is_ignored() -> None:
    assert read(("X-RateLimit-Resource", "x" * 64)).reason == "x" * 64
    assert read(("X-RateLimit-Resource", "x" * 65)).reason is None


def test_later_reset_binds_without_remainders() -> None:
    at_once, soon = Policy("at once", reset_after=0.0), Policy("soon", reset_after=0.5)
    assert binding([at_once, soon]) == soon


# --- instants ---


@pytest.mark.parametrize(
    ("number", "seconds"),
    [
        (EPOCH - DAY, 0.0),
        (EPOCH - DAY - 1, 2**31),
        (EPOCH + 366 * DAY, 366 * DAY),
        (EPOCH + 366 * DAY + 1, 2**31),
        (999_999_999, 999_999_999),
        (1_000_000_000, 2**31),
    ],
)
def test_large_number_is_timestamp_or_long_wait(number: int, seconds: float) -> None:
    assert parse_retry_after(str(number), NOW) == seconds


def test_wait_longer_than_100_characters_is_ignored() -> None:
    assert parse_retry_after("1" * 100, NOW) == 2**31
    assert parse_retry_after("1" * 101, NOW) is None


def test_two_digit_year_is_at_most_50_ahead() -> None:
    # RFC 9110, section 5.6.7.
    now = datetime(2080, 6, 1, tzinfo=UTC)
    for year, meant in (("30", 2030), ("29", 2129), ("79", 2079), ("81", 2081)):
        for month in ("Jan", "Nov"):
            date = parse_http_date(f"Sunday, 06-{month}-{year} 08:49:37 GMT", now)
            assert date is not None
            assert date.year == meant, (year, month)


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("9" * 18, 10**18 - 1),
        ("9" * 19, None),
        ("9" * 18 + ".5", 10**18),  # as a float has it
        ("9" * 19 + ".5", None),
        ("1." + "5" * 18, 1),
        ("1." + "5" * 19, None),
    ],
)
def test_limit_has_at_most_18_digits_per_side(text: str, limit: float | None) -> None:
    assert read(("X-RateLimit-Limit", text)).limit == limit

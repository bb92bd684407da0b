"""Specifies the rules for common headers, one by one; the corpus shows them together."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import pytest
from multidict import CIMultiDict, CIMultiDictProxy

from aiothrottle.headers import Policy, ServerLimits, parse_rate_limit, profile_for
from tests.headers.test_corpus import CASES, parse
from tests.reading import DATE, NOW, read

LINES = [("x-ratelimit-limit", "10"), ("X-RateLimit-Remaining", "4")]


@pytest.mark.parametrize(
    "headers",
    [
        LINES,
        tuple(LINES),
        iter(LINES),
        dict(LINES),
        CIMultiDict(LINES),
        CIMultiDictProxy(CIMultiDict(LINES)),
    ],
    ids=lambda headers: type(headers).__name__,
)
def test_headers_may_be_multidict_mapping_or_pairs(
    headers: Mapping[str, str] | Iterable[tuple[str, str]],
) -> None:
    limits = parse_rate_limit(200, headers, NOW)
    assert (limits.limit, limits.remaining) == (10, 4)


def test_naive_now_is_rejected_with_the_remedy() -> None:
    with pytest.raises(ValueError, match=r"datetime\.now\(UTC\)"):
        parse_rate_limit(200, {}, datetime(2026, 11, 20))


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"status": "429"}, "status must be an int"),
        ({"now": 1700000000}, "now must be a datetime"),
        ({"body": {"retry_after": 3}}, "body must be str or bytes, got a dict"),
        ({"profile": 3}, "profile must be a Profile"),
        ({"headers": 3}, "headers must be a mapping or pairs of str"),
        ({"headers": [("Retry-After", "3", "s")]}, "headers must be a mapping or pairs of str"),
        ({"headers": [(b"Retry-After", b"3")]}, r"must be str, got b'Retry-After'.*decode"),
        ({"headers": {"Retry-After": 3}}, "headers must be str, got 3"),
        ({"headers": {3: "3"}}, "headers must be str, got 3"),
    ],
)
def test_argument_of_wrong_type_names_the_right_one(wrong: dict[str, Any], named: str) -> None:
    right: dict[str, Any] = {"status": 200, "headers": {}, "now": NOW}
    with pytest.raises(TypeError, match=named):
        parse_rate_limit(**right | wrong)


@pytest.mark.parametrize("vendor", ["Discord", "discord.com", "DISCORD", "nobody.example"])
def test_profile_may_be_named_by_vendor_or_host(vendor: str) -> None:
    for case in CASES:
        arguments = case["status"], case["headers"], NOW, case.get("body")
        found = parse_rate_limit(*arguments, profile=vendor)
        assert found == parse_rate_limit(*arguments, profile=profile_for(vendor))


@pytest.mark.parametrize("status", [200, 404, 429, 500])
def test_empty_response_reports_nothing(status: int) -> None:
    assert read(("Server", "nginx"), DATE, status=status) == ServerLimits(status == 429)


@pytest.mark.parametrize("name", ["X-Limit-" + "x" * 100, "x-ratelimit-limit-" + "y" * 100])
def test_too_long_name_is_ignored(name: str) -> None:
    assert read((name, "1")) == ServerLimits()


def test_names_beyond_the_cache_are_parsed() -> None:
    lines = [(f"x-ratelimit-limit-{number}", str(number)) for number in range(3000)]
    names = [policy.name for policy in read(*lines).policies]
    assert names == [str(number) for number in range(256)]  # more than any server has limits
    assert read(*LINES).limit == 10


def test_case_and_order_of_headers_do_not_matter() -> None:
    for case in CASES:
        once = {key: None for key, _ in case["headers"]}
        turned = [[name.swapcase(), value] for name, value in case["headers"][::-1]]
        padded = [
            ["Server", "x"],
            *([name.upper(), f" {value}\t"] for name, value in case["headers"]),
        ]
        for headers in (padded, turned if len(once) == len(case["headers"]) else []):
            if headers:
                mended = {**case, "headers": headers}
                assert set(parse(mended).policies) == set(parse(case).policies), case["id"]
                assert parse(mended).throttled == parse(case).throttled, case["id"]
                assert parse(mended).retry_after == parse(case).retry_after, case["id"]


def test_profile_changes_no_common_header() -> None:
    for case in CASES:
        profile = profile_for(case["provider"])
        if case["requires"] == "generic" and profile is not None and not profile.windows:
            lines = [(name, value) for name, value in case["headers"]]
            now = datetime.fromisoformat(case["now"])
            found = parse_rate_limit(case["status"], lines, now, None, profile)
            # Whether a quota is refilled steadily is in no header.
            assert found._replace(refills=False) == parse(case)


USED_UP = [("X-RateLimit-Remaining", "0"), ("X-RateLimit-Reset", "9")]


@pytest.mark.parametrize(
    ("status", "lines", "throttled"),
    [
        (420, [], True),
        (529, [], True),
        (503, [], False),
        (503, [("Retry-After", "?")], False),
        (503, [("Retry-After", "0")], True),
        (503, [("retry-after-ms", "5")], True),
        (403, [("Retry-After", "5")], True),
        (403, USED_UP, True),
        (403, USED_UP[:1], False),
        (403, [("X-RateLimit-Remaining", "1"), USED_UP[1]], False),
        (200, [*USED_UP, ("Retry-After", "5")], False),
        (413, [*USED_UP, ("Retry-After", "5")], False),
        (500, [("Retry-After", "5")], False),
        (400, [("X-Amzn-ErrorType", "ThrottlingException:http://internal")], True),
        (400, [("x-amzn-errortype", "TooManyRequestsException")], True),
        (400, [("x-amzn-errortype", "ValidationException")], False),
    ],
)
def test_throttled_follows_status_and_headers(
    status: int, lines: list[tuple[str, str]], throttled: bool
) -> None:
    assert read(*lines, status=status).throttled is throttled


@pytest.mark.parametrize("prefix", ["RateLimit-", "rate-limit-", "X-RateLimit-", "x-rate-limit-"])
def test_every_spelling_of_the_prefix(prefix: str) -> None:
    limits = read((f"{prefix}Limit", "9"), (f"{prefix}Remaining", "3"), (f"{prefix}Reset", "2"))
    assert limits == ServerLimits(limit=9, remaining=3, reset_after=2.0, reset_error=1.0)


@pytest.mark.parametrize(
    ("limit", "remaining", "found"),
    [
        ("100", "12.7", (100, 12)),
        ("100.0", "0.9", (100, 0)),
        ("100", "-3", (100, 0)),
        ("100", "-0.5", (100, 0)),
        ("?", "-3", (None, None)),
        ("-1", "-1", (None, None)),
        ("100, 100", "5, 5", (100, 5)),
        ("600,30000", "5", (None, 5)),
        ("1,000", "1,000", (None, None)),
        ("0", "0", (0, 0)),
        ("9" * 18, "9" * 19, (10**18 - 1, None)),
        ("100;w=60", "20;w=60", (100, 20)),
        ("unlimited", "+5", (None, None)),
        ("１００", "²", (None, None)),  # noqa: RUF001
    ],
)
def test_counts(limit: str, remaining: str, found: tuple[float | None, float | None]) -> None:
    limits = read(("X-RateLimit-Limit", limit), ("X-RateLimit-Remaining", remaining))
    assert (limits.limit, limits.remaining) == found


def test_families_are_merged_by_precedence_and_strictness() -> None:
    limits = read(
        ("X-Rate-Limit-Limit", "9"),
        ("X-Rate-Limit-Reset", "100"),
        ("RateLimit-Limit", "50"),
        ("RateLimit-Remaining", "8"),
        ("RateLimit-Reset", "10"),
        ("X-RateLimit-Remaining", "2"),
        ("X-RateLimit-Reset", "11.5"),
    )
    assert (limits.limit, limits.remaining, limits.reset_after) == (50, 2, 100)


def test_rounded_reset_equals_the_exact_one() -> None:
    assert read(("RateLimit-Reset", "10"), ("X-RateLimit-Reset", "12")).reset_after == 10


@pytest.mark.parametrize(
    ("lines", "seconds"),
    [
        ([("X-RateLimit-Reset", "9"), ("X-RateLimit-Reset-After", "1.5")], 1.5),
        ([("RateLimit-ResetTime", "Fri, 20 Nov 2026 12:01:00 GMT")], 60),
        ([("X-RateLimit-Next", "2026-11-20T12:01:00Z")], 60),
        ([("X-RateLimit-Next", "2026-11-20T12:01:00Z"), ("X-RateLimit-Reset", "5")], 5),
    ],
)
def test_other_names_of_reset(lines: list[tuple[str, str]], seconds: float) -> None:
    assert read(*lines).reset_after == seconds


@pytest.mark.parametrize(
    ("name", "value", "seconds"),
    [
        ("Period", "60", 60),
        ("Interval-Seconds", "60", 60),
        ("Interval-Milliseconds", "1500", 1.5),
        ("Interval", "1s", 1),
        ("Window-Size", "600s", 600),
        ("Window", "1m", 60),
        ("Period", "0", None),
        ("Period", "month", None),
        ("Period", "9" * 30, None),
    ],
)
def test_separate_header_gives_the_window(name: str, value: str, seconds: float | None) -> None:
    limits = read(("X-RateLimit-Limit", "5"), (f"X-RateLimit-{name}", value))
    assert (limits.limit, limits.window) == (5, seconds)


@pytest.mark.parametrize(("remaining", "limit"), [("598.0", 600), ("0", None), ("?", None)])
def test_used_and_remaining_give_the_limit(remaining: str, limit: float | None) -> None:
    limits = read(("x-ratelimit-used", "2"), ("x-ratelimit-remaining", remaining))
    assert limits.limit == limit


@pytest.mark.parametrize(
    ("limit", "remaining", "reset", "name", "window"),
    [
        ("x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "", "requests", None),
        ("X-RateLimit-Requests-Limit", "X-RateLimit-Requests-Remaining", "", "requests", None),
        ("RateLimit-Limit-Minute", "RateLimit-Remaining-Minute", "", "minute", 60),
        ("x-rate-limit-limit-t-day", "x-rate-limit-remaining-t-day", "", "t-day", 86400),
        ("x-ratelimit-limit-t_hourly", "x-ratelimit-remaining-t_hourly", "", "t_hourly", 3600),
        ("x-ratelimit-limit-month", "x-ratelimit-remaining-month", "", "month", None),
        (
            "anthropic-ratelimit-input-tokens-limit",
            "anthropic-ratelimit-input-tokens-remaining",
            "anthropic-ratelimit-input-tokens-reset",
            "input-tokens",
            None,
        ),
    ],
)  # fmt: skip
def test_name_may_precede_or_follow_the_field(
    limit: str, remaining: str, reset: str, name: str, window: float | None
) -> None:
    lines = [(limit, "10"), (remaining, "4")] + ([(reset, "7")] if reset else [])
    after, error = (7.0, 1.0) if reset else (None, 0.0)
    unit = name if name in {"requests", "input-tokens"} else None
    assert read(*lines) == ServerLimits(
        limit=10,
        remaining=4,
        reset_after=after,
        window=window,
        policies=(Policy(name, 10, window, 4, after, unit, error),),
        unit=unit,
        reset_error=error,
    )


def test_smallest_remaining_share_binds() -> None:
    limits = read(
        ("x-ratelimit-limit-a", "100"),
        ("x-ratelimit-remaining-a", "50"),
        ("x-ratelimit-limit-b", "10"),
        ("x-ratelimit-remaining-b", "4"),
        ("x-ratelimit-remaining-c", "1"),  # of an unknown quota
    )
    assert (limits.limit, limits.remaining) == (10, 4)


def test_exhausted_limit_with_the_longest_reset_binds() -> None:
    limits = read(
        ("x-ratelimit-limit-a", "100"),
        ("x-ratelimit-remaining-a", "1"),
        ("x-ratelimit-remaining-b", "0"),
        ("x-ratelimit-reset-b", "5"),
        ("x-ratelimit-remaining-c", "0"),
        ("x-ratelimit-reset-c", "50"),
    )
    assert (limits.limit, limits.remaining, limits.reset_after) == (None, 0, 50)


def test_longest_reset_binds_without_remainders() -> None:
    limits = read(
        ("x-ratelimit-limit-a", "5"), ("x-ratelimit-reset-a", "9"), ("x-ratelimit-reset-b", "8")
    )
    assert (limits.limit, limits.reset_after) == (5, 9)


def test_limits_without_remainders_do_not_bind() -> None:
    limits = read(("x-ratelimit-limit-a", "5"), ("x-ratelimit-limit-b", "0.5"))
    assert limits.limit is None
    assert limits.policies == (Policy("a", 5), Policy("b", 0.5))


def test_minus_one_means_no_limit() -> None:
    placeholder = [(f"x-ratelimit-{field}-tokens", "-1") for field in ("limit", "remaining")]
    assert read(*placeholder, ("x-ratelimit-reset-tokens", "0")) == ServerLimits()


def test_window_of_a_named_limit() -> None:
    limits = read(
        ("x-ratelimit-limit-tokens", "9"),
        ("x-ratelimit-remaining-tokens", "5"),
        ("x-ratelimit-renewalperiod-tokens", "60"),
    )
    assert limits.window == 60


def test_unnamed_fields_match_their_named_limit() -> None:
    trio = [("RateLimit-Limit", "5"), ("RateLimit-Remaining", "2"), ("RateLimit-Reset", "1")]
    second = [("X-RateLimit-Limit-Second", "5"), ("X-RateLimit-Remaining-Second", "2")]
    hour = [("X-RateLimit-Limit-Hour", "5"), ("X-RateLimit-Remaining-Hour", "3")]
    limits = read(*hour, *trio, *second)
    assert (limits.limit, limits.remaining, limits.reset_after, limits.window) == (5, 2, 1, 1)
    assert Policy("second", 5, 1.0, 2, 1.0, None, 1.0) in limits.policies


def test_bare_reset_completes_the_named_limit_without_one() -> None:
    named = [("x-ratelimit-limit-a", "9"), ("x-ratelimit-remaining-a", "2")]
    limits = read(*named, ("x-ratelimit-reset", "30"))
    assert (limits.limit, limits.remaining, limits.reset_after) == (9, 2, 30)
    assert read(*named, ("x-ratelimit-reset-a", "5"), ("x-ratelimit-reset", "30")).reset_after == 5


def test_scope_and_reason_are_reported() -> None:
    limits = read(("X-RateLimit-Scope", "shared"), ("RateLimit-Reason", "jira-burst-based"))
    assert (limits.scope, limits.reason) == ("shared", "jira-burst-based")
    assert limits == ServerLimits(scope="shared", reason="jira-burst-based")
    assert read(("X-RateLimit-Resource", "core")).scope is None
    assert read(("X-RateLimit-Global", "true")).scope == "global"
    assert read(("Stripe-Rate-Limited-Reason", "global-rate")).reason == "global-rate"
    assert read(("X-RateLimit-Resource", "x" * 65), ("X-RateLimit-Type", "a\x00")).reason is None

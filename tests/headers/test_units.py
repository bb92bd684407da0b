"""What each limit of a response counts: its unit, and the limit that binds in each unit."""

from typing import Any

import pytest

from aiothrottle.headers import Limit, Policy, Profile, ServerLimits
from tests.headers.test_corpus import CASES, parse
from tests.reading import read

# Responses of the corpus: limit, remaining and reset of each unit.
EXPECTED: dict[str, dict[str, tuple[float | None, float | None, float | None]]] = {
    "openai-200": {"requests": (60, 59, 1), "tokens": (150_000, 149_984, 360)},
    "openai-duration-long": {"requests": (200, 3, 85104.5)},
    "second-dim-openai-used-up": {"requests": (500, 499, 0.12), "tokens": (30_000, 0, 72.5)},
    "second-dim-openai-usage-based": {
        "requests": (5000, 4999, 0.012),
        "tokens": (160_000, 159_976, 0.009),
        "tokens-usage-based": (160_000, 159_976, 0.009),
    },
    "azure-openai-int-reset": {"tokens": (None, 0, 37)},
    "second-dim-azure-placeholder": {"tokens": (100_000, 99_000, 0)},
    "anthropic-200": {"requests": (1000, 999, 30), "tokens": (80_000, 79_500, 30)},
    "anthropic-200-input-output": {
        "requests": (50, 42, 30),
        "input-tokens": (30_000, 27_000, 10),
        "output-tokens": (30_000, 27_000, 10),
    },
    "anthropic-unified-epoch": {"requests": (None, None, 3577)},
    "second-dim-anthropic-429": {"requests": (50, 49, 2), "input-tokens": (30_000, 0, 12)},
    "groq-200": {"requests": (14_400, 14_370, 179.56), "tokens": (18_000, 17_997, 7.66)},
    "cerebras-200": {
        "requests": (10_000, 9500, 33011.383), "tokens": (200_000, 195_000, 30.2),
    },
    "mistral-200-req-tokens": {"requests": (23, 22, None), "tokens": (356_250, 356_000, None)},
    "second-vendor-mistral-old": {"tokens": (500_000, 499_000, 14)},
    "linear-200": {
        "requests": (2500, 2499, 3600.508), "complexity": (3_000_000, 2_999_999, 3600.508),
    },
    "openalex-200-usd": {"requests": (1000, 990, 43200), "usd": (0.1, 0.099, None)},
    "together-429": {"requests": (None, None, 3)},
}  # fmt: skip


def by_unit(limits: ServerLimits) -> dict[str, object]:
    return {
        unit: (limit.quota, limit.remaining, limit.reset_after and round(limit.reset_after, 3))
        for unit, limit in limits.by_unit.items()
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_corpus_response_has_its_limits_by_unit(case: dict[str, Any]) -> None:
    found = parse(case)
    if case["id"] in EXPECTED:
        assert by_unit(found) == EXPECTED[case["id"]]
    bound = found.limit, found.remaining, found.reset_after
    if bound != (None, None, None):
        limit = found.by_unit[found.unit or "requests"]
        assert (limit.quota, limit.remaining, limit.reset_after) == bound


def test_expected_responses_are_in_the_corpus() -> None:
    assert EXPECTED.keys() <= {case["id"] for case in CASES}


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("requests", "requests"),
        ("req-minute", "requests"),
        ("requests_day", "requests"),
        ("project-requests", "requests"),
        ("tokens", "tokens"),
        ("tokens-minute", "tokens"),
        ("Tokens_Daily", "tokens"),
        ("input-tokens", "input-tokens"),
        ("output_tokens", "output-tokens"),
        ("complexity", "complexity"),
        ("minute", None),
        ("search", None),
        ("token", None),  # the limit of an API token, not of what it counts
        ("-", None),
    ],
)
def test_unit_follows_from_the_name_of_a_limit(name: str, unit: str | None) -> None:
    limits = read((f"X-RateLimit-Limit-{name}", "9"), (f"X-RateLimit-Remaining-{name}", "5"))
    assert [policy.unit for policy in limits.policies] == [unit]
    assert limits.by_unit.keys() == {unit or "requests"}


def test_limit_of_tokens_without_a_family_is_read() -> None:
    limits = read(
        ("X-RateLimit-Limit", "60"), ("X-RateLimit-Remaining", "3"), ("X-RateLimit-Reset", "0.5"),
        ("X-TokenLimit-Limit", "100"), ("X-TokenLimit-Remaining", "7"), ("X-TokenLimit-Reset", "9"),
    )  # fmt: skip
    assert by_unit(limits) == {"requests": (60, 3, 0.5), "tokens": (100, 7, 9)}


def test_tightest_limit_of_each_unit_binds() -> None:
    names = {"requests-minute": 10, "requests-day": 5, "tokens-minute": 1, "tokens-day": 2}
    limits = read(
        *((f"x-ratelimit-limit-{name}", "100") for name in names),
        *((f"x-ratelimit-remaining-{name}", str(left)) for name, left in names.items()),
    )
    assert (limits.by_unit["requests"].remaining, limits.by_unit["tokens"].remaining) == (5, 1)


def test_each_limit_has_the_error_of_its_own_reset() -> None:
    limits = read(
        ("x-ratelimit-remaining-requests", "5"), ("x-ratelimit-reset-requests", "12ms"),
        ("x-ratelimit-remaining-tokens", "5"), ("x-ratelimit-reset-tokens", "37"),
    )  # fmt: skip
    assert [policy.reset_error for policy in limits.policies] == [0.0, 1.0]


def test_unreadable_reset_is_no_date() -> None:
    limits = read(
        ("x-ratelimit-remaining-requests", "5"), ("x-ratelimit-reset-requests", "soon"),
        ("x-ratelimit-remaining-tokens", "5"), ("x-ratelimit-reset-tokens", "37"),
    )  # fmt: skip
    assert limits.by_unit["tokens"].reset_error == 1.0


def test_unit_of_the_draft_is_the_word_of_the_server() -> None:
    limits = read(
        ("RateLimit-Policy", '"a";q=9;qu="request";w=1, "b";q=500;qu="content-bytes";w=60'),
        ("RateLimit", '"a";r=5;t=1, "b";r=50;t=30'),
    )
    assert by_unit(limits) == {"requests": (9, 5, 1), "content-bytes": (500, 50, 30)}


def test_unit_of_a_profile_follows_from_its_names() -> None:
    limits = (Limit("tokens", limit="Acme-Max", remaining="Acme-Left", window=60),)
    found = read(
        ("Acme-Max", "9"), ("Acme-Left", "3"), profile=Profile("Acme", limits=limits)
    ).policies
    assert found == (Policy("tokens", 9, 60.0, 3, None, "tokens"),)


def test_response_without_a_limit_has_no_unit() -> None:
    assert ServerLimits().by_unit == {}
    assert read(("Retry-After", "5")).by_unit == {}

"""Specifies vendor profiles: lookup by host, the reading of each kind, and your own profiles."""

from typing import Any

import pytest

from aiothrottle.headers import (
    PROFILES,
    Items,
    Json,
    Limit,
    Policy,
    Profile,
    ServerLimits,
    profile_for,
)
from tests.headers.test_corpus import same
from tests.reading import read

ACME = Profile(
    "Acme",
    hosts=("api.acme.example", "*.acme.example"),
    limits=(
        Limit("minute", "Acme-Max", "Acme-Left", reset="Acme-Reset", window=60),
        Limit("day", "Acme-Day", used="Acme-Used", window="Acme-Day-Milliseconds"),
        Items("acme-of-(?P<scope>[a-z]+)", r"(?P<used>\d+)/(?P<limit>\d+)", name="of {scope}"),
        Json("*.left", header="Acme-Json", name="{kind}-{0}", remaining="n", wait="wait"),
    ),
    milliseconds=frozenset({"Retry-After", "Acme-Reset"}),
    refusals=frozenset({499}),
)


def acme(*lines: tuple[str, str], status: int = 200) -> ServerLimits:
    return read(*lines, status=status, profile=ACME)


def test_own_profile_reads_each_kind_of_header() -> None:
    limits = acme(
        ("acme-max", "10"),
        ("ACME-LEFT", "4"),
        ("Acme-Reset", "1500"),
        ("Acme-Day", "100"),
        ("Acme-Used", "101"),
        ("Acme-Day-Milliseconds", "86400000"),
        ("Acme-Of-User", "3/9"),
        ("Acme-Json", '{"x":{"kind":"k","left":{"n":7,"wait":4}}}'),
        ("X-RateLimit-Limit-Hour", "5"),
    )
    assert set(limits.policies) == {
        Policy("minute", 10, 60.0, 4, 1.5),
        Policy("day", 100, 86400.0, 0, None),
        Policy("of user", 9, None, 6, None),
        Policy("k-x", None, None, 7, None),
        Policy("hour", 5, 3600.0),
    }
    assert (limits.limit, limits.remaining, limits.retry_after) == (100, 0, 4)


def test_profile_sets_throttled_statuses_and_milliseconds() -> None:
    assert acme(("Retry-After", "1500"), status=499) == ServerLimits(True, 1.5)
    assert acme(("Retry-After", "Fri, 20 Nov 2026 12:01:00 GMT")).retry_after == 60
    assert acme(("Server", "x"), status=499).throttled
    assert not read(status=499).throttled


def test_profile_reads_nothing_from_empty_values() -> None:
    assert acme(("Server", "x")) == ServerLimits()
    assert acme(("Acme-Json", "{"), ("Acme-Max", "x"), ("Acme-Of-User", "x")) == ServerLimits()


@pytest.mark.parametrize("value", ["-3/9", "3.5/9", "3/9.5", "x3/9", "3/9x", "3/", "/9"])
def test_part_of_a_broken_item_is_ignored(value: str) -> None:
    assert acme(("Acme-Of-User", value)) == ServerLimits()
    assert acme(("Acme-Of-User", f"{value}, 4/9;")).policies == (Policy("of user", 9, None, 5),)


def test_unreadable_item_keeps_its_position() -> None:
    item = Items("places", r"(?P<limit>\d+)|[^,]+", name=("first", "second", "third"))
    limits = read(("Places", "1,many,3"), profile=Profile("Places", limits=(item,)))
    assert limits.policies == (Policy("first", 1), Policy("third", 3))


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("api.github.com", "GitHub"),
        ("API.GitHub.com.", "GitHub"),
        ("my-shop.myshopify.com", "Shopify"),
        ("europe.api.riotgames.com", "Riot Games"),
        ("Spring Cloud Gateway", "Spring Cloud Gateway"),
        ("shopify rest", "Shopify"),
        ("github.com.example.org", None),
        ("notapi.github.com.evil.example", None),
        ("myshopify.com", None),
        ("", None),
    ],
)
def test_profile_is_chosen_by_host(host: str, name: str | None) -> None:
    profile = profile_for(host)
    assert (profile.name if profile else None) == name


def test_own_profiles_take_precedence() -> None:
    mine = Profile("Mine", hosts=("*.github.com",))
    assert profile_for("api.github.com", also=[mine]) is mine
    assert profile_for("x.acme.example", also=(ACME,)) is ACME
    assert profile_for("api.github.com", also=(ACME,)) is PROFILES["GitHub"]


def test_star_is_every_host_without_another_own_profile() -> None:
    everywhere = Profile("Everywhere", hosts=("*",))
    for host in ("api.github.com", "127.0.0.1", "localhost", "a.b.example"):
        assert profile_for(host, also=[everywhere]) is everywhere
    assert profile_for("x.acme.example", also=[everywhere, ACME]) is ACME


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_profile_is_found_by_each_of_its_hosts(profile: Profile) -> None:
    for host in profile.hosts:
        assert profile_for(host.replace("*", "any")) is profile


def test_profiles_are_read_only() -> None:
    with pytest.raises(TypeError):
        PROFILES["GitHub"] = ACME  # type: ignore[index]  # pyright: ignore[reportIndexIssue]


VENDORS: dict[str, tuple[list[tuple[str, str]], dict[str, Any]]] = {
    "KuCoin": (
        [
            ("gw-ratelimit-limit", "500"),
            ("gw-ratelimit-remaining", "300"),
            ("gw-ratelimit-reset", "9489"),
        ],
        {"limit": 500, "remaining": 300, "reset_after": 9.489},
    ),
    "Prisjakt": ([("X-Rate-Limit-Reset", "1500")], {"reset_after": 1.5}),
    "Tiendanube": (
        [
            ("x-rate-limit-limit", "40"),
            ("x-rate-limit-remaining", "39"),
            ("x-rate-limit-reset", "500"),
        ],
        {"limit": 40, "remaining": 39, "reset_after": 0.5},
    ),
    "Revolt": ([("X-RateLimit-Reset-After", "9000")], {"reset_after": 9}),
    "GoHighLevel": (
        [
            ("X-RateLimit-Limit-Daily", "200000"),
            ("X-RateLimit-Daily-Remaining", "199000"),
            ("X-RateLimit-Interval-Milliseconds", "10000"),
            ("X-RateLimit-Max", "100"),
            ("X-RateLimit-Remaining", "90"),
        ],
        {"limit": 100, "remaining": 90, "window": 10},
    ),
    "Spring Cloud Gateway": (
        [
            ("X-RateLimit-Remaining", "19"),
            ("X-RateLimit-Burst-Capacity", "20"),
            ("X-RateLimit-Replenish-Rate", "10"),
            ("X-RateLimit-Requested-Tokens", "1"),
        ],
        {"limit": 20, "remaining": 19, "window": None},
    ),
    "Yelp": (
        [
            ("RateLimit-DailyLimit", "500"),
            ("RateLimit-Remaining", "100"),
            ("RateLimit-ResourceDailyLimit", "300"),
            ("RateLimit-ResourceRemaining", "30"),
            ("RateLimit-ResetTime", "2026-11-21T00:00:00+00:00"),
        ],
        {"limit": 300, "remaining": 30, "reset_after": 43200, "window": 86400},
    ),
    "Mistral": (
        [
            ("x-ratelimitbysize-limit-minute", "500000"),
            ("x-ratelimitbysize-remaining-minute", "1000"),
            ("x-ratelimitbysize-limit-month", "1000000000"),
            ("x-ratelimitbysize-remaining-month", "900000000"),
            ("ratelimitbysize-reset", "31"),
        ],
        {"limit": 500000, "remaining": 1000, "reset_after": 31, "window": 60},
    ),
    "Zendesk": (
        [
            ("ratelimit-limit", "700"),
            ("ratelimit-remaining", "699"),
            ("ratelimit-reset", "41"),
            ("Zendesk-RateLimit-Tickets-Index", "remaining=9;total=100; resets=12"),
        ],
        {"limit": 100, "remaining": 9, "reset_after": 12},
    ),
    "Meta": (
        [
            (
                "X-Business-Use-Case-Usage",
                '{"1":[{"type":"ads","call_count":100,"estimated_time_to_regain_access":19}]}',
            )
        ],
        {"limit": 100, "remaining": 0, "retry_after": 1140},
    ),
    "Xero": (
        [
            ("X-MinLimit-Remaining", "1"),
            ("X-DayLimit-Remaining", "0"),
            ("X-AppMinLimit-Remaining", "0"),
            ("X-Rate-Limit-Problem", "appminute"),
        ],
        {"remaining": 0, "window": 60, "reason": "appminute"},
    ),
    "HubSpot": (
        [("X-HubSpot-RateLimit-Daily", "650000"), ("X-HubSpot-RateLimit-Daily-Remaining", "1")],
        {"limit": 650000, "remaining": 1, "window": 86400},
    ),
    "Groq": (
        [("x-ratelimit-limit-tokens", "9"), ("x-ratelimit-remaining-tokens", "1")],
        {"limit": 9, "window": 60},
    ),
    "Riot Games": (
        [
            ("X-App-Rate-Limit", "20:1,100:120"),
            ("X-App-Rate-Limit-Count", "57:120,3:1"),
            ("X-Method-Rate-Limit", "2000:10"),
            ("X-Method-Rate-Limit-Count", "1999:10"),
        ],
        {"limit": 2000, "remaining": 1, "window": 10},
    ),
    "Sentry": (
        [("X-Sentry-Rate-Limits", "60::organization:quota_exceeded, 2:error:key")],
        {"remaining": 0, "reset_after": 60},
    ),
    "Binance": ([("X-MBX-ORDER-COUNT-10S", "5")], {"limit": None, "window": None}),
}


@pytest.mark.parametrize("vendor", VENDORS)
def test_vendor_responses_missing_from_the_corpus(vendor: str) -> None:
    lines, wanted = VENDORS[vendor]
    limits = read(*lines, profile=PROFILES[vendor])
    found = {key: getattr(limits, key) for key in wanted}
    assert same(found, wanted), limits


def test_policy_names_come_from_the_vendor() -> None:
    def names(vendor: str) -> set[str | None]:
        limits = read(*VENDORS[vendor][0], profile=PROFILES[vendor])
        return {policy.name for policy in limits.policies}

    assert names("Riot Games") == {"app:1", "app:120", "method:10"}
    assert names("Sentry") == {None, "error"}
    assert names("Zendesk") == {"account", "tickets-index"}
    assert names("Binance") == {"order-count-10s"}
    assert names("Meta") == {"1:ads"}
    assert names("Spring Cloud Gateway") == {"refill"}


# ---- rules for bodies ----------------------------------------------------------------------------


def test_body_header_keeps_its_own_meaning() -> None:
    profile = Profile("x", body_statuses=frozenset({200}), body_header="Retry-After")
    assert read(("Retry-After", "7"), status=429, profile=profile).retry_after == 7
    assert profile.is_limit_header["RETRY-AFTER"]


@pytest.mark.parametrize(
    ("status", "body", "throttled"),
    [
        (400, '{"why": "The budget is SPENT"}', True),
        (400, "the budget is spent", True),
        (200, '{"error": {"why": "the budget is spent"}}', True),
        (200, '{"data": "the budget is spent"}', False),
        (200, "the budget is spent", False),
    ],
)
def test_own_marks_mean_a_throttled_request(status: int, body: str, throttled: bool) -> None:
    profile = Profile("x", body_statuses=frozenset({400}), marks=("Budget is spent",))
    assert read(status=status, body=body, profile=profile).throttled is throttled
    assert not read(status=status, body=body).throttled


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        ({"body_statuses": {200}}, TypeError, "body_statuses"),
        ({"body_statuses": frozenset({200})}, ValueError, "body_header"),
        ({"marks": "no more"}, TypeError, "marks"),
        ({"least_backoff": 0}, ValueError, "least_backoff"),
        ({"least_backoff": "60"}, TypeError, "least_backoff"),
    ],
)
def test_wrong_rule_for_bodies_raises(
    arguments: dict[str, Any], error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named):
        Profile("x", **arguments)

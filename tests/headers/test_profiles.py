"""Specifies vendor profiles: lookup by host, the reading of each kind, and your own profiles."""

import json
import pickle
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
from tests.support.reading import read

ACME = Profile(
    "Acme",
    hosts=("api.acme.example", "*.acme.example"),
    limits=(
        Items("acme-of-(?P<scope>[a-z]+)", r"(?P<used>\d+)/(?P<limit>\d+)", name="of {scope}"),
    ),
    milliseconds=frozenset({"Retry-After"}),
    throttled_statuses=frozenset({499}),
)


def acme(*lines: tuple[str, str], status: int = 200) -> ServerLimits:
    return read(*lines, status=status, profile=ACME)


def test_profile_sets_throttled_statuses_and_milliseconds() -> None:
    assert acme(("Retry-After", "1500"), status=499) == ServerLimits(True, 1.5)
    assert acme(("Retry-After", "Fri, 20 Nov 2026 12:01:00 GMT")).retry_after == 60
    assert acme(("Server", "x"), status=499).throttled
    assert not read(status=499).throttled


@pytest.mark.parametrize("value", ["-3/9", "3.5/9", "3/9.5", "x3/9", "3/9x", "3/", "/9"])
def test_part_of_a_broken_item_is_ignored(value: str) -> None:
    assert acme(("Acme-Of-User", value)) == ServerLimits()
    assert acme(("Acme-Of-User", f"{value}, 4/9;")).policies == (Policy("of user", 9, None, 5),)


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("api.github.com", "GitHub"), ("API.GitHub.com.", "GitHub"),
        ("my-shop.myshopify.com", "Shopify"), ("europe.api.riotgames.com", "Riot Games"),
        ("Spring Cloud Gateway", "Spring Cloud Gateway"), ("shopify rest", "Shopify"),
        ("github.com.example.org", None), ("notapi.github.com.evil.example", None),
        ("myshopify.com", None), ("", None),
    ],
)  # fmt: skip
def test_profile_is_chosen_by_host(host: str, name: str | None) -> None:
    profile = profile_for(host)
    assert (profile.name if profile else None) == name


def test_own_profiles_take_precedence() -> None:
    mine = Profile("Mine", hosts=("*.github.com",))
    assert profile_for("api.github.com", also=[mine]) is mine
    assert profile_for("x.acme.example", also=(ACME,)) is ACME
    assert profile_for("api.github.com", also=(ACME,)) is PROFILES["GitHub"]
    everywhere = Profile("Everywhere", hosts=("*",))
    for host in ("api.github.com", "127.0.0.1", "localhost", "a.b.example"):
        assert profile_for(host, also=[everywhere]) is everywhere
    assert profile_for("x.acme.example", also=[everywhere, ACME]) is ACME


# ---- limits under construction -----------------------------------------------------------------


def test_headers_of_one_limit_merge() -> None:
    fields = ("limit", "remaining", "used", "reset", "window")
    item = "/".join(rf"(?P<{field}>\d*)" for field in fields)

    def merged(*values: str, name: str | None = "a") -> tuple[Policy, ...]:
        profile = Profile("Acme", limits=(Items("acme-.", item, name=name),))
        lines = zip(("Acme-A", "Acme-B", "Acme-C"), values, strict=False)
        limits = read(*lines, profile=profile)
        return limits.policies or (Policy(None, limits.limit, limits.window, limits.remaining),)

    # The lower numbers, and the later reset; missing ones are no numbers.
    lower = (Policy("a", 8, 60.0, 5, 9.0, None, 1.0),)
    assert merged("10/5/3/7/60", "8/6/4/9/50", "8////") == lower
    assert merged("8////50", "10/6/4/9/60", "/5/3/7/") == lower
    assert merged("10//3//", "9//4//") == (Policy("a", 9, None, 5),)
    assert merged("10//12//") == (Policy("a", 10, None, 0),)
    assert merged("1////", "2////", name=None) == (Policy(None, 1),)  # the first without a name


def test_header_may_name_the_binding_limit() -> None:
    profile = Profile("Acme", limits=(Limit("day", "Acme-Day"),), binds="X-RateLimit-Type")
    lines = [("X-RateLimit-Remaining-Hour_Short", "0"), ("Acme-Day", "7")]
    assert read(*lines, ("X-RateLimit-Type", "Day"), profile=profile).limit == 7
    for word in ("hour-short", "HourShort", "other", ""):
        limits = read(*lines, ("X-RateLimit-Type", word), profile=profile)
        assert (limits.limit, limits.remaining) == (None, 0)
    for binds in ("X-RateLimit-Type", "Acme-Binding"):  # of which the first is a common one
        own = Profile("Acme", binds=binds)
        others = [("X-RateLimit-Remaining-Day", "7"), ("X-RateLimit-Reason", "Hour_Short")]
        limits = read(*others, lines[0], (binds, "Day"), profile=own)
        assert (limits.remaining, own.is_limit_header[binds.upper()]) == (7, True)


def test_braces_in_a_value_are_not_expanded() -> None:
    """A server could let each item name the next one twice: 600 bytes made gigabytes."""
    members: dict[str, object] = {name: f"{{{chr(ord(name) + 1)}}}" * 21 for name in "abcde"}
    usage = {"1": [{"type": "{a}" * 21, **members, "call_count": 1}]}
    header = ("X-Business-Use-Case-Usage", json.dumps(usage))
    found = read(header, profile=PROFILES["Meta"])
    assert found.policies[0].name == "1:" + "{a}" * 21


# ---- limits in JSON ----------------------------------------------------------------------------

JSON = Json(
    "*.limits",
    header="Acme",
    name="{kind} {0}",
    limit="max",
    remaining="left",
    used=("used", "spent"),
    reset="reset",
    window="window",
    wait="wait",
    wait_unit=0.001,
)


def of_json(text: str, row: Json = JSON, *, status: int = 200) -> ServerLimits:
    return read(("Acme", text), status=status, profile=Profile("Acme", limits=(row,)))


def test_json_object_gives_a_limit() -> None:
    limits = of_json(
        '{"x":{"kind":"k","limits":{"max":9,"used":2,"spent":3,"reset":5,"window":60}}}'
    )
    assert limits.policies == (Policy("k x", 9, 60.0, 6, 5.0, None, 1.0),)
    assert of_json('[{"kind":"k","limits":{"left":3}}]').policies == (Policy("k 0", remaining=3),)
    assert of_json('{"x":{"limits":{"left":3}}}').policies == (Policy(remaining=3),)
    (policy,) = of_json('{"x":{"kind":5,"limits":{"left":3,"reset":"7s"}}}').policies
    assert (policy.name, policy.reset_after) == ("5 x", 7)
    assert of_json('{"x":{"kind":"k","limits":{}}}').policies == ()
    for window in (0, 1e300):
        (policy,) = of_json(f'{{"x":{{"limits":{{"window":{window},"left":1}}}}}}').policies
        assert policy == Policy(remaining=1)


def test_json_of_a_limit_has_waits_and_bounds() -> None:
    text = '{"x":{"limits":{"wait":5000}},"y":{"limits":{"wait":2000}},"z":{"limits":{"wait":0}}}'
    assert of_json(text).retry_after == 5
    assert of_json('{"x":{"limits":{"wait":1e300}}}').retry_after == 2**31
    assert of_json('{"x":{"limits":{"wait":0}}}').retry_after is None
    (policy,) = of_json(f'{{"x":{{"limits":{{"left":{10**400},"window":{10**400}}}}}}}').policies
    assert policy == Policy(remaining=1e18)
    text = '{"x":{"kind":"k","limits":{"left":3}},"y":"'
    longest = text + "y" * (16_382 - len(text)) + '"}'
    assert of_json(longest).policies
    for wrong in ("[" + longest[1:], longest[:-2] + 'y"}', longest[:-1], "[" * 8000, "7", ""):
        assert of_json(wrong).policies == ()
    row = Json("", header="Acme", name="call", limit=100, remaining="left", used=("used",))
    assert of_json('{"used":30}', row).policies == (Policy("call", 100, None, 70),)
    assert of_json('{"left":30}', row).policies == (Policy("call", None, None, 30),)


# ---- your own profile ----------------------------------------------------------------------------


def test_profile_with_any_rule_has_an_effect() -> None:
    set_of, limit = frozenset({429}), Limit(None, reset="Acme-Reset", window="Acme-Window-Ms")
    for rule in (
        *({"limits": (limit,)}, {"windows": (("day", 9.0),)}, {"binds": "Acme"}, {"marks": ("a",)}),
        *({"milliseconds": frozenset({"Acme"})}, {"throttled_statuses": set_of}),
        *({"body_statuses": set_of}, {"least_backoff": 0.5}, {"refills": True}),
    ):
        options: dict[str, Any] = rule
        assert Profile("Acme", **options).has_effect, rule
    assert not Profile("Acme", hosts=("acme.example",), note="none").has_effect
    limits = read(
        ("Acme-Reset", "7"), ("Acme-Window-Ms", "9000"), profile=Profile("Acme", limits=(limit,))
    )
    assert (limits.reset_after, limits.window) == (7, 9)


def test_profile_that_was_used_can_be_pickled() -> None:
    """It is a plain value, which a program passes to its worker processes."""
    for profile in (ACME, *PROFILES.values()):
        read(("Retry-After", "1500"), profile=profile)
        assert profile.is_limit_header["Retry-After"]  # as a session does
        assert pickle.loads(pickle.dumps(profile)) == profile, profile.name


def test_body_header_keeps_its_own_meaning() -> None:
    profile = Profile("x", body_statuses=frozenset({200}), body_header="Retry-After")
    assert read(("Retry-After", "7"), status=429, profile=profile).retry_after == 7
    assert profile.is_limit_header["RETRY-AFTER"]


@pytest.mark.parametrize(
    ("status", "body", "throttled"),
    [
        (400, '{"why": "The budget is SPENT"}', True), (400, "the budget is spent", True),
        (200, '{"error": {"why": "the budget is spent"}}', True),
        (200, '{"data": "the budget is spent"}', False), (200, "the budget is spent", False),
    ],
)  # fmt: skip
def test_own_marks_mean_a_throttled_request(status: int, body: str, throttled: bool) -> None:
    profile = Profile("x", marks=("Budget is spent",))
    assert read(status=status, body=body, profile=profile).throttled is throttled
    assert not read(status=status, body=body).throttled


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"hosts": "api.acme.example"}, TypeError, "hosts of a Profile must be a tuple"),
        ({"hosts": (1,)}, TypeError, "hosts of a Profile must each be a str"),
        ({"aliases": ["a"]}, TypeError, "aliases of a Profile must be a tuple"),
        ({"limits": (Limit("a"), "b")}, TypeError, "limits .* must each be a Limit, Items or Json"),
        ({"milliseconds": {"Retry-After"}}, TypeError, "milliseconds .* must be a frozenset"),
        (
            {"throttled_statuses": [499]},
            TypeError,
            "throttled_statuses of a Profile must be a frozenset",
        ),
        ({"body_statuses": {200}}, TypeError, "body_statuses .* must be a frozenset"),
        ({"body_statuses": frozenset({399, 400})}, ValueError, "body_header"),
        ({"marks": "no more"}, TypeError, "marks of a Profile must be a tuple"),
        ({"least_backoff": 0}, ValueError, "least_backoff"),
        ({"least_backoff": "60"}, TypeError, "least_backoff"),
    ],
)
def test_wrong_field_is_named(arguments: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        Profile("Acme", **arguments)


def test_which_headers_can_be_about_limits() -> None:
    common = Profile("Common")
    profile = Profile("Acme", limits=(Limit("a", "Acme-Max"), Items("acme-.*", "x")))
    for name, everybodys, its in (
        ("Acme-Max", False, True),
        ("ACME-" + "x" * 59, False, True),
        ("ACME-" + "x" * 60, False, False),  # longer than any name
        ("RateLimit", True, True),
        ("Retry-After", True, True),
        ("Date", False, False),
        ("Server", False, False),
    ):
        found = common.is_limit_header[name], profile.is_limit_header[name]
        assert found == (everybodys, its), name

"""Specifies the boundaries of the rules for headers and bodies, with a case on either side."""

import json
from collections.abc import Mapping
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
from aiothrottle.headers.fields import IS_LIMIT_HEADER
from aiothrottle.headers.limits import binding
from aiothrottle.headers.record import Record, Vendor, fill_template, pick
from tests.reading import EPOCH, read

# --- bodies ---


@pytest.mark.parametrize(
    "body", ['{"retry_after":5}', f"IP banned until {EPOCH + 5}000", '{"x":[{"retry_after":5}]}']
)
def test_wait_in_body_counts_from_status_400(body: str) -> None:
    assert read(status=400, body=body).retry_after == 5
    assert read(status=399, body=body).retry_after is None


def test_mark_in_text_counts_from_status_400() -> None:
    assert read(status=400, body="secondary rate limit").throttled
    assert not read(status=399, body="secondary rate limit").throttled
    assert read(status=400, body='{"message":"secondary rate limit"}').throttled
    assert not read(status=399, body='{"message":"secondary rate limit"}').throttled


@pytest.mark.parametrize(
    ("key", "unit"),
    [
        ("retry_after", 1), ("Retry-After", 1), ("retryAfterSeconds", 1),
        ("retry_after_ms", 0.001), ("retryDelay", 1), ("ThrottleSeconds", 1),
    ],
)  # fmt: skip
def test_every_wait_key_has_its_unit(key: str, unit: float) -> None:
    assert read(status=429, body=f'{{"{key}":3000}}').retry_after == 3000 * unit


def test_zero_wait_counts_except_throttle_seconds() -> None:
    assert read(status=429, body='{"retry_after":0}').retry_after == 0
    assert read(status=429, body='{"ThrottleSeconds":0}').retry_after is None
    assert read(status=429, body='{"ThrottleSeconds":0,"retry_after":2}').retry_after == 2


def test_timestamps_in_bodies_use_the_clock_beside_them() -> None:
    body = '{{"data":{{"serverTime":{},"retryAfter":{}}}}}'
    # A past instant means no wait; and no wait is ever longer than the cap.
    assert read(status=429, body=body.format(EPOCH * 1000, EPOCH * 1000 - 5)).retry_after == 0
    assert read(status=429, body=body.format(0, 10**16)).retry_after == 2**31
    # A short number is a wait, whatever stands beside it.
    assert read(status=429, body=body.format(EPOCH * 1000, 30)).retry_after == 30


@pytest.mark.parametrize(
    ("body", "throttled"),
    [
        ('{"retCode":10006}', True),
        ('{"retCode":"10006"}', True),
        ('{"other":10006}', False),
        ('{"code":true}', False),
        ('{"code":-99991400}', False),
        ('{"ThrottleSeconds":"3"}', True),
        ('{"ThrottleSeconds":"0"}', False),
        ('{"error":"Throttled"}', True),
        ('{"error":"not throttled"}', False),
    ],
)
def test_codes_match_whole_values_under_their_key(body: str, throttled: bool) -> None:
    assert read(body=body).throttled == throttled
    assert read(status=400, body=body).throttled == throttled


def test_nested_headers_are_texts_or_whole_numbers() -> None:
    inner = '{"X-RateLimit-Limit":[50],"X-RateLimit-Remaining":4,"X-RateLimit-Reset":null}'
    limits = read(status=429, body=f'{{"error":{{"metadata":{{"headers":{inner}}}}}}}')
    assert (limits.limit, limits.remaining, limits.reset_after) == (None, 4, None)
    assert read(status=429, body='{"error":{"metadata":{"headers":[1]}}}').limit is None
    assert read(status=429, body='{"error":{"metadata":5}}').limit is None


def test_nested_date_is_ignored() -> None:
    inner = '{"Age":"5","X-RateLimit-Limit":"50"}'
    assert read(status=429, body=f'{{"error":{{"metadata":{{"headers":{inner}}}}}}}').limit == 50


# --- several limits ---


def test_remainder_belongs_to_single_listed_limit() -> None:
    remaining = ("X-RateLimit-Remaining", "3")
    one, two = ("RateLimit-Policy", "10;w=60"), ("RateLimit-Policy", "10;w=60, 100;w=3600")
    limits = read(one, ("RateLimit-Remaining", "3"))
    assert (limits.limit, limits.remaining, limits.window) == (10, 3, 60)
    limits = read(two, ("RateLimit-Remaining", "3"))
    assert (limits.limit, limits.remaining, limits.window) == (None, 3, None)
    assert read(remaining).limit is None


def test_latest_reset_binds_without_remainder() -> None:
    early, late = Policy("early", reset_after=0.0), Policy("late", reset_after=5.0)
    assert binding([early, late]) == late
    assert binding([late, early]) == late
    assert binding([early]) == early
    assert binding([Policy("silent")]) is None


def test_limit_with_lowest_remaining_share_binds() -> None:
    def first(*policies: Policy) -> str | None:
        found = binding(policies)
        return found and found.name

    assert first(Policy("a", 100, remaining=10), Policy("b", 10, remaining=2)) == "a"
    assert first(Policy("a", 100, remaining=50), Policy("b", 10, remaining=5)) == "b"  # fewer
    assert first(Policy("a", None, remaining=1), Policy("b", 10, remaining=5)) == "b"
    assert first(Policy("a", None, remaining=0), Policy("b", 10, remaining=1)) == "a"
    # Of two exhausted limits the one with the longer reset binds; a missing reset counts as none.
    used_up = Policy("a", 10, remaining=0, reset_after=3.0)
    assert first(used_up, used_up._replace(name="b", reset_after=4.0)) == "b"
    assert first(used_up._replace(reset_after=None), used_up._replace(name="b")) == "b"


def test_common_and_profile_limits_merge_by_name() -> None:
    profile = Profile(
        "Acme", limits=(Limit("day", "Acme-Day", "Acme-Left", reset="Acme-Reset", window=86400),)
    )
    lines = [("X-RateLimit-Limit-Day", "5"), ("Acme-Left", "4"), ("Acme-Reset", "7")]
    limits = read(*lines, profile=profile)
    assert limits.policies == (Policy("day", 5, 86400.0, 4, 7.0, None, 1.0),)
    # The common headers come first.
    limits = read(*lines, ("X-RateLimit-Remaining-Day", "2"), ("Acme-Day", "9"), profile=profile)
    assert limits.policies == (Policy("day", 5, 86400.0, 2, 7.0, None, 1.0),)


# --- what a profile reads ---


def test_headers_of_one_limit_merge_into_one_record() -> None:
    vendor = Vendor()
    vendor.add(Record("a", 10, 5, 3, 7.0, 60.0), named=True)
    vendor.add(Record("a", 8, 6, 4, 9.0, 50.0), named=True)
    vendor.add(Record("a", None, None, None, None, None), named=True)
    assert vendor.policies == [Policy("a", 8, 60.0, 5, 9.0)]
    vendor.add(Record("b", 10, None, 12), named=True)
    assert vendor.policies[1] == Policy("b", 10, None, 0)
    assert vendor.unnamed is None
    vendor.add(Record(None, 1), named=False)
    vendor.add(Record(None, 2), named=False)
    assert vendor.unnamed == Policy(quota=1)


def test_number_of_vendor_limits_is_bounded() -> None:
    vendor = Vendor()
    for number in range(300):
        vendor.add(Record(str(number), 1), named=True)
    assert len(vendor.policies) == 256
    vendor.add(Record("255", 0), named=True)
    assert vendor.policies[-1].quota == 0


def test_pick_accepts_missing_numbers() -> None:
    table = [(None, None, None), (1.0, None, 1.0), (None, 2.0, 2.0), (1.0, 2.0, 2.0)]
    assert [pick(max, one, other) for one, other, _ in table] == [found for _, _, found in table]


def test_name_with_a_missing_value_is_empty() -> None:
    assert fill_template("of {a} and {0}", {"a": "x", "0": "y"}.get) == "of x and y"
    assert fill_template("of {a} and {b}", {"a": "x"}.get) == ""


def test_braces_in_a_value_are_not_expanded() -> None:
    """A server could let each item name the next one twice: 600 bytes made gigabytes."""
    words = {"a": "{b}{b}", "b": "{a}{a}"}
    assert fill_template("{a}", words.get) == "{b}{b}"
    members: dict[str, object] = {name: f"{{{chr(ord(name) + 1)}}}" * 21 for name in "abcde"}
    usage = {"1": [{"type": "{a}" * 21, **members, "call_count": 1}]}
    header = ("X-Business-Use-Case-Usage", json.dumps(usage))
    found = read(header, profile=PROFILES["Meta"])
    assert found.policies[0].name == "1:" + "{a}" * 21


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


def acme(text: str, row: Json = JSON, *, status: int = 200) -> ServerLimits:
    return read(("Acme", text), status=status, profile=Profile("Acme", limits=(row,)))


def test_json_object_gives_a_limit() -> None:
    limits = acme('{"x":{"kind":"k","limits":{"max":9,"used":2,"spent":3,"reset":5,"window":60}}}')
    assert limits.policies == (Policy("k x", 9, 60.0, 6, 5.0, None, 1.0),)
    assert acme('[{"kind":"k","limits":{"left":3}}]').policies == (Policy("k 0", remaining=3),)
    assert acme('{"x":{"limits":{"left":3}}}').policies == (Policy(remaining=3),)
    assert acme('{"x":{"kind":"k","limits":{}}}').policies == ()
    assert acme('{"x":{"kind":"k","limits":{"window":0,"left":1}}}').policies[0].window is None
    assert acme('{"x":{"kind":"k","limits":{"window":1e300,"left":1}}}').policies[0].window is None


def test_longest_wait_in_json_counts() -> None:
    text = '{"x":{"limits":{"wait":2000}},"y":{"limits":{"wait":5000}},"z":{"limits":{"wait":0}}}'
    assert acme(text).retry_after == 5
    assert acme('{"x":{"limits":{"wait":1e300}}}').retry_after == 2**31
    assert acme('{"x":{"limits":{"wait":0}}}').retry_after is None


def test_invalid_or_too_long_json_is_ignored() -> None:
    text = '{"x":{"kind":"k","limits":{"left":3}},"y":"'
    longest = text + "y" * (8190 - len(text)) + '"}'
    assert acme(longest).policies
    for wrong in ("[" + longest[1:], longest[:-2] + 'y"}', longest[:-1], "[" * 8000, "7", ""):
        assert acme(wrong).policies == ()


def test_fixed_limit_counts_only_with_a_used_part() -> None:
    row = Json("", header="Acme", name="call", limit=100, remaining="left", used=("used",))
    assert acme('{"used":30}', row).policies == (Policy("call", 100, None, 70),)
    assert acme('{"left":30}', row).policies == (Policy("call", None, None, 30),)


def test_throttled_request_waits_for_its_cost() -> None:
    row = Json("", header="Acme", remaining="left", cost="cost", rate="rate")
    text = '{{"cost":{},"left":{},"rate":{}}}'
    assert acme(text.format(50, 20, 10), row, status=429).retry_after == 3
    assert acme(text.format(50, 20, 10), row).retry_after is None
    for cost, remaining, rate in ((50, 50, 10), (0, 0, 10), (50, 20, 0), (50, "null", 10)):
        assert acme(text.format(cost, remaining, rate), row, status=429).retry_after is None
    assert acme(text.format(1e18, 0, 1), row, status=429).retry_after == 2**31


def test_items_take_windows_and_names_by_position() -> None:
    row = Items("acme", r"(?P<used>\d+)", name=("second", "day"), window=(1, 86400), remaining=7)
    limits = read(("Acme", "3, 40, 500"), profile=Profile("Acme", limits=(row,)))
    assert limits.policies == (
        Policy("second", None, 1.0, 7),
        Policy("day", None, 86400.0, 7),
    )


def test_window_header_name_gives_its_unit() -> None:
    for header, seconds in (("Acme-Milliseconds", 1.5), ("Acme-W-MS", 1.5), ("Acme-W", 1500)):
        profile = Profile("Acme", limits=(Limit("a", "Acme", window=header),))
        assert read(("Acme", "5"), (header, "1500"), profile=profile).window == seconds or (
            read(("Acme", "5"), (header, "1500"), profile=profile).policies[0].window == seconds
        )


WRONG: list[tuple[Mapping[str, Any], str]] = [
    ({"hosts": "api.acme.example"}, "hosts of a Profile must be a tuple"),
    ({"hosts": (1,)}, "hosts of a Profile must each be a str"),
    ({"aliases": ["a"]}, "aliases of a Profile must be a tuple"),
    ({"limits": (Limit("a"), "b")}, "limits of a Profile must each be a Limit, Items or Json"),
    ({"milliseconds": {"Retry-After"}}, "milliseconds of a Profile must be a frozenset"),
    ({"refusals": [499]}, "refusals of a Profile must be a frozenset"),
]


@pytest.mark.parametrize(("arguments", "text"), WRONG)
def test_profile_with_wrong_types_is_rejected(arguments: Mapping[str, Any], text: str) -> None:
    with pytest.raises(TypeError, match=text):
        Profile("Acme", **arguments)


def test_which_headers_can_be_about_limits() -> None:
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
        assert (IS_LIMIT_HEADER[name], profile.is_limit_header[name]) == (everybodys, its), name


@pytest.mark.parametrize(
    ("arguments", "has_effect"),
    [
        ({}, False),
        ({"note": "nothing to be read"}, False),
        ({"limits": (Limit("a", "Acme"),)}, True),
        ({"milliseconds": frozenset({"Retry-After"})}, True),
        ({"refusals": frozenset({499})}, True),
        ({"windows": (("day", 86400.0),)}, True),
    ],
)
def test_profile_without_rules_has_no_effect(
    arguments: Mapping[str, Any], has_effect: bool
) -> None:
    assert Profile("Acme", **arguments).has_effect == has_effect


@pytest.mark.parametrize(
    ("name", "seconds"),
    [
        ("second", 1), ("secondly", 1), ("minute", 60), ("minutely", 60), ("hour", 3600),
        ("hourly", 3600), ("day", 86400), ("daily", 86400), ("week", 604800), ("weekly", 604800),
        ("month", None),
    ],
)  # fmt: skip
def test_last_word_of_a_name_gives_its_window(name: str, seconds: float | None) -> None:
    (policy,) = read((f"X-RateLimit-Limit-Calls-{name}", "5")).policies
    assert policy.window == seconds


def test_xml_mark_counts_only_in_an_error() -> None:
    assert not read(body="<List><Code>SlowDown</Code></List>").throttled
    assert not read(body="<Error><Code>Other</Code></Error>").throttled


def test_used_up_limit_without_reset_binds_first() -> None:
    silent, reported = Policy("silent", 10, remaining=0), Policy("reported", 10, None, 0, 0.0)
    assert binding([silent, reported]) == reported


# ---- more than any honest server sends -------------------------------------------------------


def test_too_long_line_hides_no_others() -> None:
    trio = [("X-RateLimit-Limit", "10"), ("X-RateLimit-Remaining", "3")]
    found = read(("X-RateLimit-Policy", "1," * 20_000), *trio)
    assert (found.limit, found.remaining) == (10, 3)


def test_lines_beyond_the_sum_count_as_empty() -> None:
    lines = [("X-RateLimit-Window", "1" * 8000)] * 3
    found = read(("Age", " " * 9000), *lines, ("Retry-After", "9" * 8000), ("X-Retry-After", "7"))
    assert found.retry_after == 7
    for name in ("Age", "Date", "X-RateLimit-Window", "X-RateLimit-Window-Ms", "RateLimit"):
        read(("X-RateLimit-Limit", "x" * 16_384), (name, "1"))  # nothing raises


def test_number_of_list_items_is_bounded() -> None:
    assert read(("Retry-After", "1, " * 63 + "5, 9")).retry_after == 5
    windows = [f"{quota};w={quota}" for quota in range(1, 100)]
    found = read(("X-RateLimit-Limit", ", ".join(["1", *windows])))
    assert [policy.quota for policy in found.policies] == list(range(1, 64))


def test_number_of_policies_is_bounded() -> None:
    policies = ",".join(f'"a{number}";q=1' for number in range(1000))
    assert len(read(("RateLimit-Policy", policies)).policies) == 256


@pytest.mark.parametrize(
    ("line", "quotas"),
    [
        ('1;w=1, 2;w=2;name="a,b', [1, 2]),
        ('1;w=1, 2;w=2;name="a\\", 3;w=3', [1, 2]),
        ('1;w=1, 2;w=2;name="a\\\\", 3;w=3', [1, 2, 3]),
        ('1;w=1;name="a", 2;w=2', [1, 2]),
        ('1;w=1;name="a, 2;w=2', [1]),
    ],
)
def test_unclosed_string_ends_with_its_line(line: str, quotas: list[int]) -> None:
    found = read(("X-RateLimit-Limit", line))
    assert [policy.quota for policy in found.policies] == quotas


def test_name_longer_than_any_host_has_no_profile() -> None:
    assert profile_for("a." * 100 + "api.github.com") is None
    assert profile_for("a" * 120 + ".myshopify.com") is PROFILES["Shopify"]
    assert profile_for("a." * 200 + "myshopify.com") is None

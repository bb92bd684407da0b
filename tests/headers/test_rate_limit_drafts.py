"""Specifies the RateLimit fields of the IETF's drafts 00 to 10."""

import pytest

from aiothrottle.headers import Policy, ServerLimits
from tests.reading import EPOCH, read


def test_list_of_policies_with_windows() -> None:
    limits = read(
        ("RateLimit-Limit", '10,10;window=1;name="a,b;w=5" , 50;w=60;comment="x"'),
        ("RateLimit-Remaining", "3"),
        ("RateLimit-Reset", "1"),
    )
    assert limits == ServerLimits(
        limit=10,
        remaining=3,
        reset_after=1.0,
        window=1.0,
        policies=(Policy("a,b;w=5", 10, 1.0, 3, 1.0, None, 1.0), Policy(None, 50, 60.0)),
        reset_error=1.0,
    )


@pytest.mark.parametrize("limit", ["10", "30"])
def test_limit_of_no_single_policy_has_no_window(limit: str) -> None:
    limits = read(("RateLimit-Limit", limit), ("RateLimit-Policy", "10;w=1, 10;w=60, 20;w=5"))
    assert (limits.limit, limits.window) == (int(limit), None)
    assert len(limits.policies) == 3


@pytest.mark.parametrize(
    "text", ["reset=5,limit=10 , remaining=4", "Limit = 10, REMAINING=4, reset=5"]
)
def test_dictionary_of_draft_07(text: str) -> None:
    limits = read(("RateLimit", text), ("RateLimit-Policy", "10;w=60"))
    assert limits == ServerLimits(
        limit=10, remaining=4, reset_after=5.0, window=60.0,
        policies=(Policy(None, 10, 60.0, 4, 5.0, None, 1.0),), reset_error=1.0,
    )  # fmt: skip


def test_structured_fields_are_joined_by_policy_name() -> None:
    limits = read(
        ("RateLimit", '"b";r=5;t=9'),
        ("RateLimit", '"a"; r=40; t=44, "c";r=2'),
        ("RateLimit-Policy", '"a";q=100;w=60;qu="content-bytes", "b";q=10;w=1'),
        ("X-RateLimit-Limit", "7"),
        ("X-RateLimit-Limit-Day", "7"),
    )
    assert limits.policies == (
        Policy("a", 100, 60.0, 40, 44.0, "content-bytes", 1.0),
        Policy("b", 10, 1.0, 5, 9.0, None, 1.0),
        Policy("c", None, None, 2, None),
    )
    assert (limits.limit, limits.remaining, limits.unit) == (100, 40, "content-bytes")


@pytest.mark.parametrize(
    "state",
    [
        '"a";r=-1;t=5', '"a";r=1.5;t=5', '"a";r="1";t=5', '"a";r;t=5', '"a";t=-5', '"a"',
        '"a";r=1;t=5,', '"a;r=1;t=5', '"a";r=1234567890123456', '"ä";r=1', "1;r=1", '("a");r=1',
        '"a";R=1', "\x00", "a" * 20_000,
    ],
)  # fmt: skip
def test_malformed_field_is_ignored(state: str) -> None:
    assert read(("RateLimit", state)) == ServerLimits()


def test_invalid_item_leaves_the_others() -> None:
    assert read(("RateLimit", '"a";r=-1, "b";r=1;t=2')).policies == (
        Policy("b", None, None, 1, 2.0, None, 1.0),
    )


def test_partition_with_fewer_remaining_counts() -> None:
    limits = read(("RateLimit", '"a";r=9;t=1;pk=:AA==:, "a";r=3;t=5;pk=:AB==:, "a";r=4;t=9'))
    assert limits.policies == (Policy("a", None, None, 3, 5.0, None, 1.0),)


def test_epoch_in_place_of_seconds_is_detected() -> None:
    assert read(("RateLimit", f'"a";r=1;t={EPOCH + 5}')).reset_after == 5


@pytest.mark.parametrize("policy", ['"a";q=100;w=60', "100;w=60", '100;w=60;name="a"'])
def test_single_policy_sets_the_limit_and_the_window(policy: str) -> None:
    limits = read(("RateLimit-Policy", policy))
    assert (limits.limit, limits.window, limits.remaining) == (100, 60, None)


@pytest.mark.parametrize("window", ["0", "-1", "1.5", "999999999999999"])
def test_invalid_window_is_ignored(window: str) -> None:
    assert read(("RateLimit-Policy", f'"a";q=9;w={window}')).policies == (Policy("a", 9),)


def test_policy_not_yet_enforced_is_ignored() -> None:
    lines = [("Beta-RateLimit", '"a";r=0;t=5'), ("Beta-RateLimit-Policy", '"a";q=5;w=5')]
    assert read(*lines) == ServerLimits()

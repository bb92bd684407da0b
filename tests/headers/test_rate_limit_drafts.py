"""The RateLimit fields as the IETF's drafts 00 to 10 write them."""

import pytest

from aiothrottle.headers import Policy, ServerLimits
from tests.reading import EPOCH, read


def test_a_list_with_windows() -> None:
    said = read(
        ("RateLimit-Limit", '10,10;window=1;name="a,b;w=5" , 50;w=60;comment="x"'),
        ("RateLimit-Remaining", "3"),
        ("RateLimit-Reset", "1"),
    )
    assert said == ServerLimits(
        limit=10,
        remaining=3,
        reset_after=1.0,
        window=1.0,
        policies=(Policy("a,b;w=5", 10, 1.0, 3, 1.0), Policy(None, 50, 60.0)),
    )


@pytest.mark.parametrize("limit", ["10", "30"])
def test_a_limit_that_is_of_no_single_policy_has_no_window(limit: str) -> None:
    said = read(("RateLimit-Limit", limit), ("RateLimit-Policy", "10;w=1, 10;w=60, 20;w=5"))
    assert (said.limit, said.window) == (int(limit), None)
    assert len(said.policies) == 3


@pytest.mark.parametrize(
    "text", ["reset=5,limit=10 , remaining=4", "Limit = 10, REMAINING=4, reset=5"]
)
def test_the_dictionary_of_draft_07(text: str) -> None:
    said = read(("RateLimit", text), ("RateLimit-Policy", "10;w=60"))
    assert said == ServerLimits(
        limit=10, remaining=4, reset_after=5.0, window=60.0,
        policies=(Policy(None, 10, 60.0, 4, 5.0),),
    )  # fmt: skip


def test_structured_fields_are_joined_by_name_in_the_order_of_the_policies() -> None:
    said = read(
        ("RateLimit", '"b";r=5;t=9'),
        ("RateLimit", '"a"; r=40; t=44, "c";r=2'),
        ("RateLimit-Policy", '"a";q=100;w=60;qu="content-bytes", "b";q=10;w=1'),
        ("X-RateLimit-Limit", "7"),
        ("X-RateLimit-Limit-Day", "7"),
    )
    assert said.policies == (
        Policy("a", 100, 60.0, 40, 44.0, "content-bytes"),
        Policy("b", 10, 1.0, 5, 9.0),
        Policy("c", None, None, 2, None),
    )
    assert (said.limit, said.remaining, said.unit) == (100, 40, "content-bytes")


@pytest.mark.parametrize(
    "state",
    [
        '"a";r=-1;t=5', '"a";r=1.5;t=5', '"a";r="1";t=5', '"a";r;t=5', '"a";t=-5', '"a"',
        '"a";r=1;t=5,', '"a;r=1;t=5', '"a";r=1234567890123456', '"ä";r=1', "1;r=1", '("a");r=1',
        '"a";R=1', "\x00", "a" * 20_000,
    ],
)  # fmt: skip
def test_what_is_malformed_was_not_said(state: str) -> None:
    assert read(("RateLimit", state)) == ServerLimits()


def test_a_bad_item_leaves_the_others() -> None:
    assert read(("RateLimit", '"a";r=-1, "b";r=1;t=2')).policies == (
        Policy("b", None, None, 1, 2.0),
    )


def test_of_two_partitions_the_one_with_less() -> None:
    said = read(("RateLimit", '"a";r=9;t=1;pk=:AA==:, "a";r=3;t=5;pk=:AB==:, "a";r=4;t=9'))
    assert said.policies == (Policy("a", None, None, 3, 5.0),)


def test_an_epoch_in_place_of_seconds_is_told_by_its_value() -> None:
    assert read(("RateLimit", f'"a";r=1;t={EPOCH + 5}')).reset_after == 5


@pytest.mark.parametrize("policy", ['"a";q=100;w=60', "100;w=60", '100;w=60;name="a"'])
def test_a_single_policy_lends_its_quota_and_its_window(policy: str) -> None:
    said = read(("RateLimit-Policy", policy))
    assert (said.limit, said.window, said.remaining) == (100, 60, None)


@pytest.mark.parametrize("window", ["0", "-1", "1.5", "999999999999999"])
def test_a_window_that_is_none_is_dropped(window: str) -> None:
    assert read(("RateLimit-Policy", f'"a";q=9;w={window}')).policies == (Policy("a", 9),)


def test_what_is_not_enforced_yet_is_not_read() -> None:
    lines = [("Beta-RateLimit", '"a";r=0;t=5'), ("Beta-RateLimit-Policy", '"a";q=5;w=5')]
    assert read(*lines) == ServerLimits()

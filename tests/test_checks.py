"""What is given for a number or a word is looked at in one place, and refused in one wording."""

import math
from typing import Any

import pytest

from aiothrottle.checks import check_choice, check_number, check_whole


@pytest.mark.parametrize(
    ("value", "options"),
    [
        (0, {}),
        (0.0, {}),
        (1.7976931348623157e308, {}),
        (1, {"least": 1}),
        (1e-9, {"above": 0}),
        (-5.5, {"least": -math.inf}),
        (None, {"none": "None for no limit"}),
        (2, {"none": "None for no limit"}),
    ],
)
def test_a_number_that_will_do(value: object, options: dict[str, Any]) -> None:
    check_number("cost", value, **options)


@pytest.mark.parametrize(
    ("value", "options", "error", "message"),
    [
        (-1, {}, ValueError, "cost is a finite number, 0 or more, not -1"),
        (math.nan, {}, ValueError, "cost is a finite number, 0 or more, not nan"),
        (math.inf, {}, ValueError, "cost is a finite number, 0 or more, not inf"),
        (-math.inf, {"least": -math.inf}, ValueError, "cost is a finite number, not -inf"),
        (math.nan, {"least": -math.inf}, ValueError, "cost is a finite number, not nan"),
        (0.5, {"least": 1}, ValueError, "cost is a finite number, 1 or more, not 0.5"),
        (0, {"above": 0}, ValueError, "cost is a finite number, above 0, not 0"),
        (math.nan, {"above": 0}, ValueError, "cost is a finite number, above 0, not nan"),
        ("1", {}, TypeError, "cost is a finite number, 0 or more, not '1'"),
        (True, {}, TypeError, "cost is a finite number, 0 or more, not True"),
        (1j, {}, TypeError, "cost is a finite number, 0 or more, not 1j"),
        (None, {}, TypeError, "cost is a finite number, 0 or more, not None"),
        (
            "1",
            {"unit": "tokens", "above": 0, "none": "None for any"},
            TypeError,
            "cost is a finite number of tokens, above 0, or None for any, not '1'",
        ),
    ],
)
def test_a_number_that_will_not_do(
    value: object, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as refusal:
        check_number("cost", value, **options)
    assert str(refusal.value) == message


def test_a_whole_number_that_no_float_can_hold_is_not_finite() -> None:
    for value in (10**400, -(10**400)):
        with pytest.raises(ValueError, match="cost is a finite number, not"):
            check_number("cost", value, least=-math.inf)


@pytest.mark.parametrize(
    ("value", "options"),
    [
        (1, {}),
        (10**400, {}),
        (0, {"least": 0}),
        (-7, {"least": -math.inf}),
        (None, {"none": "None"}),
    ],
)
def test_a_whole_number_that_will_do(value: object, options: dict[str, Any]) -> None:
    check_whole("slots", value, **options)


@pytest.mark.parametrize(
    ("value", "options", "error", "message"),
    [
        (0, {}, ValueError, "slots is a whole number, 1 or more, not 0"),
        (-1, {"least": 0}, ValueError, "slots is a whole number, 0 or more, not -1"),
        (2.0, {}, TypeError, "slots is a whole number, 1 or more, not 2.0"),
        (True, {}, TypeError, "slots is a whole number, 1 or more, not True"),
        (None, {}, TypeError, "slots is a whole number, 1 or more, not None"),
        (
            "2",
            {"unit": "slots", "none": "None for all"},
            TypeError,
            "slots is a whole number of slots, 1 or more, or None for all, not '2'",
        ),
    ],
)
def test_a_whole_number_that_will_not_do(
    value: object, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as refusal:
        check_whole("slots", value, **options)
    assert str(refusal.value) == message


def test_a_choice() -> None:
    check_choice("algorithm", "b", ("a", "b"))
    for value in ("c", "", None, ["a"]):
        with pytest.raises(ValueError, match=r"^algorithm is one of 'a', 'b', not "):
            check_choice("algorithm", value, ("a", "b"))

"""Specifies the validation of numbers and choices, and the wording of its errors."""

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
def test_valid_number_passes(value: object, options: dict[str, Any]) -> None:
    check_number("cost", value, **options)


@pytest.mark.parametrize(
    ("value", "options", "error", "message"),
    [
        (-1, {}, ValueError, "cost must be a finite number, 0 or more, got -1"),
        (math.nan, {}, ValueError, "cost must be a finite number, 0 or more, got nan"),
        (math.inf, {}, ValueError, "cost must be a finite number, 0 or more, got inf"),
        (-math.inf, {"least": -math.inf}, ValueError, "cost must be a finite number, got -inf"),
        (math.nan, {"least": -math.inf}, ValueError, "cost must be a finite number, got nan"),
        (0.5, {"least": 1}, ValueError, "cost must be a finite number, 1 or more, got 0.5"),
        (0, {"above": 0}, ValueError, "cost must be a finite number, above 0, got 0"),
        (math.nan, {"above": 0}, ValueError, "cost must be a finite number, above 0, got nan"),
        ("1", {}, TypeError, "cost must be a finite number, 0 or more, got '1'"),
        (True, {}, TypeError, "cost must be a finite number, 0 or more, got True"),
        (1j, {}, TypeError, "cost must be a finite number, 0 or more, got 1j"),
        (None, {}, TypeError, "cost must be a finite number, 0 or more, got None"),
        (
            "1",
            {"unit": "tokens", "above": 0, "none": "None for any"},
            TypeError,
            "cost must be a finite number of tokens, above 0, or None for any, got '1'",
        ),
    ],
)
def test_invalid_number_is_rejected(
    value: object, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as raised:
        check_number("cost", value, **options)
    assert str(raised.value) == message


def test_int_beyond_floats_is_not_finite() -> None:
    for value in (10**400, -(10**400)):
        with pytest.raises(ValueError, match="cost must be a finite number, got"):
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
def test_valid_whole_number_passes(value: object, options: dict[str, Any]) -> None:
    check_whole("slots", value, **options)


@pytest.mark.parametrize(
    ("value", "options", "error", "message"),
    [
        (0, {}, ValueError, "slots must be a whole number, 1 or more, got 0"),
        (-1, {"least": 0}, ValueError, "slots must be a whole number, 0 or more, got -1"),
        (2.0, {}, TypeError, "slots must be a whole number, 1 or more, got 2.0"),
        (True, {}, TypeError, "slots must be a whole number, 1 or more, got True"),
        (None, {}, TypeError, "slots must be a whole number, 1 or more, got None"),
        (
            "2",
            {"unit": "slots", "none": "None for all"},
            TypeError,
            "slots must be a whole number of slots, 1 or more, or None for all, got '2'",
        ),
    ],
)
def test_invalid_whole_number_is_rejected(
    value: object, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as raised:
        check_whole("slots", value, **options)
    assert str(raised.value) == message


def test_value_that_is_no_choice_is_rejected() -> None:
    check_choice("algorithm", "b", ("a", "b"))
    for value in ("c", "", None, ["a"]):
        with pytest.raises(ValueError, match=r"^algorithm must be one of 'a', 'b', got "):
            check_choice("algorithm", value, ("a", "b"))

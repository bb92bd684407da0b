"""Strings, numbers and what is neither: what a rate is read from."""

import math
from typing import Any, TypeAlias

import pytest

from aiothrottle import Rate, TokenBucket
from aiothrottle.rate import as_rate

Unchecked: TypeAlias = Any  # what callers pass who do not check their types

READ = [
    ("10/s", 10, 1),
    ("10/sec", 10, 1),
    ("10/second", 10, 1),
    ("10 per second", 10, 1),
    ("100/min", 100, 60),
    ("100/m", 100, 60),
    ("30 / minute", 30, 60),
    ("1000 per hour", 1000, 3600),
    ("1000/h", 1000, 3600),
    ("1000/hr", 1000, 3600),
    ("7/d", 7, 86400),
    ("7 per day", 7, 86400),
    ("7/w", 7, 604800),
    ("7/week", 7, 604800),
    ("5000/24h", 5000, 86400),
    ("5000/24 hours", 5000, 86400),
    ("600 per 10 min", 600, 600),
    ("600 per 10 mins", 600, 600),
    ("1/250ms", 1, 0.25),
    ("1/250 milliseconds", 1, 0.25),
    ("1.5/s", 1.5, 1),
    ("0.5/s", 0.5, 1),
    ("1/0.5s", 1, 0.5),
    ("3/1.5 seconds", 3, 1.5),
    ("  10/s\t", 10, 1),
    ("10 PER Minute", 10, 60),
    ("010/s", 10, 1),
    ("1e3/s", 1000, 1),
]


@pytest.mark.parametrize(("text", "limit", "period"), READ)
def test_a_rate_is_read_as_people_write_it(text: str, limit: float, period: float) -> None:
    assert Rate.parse(text) == Rate(limit, period)
    assert as_rate(text) == Rate(limit, period)


UNREADABLE = [
    ("", "''"),
    (" ", "' '"),
    ("10", "'10'"),
    ("/s", "'/s'"),
    ("10/", "'10/'"),
    ("10/24", "'10/24'"),
    ("per second", "'per second'"),
    ("ten/s", "'ten/s'"),
    ("-10/s", "'-10/s'"),
    ("10/-1s", "'10/-1s'"),
    ("1,000/h", "'1,000/h'"),
    ("nan/s", "'nan/s'"),
    ("inf/s", "'inf/s'"),
    ("10/s/s", "'10/s/s'"),
    ("10/s 5/s", "'10/s 5/s'"),
    ("10 permin", "'10 permin'"),
    ("\u0661\u0660/s", "\u0661\u0660/s"),
    ("10/fortnight", "'fortnight' is no unit"),
    ("10/month", "'month' is no unit"),
    ("10/ss", "'ss' is no unit"),
    ("0/s", "limit of a rate"),
    ("0.0/s", "limit of a rate"),
    ("10/0s", "period of a rate"),
    ("9" * 400 + "/s", "limit of a rate"),
]


@pytest.mark.parametrize(("text", "named"), UNREADABLE)
def test_what_is_no_rate_is_a_value_error_that_names_what_is_wrong(text: str, named: str) -> None:
    with pytest.raises(ValueError, match=r"rate") as error:
        as_rate(text)
    assert named in str(error.value)


def test_the_message_shows_what_would_be_read() -> None:
    with pytest.raises(ValueError, match="'10/s', '100/min', '1000 per hour'"):
        Rate.parse("quickly")


@pytest.mark.parametrize("number", [1, 20, 0.5, 1e-9, 1e15])
def test_a_number_is_tokens_per_second(number: float) -> None:
    assert as_rate(number) == Rate(number, 1.0)


def test_a_rate_is_its_own_rate() -> None:
    rate = Rate(5, 2)
    assert as_rate(rate) is rate


@pytest.mark.parametrize("number", [0, 0.0, -1, -0.5, math.nan, math.inf, -math.inf])
def test_a_number_that_is_no_rate_is_a_value_error(number: float) -> None:
    with pytest.raises(ValueError, match=f"{number!r}"):
        as_rate(number)
    with pytest.raises(ValueError, match="limit of a rate"):
        Rate(number)
    with pytest.raises(ValueError, match="period of a rate"):
        Rate(1, number)


@pytest.mark.parametrize("value", [True, False, None, "1", b"1", [1], 1j])
def test_what_is_no_number_is_a_type_error(value: Unchecked) -> None:
    with pytest.raises(TypeError, match="limit of a rate"):
        Rate(value)
    with pytest.raises(TypeError, match="period of a rate"):
        Rate(1, value)


@pytest.mark.parametrize("value", [10, None, b"10/s", Rate(10)])
def test_parse_reads_texts_and_says_so(value: Unchecked) -> None:
    with pytest.raises(TypeError, match=r"from a text such as '10/s', not from "):
        Rate.parse(value)


@pytest.mark.parametrize("value", [True, False, None, b"10/s", [10], ("10/s",), 1j, object()])
def test_a_value_of_another_kind_is_a_type_error_that_tells_the_kinds(value: Unchecked) -> None:
    with pytest.raises(TypeError, match="a rate is a number of tokens per second"):
        as_rate(value)


def test_tuple_is_rejected_with_the_text_to_write() -> None:
    given: Unchecked = (10, 60)
    with pytest.raises(TypeError, match=r"not a tuple, got \(10, 60\); write '10/60s' "):
        as_rate(given)
    with pytest.raises(TypeError, match="write '10/60s'"):
        TokenBucket(given)


@pytest.mark.parametrize(
    "rate",
    [Rate(10), Rate(1, 0.25), Rate(0.5), Rate(5000, 86400), Rate(1e15), Rate(1, 1e-5), Rate(1e-5)],
)
def test_a_rate_is_written_as_it_is_read(rate: Rate) -> None:
    assert Rate.parse(str(rate)) == rate


def test_a_rate_is_a_value() -> None:
    assert Rate(10) == Rate(10, 1.0)
    assert hash(Rate(10)) == hash(Rate(10.0))
    assert Rate(10) != Rate(100, 10)
    assert repr(Rate(10, 60)) == "Rate(limit=10, period=60)"
    with pytest.raises(AttributeError):
        Rate(10).limit = 20  # type: ignore[misc]

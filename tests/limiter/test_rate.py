"""Specifies how a rate is read from strings, numbers and other values."""

import contextlib
import math
import re
import time
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from aiothrottle import Rate, RateLimiter, TokenBucket
from aiothrottle.rate import as_rate, as_rates

Unchecked: TypeAlias = Any  # arguments of callers without type checks

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
    ("1,000/min", 1000, 60),
    ("1,000,000/day", 1e6, 86400),
    ("1,000.5/s", 1000.5, 1),
    ("1_000_000/d", 1e6, 86400),
    ("1/1,000ms", 1, 1),
    ("1.000/s", 1, 1),  # a point is a decimal point
    ("1k/min", 1000, 60),
    ("2.5K/hour", 2500, 3600),
    ("10 k / min", 10_000, 60),
    ("100 requests/minute", 100, 60),
    ("1 request per 5 seconds", 1, 5),
    ("100 req/min", 100, 60),
    ("10 reqs/s", 10, 1),
    ("10r/s", 10, 1),
    ("100 Calls per Hour", 100, 3600),
    ("3 queries/s", 3, 1),
    ("90k tokens/min", 90_000, 60),
    ("10 rps", 10, 1),
    ("10rps", 10, 1),
    ("100rpm", 100, 60),
    ("1,000 rph", 1000, 3600),
    ("5 RPD", 5, 86400),
    ("10 qps", 10, 1),
    ("90k tpm", 90_000, 60),
    ("10\u00a0/\n s", 10, 1),
]


@pytest.mark.parametrize(("text", "limit", "period"), READ)
def test_rate_is_read_as_people_write_it(text: str, limit: float, period: float) -> None:
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
    ("nan/s", "'nan/s'"),
    ("inf/s", "'inf/s'"),
    ("10/s/s", "'10/s/s'"),
    ("10/s 5/s", "'10/s 5/s'"),
    ("10 permin", "'10 permin'"),
    ("\u0661\u0660/s", "\u0661\u0660/s"),
    ("10/fortnight", "unknown unit 'fortnight'; write one of ms, s, min, h, d, w"),
    ("10/ss", "unknown unit 'ss'"),
    ("10 rpss", "'10 rpss'"),
    ("1,00,000/s", "'1,00,000/s'"),
    ("1__000/s", "'1__000/s'"),
    ("10/s,", "'10/s,'"),
    ("10kk/s", "'10kk/s'"),
    ("0/s", "limit of a rate"),
    ("0.0/s", "limit of a rate"),
    ("10/0s", "period of a rate"),
    ("9" * 400 + "/s", "limit of a rate"),
]


@pytest.mark.parametrize(("text", "named"), UNREADABLE)
def test_unreadable_text_raises_and_is_named(text: str, named: str) -> None:
    with pytest.raises(ValueError, match=r"rate") as error:
        as_rate(text)
    assert named in str(error.value)


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("10", "write '10/s'"),
        ("1,000", "write '1,000/s'"),
        ("10/5", "write '10/5s'"),
        ("10 / 5", "write '10/5s'"),
        ("1,5/s", "write '1.5/s'"),
        ("1 000 000 req/h", "write '1000000 req/h'"),
        ("1M/day", "write '1000000/day'"),
        ("1.5 million requests per day", "write '1500000 requests per day'"),
        ("10 MB/s", "'MB' does not mean tokens; write '10/s'"),
        ("5k images per min", "'images' does not mean tokens; write '5k per min'"),
        ("10/month", "'month' has no fixed length; write '10/30d'"),
        ("10k per 2 years", "'years' has no fixed length; write '10k/730d'"),
        (
            "100/minute, 1000/hour",
            "expected one rate, got 2; write '100/minute' for the first",
        ),
    ],
)
def test_message_contains_the_correct_text(text: str, advice: str) -> None:
    with pytest.raises(ValueError, match=r"^cannot read .* as a rate: ") as error:
        as_rate(text)
    assert str(error.value) == f"cannot read {text!r} as a rate: {advice}"
    for written in re.findall("write '([^']*)'", advice):
        as_rate(written)


@pytest.mark.parametrize(
    ("text", "rates"),
    [
        ("10/s", [Rate(10)]),
        ("100/minute, 1000/hour", [Rate(100, 60), Rate(1000, 3600)]),
        ("100/minute,1,000/hour", [Rate(100, 60), Rate(1000, 3600)]),
        ("10 rps; 100rpm;1k/h", [Rate(10), Rate(100, 60), Rate(1000, 3600)]),
        (20, [Rate(20)]),
        (Rate(3, 4), [Rate(3, 4)]),
    ],
)
def test_text_has_several_rates(text: Unchecked, rates: list[Rate]) -> None:
    assert as_rates(text) == rates


@pytest.mark.parametrize("text", ["10/s,", ",10/s", "10/s,,5/s", "10/s, x", "10/s 5/s", "10,20"])
def test_text_with_one_unreadable_rate_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="as a rate"):
        as_rates(text)


def test_limiter_keeps_all_rates_of_a_text() -> None:
    texts, listed = RateLimiter("10/s, 100/min"), RateLimiter(["10/s", "100/min"])
    assert repr(texts) == repr(listed)
    texts.update(rate_limit="5/s; 50/min")
    listed.update(rate_limit=["5/s", "50/min"])
    assert repr(texts) == repr(listed)
    with pytest.raises(ValueError, match="expected one rate"):
        RateLimiter(["10/s, 100/min", "1000/h"])


K = 1024
LONG: dict[str, Callable[[int], str]] = {
    "blanks": lambda n: " " * n,
    "blanks after": lambda n: "10/s" + " " * n + "!",
    "blanks between": lambda n: "10/" + " " * n + "!",
    "blanks before a unit": lambda n: "10 per" + " " * n + "5" + " " * n + "!",
    "digits": lambda n: "9" * n,
    "digits and a unit": lambda n: "9" * n + "/s",
    "digits twice": lambda n: "9" * n + "/" + "9" * n,
    "decimals": lambda n: "1." + "1" * n + "!",
    "exponent": lambda n: "1e" + "1" * n + "!",
    "points": lambda n: "1.1" * (n // 3),
    "underscores": lambda n: "1_" * (n // 2),
    "commas": lambda n: ",111" * (n // 4),
    "groups": lambda n: "1" + ",111" * (n // 4) + "!",
    "groups of blanks": lambda n: "111 " * (n // 4) + "!",
    "unit": lambda n: "10/" + "s" * n,
    "unit and more": lambda n: "10/" + "s" * n + "!",
    "letters": lambda n: "10 " + "r" * n + "/!",
    "per": lambda n: "10" + " per" * (n // 4),
    "slashes": lambda n: "10" + "/" * n,
    "thousands": lambda n: "10" + "k" * n,
    "millions": lambda n: "9" * n + "m/" + "s" * n,
    "months": lambda n: "9" * n + "/month",
    "rates": lambda n: "10/s," * (n // 5) + "!",
    "semicolons": lambda n: ";" * n,
    "quotes": lambda n: "'" * n,
}


@pytest.mark.parametrize("make", LONG.values(), ids=LONG)
def test_parse_time_grows_linearly_with_length(make: Callable[[int], str]) -> None:
    """Measured in processor time, so that a busy machine does not count."""

    def seconds(length: int) -> float:
        text, least = make(length), math.inf
        for _ in range(2):
            begin = time.process_time()
            with contextlib.suppress(ValueError):
                as_rates(text)
            with contextlib.suppress(ValueError):
                Rate.parse(text)
            least = min(least, time.process_time() - begin)
        return least

    unit = max(seconds(K), 50e-6)  # below that it is all noise
    for length in (2, 4, 8, 16, 32, 64):
        assert seconds(length * K) < 8 * length * unit, f"{length} kB"


def test_long_text_is_cut_in_the_message() -> None:
    with pytest.raises(ValueError, match="as a rate") as error:
        Rate.parse("x" * 64 * K)
    assert len(str(error.value)) < 500


def test_message_shows_valid_rates() -> None:
    with pytest.raises(ValueError, match="'10/s', '100/min', '1000 per hour'"):
        Rate.parse("quickly")


@pytest.mark.parametrize("number", [1, 20, 0.5, 1e-9, 1e15])
def test_number_is_tokens_per_second(number: float) -> None:
    assert as_rate(number) == Rate(number, 1.0)


def test_rate_object_is_returned_unchanged() -> None:
    rate = Rate(5, 2)
    assert as_rate(rate) is rate


@pytest.mark.parametrize("number", [0, 0.0, -1, -0.5, math.nan, math.inf, -math.inf])
def test_number_that_is_no_rate_raises_value_error(number: float) -> None:
    with pytest.raises(ValueError, match=f"{number!r}"):
        as_rate(number)
    with pytest.raises(ValueError, match="limit of a rate"):
        Rate(number)
    with pytest.raises(ValueError, match="period of a rate"):
        Rate(1, number)


@pytest.mark.parametrize("value", [True, False, None, "1", b"1", [1], 1j])
def test_value_that_is_no_number_raises_type_error(value: Unchecked) -> None:
    with pytest.raises(TypeError, match="limit of a rate"):
        Rate(value)
    with pytest.raises(TypeError, match="period of a rate"):
        Rate(1, value)


@pytest.mark.parametrize("value", [10, None, b"10/s", Rate(10)])
def test_parse_accepts_only_texts(value: Unchecked) -> None:
    with pytest.raises(TypeError, match=r"takes a string such as .10/s., got "):
        Rate.parse(value)


@pytest.mark.parametrize("value", [True, False, None, b"10/s", [10], ("10/s",), 1j, object()])
def test_value_of_another_kind_raises_type_error(value: Unchecked) -> None:
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
def test_rate_is_written_as_it_is_read(rate: Rate) -> None:
    assert Rate.parse(str(rate)) == rate


def test_rate_is_a_value() -> None:
    assert Rate(10) == Rate(10, 1.0)
    assert hash(Rate(10)) == hash(Rate(10.0))
    assert Rate(10) != Rate(100, 10)
    assert repr(Rate(10, 60)) == "Rate(limit=10, period=60)"
    with pytest.raises(AttributeError):
        Rate(10).limit = 20  # type: ignore[misc]

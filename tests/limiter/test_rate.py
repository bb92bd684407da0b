"""Specifies how a rate is read, and that rates of all sizes are granted exactly."""

import math
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiothrottle import (
    FixedWindow,
    LeakyBucket,
    Rate,
    RateLimiter,
    SlidingWindowCounter,
    SlidingWindowLog,
    TokenBucket,
)
from aiothrottle.stores import MemoryStore
from tests.limiter.common import Unchecked
from tests.support.effort import examples
from tests.support.virtually import now, virtual, visit

READ = {
    Rate(10): "10/s, 10/sec, 10/second, 10 per second, 10r/s, 10 reqs/s, 10 rps, 10rps, 010/s",
    Rate(100, 60): "100/min, 100/m, 100 requests/minute, 100 req/min, 100rpm, 100 PER Minute",
    Rate(30, 60): "30 / minute",
    Rate(1000, 3600): "1000 per hour, 1000/h, 1000/hr, 1k/h, 1000 rph, 1e3/h, 1000 Calls per Hour",
    Rate(7, 86400): "7/d, 7 per day, 7/24h, 7/24 hours, 7 RPD",
    Rate(7, 604800): "7/w, 7/week",
    Rate(600, 600): "600 per 10 min, 600 per 10 mins",
    Rate(1, 0.25): "1/250ms, 1/250 milliseconds",
    Rate(3, 2): "3/2s, 3 per 2 seconds",
    Rate(1, 0.5): "1/0.5s",
    Rate(3, 1.5): "3/1.5 seconds",
    Rate(1e6, 86400): "1_000_000/d",
    Rate(2500, 3600): "2.5K/hour",
    Rate(10_000, 60): "10 k / min",
    Rate(1, 5): "1 request per 5 seconds",
    Rate(3, 1): "3 queries/s, 3 qps",
    Rate(90_000, 60): "90k tokens/min, 90k tpm",
    Rate(1, 1): "1.000/s",  # a point is a decimal point
    Rate(1.5, 1): "1.5/s",
}
OF_TEXTS = [
    *((text, rate) for rate, texts in READ.items() for text in texts.split(", ")),
    *(("1,000/min", Rate(1000, 60)), ("1,000.5/s", Rate(1000.5)), ("1,000,000/h", Rate(1e6, 3600))),
    *(("  10/s\t", Rate(10)), ("10\u00a0/\n s", Rate(10)), ("1/1,000ms", Rate(1))),
]


@pytest.mark.parametrize(("text", "rate"), OF_TEXTS)
def test_rate_is_read_as_people_write_it(text: str, rate: Rate) -> None:
    assert Rate.parse(text) == Rate.parse(str(rate)) == rate


UNREADABLE = {
    "is quoted": [
        *("", " ", "/s", "10/", "10/24", "per second", "ten/s", "-10/s", "10/-1s", "nan/s"),
        *("inf/s", "10/s/s", "10/s 5/s", "10 permin", "\u0661\u0660/s", "10 rpss", "1,00,000/s"),
        *("1__000/s", "10/s,", "10kk/s"),
    ],
    "unknown unit 'fortnight'; write one of ms, s, min, h, d, w": ["10/fortnight"],
    "unknown unit 'ss'": ["10/ss"],
    "the limit of a rate": ["0/s", "0.0/s", "9" * 400 + "/s"],
    "the period of a rate": ["10/0s"],
}


@pytest.mark.parametrize(("named", "texts"), UNREADABLE.items())
def test_unreadable_text_raises_and_is_named(named: str, texts: list[str]) -> None:
    for text in texts:
        with pytest.raises(ValueError, match=r"rate") as error:
            Rate.parse(text)
        assert (repr(text) if named == "is quoted" else named) in str(error.value)
        with pytest.raises(ValueError, match=r"rate"):
            RateLimiter(text)


def test_message_contains_the_correct_text() -> None:
    for text, advice in {
        "10": "write '10/s'",
        "1,000": "write '1,000/s'",
        "10/5": "write '10/5s'",
        "10 / 5": "write '10/5s'",
        "1,5/s": "write '1.5/s'",
        "1 000 000 req/h": "write '1000000 req/h'",
        "1M/day": "write '1000000/day'",
        "1.5 million requests per day": "write '1500000 requests per day'",
        "10 MB/s": "'MB' does not mean tokens; write '10/s'",
        "5k images per min": "'images' does not mean tokens; write '5k per min'",
        "10/month": "'month' has no fixed length; write '10/30d'",
        "10k per 2 years": "'years' has no fixed length; write '10k/730d'",
        "100/min, 1000/h": "expected one rate, got 2; write '100/min' for the first",
    }.items():
        with pytest.raises(ValueError, match=r"^cannot read .* as a rate: ") as error:
            Rate.parse(text)
        assert str(error.value) == f"cannot read {text!r} as a rate: {advice}"
        for written in re.findall("write '([^']*)'", advice):
            Rate.parse(written)
    with pytest.raises(ValueError, match="'10/s', '100/min', '1000 per hour'"):
        Rate.parse("quickly")
    with pytest.raises(ValueError, match="as a rate") as error:
        Rate.parse("x" * 64_000)
    assert len(str(error.value)) < 500


@pytest.mark.parametrize(
    ("text", "rates"),
    [
        ("10/s", Rate(10.0)),
        ("100/minute,1,000/hour", [Rate(100.0, 60.0), Rate(1000.0, 3600.0)]),
        ("10 rps; 100rpm;1k/h", [Rate(10.0), Rate(100.0, 60.0), Rate(1000.0, 3600.0)]),
        *((number, Rate(number)) for number in (20, 1e-9, 1e15)),
    ],
)
async def test_rate_limit_may_have_several_rates(text: Unchecked, rates: Unchecked) -> None:
    async def limits_of(limiter: RateLimiter) -> tuple[float | None, float]:
        return limiter.statistics().rate_limit, (await limiter.peek()).limit

    updated = RateLimiter("7/s")
    updated.update(rate_limit=text)
    expected = await limits_of(RateLimiter(rates))
    assert await limits_of(RateLimiter(text)) == await limits_of(updated) == expected
    for wrong in ("10/s,", ",10/s", "10/s,,5/s", "10/s, x", "10,20", ["10/s, 9/min", "1/h"]):
        with pytest.raises(ValueError, match="as a rate"):
            updated.update(rate_limit=wrong)


def test_value_that_is_no_rate_raises() -> None:
    for number in (0, 0.0, -1, -0.5, math.nan, math.inf, -math.inf):
        with pytest.raises(ValueError, match=f"rate must be finite and above zero, got {number!r}"):
            RateLimiter(number)
        with pytest.raises(ValueError, match="limit of a rate"):
            Rate(number)
        with pytest.raises(ValueError, match="period of a rate"):
            Rate(1, number)
    no_numbers: list[Unchecked] = [True, False, None, b"1", [b"1"], 1j, object()]
    for value in no_numbers:
        with pytest.raises(TypeError, match="limit of a rate"):
            Rate(value)
        with pytest.raises(TypeError, match="period of a rate"):
            Rate(1, value)
        with pytest.raises(TypeError, match=r"takes a string such as .10/s., got "):
            Rate.parse(value)
        if value is not None:
            with pytest.raises(TypeError, match="a rate is a number of tokens per second"):
                RateLimiter(value)


def test_rate_is_a_value() -> None:
    assert len({Rate(10), Rate(10.0, 1), Rate(100, 10)}) == 2
    assert repr(Rate(10, 60)) == "Rate(limit=10, period=60)"
    with pytest.raises(AttributeError):
        Rate(10).limit = 20  # type: ignore[misc]
    for rate in (Rate(5000, 86400), Rate(1e15), Rate(1, 1e-5), Rate(1e-5)):
        assert Rate.parse(str(rate)) == rate
    for text, short in {"10/s": "10/s", "5/2s": "5/2s", "9/60s": "9/min", "3/24h": "3/d"}.items():
        assert str(Rate.parse(text)) == short
    given: Unchecked = (10, 60)
    with pytest.raises(TypeError, match=r"not a tuple, got \(10, 60\); write '10/60s' "):
        TokenBucket(given)


# ---- rates and costs of all sizes ----------------------------------------------------------------

ALGORITHMS = (SlidingWindowLog, SlidingWindowCounter, FixedWindow, TokenBucket, LeakyBucket)
MAKE: dict[Unchecked, Callable[[Rate], RateLimiter]] = {
    **{each: lambda rate, each=each: RateLimiter(rate, algorithm=each) for each in ALGORITHMS},  # type: ignore[misc]
    "burst": lambda rate: RateLimiter(rate, burst=1),
    "resources": lambda rate: RateLimiter({"requests": rate}),
    "two rates": lambda rate: RateLimiter([rate, Rate(3 * rate.limit, rate.period)]),
    "store": lambda rate: RateLimiter(rate, store=MemoryStore(clock=now), key="k"),
    "guard": lambda rate: RateLimiter(rate, guard=0.25),
}
LIMITS = st.floats(0.05, 40) | st.sampled_from([1.9, 2.5, 5 / 3, 0.1 + 0.2, 3 * (1 / 3), 1.000001])


@pytest.mark.parametrize("kind", MAKE)
@given(limit=LIMITS, period=st.sampled_from([0.5, 1.0, 60.0]))
@examples(8)
@virtual
async def test_limiter_grants_the_rate_that_was_given(
    kind: Unchecked, limit: float, period: float
) -> None:
    limiter, count = MAKE[kind](Rate(limit, period)), 8 * math.ceil(limit)
    granted_at = [await visit(limiter) for _ in range(2 * count + 1)]
    # From a full period on: the first may have been cut off, or a burst.
    found = count / (granted_at[2 * count] - granted_at[count])
    wanted = limit / (period + (0.25 if kind == "guard" else 0.0))
    assert found == pytest.approx(wanted, rel=0.005)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_greatest_cost_leaves_the_tokens_of_others(algorithm: Unchecked) -> None:
    limiter = RateLimiter("10/min", algorithm=algorithm)
    permits = [await limiter.acquire(0) for _ in range(3)]
    await limiter.record(9)
    for cost in (1e12, 0):
        for permit in permits:
            permit.settle(cost)
    permits[0].settle(1)
    assert not (await limiter.try_acquire()).allowed
    assert (await limiter.peek()).remaining == pytest.approx(0.0, abs=0.01)

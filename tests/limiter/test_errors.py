"""Specifies the errors as values: their texts, and that they can be pickled."""

import asyncio
import copy
import pickle
from collections.abc import Callable

import pytest

from aiothrottle import (
    AttemptThrottled,
    CostTooHigh,
    KeyedRateLimiter,
    LimiterClosed,
    QueueFull,
    RateLimiter,
    RequestDropped,
    StoreUnavailable,
    ThrottleError,
    ThrottleTimeout,
    WaitUntil,
)
from tests.virtually import virtual

ERRORS = [
    CostTooHigh(3, 2, key="a"),
    ThrottleTimeout(1.5, timeout=1, key=("a", 1)),
    QueueFull(7, 0.5, key="a"),
    LimiterClosed(key="a"),
    RequestDropped("api.example.org", 0.5),
    AttemptThrottled(429, None),
    StoreUnavailable("no answer"),
]


def through_pickle(error: ThrottleError) -> ThrottleError:
    again: ThrottleError = pickle.loads(pickle.dumps(error))
    return again


@pytest.mark.parametrize("carried", [through_pickle, copy.copy, copy.deepcopy])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_error_is_the_same_in_another_process(
    error: ThrottleError, carried: Callable[[ThrottleError], ThrottleError]
) -> None:
    """A pool breaks or hangs if a worker raises an error that cannot be unpickled."""
    again = carried(error)
    assert type(again) is type(error)
    assert (str(again), again.args, vars(again)) == (str(error), error.args, vars(error))


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (CostTooHigh(11, 10.0), "cost must be at most 10 tokens, got 11"),
        (CostTooHigh(1e7, 5e6), "cost must be at most 5000000 tokens, got 10000000"),
        (
            ThrottleTimeout(3600, timeout=5),
            "not granted within the timeout of 5 s: retry after 1 h",
        ),
        (ThrottleTimeout(1e7), "not granted within the timeout: retry after 115 d 18 h"),
        (
            ThrottleTimeout(3e-9, timeout=1e-9),
            "not granted within the timeout of less than 0.001 ms: retry after less than 0.001 ms",
        ),
        (
            ThrottleTimeout(0.0, timeout=90),
            "not granted within the timeout of 1 min 30 s: all slots are taken",
        ),
        (
            QueueFull(5, 7200),
            "max_queue is reached with 5 waiting; retry after 2 h",
        ),
        (QueueFull(5, 0.0), "max_queue is reached with 5 waiting"),
        (LimiterClosed(), "this limiter is closed: make a new one, or close it later"),
        (StoreUnavailable("no answer"), "no answer"),
        (
            RequestDropped("api.example.org", 1 - 1e-9),
            "api.example.org is failing: the request was dropped, as 100% of all to it are",
        ),
        (
            AttemptThrottled(429, 1e6),
            "the previous attempt got a response with status 429, retry after 11 d 14 h",
        ),
    ],
    ids=lambda each: type(each).__name__,
)
def test_text_has_durations_numbers_and_the_key(error: ThrottleError, text: str) -> None:
    assert str(error) == text
    error.key = "api.example.org"
    assert str(error) == f"{text} (key 'api.example.org')"


def test_key_in_a_text_is_escaped_and_cut() -> None:
    text = str(LimiterClosed(key="a\nb" + "x" * 1000))
    assert "(key 'a\\nbxxx" in text
    assert "\n" not in text
    assert len(text) < 300


@virtual
async def test_errors_of_a_keyed_limiter_name_the_key() -> None:
    limiter = KeyedRateLimiter("2/h", max_queue=1)
    async with limiter.throttle("a", 2):
        pass
    waiting = asyncio.create_task(limiter.acquire("a"))
    await asyncio.sleep(0)
    texts: list[str] = []
    for options in ({"cost": 3}, {"timeout": 1}, {}):
        with pytest.raises(ThrottleError) as caught:
            await limiter.acquire("a", **options)
        texts.append(str(caught.value))
    limiter.update("a", rate_limit="1/s")
    await waiting
    await limiter.aclose()
    with pytest.raises(LimiterClosed) as caught:
        await limiter.acquire("a")
    texts.append(str(caught.value))
    assert texts == [
        "cost must be at most 2 tokens, got 3 (key 'a')",
        "max_queue is reached with 1 waiting; retry after 1 h (key 'a')",
        "max_queue is reached with 1 waiting; retry after 1 h (key 'a')",
        "this limiter is closed: make a new one, or close it later (key 'a')",
    ]


@virtual
async def test_timeout_text_names_the_exceeded_bound() -> None:
    limiter = RateLimiter(algorithm=WaitUntil(60, raise_after=90, limit=600))
    texts: list[str] = []
    async with limiter.throttle():
        pass
    waiting = asyncio.create_task(limiter.acquire())
    await asyncio.sleep(0)
    for timeout in (None, 30, 100):
        with pytest.raises(ThrottleTimeout) as caught:
            await limiter.acquire(timeout=timeout)
        texts.append(str(caught.value))
    assert texts == [
        "not granted within the timeout of 1 min 30 s: retry after 2 min",
        "not granted within the timeout of 30 s: retry after 3 min",
        "not granted within the timeout of 1 min 30 s: retry after 4 min",
    ]
    waiting.cancel()

"""An argument that is copied from another library: the error says what to write here."""

import inspect
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import httpx
import pytest

from aiothrottle import KeyedRateLimiter, Rate, RateLimiter, Retry
from aiothrottle.aiohttp import ThrottledSession
from aiothrottle.httpx import ThrottledTransport

LIMITER = RateLimiter(5)


def session(**arguments: Any) -> ThrottledSession:  # noqa: ANN401 - wrong ones
    return ThrottledSession(LIMITER, **arguments)


def transport(**arguments: Any) -> ThrottledTransport:  # noqa: ANN401 - wrong ones
    return ThrottledTransport(LIMITER, **arguments)


@pytest.mark.parametrize(
    ("make", "positional", "arguments", "message"),
    [
        # aiolimiter
        (RateLimiter, (10, 60), {}, "write RateLimiter('10/60s') or concurrency_limit=60"),
        (RateLimiter, (), {"max_rate": 10, "time_period": 60}, "write RateLimiter('10/60s')"),
        (RateLimiter, (10,), {"time_period": 0.5}, "write RateLimiter('10/0.5s')"),
        (RateLimiter, (), {"max_rate": 10}, "write RateLimiter(10) for 10 per second, or "),
        (RateLimiter, ("10/s",), {"period": 60}, "write the period into the rate, such as "),
        # asyncio-throttle
        (RateLimiter, (), {"rate_limit": 10, "period": 60}, "write RateLimiter('10/60s')"),
        (RateLimiter, (10,), {"retry_interval": 0.01}, "leave it out: no waiter polls"),
        # pyrate-limiter
        (
            RateLimiter,
            (Rate(10, 1), Rate(500, 60)),
            {},
            "write RateLimiter([Rate(limit=10, period=1), Rate(limit=500, period=60)])",
        ),
        (RateLimiter, (10,), {"buffer_ms": 50}, "write guard=, in seconds"),
        # limits
        (
            RateLimiter,
            ("10/minute", "100/hour"),
            {},
            "write RateLimiter(['10/minute', '100/hour'])",
        ),
        (RateLimiter, ("10/minute",), {"storage": "redis://"}, "write store=, such as"),
        (RateLimiter, ("10/minute",), {"strategy": "moving-window"}, "write algorithm=, such as"),
        # aiohttp-retry
        (session, (), {"retry_options": Retry()}, "write retry=Retry(attempts=3)"),
        (transport, (), {"retry_options": Retry()}, "write retry=Retry(attempts=3)"),
        (session, (), {"client_session": None}, "write session="),
        (Retry, (3,), {"start_timeout": 0.1}, "write backoff=, in seconds"),
        (Retry, (3,), {"max_timeout": 30.0}, "write max_backoff=, in seconds"),
        (Retry, (), {"factor": 2}, "leave it out: each longest delay is twice the one before"),
        (Retry, (), {"retry_all_server_errors": True}, "write statuses={429, 500, 502, 503, 504}"),
        (Retry, (), {"evaluate_response_callback": print}, "write should_retry="),
        # tenacity
        (Retry, (), {"stop": None}, "write attempts=, which counts the first attempt too"),
        (Retry, (), {"wait": None}, "write backoff= and max_backoff=, in seconds"),
        (Retry, (), {"retry": None}, "write statuses=, exceptions= or should_retry="),
        (Retry, (), {"reraise": True}, "leave it out: the caller gets the last response"),
        (session, (), {"max_retries": 3}, "write retry=Retry(attempts=3)"),
        # httpx
        (transport, (), {"retries": 3}, "write retry=Retry(attempts=3)"),
        (transport, (), {"limits": None}, "write transport=AsyncHTTPTransport(limits=...)"),
        (transport, (), {"timeout": 5}, "write AsyncClient(timeout=...)"),
        (session, (), {"rate_limit": "10/s"}, "write it into the limiter, such as RateLimiter("),
        (ThrottledTransport, ("10/s",), {}, "got '10/s'; write RateLimiter('10/s')"),
        (ThrottledSession, (10,), {}, "got 10; write RateLimiter(10)"),
        # token-throttle
        (RateLimiter, (), {"quotas": []}, "write rate_limit={'requests': '60/min',"),
        (RateLimiter, (10,), {"backend": None}, "write store=, such as"),
        # all keys of a limiter
        (KeyedRateLimiter, (10, 60), {}, "write KeyedRateLimiter('10/60s')"),
        (KeyedRateLimiter, (10,), {"period": 60}, "write KeyedRateLimiter('10/60s')"),
        # other names, and slips of the pen
        (RateLimiter, (), {"calls": 10, "period": 60}, "write RateLimiter('10/60s')"),
        (RateLimiter, (10,), {"max_concurrency": 5}, "write concurrency_limit="),
        (RateLimiter, (10,), {"concurency_limit": 5}, "did you mean 'concurrency_limit'?"),
        (Retry, (), {"atempts": 5}, "did you mean 'attempts'?"),
    ],
)
def test_error_says_what_to_write_instead(
    make: Callable[..., object],
    positional: tuple[object, ...],
    arguments: Mapping[str, object],
    message: str,
) -> None:
    with pytest.raises(TypeError) as caught:
        make(*positional, **arguments)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("has_capacity", "; write await limiter.peek(cost)"),  # aiolimiter
        ("try_acquire_async", "; write await limiter.acquire(), or "),  # pyrate-limiter
        ("release", "; write permit.release(), of the permit that "),  # asyncio.Semaphore
        ("close", "; write await limiter.aclose()"),  # the article
    ],
)
def test_method_of_another_library_leads_to_ours(name: str, message: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(LIMITER, name)
    assert message in str(caught.value)


async def test_limiter_as_a_transport_leads_to_the_transport() -> None:
    wrong: Any = RateLimiter(5)
    async with httpx.AsyncClient(transport=wrong) as client:
        with pytest.raises(AttributeError, match="write transport=ThrottledTransport"):
            await client.get("http://127.0.0.1/")


def test_misspelt_method_is_still_corrected_by_the_traceback() -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(LIMITER, "throtle")  # noqa: B009 - type checkers know better
    assert str(caught.value) == "'RateLimiter' object has no attribute 'throtle'"
    # From these a traceback has its "Did you mean: 'throttle'?".
    assert (caught.value.name, caught.value.obj) == ("throtle", LIMITER)


def test_unknown_argument_without_a_likeness_is_named() -> None:
    with pytest.raises(TypeError, match=r"^RateLimiter has no argument 'zzz'$"):
        RateLimiter(10, zzz=1)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]


async def test_name_in_place_of_a_cost_leads_to_keys() -> None:
    wrong: Any = "books"
    with pytest.raises(TypeError, match="got 'books'; for a limit of each name: KeyedRateLimiter"):
        await LIMITER.try_acquire(wrong)


def test_signatures_are_those_of_the_classes() -> None:
    assert "concurrency_limit" in inspect.signature(RateLimiter).parameters
    assert "attempts" in inspect.signature(Retry).parameters
    assert pickle.loads(pickle.dumps(Retry(attempts=3))) == Retry(attempts=3)

"""The options of all integrations: declared once, validated alike, and known to type checkers."""

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

import aiohttp
import pytest

from aiothrottle import RateLimiter
from aiothrottle._http.options import ClientOptions, Options, SessionOptions
from aiothrottle.aiohttp import (
    MiddlewareOptions,
    RetryMiddleware,
    RetryOptions,
    ThrottledSession,
    ThrottleMiddleware,
    throttled_session,
)
from aiothrottle.aiohttp.arguments import SessionArguments
from aiothrottle.headers import Profile
from aiothrottle.httpx import ThrottledTransport
from aiothrottle.httpx2 import ThrottledTransport as ThrottledTransport2

Make = Callable[..., Any]


def retrying(_: RateLimiter, **options: Any) -> RetryMiddleware:  # noqa: ANN401
    return RetryMiddleware(**options)


INTEGRATIONS: dict[Make, Any] = {
    ThrottledSession: SessionOptions,
    throttled_session: SessionOptions,
    ThrottleMiddleware: MiddlewareOptions,
    retrying: RetryOptions,
    ThrottledTransport: ClientOptions,
    ThrottledTransport2: ClientOptions,
}
DEFAULTS = {name: it.default for name, it in inspect.signature(Options).parameters.items()}


@pytest.mark.parametrize("name", ["max_holds", "queue_timeouts", "nonsense", "self"])
@pytest.mark.parametrize("make", INTEGRATIONS)
async def test_unknown_option_is_named(make: Make, name: str) -> None:
    with pytest.raises(TypeError, match=rf"'?{name}'?"):
        make(RateLimiter(1), **{name: 5})


@pytest.mark.parametrize("make", INTEGRATIONS)
async def test_integration_takes_its_own_options_and_no_others(make: Make) -> None:
    own = {*INTEGRATIONS[make].__annotations__, "retry"}  # positional in a RetryMiddleware
    for name, value in DEFAULTS.items():
        if name in own:
            made = make(RateLimiter(1), **{name: value})
            if isinstance(made, aiohttp.ClientSession):
                await made.close()
        else:
            with pytest.raises(TypeError, match=f"has no argument {name!r}"):
                make(RateLimiter(1), **{name: value})


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"key": "host"}, TypeError, "key must be a function"),
        ({"key": str}, ValueError, "key= needs a KeyedRateLimiter"),
        ({"retry": 3}, TypeError, "retry must be a Retry"),
        ({"retry": None}, TypeError, "retry must be a Retry"),
        ({"queue_timeout": "1"}, TypeError, "queue_timeout must be a finite number"),
        ({"queue_timeout": True}, TypeError, "queue_timeout must be a finite number"),
        ({"queue_timeout": -1}, ValueError, "queue_timeout must be a finite number"),
        ({"queue_timeout": float("nan")}, ValueError, "queue_timeout must be a finite number"),
        ({"max_hold": float("inf")}, ValueError, "max_hold must be a finite number"),
        ({"max_hold": float("nan")}, ValueError, "max_hold must be a finite number"),
        ({"max_hold": 0.0}, ValueError, "finite number of seconds, above 0, or None"),
        ({"max_hold": [1]}, TypeError, "max_hold must be a finite number"),
        ({"max_hold": True}, TypeError, "max_hold must be a finite number"),
        ({"server_quota": "later"}, ValueError, "server_quota"),
        ({"profiles": ["GitHub"]}, TypeError, "profiles"),
        (
            {"adaptive_throttling": 2.0},
            TypeError,
            r"adaptive_throttling is an AdaptiveThrottling, such as .*, not 2\.0",
        ),
    ],
)
@pytest.mark.parametrize("make", INTEGRATIONS)
async def test_wrong_value_of_an_option_is_named(
    make: Make, options: dict[str, Any], error: type[Exception], text: str
) -> None:
    if options.keys() <= {*INTEGRATIONS[make].__annotations__, "retry"}:
        with pytest.raises(error, match=text):
            make(RateLimiter(), **options)
    else:
        with pytest.raises(TypeError, match="has no argument"):
            make(RateLimiter(), **options)


@pytest.mark.parametrize("limiter", [5, None, RateLimiter])
@pytest.mark.parametrize("make", [make for make in INTEGRATIONS if make is not retrying])
async def test_wrong_limiter_is_named(make: Make, limiter: object) -> None:
    with pytest.raises(TypeError, match="limiter must be a RateLimiter"):
        make(limiter)


def test_misspelt_option_of_a_middleware_is_corrected() -> None:
    with pytest.raises(
        TypeError, match="ThrottleMiddleware has no argument 'server_quotas'; did you mean"
    ):
        ThrottleMiddleware(RateLimiter(1), server_quotas=None)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize("make", INTEGRATIONS)
async def test_profiles_may_be_an_iterator(make: Make) -> None:
    made = make(RateLimiter(1), profiles=iter([Profile("example", hosts=("example.org",))]))
    if isinstance(made, aiohttp.ClientSession):
        await made.close()
    with pytest.raises(TypeError, match="each of profiles must be a Profile, got 'example'"):
        make(RateLimiter(1), profiles=iter(["example"]))


def test_documented_options_are_the_validated_ones() -> None:
    assert get_type_hints(SessionOptions) == get_type_hints(Options)
    assert SessionOptions.__annotations__.keys() == DEFAULTS.keys()
    for kind in (ClientOptions, MiddlewareOptions, RetryOptions):
        assert get_type_hints(kind).items() <= get_type_hints(Options).items()


def test_type_checkers_know_all_arguments_of_aiohttp() -> None:
    of_aiohttp = inspect.signature(aiohttp.ClientSession).parameters
    assert set(of_aiohttp) <= set(SessionArguments.__annotations__)
    assert of_aiohttp.keys().isdisjoint(SessionOptions.__annotations__)

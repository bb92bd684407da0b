"""The options of all integrations: validated alike, and known to type checkers."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, cast, get_type_hints

import aiohttp
import pytest

from aiothrottle import AdaptiveRate, Rate, RateLimiter
from aiothrottle.aiohttp import (
    MiddlewareOptions,
    RetryMiddleware,
    RetryOptions,
    SessionOptions,
    ThrottledSession,
    ThrottleMiddleware,
    throttled_middlewares,
    throttled_session,
)
from aiothrottle.headers import Profile
from aiothrottle.httpx import ClientOptions, ThrottledTransport
from aiothrottle.httpx2 import ThrottledTransport as ThrottledTransport2

Make = Callable[..., Any]


def retrying(_: RateLimiter, **options: Any) -> RetryMiddleware:
    return RetryMiddleware(**options)


INTEGRATIONS: dict[Make, type[Mapping[str, object]]] = {
    ThrottledSession: SessionOptions,
    throttled_session: SessionOptions,
    throttled_middlewares: SessionOptions,
    ThrottleMiddleware: MiddlewareOptions,
    retrying: RetryOptions,
    ThrottledTransport: ClientOptions,
    ThrottledTransport2: ClientOptions,
}
every_make = pytest.mark.parametrize("make", INTEGRATIONS)
#: Values that are valid, of all options.
VALID: dict[str, Any] = {
    "adaptive_throttling": None,
    "buffer_body": True,
    "cost": str,
    "hold_websockets": True,
    "key": None,
    "max_hold": 0.001,
    "priority": str,
    "profiles": iter([Profile("example", hosts=("example.org",))]),
    "queue_timeout": 0,
    "server_quota": "evenly",
    "settle": str,
}
#: An option, a wrong value, the error and its text.
WRONG: list[tuple[str, Any, type[Exception], str]] = [
    ("key", "host", TypeError, "key must be a function of a hooks.Request, got 'host'"),
    ("key", str, ValueError, "key= needs a KeyedRateLimiter"),
    ("cost", 5, TypeError, "cost must be a function of a hooks.Request, got 5"),
    ("settle", 5, TypeError, "settle must be a function of a hooks.Response, got 5"),
    ("retry", 3, TypeError, "retry must be a Retry"),
    ("queue_timeout", float("nan"), ValueError, "queue_timeout must be a finite number"),
    ("max_hold", 0.0, ValueError, "finite number of seconds, above 0, or None"),
    ("server_quota", "later", ValueError, "server_quota"),
    ("buffer_body", "no", ValueError, "buffer_body must be one of True, False, got 'no'"),
    ("hold_websockets", None, ValueError, "hold_websockets must be one of True, False, got None"),
    ("profiles", ["GitHub"], TypeError, "each of profiles must be a Profile, got 'GitHub'"),
    ("profiles", "GitHub", TypeError, "profiles must be a list of Profiles"),
    ("adaptive_throttling", 2.0, TypeError, r"is an AdaptiveThrottling, such as .*, not 2\.0"),
]


@every_make
async def test_integration_validates_its_own_options(make: Make) -> None:
    own = INTEGRATIONS[make].__annotations__
    made = make(RateLimiter(1), **{name: it for name, it in VALID.items() if name in own})
    if isinstance(made, aiohttp.ClientSession):
        await made.close()
    for name in [*(VALID.keys() - own.keys()), "max_holds", "queue_timeouts", "nonsense"]:
        with pytest.raises(TypeError, match=f"has no argument {name!r}"):
            make(RateLimiter(1), **{name: None})
    for name, value, error, text in WRONG:
        if name in {*own, "retry"}:  # which is positional in a RetryMiddleware
            with pytest.raises(error, match=text):
                make(RateLimiter(), **{name: value})


async def test_misspelt_option_and_wrong_session_are_named() -> None:
    wrong: dict[str, Any] = {"server_quotas": None}
    text = "ThrottleMiddleware has no argument 'server_quotas'; did you mean"
    with pytest.raises(TypeError, match=text):
        ThrottleMiddleware(RateLimiter(1), **wrong)
    given: Any = "https://example.org"
    with pytest.raises(TypeError, match="throttle must be a ThrottleMiddleware"):
        RetryMiddleware(throttle=given)
    with pytest.raises(TypeError, match="session must be an aiohttp"):
        ThrottledSession(RateLimiter(), session=given)
    with pytest.raises(ValueError, match="owns_session must be one of True, False"):
        ThrottledSession(RateLimiter(), owns_session=given)
    async with aiohttp.ClientSession() as session:
        with pytest.raises(ValueError, match="headers: arguments for a new session"):
            ThrottledSession(RateLimiter(), session=session, headers={})


async def text_of_a_websocket(session: ThrottledSession) -> str:  # for type checkers alone
    return await (await session.ws_connect("")).receive_str()


def test_type_checkers_know_all_options_and_arguments() -> None:
    assert SessionOptions.__annotations__.keys() == VALID.keys() | {"retry"}
    for kind in INTEGRATIONS.values():
        assert get_type_hints(kind).items() <= get_type_hints(SessionOptions).items()
    arguments = inspect.get_annotations(ThrottledSession.__init__)["arguments"]
    known = set(arguments.__args__[0].__annotations__)
    of_aiohttp = inspect.signature(aiohttp.ClientSession).parameters
    assert set(of_aiohttp) <= known
    assert of_aiohttp.keys().isdisjoint(SessionOptions.__annotations__)


@pytest.mark.parametrize("make", [ThrottledSession, ThrottleMiddleware, ThrottledTransport])
async def test_limiter_is_made_of_a_rate(make: Make) -> None:
    resources, adaptive = {"requests": "9/s"}, AdaptiveRate(5, 1, 9)
    for rate in ("10/s", 10, 0.5, Rate(3, 60), ["10/s", "9/min"], resources, adaptive):
        limiter = (made := make(rate)).limiter
        assert isinstance(limiter, RateLimiter)
        assert repr(limiter) in repr(made)
        wanted = RateLimiter(cast("Any", rate)).statistics()
        assert limiter.statistics().rate_limit == pytest.approx(wanted.rate_limit, rel=0.2)
    for other in (None, b"5", RateLimiter):
        with pytest.raises(TypeError, match="limiter must be a RateLimiter"):
            make(other)
    for wrong in (True, "10 apples", -1):
        with pytest.raises(TypeError if wrong is True else ValueError):
            make(wrong)

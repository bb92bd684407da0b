"""Specifies errors of wrong use: raised at once, with the correct form."""

import asyncio
import importlib
import sys
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from aiothrottle import RateLimiter
from aiothrottle.aiohttp import (
    Retry,
    RetryMiddleware,
    ThrottledSession,
    ThrottleMiddleware,
    throttled_session,
)
from aiothrottle.headers import Profile, parse_rate_limit
from aiothrottle.httpx import ThrottledTransport


def retrying(_: RateLimiter, **options: Any) -> RetryMiddleware:  # noqa: ANN401
    return RetryMiddleware(**options)


@pytest.mark.parametrize("make", [ThrottledSession, throttled_session])
@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("timout", "; did you mean 'timeout'?"),
        ("max_holds", "; did you mean 'max_hold'?"),
        ("colour", "has none either$"),
    ],
)
async def test_misspelt_argument_raises_at_construction(
    make: Callable[..., Any], name: str, hint: str
) -> None:
    with pytest.raises(TypeError, match=rf"{make.__name__} has no argument '{name}', .*{hint}"):
        make(RateLimiter(1), **{name: 5})


@pytest.mark.parametrize(
    ("module", "driver", "extra"),
    [
        ("aiothrottle.httpx", "httpx", "httpx"),
        ("aiothrottle.httpx2", "httpx2", "httpx2"),
        ("aiothrottle.stores.redis", "redis.asyncio", "redis"),
        ("aiothrottle.stores.mongo", "pymongo", "mongodb"),
        ("aiothrottle.stores.memcached", "emcache", "memcached"),
    ],
)
def test_missing_driver_names_the_extra_to_install(
    monkeypatch: pytest.MonkeyPatch, module: str, driver: str, extra: str
) -> None:
    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, driver, None)
    with pytest.raises(
        ModuleNotFoundError, match=rf"pip install 'aiothrottle-client\[{extra}\]'"
    ) as raised:
        importlib.import_module(module)
    assert raised.value.name == driver.partition(".")[0]


@pytest.mark.parametrize("profiles", [None, Profile("Acme"), "Acme"])
@pytest.mark.parametrize(
    "make", [ThrottledSession, throttled_session, ThrottleMiddleware, ThrottledTransport, retrying]
)
async def test_profiles_that_are_no_list_raise(make: Callable[..., Any], profiles: object) -> None:
    with pytest.raises(TypeError, match="profiles must be a list of Profiles, such as"):
        make(RateLimiter(1), profiles=profiles)


@pytest.mark.parametrize("now", [None, 5.0, "2026-11-22"])
def test_now_that_is_no_datetime_raises(now: Any) -> None:  # noqa: ANN401
    with pytest.raises(
        TypeError, match=r"now must be a datetime such as datetime\.now\(UTC\), got"
    ):
        parse_rate_limit(429, {}, now)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hosts": "acme.example"}, "hosts of a Profile must be a tuple, got 'acme.example'"),
        ({"hosts": (5,)}, "hosts of a Profile must each be a str, got 5"),
        ({"aliases": ["x"]}, "aliases of a Profile must be a tuple"),
        ({"limits": (None,)}, "limits of a Profile must each be a Limit, Items or Json, got None"),
        ({"milliseconds": "Retry-After"}, "milliseconds of a Profile must be a frozenset"),
        ({"refusals": 418}, "refusals of a Profile must be a frozenset, got 418"),
    ],
)
def test_profile_arguments_are_checked(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Profile("Acme", **arguments)


@pytest.mark.parametrize("make", [ThrottledSession, throttled_session])
async def test_stalled_body_of_a_429_is_reported(make: Callable[..., Any]) -> None:
    ended = asyncio.Event()

    async def stall(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 429 No\r\nContent-Length: 10\r\n\r\nabc")
        await reader.read()  # until the client closes
        writer.transport.abort()
        ended.set()

    server = await asyncio.start_server(stall, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    async with server, make(RateLimiter(None), retry=Retry(attempts=1)) as session:
        response = await session.get(url)
        assert response.status == 429
        with pytest.raises(
            aiohttp.ClientError, match="the body of a throttled response did not arrive"
        ):
            await response.read()
        await ended.wait()

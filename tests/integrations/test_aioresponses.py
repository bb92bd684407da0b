"""A `ThrottledSession` under aioresponses, with which many users test.

It replaces `ClientSession._request`, so there is no connection, and the slot is returned with the
headers.
"""

# aioresponses leaves the types of its arguments open.
# pyright: reportUnknownMemberType=false

import inspect
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import aiohttp
import pytest
from aioresponses import aioresponses

from aiothrottle import RateLimiter
from aiothrottle.aiohttp import Retry, ThrottledSession

URL = "http://api.test/items"
QUICK = Retry(attempts=3, backoff=0.001)


class Response(aiohttp.ClientResponse):
    """Adds an argument that aiohttp >= 3.14 requires and aioresponses does not pass."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - aiohttp's
        if "stream_writer" in inspect.signature(aiohttp.ClientResponse).parameters:
            kwargs.setdefault("stream_writer", Mock(output_size=0))
        super().__init__(*args, **kwargs)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[aioresponses]:
    monkeypatch.setattr("aioresponses.core.ClientResponse", Response)
    with aioresponses() as mock:
        yield mock


def sent(server: aioresponses) -> int:
    return sum(len(calls) for calls in server.requests.values())


async def test_each_attempt_takes_a_token(server: aioresponses) -> None:
    server.get(URL, status=429)
    server.get(URL, status=503, headers={"Retry-After": "0"})
    server.get(URL, payload={"id": 1})
    limiter = RateLimiter("3/h", concurrency_limit=1)
    async with (
        ThrottledSession(limiter, retry=QUICK) as session,
        session.get(URL) as response,
    ):
        assert await response.json() == {"id": 1}
    assert sent(server) == 3
    decision = await limiter.try_acquire()
    assert (bool(decision), decision.remaining) == (False, 0)


async def test_last_throttled_response_is_returned(server: aioresponses) -> None:
    server.post(URL, status=429, repeat=True)
    async with ThrottledSession(RateLimiter(), retry=QUICK) as session:
        response = await session.post(URL, json={"id": 1})
    assert response.status == 429
    assert sent(server) == 3


async def test_failed_connection_is_retried_if_idempotent(
    server: aioresponses,
) -> None:
    for method in ("GET", "POST"):
        server.add(URL, method, exception=aiohttp.ServerDisconnectedError())
        server.add(URL, method, status=200)
    limiter = RateLimiter(concurrency_limit=1)
    async with ThrottledSession(limiter, retry=QUICK) as session:
        assert (await session.get(URL)).status == 200
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await session.post(URL)
    assert limiter.statistics().in_flight == 0

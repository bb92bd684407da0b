"""The options `key`, `cost` and `priority`, and what one request overrides: every integration.

Each is called once per request, before the request joins the queue. An exception or a wrong result
takes nothing.
"""

import asyncio
import io
import math
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import FormData, web

from aiothrottle import CostTooHigh, KeyedRateLimiter, RateLimiter, Retry, ThrottleTimeout
from aiothrottle.events import Retried
from aiothrottle.hooks import Request, Response
from tests.integrations.clients import (
    ONCE,
    SESSION,
    Clock,
    Feature,
    Integration,
    always,
    every,
    lacking,
    pair,
)
from tests.support.serving import answer, never, until

LIMITS, RETRIES, OVERRIDES = Feature.LIMITS, Feature.RETRIES, Feature.OVERRIDES


# ---- what a hook sees ----------------------------------------------------------------------------


@every(LIMITS)
async def test_hook_sees_the_request_once(integration: Integration) -> None:
    seen: list[Request] = []

    async def generated() -> AsyncIterator[bytes]:
        yield b"one"
        yield b"two"

    async with integration.serve(answer(), cost=seen.append) as at:
        url = at.url / "path"
        await at.send("path", "POST", body=b'{"model": "small"}', headers={"X-Team": "blue"})
        await at.send(method="POST", json={"max_tokens": 5})
        await at.send()
        await at.send(method="POST", body=generated())  # which is not consumed
        assert at.seen[-1] == ("POST", b"onetwo")
    request, of_json, empty, single_use = seen
    assert (request.method, str(request.url)) == ("POST", str(url))
    assert request.headers["x-team"] == "blue"
    assert (request.content, request.json()) == (b'{"model": "small"}', {"model": "small"})
    assert of_json.json() == {"max_tokens": 5}
    assert (empty.content, empty.json(), single_use.content) == (None, None, None)


def rest_of(content: bytes, at: int) -> io.BytesIO:
    file = io.BytesIO(content)
    file.seek(at)
    return file


BODIES: list[tuple[Callable[[], Any], bytes | None]] = [
    (lambda: "bücher", "bücher".encode()),
    (lambda: bytearray(b"abc"), b"abc"),
    (lambda: rest_of(b"0123", 1), b"123"),
    (lambda: {"a": "1", "b": "x y"}, b"a=1&b=x+y"),
    (lambda: [("a", "1"), ("a", "2")], b"a=1&a=2"),
    (lambda: aiohttp.BytesPayload(b"\xff\x00"), b"\xff\x00"),
    (lambda: FormData({"file": io.BytesIO(b"x")}), None),
    (lambda: io.BufferedReader(io.BytesIO(b"file")), None),
]


async def test_session_shows_a_body_in_memory_its_headers_and_the_query() -> None:
    seen: list[Request] = []
    async with SESSION.serve(
        answer(), cost=seen.append, headers={"X-One": "1", "X-Two": "1"}
    ) as at:
        for make, content in BODIES:
            await at.send(method="POST", body=make())
            assert seen[-1].content == content
            assert content is None or at.seen[-1] == ("POST", content)
        document = {"max_tokens": 5}
        await at.send(method="POST", json=document)
        assert seen[-1].json() is document
        await at.client.raw.get(at.url, params={"q": "1"}, headers=iter([("x-two", "2")]))
        assert seen[-1].url == at.url.with_query("q=1")
        assert (seen[-1].headers["x-one"], seen[-1].headers["X-Two"]) == ("1", "2")


@every(LIMITS, RETRIES)
async def test_hooks_are_called_once_for_all_attempts(integration: Integration) -> None:
    asked: list[str] = []

    def hook(name: str, value: object) -> Callable[[Request], Any]:
        def call(_: Request) -> object:
            asked.append(name)
            return value

        return call

    values = {"key": "us", "cost": 2, "priority": 1}
    hooks: dict[str, Any] = {name: hook(name, value) for name, value in values.items()}
    limiter, events = KeyedRateLimiter("100/h", guard=0.0), list[object]()
    limiter.observe(events.append)
    throttled, failed = answer(429, Retry_After="0"), answer(503)
    async with integration.serve(throttled, failed, answer(), limiter=limiter, **hooks) as at:
        assert (await at.send()).status == 200
    assert sorted(asked) == ["cost", "key", "priority"]
    assert (limiter.statistics("us").granted, list(limiter)) == (3, ["us"])
    assert (await limiter.peek("us")).remaining == 94
    retried = [event for event in events if isinstance(event, Retried)]
    assert [(it.key, it.attempt, it.status) for it in retried] == [("us", 2, 429), ("us", 3, 503)]


@pair
async def test_higher_priority_is_granted_first(integration: Integration) -> None:
    paths: list[str] = []

    async def handle(request: web.Request) -> web.Response:
        paths.append(request.path)
        return web.Response()

    def priority(request: Request) -> float:
        return float(request.headers["X-Priority"])

    async with integration.serve(handle, connections=4, priority=priority) as at:
        async with at.limiter.throttle():
            for path, value in (("low", "0"), ("lower", "-1.5"), ("high", "2")):
                at.start(path, headers={"X-Priority": value})
                await until(lambda: at.waiting == len(at.tasks))
            at.start("first", headers={"X-Priority": "0"}, throttle={"priority": 3})
            await until(lambda: at.waiting == len(at.tasks))
        await asyncio.gather(*at.tasks)
    assert paths == ["/first", "/high", "/low", "/lower"]


async def later(_: Request) -> int:
    return 1


def fails(request: Request) -> float:
    raise LookupError(f"no account for {request.method}")


WRONG: list[tuple[str, Any, type[Exception], str]] = [
    ("cost", fails, LookupError, "no account for GET"),
    ("key", fails, LookupError, "no account for GET"),
    ("priority", fails, LookupError, "no account for GET"),
    ("cost", always("1"), TypeError, "cost= must return tokens, .* got '1'"),
    ("cost", always(True), TypeError, "cost= must return tokens, .* got True"),
    ("cost", always(-1), ValueError, "a cost must be .* got -1"),
    ("cost", always(1000), CostTooHigh, "1000"),
    ("cost", later, TypeError, "cost= must be a plain function, got the asynchronous"),
    ("priority", later, TypeError, "priority= must be a plain function"),
    ("key", later, TypeError, "key= must be a plain function"),
    ("priority", always("high"), TypeError, "priority must be a finite number, got 'high'"),
    ("priority", always(math.inf), ValueError, "priority must be a finite number, got inf"),
    ("key", always(["us"]), TypeError, "a key has to be hashable, not list"),
]


@pair
async def test_wrong_result_or_override_is_named_and_takes_nothing(
    integration: Integration,
) -> None:
    for option, hook, error, text in WRONG:
        limiter = KeyedRateLimiter("10/h", concurrency_limit=1)
        async with integration.serve(answer(), limiter=limiter, **{option: hook}) as at:
            with pytest.raises(error, match=text):
                await at.send()
            assert at.seen == []
        # A limiter that has the key is the one that rejects a cost.
        assert len(limiter) <= (error in (ValueError, CostTooHigh))
        for key in limiter:
            statistics = limiter.statistics(key)
            assert (statistics.granted, statistics.in_flight, statistics.waiting) == (0, 0, 0)
    plain = RateLimiter("10/h", concurrency_limit=1)
    async with integration.serve(answer(), limiter=plain) as at:
        for throttle, error, text in WRONG_OVERRIDES:
            with pytest.raises(error, match=text):
                await at.send(throttle=throttle)
        assert at.seen == []
    assert (plain.statistics().granted, (await plain.peek()).remaining) == (0, 10)


@pair
async def test_none_is_the_default(integration: Integration) -> None:
    limiter, names = KeyedRateLimiter("10/h"), ("key", "cost", "priority")
    hooks: dict[str, Any] = dict.fromkeys((*names, "settle"), always(None))
    async with integration.serve(answer(), limiter=limiter, **hooks) as at:
        await at.send()
        await at.send(throttle=dict.fromkeys(names))
        assert list(limiter) == [f"{at.url.host}:{at.url.port}"]


# ---- overrides -----------------------------------------------------------------------------------


@every(OVERRIDES)
async def test_request_overrides_the_hooks(integration: Integration) -> None:
    limiter = KeyedRateLimiter("10/h", guard=0.0)
    hooks: dict[str, Any] = {"key": fails, "cost": fails, "priority": fails}
    async with integration.serve(answer(), limiter=limiter, **hooks) as at:
        await at.send(throttle={"key": "ours", "cost": 3, "priority": 1, "timeout": 5})
    assert list(limiter) == ["ours"]
    assert (await limiter.peek("ours")).remaining == 7
    resources = RateLimiter({"requests": "100/h", "tokens": "1000/h"})
    async with integration.serve(answer(), limiter=resources) as at:
        for throttle in ({"cost": {"tokens": 300}}, {}, {"cost": None}):
            await at.send(throttle=throttle)
    left = {name: round(it.remaining) for name, it in resources.statistics().resources.items()}
    assert left == {"requests": 97, "tokens": 700}


@every(OVERRIDES)
async def test_request_overrides_the_timeout(integration: Integration, clock: Clock) -> None:
    async with integration.serve(answer(), limiter=clock.limiter(), queue_timeout=60) as at:
        async with at.limiter.throttle():
            patient = at.start(throttle={"timeout": None})
            impatient = at.start(throttle={"timeout": 5})
            await until(lambda: at.waiting == 2)
            await clock.skip(6)
            with pytest.raises(ThrottleTimeout):
                await impatient
            await clock.skip(60)
            assert not patient.done()
        assert (await patient).status == 200


WRONG_OVERRIDES: list[tuple[Any, type[Exception], str]] = [
    ({"costs": 3}, TypeError, "throttle has no argument 'costs'; did you mean 'cost'"),
    ({"retry": Retry()}, TypeError, "throttle has no argument 'retry'"),
    (3, TypeError, r"throttle must be a mapping, such as \{\"cost\": 3\}, got 3"),
    ({"cost": "3"}, TypeError, "cost= must return tokens"),
    ({"cost": -3}, ValueError, "a cost must be .* got -3"),
    ({"cost": 11}, CostTooHigh, "11"),
    ({"priority": "1"}, TypeError, "priority must be a finite number"),
    ({"timeout": -1}, ValueError, "timeout of throttle must be .* got -1"),
    ({"timeout": "1"}, TypeError, "timeout of throttle must be .* got '1'"),
    ({"key": "us"}, ValueError, "key 'us' of throttle needs a KeyedRateLimiter"),
]


@lacking(OVERRIDES)
async def test_genuine_session_has_no_such_argument(integration: Integration) -> None:
    async with integration.serve(never) as at:
        with pytest.raises(TypeError, match="throttle"):
            await at.send(throttle={"cost": 3})


async def test_websocket_overrides_its_cost() -> None:
    seen: list[Response] = []
    options: dict[str, Any] = {"settle": seen.append, "retry": ONCE}
    async with SESSION.misbehave(RateLimiter("10/h"), **options) as (server, at):
        connect, headers = at.client.raw.ws_connect, {"X-Team": "blue"}
        async with connect(server.url / "websocket", headers=headers, throttle={"cost": 4}):
            pass
        assert (await at.limiter.peek()).remaining == 6
    request = seen[0].request
    assert (request.method, request.headers["X-Team"]) == ("GET", "blue")

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
from aiohttp import ClientSession, FormData, web

from aiothrottle import (
    CostTooHigh,
    KeyedRateLimiter,
    RateLimiter,
    Retry,
    RetryBudget,
    ThrottleTimeout,
    TokenBucket,
)
from aiothrottle.aiohttp import ThrottledSession, ThrottleMiddleware, throttled_middlewares
from aiothrottle.aiohttp.resending import without_resending
from aiothrottle.events import Retried
from aiothrottle.hooks import Request
from tests.integrations.clients import Feature, Integration, every, lacking
from tests.serving import answer, never, serving, until

LIMITS, RETRIES, OVERRIDES = Feature.LIMITS, Feature.RETRIES, Feature.OVERRIDES


def resources() -> RateLimiter:
    return RateLimiter({"requests": "100/h", "tokens": "1000/h"}, concurrency_limit=1)


def always(value: object) -> Callable[[object], Any]:
    """Make a hook that returns the value."""
    return lambda _: value


def left(limiter: RateLimiter) -> dict[str, float]:
    return {name: it.remaining for name, it in limiter.statistics().resources.items()}


# ---- what a hook sees ----------------------------------------------------------------------------


@every(LIMITS)
async def test_hook_sees_the_request_once(integration: Integration) -> None:
    seen: list[Request] = []

    def cost(request: Request) -> None:
        seen.append(request)

    async with integration.serve(answer(), cost=cost) as at:
        url = at.url / "path"
        await at.send("path", "POST", body=b'{"model": "small"}', headers={"X-Team": "blue"})
        assert at.seen == [("POST", b'{"model": "small"}')]
    (request,) = seen
    assert (request.method, str(request.url)) == ("POST", str(url))
    assert request.headers["x-team"] == "blue"
    assert request.content == b'{"model": "small"}'
    assert request.json() == {"model": "small"}


@every(LIMITS)
async def test_hook_sees_the_json_of_a_request(integration: Integration) -> None:
    seen: list[Request] = []
    async with integration.serve(answer(), cost=seen.append) as at:
        await at.send(method="POST", json={"max_tokens": 5})
    assert [request.json() for request in seen] == [{"max_tokens": 5}]


async def test_session_gives_the_object_itself() -> None:
    seen: list[Request] = []
    document = {"max_tokens": 5}
    async with (
        serving(answer()) as (url, _),
        ThrottledSession(RateLimiter(), cost=seen.append) as session,
    ):
        await session.post(url, json=document)
    assert seen[0].json() is document


@every(LIMITS)
async def test_request_without_a_body_has_none(integration: Integration) -> None:
    seen: list[Request] = []
    async with integration.serve(answer(), cost=seen.append) as at:
        await at.send()
    assert [(request.content, request.json()) for request in seen] == [(None, None)]


@every(LIMITS)
async def test_body_that_is_sent_once_is_not_consumed(integration: Integration) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b"one"
        yield b"two"

    seen: list[Request] = []
    async with integration.serve(answer(), cost=seen.append) as at:
        await at.send(method="POST", body=body())
        assert at.seen == [("POST", b"onetwo")]
    assert [request.content for request in seen] == [None]


def rest_of(content: bytes, at: int) -> io.BytesIO:
    file = io.BytesIO(content)
    file.seek(at)
    return file


@pytest.mark.parametrize(
    ("make", "content"),
    [
        (lambda: "bücher", "bücher".encode()),
        (lambda: bytearray(b"abc"), b"abc"),
        (lambda: rest_of(b"0123", 1), b"123"),
        (lambda: {"a": "1", "b": "x y"}, b"a=1&b=x+y"),
        (lambda: [("a", "1"), ("a", "2")], b"a=1&a=2"),
        (lambda: aiohttp.BytesPayload(b"\xff\x00"), b"\xff\x00"),
        (lambda: FormData({"file": io.BytesIO(b"x")}), None),
        (lambda: io.BufferedReader(io.BytesIO(b"file")), None),
    ],
    ids=["text", "bytearray", "BytesIO", "form", "pairs", "payload", "files", "file"],
)
async def test_session_shows_a_body_in_memory(
    make: Callable[[], Any],
    content: bytes | None,
) -> None:
    seen: list[Request] = []
    async with (
        serving(answer()) as (url, received),
        ThrottledSession(RateLimiter(), cost=seen.append) as session,
    ):
        await session.post(url, data=make())
    assert seen[0].content == content
    assert content is None or received == [("POST", content)]


async def test_session_shows_its_own_headers_and_the_query() -> None:
    seen: list[Request] = []
    headers = {"Authorization": "Bearer ours", "X-Team": "blue"}
    async with (
        serving(answer()) as (url, _),
        ThrottledSession(RateLimiter(), cost=seen.append, base_url=url, headers=headers) as session,
    ):
        await session.get("path", params={"q": "1"}, headers=iter([("x-team", "red")]))
    (request,) = seen
    assert request.url == (url / "path").with_query("q=1")
    assert (request.headers["authorization"], request.headers["X-Team"]) == ("Bearer ours", "red")


@every(LIMITS, RETRIES)
async def test_hooks_are_called_once_for_all_attempts(integration: Integration) -> None:
    asked: list[str] = []

    def hook(name: str, value: object) -> Any:  # noqa: ANN401
        def call(_: Request) -> object:
            asked.append(name)
            return value

        return call

    limiter = KeyedRateLimiter("100/h", algorithm=TokenBucket, burst=100, guard=0.0)
    retried: list[object] = []
    limiter.observe(lambda event: retried.append(event) if isinstance(event, Retried) else None)
    hooks = {"key": hook("key", "us"), "cost": hook("cost", 2), "priority": hook("priority", 1)}
    throttled, failed = answer(429, Retry_After="0"), answer(503)
    async with integration.serve(throttled, failed, answer(), limiter=limiter, **hooks) as at:
        assert (await at.send()).status == 200
    assert sorted(asked) == ["cost", "key", "priority"]
    assert limiter.statistics("us").granted == 3
    assert [event.key for event in retried if isinstance(event, Retried)] == ["us"] * 2


@every(Feature.HOPS)
async def test_each_hop_is_a_request_of_its_own(integration: Integration) -> None:
    async def redirect(request: web.Request) -> web.Response:
        if request.path == "/":
            raise web.HTTPFound("/there")
        return web.Response()

    seen: list[Request] = []
    async with integration.serve(redirect, cost=seen.append) as at:
        await at.send()
    assert [request.url.path for request in seen] == ["/", "/there"]


# ---- what they decide ----------------------------------------------------------------------------


@every(LIMITS)
async def test_cost_is_taken(integration: Integration) -> None:
    limiter = resources()
    costs = iter([{"tokens": 10}, None, {"requests": 2, "tokens": 5}])

    def cost(_: Request) -> Any:  # noqa: ANN401 - a cost or None
        return next(costs)

    async with integration.serve(answer(), limiter=limiter, cost=cost) as at:
        for remaining in ((99, 990), (98, 990), (96, 985)):
            await at.send()
            assert tuple(map(round, left(limiter).values())) == remaining


@every(LIMITS)
async def test_higher_priority_is_granted_first(integration: Integration) -> None:
    def priority(request: Request) -> float:
        return float(request.headers["X-Priority"])

    paths: list[str] = []

    async def handle(request: web.Request) -> web.Response:
        paths.append(request.path)
        return web.Response()

    async with integration.serve(handle, connections=3, priority=priority) as at:
        async with at.limiter.throttle():
            for path, value in (("low", "0"), ("lower", "-1.5"), ("high", "2")):
                at.start(path, headers={"X-Priority": value})
                await until(lambda: at.waiting == len(at.tasks))
        await asyncio.gather(*at.tasks)
    assert paths == ["/high", "/low", "/lower"]


# ---- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["key", "cost", "priority"])
@every(LIMITS)
async def test_failing_hook_takes_nothing(integration: Integration, option: str) -> None:
    def fails(_: Request) -> Any:  # noqa: ANN401
        raise LookupError("no such account")

    limiter = KeyedRateLimiter("10/h", concurrency_limit=1)
    async with integration.serve(answer(), limiter=limiter, **{option: fails}) as at:
        with pytest.raises(LookupError, match="no such account"):
            await at.send()
        assert (len(limiter), at.seen) == (0, [])


async def later(_: Request) -> int:
    return 1


@pytest.mark.parametrize(
    ("option", "hook", "error", "text"),
    [
        ("cost", always("1"), TypeError, "cost= must return tokens, .* got '1'"),
        ("cost", always(True), TypeError, "cost= must return tokens, .* got True"),
        ("cost", always(-1), ValueError, "a cost must be .* got -1"),
        ("cost", always(math.nan), ValueError, "a cost must be .* got nan"),
        ("cost", always(1000), CostTooHigh, "1000"),
        ("cost", later, TypeError, "cost= must be a plain function, got the asynchronous"),
        ("priority", later, TypeError, "priority= must be a plain function"),
        ("key", later, TypeError, "key= must be a plain function"),
        ("priority", always("high"), TypeError, "priority must be a finite number, got 'high'"),
        ("priority", always(None), TypeError, "priority must be a finite number, got None"),
        ("priority", always(math.inf), ValueError, "priority must be a finite number, got inf"),
        ("key", always(["us"]), TypeError, "a key has to be hashable, not list"),
    ],
)
@every(LIMITS)
async def test_wrong_result_of_a_hook_is_named(
    integration: Integration,
    option: str,
    hook: Any,  # noqa: ANN401 - or nonsense
    error: type[Exception],
    text: str,
) -> None:
    limiter = KeyedRateLimiter("10/h", concurrency_limit=1)
    async with integration.serve(answer(), limiter=limiter, **{option: hook}) as at:
        with pytest.raises(error, match=text):
            await at.send()
        assert at.seen == []
        for key in limiter:
            statistics = limiter.statistics(key)
            assert (statistics.granted, statistics.in_flight, statistics.waiting) == (0, 0, 0)


@pytest.mark.parametrize(
    ("cost", "error", "text"),
    [
        (5, TypeError, "a cost must be a mapping of the resources requests, tokens"),
        ({"token": 5}, ValueError, "a cost may have the resources requests, tokens, got 'token'"),
        ({"tokens": -1}, ValueError, "got -1"),
        ({"tokens": 5000}, CostTooHigh, "5000"),
    ],
)
@every(LIMITS)
async def test_wrong_cost_of_resources_is_named(
    integration: Integration,
    cost: Any,  # noqa: ANN401 - or nonsense
    error: type[Exception],
    text: str,
) -> None:
    limiter = resources()
    async with integration.serve(answer(), limiter=limiter, cost=always(cost)) as at:
        with pytest.raises(error, match=text):
            await at.send()
        assert (left(limiter), at.seen) == ({"requests": 100, "tokens": 1000}, [])


@pytest.mark.parametrize("option", ["key", "cost", "priority", "settle"])
@every(LIMITS)
async def test_hook_has_to_be_callable(integration: Integration, option: str) -> None:
    options: dict[str, Any] = {option: 5}
    with pytest.raises(TypeError, match=f"{option} must be a function of a hooks.Re.* got 5"):
        async with integration.client(KeyedRateLimiter(), **options):
            pass


# ---- overrides -----------------------------------------------------------------------------------


@every(OVERRIDES)
async def test_request_overrides_the_hooks(integration: Integration) -> None:
    limiter = KeyedRateLimiter("10/h", guard=0.0)
    asked: list[str] = []

    def hook(request: Request) -> Any:  # noqa: ANN401 - nonsense
        asked.append(request.method)

    hooks: dict[str, Any] = {"key": hook, "cost": hook, "priority": hook}
    async with integration.serve(answer(), limiter=limiter, **hooks) as at:
        await at.send(throttle={"key": "ours", "cost": 3, "priority": 1, "timeout": 5})
    assert (asked, list(limiter)) == ([], ["ours"])
    assert (await limiter.peek("ours")).remaining == 7


@every(OVERRIDES)
async def test_request_overrides_without_hooks(integration: Integration) -> None:
    limiter = resources()
    async with integration.serve(answer(), limiter=limiter) as at:
        await at.send(throttle={"cost": {"tokens": 300}})
        await at.send(throttle={})
        await at.send(throttle={"cost": None})
    assert tuple(map(round, left(limiter).values())) == (97, 700)


@every(OVERRIDES)
async def test_request_overrides_the_timeout(integration: Integration) -> None:
    async with integration.serve(answer(), queue_timeout=0.0) as at:
        async with at.limiter.throttle():
            with pytest.raises(ThrottleTimeout):
                await at.send()
            task = at.start(throttle={"timeout": None})
            await until(lambda: at.waiting)
        assert (await task).status == 200


@every(OVERRIDES)
async def test_request_overrides_the_priority(integration: Integration) -> None:
    async with integration.serve(never, connections=2) as at:
        async with at.limiter.throttle():
            at.start()
            await until(lambda: at.waiting == 1)
            at.start("first", throttle={"priority": 1})
            await until(lambda: at.waiting == 2)
        await until(lambda: at.seen)
        at.tasks[1].cancel()
        await until(lambda: len(at.seen) == 2)


@pytest.mark.parametrize(
    ("throttle", "error", "text"),
    [
        ({"costs": 3}, TypeError, "throttle has no argument 'costs'; did you mean 'cost'"),
        ({"retry": Retry()}, TypeError, "throttle has no argument 'retry'"),
        (3, TypeError, r"throttle must be a mapping, such as \{\"cost\": 3\}, got 3"),
        ({"cost": "3"}, TypeError, "cost= must return tokens"),
        ({"cost": -3}, ValueError, "a cost must be .* got -3"),
        ({"cost": 11}, CostTooHigh, "11"),
        ({"priority": None}, TypeError, "priority must be a finite number"),
        ({"timeout": -1}, ValueError, "timeout of throttle must be .* got -1"),
        ({"timeout": "1"}, TypeError, "timeout of throttle must be .* got '1'"),
        ({"key": "us"}, ValueError, "key 'us' of throttle needs a KeyedRateLimiter"),
    ],
)
@every(OVERRIDES)
async def test_wrong_override_is_named_and_takes_nothing(
    integration: Integration,
    throttle: Any,  # noqa: ANN401 - or nonsense
    error: type[Exception],
    text: str,
) -> None:
    limiter = RateLimiter("10/h", concurrency_limit=1)
    async with integration.serve(answer(), limiter=limiter) as at:
        with pytest.raises(error, match=text):
            await at.send(throttle=throttle)
        assert at.seen == []
    assert (limiter.statistics().granted, (await limiter.peek()).remaining) == (0, 10)


@lacking(OVERRIDES)
async def test_genuine_session_has_no_such_argument(integration: Integration) -> None:
    async with integration.serve(answer()) as at:
        with pytest.raises(TypeError, match="throttle"):
            await at.send(throttle={"cost": 3})


async def test_middleware_of_one_request_stands_for_an_override() -> None:
    limiter = RateLimiter("10/h", concurrency_limit=1)
    costly = ThrottleMiddleware(limiter, cost=always(3))
    async with (
        serving(answer()) as (url, _),
        ClientSession(middlewares=throttled_middlewares(limiter)) as session,
    ):
        async with session.get(url, middlewares=(costly,)):
            pass
        async with session.get(url):
            pass
    assert (await limiter.peek()).remaining == 6


async def test_websocket_overrides_its_cost() -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        websocket = web.WebSocketResponse()
        await websocket.prepare(request)
        return websocket

    limiter = RateLimiter("10/h")
    seen: list[Request] = []
    async with (
        serving(handle) as (url, _),
        ThrottledSession(limiter, settle=lambda it: seen.append(it.request)) as session,
    ):
        headers = {"X-Team": "blue"}
        async with session.ws_connect(url, headers=headers, throttle={"cost": 4}):
            pass
    assert (await limiter.peek()).remaining == 6
    assert (seen[0].method, seen[0].headers["X-Team"]) == ("GET", "blue")


# ---- both middlewares ----------------------------------------------------------------------------


async def test_factory_gives_retry_to_both_middlewares() -> None:
    limiter = RateLimiter(concurrency_limit=1)
    retry = Retry(
        attempts=3,
        backoff=0.001,
        statuses={418, 429},
        throttled_statuses={418},
        pause_jitter=0,
        budget=RetryBudget(),
    )
    events: list[object] = []
    limiter.observe(events.append)
    async with (
        serving(answer(418), answer(418), answer()) as (url, seen),
        ClientSession(middlewares=throttled_middlewares(limiter, retry=retry)) as session,
        session.get(url) as response,
    ):
        assert (response.status, len(seen)) == (200, 3)
    assert [type(event).__name__ for event in events].count("Throttled") == 2
    assert [event.attempt for event in events if isinstance(event, Retried)] == [2, 3]


async def test_factory_reports_a_retried_connection_error() -> None:
    limiter = KeyedRateLimiter(concurrency_limit=1)
    events: list[object] = []
    limiter.observe(events.append)

    async def cut(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    middlewares = throttled_middlewares(
        limiter, retry=Retry(attempts=2, backoff=0.001), key=lambda _: "us"
    )
    async with (
        serving(cut, answer()) as (url, _),
        without_resending(ClientSession(middlewares=middlewares)) as session,
        session.get(url) as response,
    ):
        assert response.status == 200
    (retried,) = (event for event in events if isinstance(event, Retried))
    assert (retried.key, retried.status) == ("us", None)


def test_factory_rejects_unknown_options() -> None:
    with pytest.raises(TypeError, match="throttled_middlewares has no argument 'retries'"):
        throttled_middlewares(RateLimiter(), retries=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]

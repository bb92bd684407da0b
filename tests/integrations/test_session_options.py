"""What a ThrottledSession can be told: keys, queue timeouts, hooks, budgets, what to retry."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from yarl import URL

from aiothrottle import KeyedRateLimiter, RateLimiter, ThrottleTimeout
from aiothrottle.aiohttp import Retry, RetryBudget, ThrottledSession, throttled_session
from aiothrottle.aiohttp.adapter import origin_of
from tests.serving import answer, hang_up, never, serving, until

QUICK = Retry(backoff=0.001, pause_jitter=0)

# ---- keys --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("http://example.org/path?query", "example.org"),
        ("http://example.org:80/", "example.org"),
        ("https://EXAMPLE.org:443/", "example.org"),
        ("https://example.org./", "example.org"),
        ("https://example.org:80/", "example.org:80"),
        ("http://example.org:8080/", "example.org:8080"),
        ("wss://example.org/", "example.org"),
        ("https://bücher.example/", "xn--bcher-kva.example"),
        ("https://xn--bcher-kva.example/", "xn--bcher-kva.example"),
        ("http://user:secret@example.org/", "example.org"),
        ("http://127.0.0.1:8080/", "127.0.0.1:8080"),
        ("http://[::1]/", "::1"),
        ("http://[::1]:8080/", "[::1]:8080"),
    ],
)
def test_the_key_of_a_url_is_its_host_as_dns_has_it(url: str, key: str) -> None:
    assert origin_of("GET", URL(url)) == key


async def test_each_host_has_its_own_limit_and_all_share_the_parent() -> None:
    parent = RateLimiter(concurrency_limit=2)
    limiter = KeyedRateLimiter(concurrency_limit=1, parent=parent)
    async with (
        serving(never) as (one, seen_by_one),
        serving(never) as (two, seen_by_two),
        serving(never) as (three, seen_by_three),
        ThrottledSession(limiter) as session,
    ):
        urls = [one, one, two, three]
        tasks = [asyncio.create_task(session.get(url)) for url in urls]
        await until(lambda: seen_by_one and seen_by_two)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(seen_by_one) == len(seen_by_two) == 1  # one at each host
        assert not seen_by_three  # two in all
        assert parent.statistics().in_flight == 2
        assert set(limiter._limiters) == {f"127.0.0.1:{url.port}" for url in urls}
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    assert parent.statistics().in_flight == 0


async def test_the_key_may_be_any_function_of_method_and_url() -> None:
    asked: list[tuple[str, URL]] = []

    def key(method: str, url: URL) -> str:
        asked.append((method, url))
        return url.path.split("/")[1]

    limiter = KeyedRateLimiter("10/s", overrides={"search": {"rate_limit": "1/h"}})
    async with serving(answer()) as (url, _), ThrottledSession(limiter, key=key) as session:
        await session.get(url / "search" / "a")
        await session.post(url / "users")
        assert asked == [("GET", url / "search" / "a"), ("POST", url / "users")]
        assert not await limiter.peek("search")
        assert await limiter.peek("users")


async def test_a_relative_url_has_the_key_of_the_base_url() -> None:
    limiter = KeyedRateLimiter("1/h")
    async with (
        serving(answer()) as (url, _),
        ThrottledSession(limiter, base_url=url) as session,
    ):
        await session.get("/page")
        assert not await limiter.peek(f"127.0.0.1:{url.port}")


async def test_a_key_function_that_raises_says_so_and_costs_nothing() -> None:
    def key(_: str, url: URL) -> str:
        raise LookupError(f"no account for {url.path}")

    limiter = KeyedRateLimiter(concurrency_limit=1)
    async with ThrottledSession(limiter, key=key) as session:
        with pytest.raises(LookupError, match="no account for /x"):
            await session.get("http://127.0.0.1:9/x")
        assert len(limiter) == 0


@pytest.mark.parametrize(
    "limiter", [RateLimiter(concurrency_limit=1), KeyedRateLimiter(concurrency_limit=1)]
)
async def test_what_is_no_url_is_refused_as_aiohttp_does(
    limiter: RateLimiter | KeyedRateLimiter,
) -> None:
    async with ThrottledSession(limiter) as session:
        with pytest.raises(aiohttp.InvalidUrlClientError):
            await session.get("http://[")


def test_a_key_needs_a_limiter_with_keys() -> None:
    with pytest.raises(ValueError, match="KeyedRateLimiter"):
        ThrottledSession(RateLimiter(1), key=lambda _, url: url)


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        ({"key": "host"}, TypeError, "key"),
        ({"queue_timeout": "1"}, TypeError, "queue_timeout"),
        ({"queue_timeout": -1}, ValueError, "queue_timeout"),
        ({"max_hold": float("nan")}, ValueError, "max_hold"),
        ({"max_hold": True}, TypeError, "max_hold"),
        (
            {"max_hold": 0},
            ValueError,
            "max_hold must be a finite number of seconds, above 0, or None",
        ),
        ({"retry": 5}, TypeError, "retry"),
        ({"session": "https://example.org"}, TypeError, "session"),
    ],
)
def test_a_wrong_argument_is_refused_at_once_and_named(
    arguments: dict[str, Any], error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named):
        ThrottledSession(KeyedRateLimiter(1), **arguments)


# ---- waiting -----------------------------------------------------------------------------------


async def test_a_queue_timeout_refuses_at_once_what_the_rate_will_not_allow_in_time() -> None:
    limiter = RateLimiter("1/h")
    async with serving(answer()) as (url, seen), ThrottledSession(limiter, queue_timeout=5) as it:
        await it.get(url)
        with pytest.raises(ThrottleTimeout) as refused:
            await it.get(url)
        assert 3500 < refused.value.retry_after <= 3600
        assert len(seen) == 1


async def test_waiting_for_a_slot_is_outside_of_the_timeouts_of_aiohttp() -> None:
    limiter = RateLimiter(concurrency_limit=1)
    timeout = aiohttp.ClientTimeout(total=0.5)
    async with serving(answer()) as (url, _), ThrottledSession(limiter, timeout=timeout) as session:
        permit = await limiter.acquire()
        task = asyncio.create_task(session.get(url))
        await asyncio.sleep(0.6)
        assert not task.done()
        permit.release()
        assert (await task).status == 200


# ---- what is tried again -----------------------------------------------------------------------


def busy(response: aiohttp.ClientResponse) -> bool | None:
    return True if response.headers.get("X-Busy") else None


async def busy_body(response: aiohttp.ClientResponse) -> bool | None:
    return "slow down" in await response.text()


async def busy_answer(_: web.Request) -> web.Response:
    return web.Response(text="slow down", headers={"X-Busy": "1"})


@pytest.mark.parametrize("hook", [busy, busy_body])
async def test_a_hook_sees_refusals_that_have_another_status(hook: Callable[..., Any]) -> None:
    retry = Retry(backoff=0.001, should_retry=hook)
    limiter = RateLimiter(concurrency_limit=1)
    async with (
        serving(busy_answer, answer()) as (url, seen),
        ThrottledSession(limiter, retry=retry) as session,
        session.post(url) as response,
    ):
        assert await response.text() == "body"
        assert len(seen) == 2
        assert limiter._engine.pause.began_at > 0  # a refusal like others


async def test_a_hook_can_say_that_a_429_is_final() -> None:
    retry = Retry(backoff=0.001, should_retry=lambda _: False)
    async with (
        serving(answer(429, Retry_After="30")) as (url, seen),
        ThrottledSession(RateLimiter(), retry=retry) as session,
    ):
        assert (await session.get(url)).status == 429
        assert len(seen) == 1


async def test_a_hook_that_raises_says_so_and_the_slot_comes_back() -> None:
    def hook(_: aiohttp.ClientResponse) -> bool:
        raise LookupError("no such field")

    limiter = RateLimiter(concurrency_limit=1)
    async with (
        serving(answer(200)) as (url, _),
        ThrottledSession(limiter, retry=Retry(should_retry=hook)) as session,
    ):
        with pytest.raises(LookupError, match="no such field"):
            await session.get(url)
        assert limiter.statistics().in_flight == 0


async def test_which_exceptions_are_tried_again_is_the_users_choice() -> None:
    timeout = aiohttp.ClientTimeout(total=0.05)
    async with serving(never, answer()) as (url, seen):
        retry = Retry(backoff=0.001, exceptions=(TimeoutError,))
        async with ThrottledSession(RateLimiter(), retry=retry, timeout=timeout) as session:
            assert (await session.get(url)).status == 200
        assert len(seen) == 2
    async with serving(hang_up, hang_up, answer()) as (url, seen):
        retry = Retry(backoff=0.001, exceptions=())
        async with ThrottledSession(RateLimiter(), retry=retry) as session:
            with pytest.raises(aiohttp.ServerDisconnectedError):
                await session.post(url)
        assert len(seen) == 1


async def test_a_budget_that_is_spent_ends_further_attempts_at_once() -> None:
    retry = Retry(attempts=10, backoff=0.001, budget=RetryBudget(capacity=30, cost=14))
    async with (
        serving(answer(502)) as (url, seen),
        ThrottledSession(RateLimiter(), retry=retry) as session,
    ):
        assert (await session.get(url)).status == 502
        assert len(seen) == 3  # 28 of 30 are gone
        assert (await session.get(url)).status == 502
        assert len(seen) == 4


async def test_a_success_after_another_attempt_gives_its_cost_back() -> None:
    retry = Retry(backoff=0.001, budget=RetryBudget(capacity=14, cost=14))
    failing = [answer(502), answer(), answer(502), answer()]
    async with (
        serving(*failing) as (url, seen),
        ThrottledSession(RateLimiter(), retry=retry) as session,
    ):
        for _ in range(2):
            assert (await session.get(url)).status == 200
        assert len(seen) == 4


# ---- refusals of many at once ------------------------------------------------------------------


class Refusing:
    """Holds the first requests, and refuses them one by one when told."""

    def __init__(self, count: int, **headers: str) -> None:
        self.arrived = 0
        self.refuse = [asyncio.Event() for _ in range(count)]
        self._answers = answer(429, **headers), answer()

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        number = self.arrived
        self.arrived += 1
        refuse, go = self._answers
        if number < len(self.refuse):
            await self.refuse[number].wait()
            return await refuse(request)
        return await go(request)


async def test_the_second_refusal_of_what_was_sent_before_does_not_draw_another_pause() -> None:
    refusing = Refusing(2)
    limiter = RateLimiter(concurrency_limit=2)
    retry = Retry(backoff=1000, max_backoff=1000, max_retry_after=2000)
    async with serving(refusing) as (url, _), ThrottledSession(limiter, retry=retry) as session:
        tasks = [asyncio.create_task(session.get(url)) for _ in range(2)]
        await until(lambda: refusing.arrived == 2)
        refusing.refuse[0].set()
        await until(lambda: limiter.statistics().in_flight == 1)
        until_when = limiter._engine.pause.ends_at
        refusing.refuse[1].set()
        await until(lambda: limiter.statistics().in_flight == 0)
        assert limiter._engine.pause.ends_at == until_when
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def test_the_pause_is_as_long_as_the_longest_that_was_told_and_not_their_sum() -> None:
    refusing = Refusing(2, Retry_After="30")
    limiter = RateLimiter(concurrency_limit=2)
    async with serving(refusing) as (url, _), ThrottledSession(limiter) as session:
        tasks = [asyncio.create_task(session.get(url)) for _ in range(2)]
        await until(lambda: refusing.arrived == 2)
        for event in refusing.refuse:
            event.set()
        await until(lambda: limiter.statistics().in_flight == 0)
        assert 29 < limiter.statistics().paused_for <= 31
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def test_the_pause_ends_at_another_moment_for_each_client() -> None:
    ends: set[float] = set()
    for _ in range(5):
        limiter = RateLimiter(concurrency_limit=1)
        async with (
            serving(answer(429, Retry_After="5")) as (url, _),
            ThrottledSession(limiter, retry=Retry(attempts=1)) as session,
        ):
            await session.get(url)
        paused = limiter._engine.pause
        ends.add(pause := paused.ends_at - paused.began_at)
        assert 5.0 <= pause <= 5.5
    assert len(ends) > 1


# ---- options that can be read once -------------------------------------------------------------


def dump(value: object) -> str:
    return json.dumps(value, default=list)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"headers": iter([("X-Mine", "1"), ("X-Mine", "2")])}, "X-Mine=1,2"),
        ({"headers": ((name, "1") for name in ["X-Mine"])}, "X-Mine=1"),
        ({"cookies": iter([("a", "1")])}, "Cookie=a=1"),
        ({"cookies": zip("ab", "12", strict=True)}, "Cookie=a=1; b=2"),
        ({"skip_auto_headers": iter(["User-Agent"])}, "User-Agent="),
        ({"json": iter([1, 2])}, "body=[1, 2]"),
        ({"data": b"x", "headers": iter([("X-Mine", "1")])}, "X-Mine=1"),
    ],
)
async def test_iterator_is_the_same_for_each_attempt(
    options: dict[str, Any], expected: str
) -> None:
    received: list[str] = []
    name = expected.partition("=")[0]

    async def refuse_twice(request: web.Request) -> web.Response:
        found = (await request.text()) if name == "body" else ",".join(values(request, name))
        received.append(f"{name}={found}")
        return web.Response(status=429 if len(received) < 3 else 200)

    async with (
        serving(refuse_twice) as (url, _),
        ThrottledSession(RateLimiter(), retry=QUICK, json_serialize=dump) as session,
        session.post(url, **options) as response,
    ):
        assert response.status == 200
    assert received == [expected] * 3


def values(request: web.Request, name: str) -> list[str]:
    return request.headers.getall(name, [])


async def test_handshake_has_the_same_headers_at_each_attempt() -> None:
    received: list[tuple[str | None, str | None]] = []

    async def refuse_first(request: web.Request) -> web.StreamResponse:
        names = ("X-Mine", "Sec-WebSocket-Protocol")
        received.append((request.headers.get(names[0]), request.headers.get(names[1])))
        if len(received) == 1:
            return web.Response(status=429)
        socket = web.WebSocketResponse(protocols=["chat"])
        await socket.prepare(request)
        await socket.close()
        return socket

    async with (
        serving(refuse_first) as (url, _),
        ThrottledSession(RateLimiter(), retry=QUICK) as session,
        session.ws_connect(
            url, headers=iter([("X-Mine", "1")]), protocols=iter(["chat"])
        ) as socket,
    ):
        assert socket.protocol == "chat"
    assert received == [("1", "chat")] * 2


async def test_iterator_that_raises_does_so_when_awaited() -> None:
    def raising() -> Iterator[tuple[str, str]]:
        raise LookupError
        yield "", ""

    limiter = RateLimiter(concurrency_limit=1)
    async with ThrottledSession(limiter) as session:
        request = session.get("http://127.0.0.1:9/", headers=raising())
        with pytest.raises(LookupError):
            await request
    assert limiter.statistics().granted == 0


@pytest.mark.parametrize("data", [iter([("a", "1")]), (piece for piece in [b"x"])])
async def test_body_of_a_plain_iterator_is_refused_as_by_aiohttp(data: object) -> None:
    async with serving(answer()) as (url, seen), ThrottledSession(RateLimiter()) as session:
        with pytest.raises(TypeError, match="pairs allowed"):
            await session.post(url, data=data)
        assert not seen


async def test_async_generator_is_sent_once_and_the_refusal_given_back() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"one"

    async with (
        serving(answer(429), answer()) as (url, seen),
        ThrottledSession(RateLimiter(), retry=QUICK) as session,
        session.post(url, data=pieces(), headers=iter([("X", "1")])) as response,
    ):
        assert response.status == 429
        assert seen == [("POST", b"one")]


needs_trackers = pytest.mark.skipif(
    not hasattr(aiohttp, "UploadTracker"), reason="aiohttp has them since 3.14.4"
)


@needs_trackers
@pytest.mark.parametrize("front", [ThrottledSession, throttled_session])
async def test_upload_tracker_counts_all_attempts(front: Callable[..., Any]) -> None:
    tracker = aiohttp.UploadTracker()
    async with (
        serving(answer(429), answer(429), answer()) as (url, seen),
        front(RateLimiter(), retry=QUICK) as session,
    ):
        request = asyncio.create_task(session.post(url, data=b"four", upload_tracker=tracker))
        await until(lambda: len(seen) > 1)
        assert not tracker.upload_complete.done()
        assert (await request).status == 200
        await tracker.upload_complete
        assert (tracker.attempts, tracker.bytes_written) == (3, 4)
        with pytest.raises(RuntimeError, match="already bound"):
            await session.post(url, data=b"four", upload_tracker=tracker)
        assert len(seen) == 3


@needs_trackers
async def test_upload_tracker_ends_when_nothing_was_sent() -> None:
    limiter = RateLimiter(concurrency_limit=1)
    tracker = aiohttp.UploadTracker()
    async with ThrottledSession(limiter, queue_timeout=0.01) as session, limiter.throttle():
        with pytest.raises(ThrottleTimeout):
            await session.post("http://127.0.0.1:9/", data=b"x", upload_tracker=tracker)
    with pytest.raises(aiohttp.UploadAbortedError):
        await tracker.upload_complete

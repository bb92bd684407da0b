"""The middlewares in a genuine session, beside the session of our own where both do the same."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple, TypeAlias

import aiohttp
import pytest
from aiohttp import (
    ClientHandlerType,
    ClientMiddlewareType,
    ClientRequest,
    ClientResponse,
    ClientSession,
    ClientTimeout,
)

from aiothrottle import KeyedRateLimiter, LimiterClosed, RateLimiter, ThrottleTimeout
from aiothrottle.aiohttp import (
    Retry,
    RetryMiddleware,
    ThrottledSession,
    ThrottleMiddleware,
    throttled_session,
)
from tests.misbehaving_server import MisbehavingServer
from tests.serving import until

pytestmark = [
    pytest.mark.uvloop,
    # aiohttp says so of a connection that is collected in one cycle with its response.
    pytest.mark.filterwarnings("ignore:Unclosed connection:ResourceWarning"),
]

ONCE = Retry(attempts=1)
QUICK = Retry(attempts=3, backoff=0.001)
Front: TypeAlias = Callable[..., Any]
FRONTS: list[Front] = [ThrottledSession, throttled_session]
both_fronts = pytest.mark.parametrize("front", FRONTS)


class Scene(NamedTuple):
    server: MisbehavingServer
    limiter: RateLimiter
    session: Any

    async def get(self, path: str, **options: object) -> ClientResponse:
        response: ClientResponse = await self.session.get(self.server.url / path, **options)
        return response

    async def text(self, path: str, **options: object) -> str:
        async with self.session.get(self.server.url / path, **options) as response:
            text: str = await response.text()
            return text

    @property
    def granted(self) -> int:
        return self.limiter.statistics().granted


@asynccontextmanager
async def scene(front: Front, **options: object) -> AsyncGenerator[Scene]:
    """One slot, and a session; nothing may be in flight or waiting at the end."""
    limiter = RateLimiter(concurrency_limit=1)
    async with MisbehavingServer() as server:
        # A signal does not interrupt uvloop.
        async with front(limiter, **options) as session, asyncio.timeout(10):
            yield Scene(server, limiter, session)
        statistics = limiter.statistics()
        assert (statistics.in_flight, statistics.waiting) == (0, 0)


def session_of(*middlewares: ClientMiddlewareType | None) -> Front:
    """Make what makes a session of these; `None` stands for the one that throttles."""

    def front(limiter: RateLimiter) -> ClientSession:
        throttle = ThrottleMiddleware(limiter, retry=ONCE)
        return ClientSession(middlewares=[each or throttle for each in middlewares])

    return front


async def send_twice(request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
    await handler(request)
    return await handler(request)


# ---- middlewares among middlewares -------------------------------------------------------------


def test_they_are_hashable_since_aiohttp_keeps_chains_of_them_by_their_hash() -> None:
    throttle, retry = ThrottleMiddleware(RateLimiter()), RetryMiddleware()
    assert len({throttle, retry, throttle}) == 2


async def test_each_hop_is_charged_to_its_own_host() -> None:
    limiter = KeyedRateLimiter(concurrency_limit=1)
    async with MisbehavingServer() as one, MisbehavingServer() as other:
        away = (one.url / "redirect-away").with_query(to=str(other.url / "redirect"))
        async with throttled_session(limiter) as session, session.get(away) as response:
            assert (await response.text(), response.url) == ("body", other.url / "whole")
        hosts = [f"127.0.0.1:{server.url.port}" for server in (one, other)]
        assert [limiter[host].statistics().granted for host in hosts] == [1, 2]
        assert [limiter[host].statistics().in_flight for host in hosts] == [0, 0]


async def test_a_chain_of_redirects_is_one_request_for_the_session() -> None:
    limiter = KeyedRateLimiter(concurrency_limit=1)
    async with MisbehavingServer() as one, MisbehavingServer() as other:
        away = (one.url / "redirect-away").with_query(to=str(other.url / "redirect"))
        async with ThrottledSession(limiter) as session, session.get(away) as response:
            assert await response.text() == "body"
        hosts = [f"127.0.0.1:{server.url.port}" for server in (one, other)]
        assert [limiter[host].statistics().granted for host in hosts] == [1, 0]


@pytest.mark.parametrize(("order", "tokens"), [("outside", 2), ("inside", 1)])
async def test_digest_authentication_at_one_slot(order: str, tokens: int) -> None:
    digest = aiohttp.DigestAuthMiddleware("user", "secret")
    chain = [digest, None] if order == "outside" else [None, digest]
    async with scene(session_of(*chain)) as at:
        assert await at.text("digest") == "body"
        assert at.granted == tokens
        assert at.server.hits["/digest"] == 2


async def test_digest_authentication_below_the_session() -> None:
    digest = aiohttp.DigestAuthMiddleware("user", "secret")
    async with scene(ThrottledSession, middlewares=[digest]) as at:
        assert await at.text("digest") == "body"
        assert at.granted == 1


async def test_digest_authentication_around_all_of_a_throttled_session() -> None:
    digest = aiohttp.DigestAuthMiddleware("user", "secret")
    async with scene(throttled_session, middlewares=[digest]) as at:
        assert await at.text("digest") == "body"
        assert at.granted == 2


@pytest.mark.parametrize("path", ["whole", "large", "stall"])
@pytest.mark.parametrize(("chain", "tokens"), [((send_twice, None), 2), ((None, send_twice), 1)])
async def test_a_middleware_that_sends_twice_never_waits_for_itself(
    chain: tuple[ClientMiddlewareType | None, ...], tokens: int, path: str
) -> None:
    async with scene(session_of(*chain)) as at:
        response = await at.get(path)
        assert at.server.hits[f"/{path}"] == 2
        assert at.granted == tokens
        response.close()
        (await at.limiter.acquire(timeout=1.0)).release()


async def test_one_slot_holds_one_of_those_that_are_sent_twice() -> None:
    async with scene(session_of(send_twice, None)) as at:
        response = await at.get("stall")
        assert at.limiter.statistics().in_flight == 1
        response.close()


async def test_middlewares_of_the_user_are_around_all_attempts() -> None:
    seen: list[int] = []

    async def outer(request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        response = await handler(request)
        seen.append(response.status)
        return response

    async with scene(throttled_session, retry=QUICK, middlewares=[outer]) as at:
        at.server.throttled_times = 2
        assert await at.text("throttled") == "body"
        assert (seen, at.granted) == ([200], 3)


async def test_a_request_with_middlewares_of_its_own_has_none_of_ours() -> None:
    async with scene(throttled_session) as at:
        assert await at.text("whole", middlewares=()) == "body"
        assert at.granted == 0


async def test_many_at_once_are_no_more_than_the_limit_at_the_server() -> None:
    limiter = RateLimiter(concurrency_limit=3)
    async with MisbehavingServer() as server, throttled_session(limiter) as session:

        async def fetch() -> None:
            async with session.get(server.url / "large") as response:
                await response.content.readexactly(100_000)

        await asyncio.gather(*(fetch() for _ in range(20)))
        assert (server.hits["/large"], server.peak) == (20, 3)


# ---- websockets --------------------------------------------------------------------------------


@both_fronts
@pytest.mark.parametrize("hold", [False, True])
async def test_a_websocket_holds_its_slot_if_it_is_told_so(front: Front, *, hold: bool) -> None:
    async with scene(front, hold_websockets=hold) as at:
        at.server.go.clear()
        async with at.session.ws_connect(at.server.url / "websocket") as websocket:
            assert at.limiter.statistics().in_flight == int(hold)
            at.server.go.set()
            assert (await websocket.receive()).type is aiohttp.WSMsgType.CLOSE
        assert at.granted == 1


@both_fronts
async def test_a_websocket_that_is_refused_is_opened_the_second_time(front: Front) -> None:
    async with scene(front, retry=QUICK) as at:
        at.server.go.set()
        async with at.session.ws_connect(at.server.url / "websocket-throttled-once") as websocket:
            assert (await websocket.receive()).type is aiohttp.WSMsgType.CLOSE
        assert at.granted == 2


@both_fronts
async def test_nobody_is_asked_to_judge_a_websocket(front: Front) -> None:
    retry = Retry(attempts=2, backoff=0.001, should_retry=lambda response: response.status != 200)
    async with scene(front, retry=retry, hold_websockets=True) as at:
        at.server.go.clear()
        async with at.session.ws_connect(at.server.url / "websocket") as websocket:
            assert (at.granted, at.limiter.statistics().in_flight) == (1, 1)
            at.server.go.set()
            assert (await websocket.receive()).type is aiohttp.WSMsgType.CLOSE


# ---- trying again ------------------------------------------------------------------------------


@both_fronts
async def test_every_attempt_pays_and_comes_no_earlier_than_the_server_says(front: Front) -> None:
    async with scene(front, retry=QUICK) as at:
        at.server.throttled_times = 2
        start = asyncio.get_running_loop().time()
        assert await at.text("throttled") == "body"
        assert asyncio.get_running_loop().time() - start >= 0.098  # uvloop's clock is coarse
        assert (at.granted, at.server.hits["/throttled"]) == (3, 3)


@both_fronts
async def test_a_refusal_with_a_large_body_does_not_keep_the_slot_of_the_next_try(
    front: Front,
) -> None:
    async with scene(front, retry=QUICK) as at:
        assert await at.text("throttled-large") == "body"


@both_fronts
async def test_a_request_that_is_refused_before_its_upload_is_read_is_sent_again(
    front: Front,
) -> None:
    async with scene(front, retry=QUICK) as at:
        upload = b"x" * 500_000
        async with at.session.post(at.server.url / "throttled-early", data=upload) as response:
            assert await response.text() == "500000"


@both_fronts
async def test_a_refusal_in_place_of_100_continue_is_tried_again(front: Front) -> None:
    async with scene(front, retry=QUICK) as at:
        url = at.server.url / "throttled-expectation"
        async with at.session.post(url, data=b"upload", expect100=True) as response:
            assert await response.text() == "upload"


async def test_the_cookie_of_a_refusal_is_kept_by_the_session_alone() -> None:
    cookies: list[str | None] = []
    for front in FRONTS:
        jar = aiohttp.CookieJar(unsafe=True)  # that is, for numbers in place of names as well
        async with scene(front, retry=QUICK, cookie_jar=jar) as at:
            assert await at.text("throttled-once") == "body"
            cookies.append(at.server.seen[1].headers.get("Cookie"))
    assert cookies == ["a=b", None]


@both_fronts
async def test_raise_for_status_raises_after_the_last_attempt(front: Front) -> None:
    async with scene(front, retry=QUICK, raise_for_status=True) as at:
        at.server.throttled_times = 1
        assert await at.text("throttled") == "body"
        at.server.throttled_times = 1 << 30
        with pytest.raises(aiohttp.ClientResponseError) as error:
            await at.get("throttled")
        assert error.value.status == 429
        assert at.server.hits["/throttled"] == 2 + 3


@both_fronts
async def test_a_should_retry_that_raises_costs_no_slot(front: Front) -> None:
    def should_retry(_: ClientResponse) -> bool:
        raise LookupError

    async with scene(front, retry=Retry(should_retry=should_retry)) as at:
        with pytest.raises(LookupError):
            await at.get("large")
        assert at.limiter.statistics().in_flight == 0


@both_fronts
async def test_what_is_read_to_judge_a_response_can_be_read_again(front: Front) -> None:
    async def should_retry(response: ClientResponse) -> bool:
        return "limit" in await response.text()

    async with scene(front, retry=Retry(should_retry=should_retry)) as at:
        assert await at.text("later") == "xxxx"


async def test_the_wait_before_another_attempt_counts_for_the_total_timeout() -> None:
    async with scene(throttled_session, retry=QUICK) as at:
        at.server.retry_after = "Retry-After: 5\r\n"
        with pytest.raises(TimeoutError):
            await at.get("throttled", timeout=ClientTimeout(total=0.05))


# ---- waiting -----------------------------------------------------------------------------------


@both_fronts
async def test_queue_timeout_passes_aiohttp_once_and_unchanged(front: Front) -> None:
    async with scene(front, queue_timeout=0.02) as at:
        permit = await at.limiter.acquire()
        with pytest.raises(ThrottleTimeout) as error:
            await at.get("whole")
        assert error.value.retry_after == 0.0
        permit.release()
        assert at.limiter.statistics().rejected == 1
        assert not at.server.connections


@both_fronts
async def test_queue_timeout_refuses_at_once_where_the_rate_is_known(front: Front) -> None:
    limiter = RateLimiter("1/h")
    async with MisbehavingServer() as server, front(limiter, queue_timeout=60) as session:
        await session.get(server.url / "whole")
        with pytest.raises(ThrottleTimeout) as error:
            await session.get(server.url / "whole")
        assert 3590 < error.value.retry_after <= 3600


@both_fronts
@pytest.mark.parametrize("closed", [False, True])
async def test_what_the_limiter_raises_is_never_tried_again(front: Front, *, closed: bool) -> None:
    retry = Retry(attempts=3, backoff=0.001, exceptions=(Exception,))
    async with scene(front, retry=retry, queue_timeout=0.01) as at:
        permit = await at.limiter.acquire()
        if closed:
            await at.limiter.aclose()
        with pytest.raises(LimiterClosed if closed else ThrottleTimeout):
            await at.get("whole")
        permit.release()
        assert at.limiter.statistics().rejected == (0 if closed else 1)


@both_fronts
async def test_a_request_that_is_cancelled_while_it_waits_leaves_the_line(front: Front) -> None:
    async with scene(front) as at:
        permit = await at.limiter.acquire()
        task = asyncio.ensure_future(at.get("whole"))
        await until(lambda: at.limiter.statistics().waiting)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert at.limiter.statistics().waiting == 0
        permit.release()
        assert await at.text("whole") == "body"


@both_fronts
async def test_a_request_that_is_cancelled_while_it_is_sent_gives_its_slot_back(
    front: Front,
) -> None:
    async with scene(front) as at:
        task = asyncio.ensure_future(at.get("silent"))
        await until(lambda: at.server.open)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert at.limiter.statistics().in_flight == 0


@both_fronts
async def test_a_request_that_is_cancelled_between_attempts_holds_nothing(front: Front) -> None:
    async with scene(front, retry=QUICK) as at:
        at.server.retry_after = "Retry-After: 5\r\n"
        task = asyncio.ensure_future(at.get("throttled"))
        await until(lambda: at.limiter.statistics().paused_for)
        await until(lambda: not at.limiter.statistics().in_flight)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@both_fronts
async def test_cancelled_anywhere_a_request_leaves_nothing_behind(front: Front) -> None:
    async with scene(front, retry=QUICK) as at:
        at.server.retry_after = "Retry-After: 0.001\r\n"
        for turns in range(60):
            task = asyncio.ensure_future(at.text("throttled-large" if turns % 2 else "throttled"))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            at.server.hits.clear()
            assert at.limiter.statistics().in_flight == 0


@both_fronts
async def test_a_limiter_that_is_closed_refuses_those_who_wait_and_who_come(front: Front) -> None:
    async with scene(front) as at:
        permit = await at.limiter.acquire()
        task = asyncio.ensure_future(at.get("whole"))
        await until(lambda: at.limiter.statistics().waiting)
        await at.limiter.aclose()
        with pytest.raises(LimiterClosed):
            await task
        with pytest.raises(LimiterClosed):
            await at.get("whole")
        permit.release()
        assert not at.server.connections


async def test_the_total_timeout_runs_while_a_request_waits_in_the_middleware() -> None:
    async with scene(throttled_session) as at:
        permit = await at.limiter.acquire()
        with pytest.raises(TimeoutError):
            await at.get("whole", timeout=ClientTimeout(total=0.02))
        assert at.limiter.statistics().waiting == 0
        permit.release()
        assert await at.text("whole") == "body"
        assert at.server.hits["/whole"] == 1


@pytest.mark.parametrize(("front", "before"), [(ThrottledSession, 0), (throttled_session, 1)])
async def test_traces_begin_when_aiohttp_is_asked(front: Front, before: int) -> None:
    started: list[object] = []

    async def start(*_: object) -> None:
        started.append(_)

    trace = aiohttp.TraceConfig()
    trace.on_request_start.append(start)
    async with scene(front, trace_configs=[trace]) as at:
        permit = await at.limiter.acquire()
        task = asyncio.ensure_future(at.text("whole"))
        await until(lambda: at.limiter.statistics().waiting)
        assert len(started) == before
        permit.release()
        assert await task == "body"
        assert len(started) == 1


# ---- what is wrong is said clearly -------------------------------------------------------------

MAKERS: list[Front] = [ThrottledSession, throttled_session, ThrottleMiddleware]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"limiter": 5}, TypeError, "limiter must be a RateLimiter"),
        ({"limiter": None}, TypeError, "limiter must be a RateLimiter"),
        ({"limiter": RateLimiter}, TypeError, "limiter must be a RateLimiter"),
        ({"key": "host", "limiter": KeyedRateLimiter()}, TypeError, "key must be a function"),
        ({"key": str}, ValueError, "key= needs a KeyedRateLimiter"),
        ({"retry": 3}, TypeError, "retry must be a Retry"),
        ({"retry": None}, TypeError, "retry must be a Retry"),
        ({"queue_timeout": "1"}, TypeError, "queue_timeout must be a finite number"),
        ({"queue_timeout": True}, TypeError, "queue_timeout must be a finite number"),
        ({"queue_timeout": -1}, ValueError, "queue_timeout must be a finite number"),
        ({"queue_timeout": float("nan")}, ValueError, "queue_timeout must be a finite number"),
        ({"max_hold": float("inf")}, ValueError, "max_hold must be a finite number"),
        ({"max_hold": 0.0}, ValueError, "max_hold must be a finite number of seconds, above 0"),
        ({"max_hold": [1]}, TypeError, "max_hold must be a finite number"),
    ],
)
async def test_arguments_of_the_wrong_kind_are_named(
    make: Front, options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        make(**{"limiter": RateLimiter(), **options})


def test_what_is_no_retry_is_refused() -> None:
    with pytest.raises(TypeError, match="retry must be a Retry"):
        RetryMiddleware(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@both_fronts
async def test_a_key_function_that_raises_costs_nothing(front: Front) -> None:
    def key(method: str, _: object) -> str:
        raise LookupError(method)

    limiter = KeyedRateLimiter(concurrency_limit=1)
    async with MisbehavingServer() as server, front(limiter, key=key) as session:
        with pytest.raises(LookupError, match="GET"):
            await session.get(server.url)
        assert (len(limiter), server.connections) == (0, 0)


@both_fronts
async def test_a_key_that_is_not_hashable_is_named(front: Front) -> None:
    limiter = KeyedRateLimiter(concurrency_limit=1)

    def key(_: str, url: object) -> object:
        return [url]

    async with MisbehavingServer() as server, front(limiter, key=key) as session:
        with pytest.raises(TypeError, match="key"):
            await session.get(server.url)
        assert (len(limiter), server.connections) == (0, 0)


@both_fronts
@pytest.mark.parametrize("used", [False, True])
async def test_a_closed_session_is_a_clear_error(front: Front, *, used: bool) -> None:
    async with scene(front) as at:
        if used:
            assert await at.text("whole") == "body"
        await at.session.close()
        with pytest.raises(RuntimeError, match="closed"):
            await at.get("whole")
        assert at.limiter.statistics().in_flight == 0


@both_fronts
@pytest.mark.parametrize("limiter", [RateLimiter(), KeyedRateLimiter()], ids=["one", "keyed"])
@pytest.mark.parametrize("url", ["http://[", "http://127.0.0.1:99999/", "nowhere", "http:///"])
async def test_an_invalid_url_is_an_error_of_aiohttp(
    front: Front, limiter: object, url: str
) -> None:
    async with front(limiter) as session:
        with pytest.raises(aiohttp.InvalidURL):
            await session.get(url)


@both_fronts
async def test_credentials_are_neither_in_keys_nor_in_errors_nor_in_logs(
    front: Front, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(0)
    limiter = KeyedRateLimiter(concurrency_limit=1)
    told: list[object] = []
    async with (
        MisbehavingServer() as server,
        front(limiter, retry=QUICK, queue_timeout=0.01) as session,
    ):
        url = server.url.with_user("alice").with_password("secret")
        headers = {"X-Token": "secret"}
        async with session.get(url / "whole", headers=headers) as response:
            assert await response.text() == "body"
        assert server.seen[0].headers["Authorization"].startswith("Basic ")
        key = f"127.0.0.1:{url.port}"
        assert len(limiter) == 1
        permit = await limiter.acquire(key)
        with pytest.raises(ThrottleTimeout) as error:
            await session.get(url / "whole", headers=headers)
        permit.release()
        told += [error.value, limiter[key], limiter[key].statistics(), session, limiter, permit]
        told += [ThrottleMiddleware(limiter), RetryMiddleware()]
    assert not any("secret" in repr(each) + str(each) for each in told)
    assert "secret" not in caplog.text

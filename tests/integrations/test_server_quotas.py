"""What a limiter makes of answers and failures, and of a quota or a rate that a server reports."""

import asyncio
from typing import Any

import aiohttp
import httpx
import pytest
from aiohttp import web

from aiothrottle import AdaptiveConcurrency, RateLimiter
from aiothrottle.aiohttp import Retry, ThrottledSession
from tests.integrations.clients import Integration, Scene, every, pair
from tests.integrations.scripted import Script, Step, client_of
from tests.support.serving import Handler, answer, hang_up, never, serving, speak_no_http, until
from tests.support.virtually import now, turns, virtual

# ---- after a pause -------------------------------------------------------------------------------

WORKERS = 6
#: One attempt, and short pauses.
ONCE: dict[str, Any] = {
    "retry": Retry(attempts=1, backoff=0.05, max_backoff=0.05, pause_jitter=0),
    "connections": WORKERS,
}


class Gate:
    def __init__(self, status: int = 200) -> None:
        self._status = status
        self.opened = asyncio.Event()

    async def __call__(self, _: web.Request) -> web.Response:
        await self.opened.wait()
        return web.Response(status=self._status)


async def waiting(at: Scene) -> list[asyncio.Task[Any]]:
    """Be throttled once, and start tasks that wait until the pause is over."""
    assert (await at.send()).status == 429
    return [at.start() for _ in range(WORKERS)]


@pytest.mark.parametrize("status", [200, 500])
@every()
async def test_others_follow_the_answer_to_the_first(integration: Integration, status: int) -> None:
    gate = Gate(status)
    async with integration.serve(answer(429), gate, limiter=RateLimiter(1000), **ONCE) as at:
        tasks = await waiting(at)
        await until(lambda: len(at.seen) == 2)
        await asyncio.sleep(0.01)
        assert len(at.seen) == 2
        gate.opened.set()
        replies = await asyncio.gather(*tasks)
        assert [reply.status for reply in replies] == [status] * WORKERS


@pytest.mark.parametrize("first", [hang_up, never], ids=["cut off", "cancelled"])
@pair
async def test_ended_first_request_is_replaced(integration: Integration, first: Handler) -> None:
    gate, limiter = Gate(), RateLimiter(1000)
    async with integration.serve(answer(429), first, gate, limiter=limiter, **ONCE) as at:
        tasks = await waiting(at)
        await until(lambda: len(at.seen) >= 2)
        if first is never:
            tasks[0].cancel()
        await until(lambda: len(at.seen) == 3)
        await turns(100)
        assert len(at.seen) == 3  # one in its place
        gate.opened.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(isinstance(it, BaseException) for it in results) == 1


@virtual
async def test_second_429_makes_no_pause_longer_than_the_policy_admits() -> None:
    async def throttled(_: httpx.Request) -> httpx.Response:
        await asyncio.sleep(0.1)
        return httpx.Response(429, headers={"Retry-After": "30"})

    limiter, retry = RateLimiter(10, guard=0.0), Retry(attempts=1, max_pause=3.0)
    async with client_of(limiter, throttled, retry=retry) as client:
        await asyncio.gather(*(client.get("http://a/") for _ in range(2)))
    assert limiter.statistics().throttled == 2
    assert limiter.statistics().paused_for == 3.0


ALLOWED: Step = (403, {"X-RateLimit-Remaining": "5"})


@pytest.mark.parametrize(("step", "last"), [(200, 9), (404, 9), (ALLOWED, 9), (501, 11)])
@virtual
async def test_others_wait_for_the_verdict_on_the_first(step: Step, last: float) -> None:
    """Its response has ended by then, and holds no slot."""

    async def think(response: httpx.Response) -> None:
        await asyncio.sleep(2)
        if response.status_code == 501:
            raise LookupError  # then the next one is the first

    retry = Retry(attempts=1, pause_jitter=0, should_retry=think)
    script = Script((429, {"Retry-After": "5"}), step)
    async with script.client(RateLimiter(1000), retry=retry) as client:
        for senders in (1, 3):
            sent = [client.get("http://a/") for _ in range(senders)]
            await asyncio.gather(*sent, return_exceptions=True)
    assert script.times == pytest.approx([0, 7, 9, last], abs=0.01)


# ---- adaptive limits -----------------------------------------------------------------------------


@every()
async def test_answer_that_is_no_http_is_no_success(integration: Integration) -> None:
    limiter = RateLimiter(concurrency_limit=AdaptiveConcurrency(1, 1, 16))
    async with integration.serve(speak_no_http, limiter=limiter, **ONCE) as at:
        for _ in range(9):
            results = await asyncio.gather(*(at.send() for _ in "123456"), return_exceptions=True)
            assert all(isinstance(it, Exception) for it in results)
    assert limiter.statistics().concurrency_limit == 1


@pytest.mark.parametrize("last", [answer(404), answer(302, Location="/")], ids=["404", "loop"])
async def test_error_that_aiohttp_makes_of_an_answer_is_no_failure(last: Handler) -> None:
    limiter = RateLimiter(100_000)
    async with (
        serving(*[answer()] * 40, last) as (url, _),
        ThrottledSession(limiter, raise_for_status=True) as session,
    ):
        for _ in range(40):
            await session.get(url)
        for _ in range(8):  # of a run that looks like a limit
            with pytest.raises(aiohttp.ClientResponseError):
                await session.get(url)
    assert (limiter.statistics().throttled, limiter.statistics().pauses) == (0, 0)


# ---- a limiter that follows the server's rate --------------------------------------------------


@virtual
async def test_quota_that_the_next_answer_does_not_report_is_one_of_other_requests() -> None:
    begun = list[float]()

    async def reporting(_: httpx.Request) -> httpx.Response:
        begun.append(now())
        name, remaining = ("a", 0) if len(begun) == 1 else ("b", 50)
        await asyncio.sleep(0.25 * len(begun))
        state, policy = f'"{name}";r={remaining};t=60', f'"{name}";q=100;w=60'
        return httpx.Response(200, headers={"RateLimit": state, "RateLimit-Policy": policy})

    async with client_of(RateLimiter(1000), reporting) as client:
        await asyncio.gather(*(client.get("http://a/") for _ in range(2)))
        await client.get("http://a/")
    assert begun[-1] < 1.0


@pytest.mark.parametrize(
    ("headers", "follows"),
    [
        ({"RateLimit-Policy": "1000000;w=1"}, True),
        ({"RateLimit-Policy": "1000001;w=1"}, False),
        ({"RateLimit-Policy": "0;w=1"}, False),
        ({"RateLimit-Remaining": "0"}, False),
        # Plausible, although no limiter here has tokens.
        ({"X-RateLimit-Remaining-Tokens": "0", "X-RateLimit-Reset-Tokens": "60s"}, True),
        # The limit is known, its window is not.
        ({"RateLimit-Limit": "9", "RateLimit-Remaining": "5", "RateLimit-Reset": "60"}, True),
    ],
    ids=str,
)
@virtual
async def test_implausible_limits_change_nothing(headers: dict[str, str], follows: bool) -> None:
    following, known = RateLimiter("server", concurrency_limit=9), RateLimiter(100)
    for limiter in (following, known):
        async with Script((200, headers)).client(limiter) as client:
            await client.get("http://a/")
    async with following.throttle():
        await asyncio.sleep(1)
        assert bool(await following.try_acquire()) == follows
    expected = 5 if "RateLimit-Reset" in headers else None
    assert known.statistics().quota_remaining == expected


@virtual
async def test_reported_window_is_bounded() -> None:
    limiter = RateLimiter(rate_limit="server", concurrency_limit=2)
    async with Script((200, {"RateLimit-Policy": '"a";q=1;w=2678400'})).client(limiter) as client:
        await client.get("http://a/")
    assert 3000.0 < (await limiter.peek()).retry_after <= 3700.0

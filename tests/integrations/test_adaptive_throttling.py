"""Adaptive throttling: the integrations drop requests to a failing origin, and to that one only.

The random number is always 0.0, so that any dropped share above 0 drops the next request.
"""

import asyncio
import random
from typing import Any

import aiohttp
import httpx
import pytest
from aiohttp import web

from aiothrottle import (
    AdaptiveThrottling,
    AttemptThrottled,
    RateLimiter,
    RequestDropped,
    ThrottleTimeout,
)
from tests.integrations.clients import (
    ONCE,
    SESSION,
    Clock,
    Feature,
    Integration,
    cancel,
    every,
    pair,
)
from tests.integrations.scripted import Script
from tests.support.serving import Handler, answer, hang_up, never, serving, until
from tests.support.virtually import turns, virtual

LIMITS = Feature.LIMITS
#: One failure is enough: then the dropped share is a half.
STRICT = AdaptiveThrottling(k=1.0)
DROPPING: dict[str, Any] = {"retry": ONCE, "adaptive_throttling": STRICT}


@pytest.fixture(autouse=True)
def _drop_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "random", lambda: 0.0)


@pytest.mark.parametrize("failing", [answer(500), hang_up, never], ids=["500", "cut off", "late"])
@every(LIMITS)
async def test_request_to_a_failing_origin_is_not_sent(
    integration: Integration, failing: Handler, clock: Clock
) -> None:
    limiter = clock.limiter(1000, concurrency_limit=10)
    async with (
        serving(answer()) as (healthy, _),
        integration.serve(failing, limiter=limiter, **DROPPING) as at,
    ):
        task = at.start(timeout=60)
        await until(lambda: at.seen)
        await turns(20)
        await clock.skip(61)
        await asyncio.gather(task, return_exceptions=True)
        with pytest.raises(RequestDropped, match="is failing: the request was dropped") as caught:
            await at.send()
        for _ in range(2):
            assert (await at.send(str(healthy))).status == 200
        assert len(at.seen) == 1
        at.assert_granted(3)
    assert (caught.value.dropped_share, caught.value.__cause__) == (0.5, None)
    assert caught.value.origin == f"127.0.0.1:{at.url.port}"


@virtual
async def test_failures_count_and_answers_do_not() -> None:
    """What the server decided is accepted, what it did not answer is a failure."""
    unsendable, dead = httpx.LocalProtocolError("wrong"), httpx.ConnectError("dead")
    for accepted in (200, 304, 403, 404, 429, 499, unsendable):
        script = Script(accepted)
        async with script.client(**DROPPING) as client:
            for _ in range(3):
                await asyncio.gather(client.get("http://a/"), return_exceptions=True)
        assert len(script.times) == 3, accepted
    for failure in (500, 503, dead, httpx.ReadTimeout("late")):
        script, shares = Script(failure), list[float]()
        async with script.client(**DROPPING) as client:
            await asyncio.gather(client.get("http://a/"), return_exceptions=True)
            for _ in range(3):
                with pytest.raises(RequestDropped) as caught:
                    await client.get("http://a/")
                shares.append(caught.value.dropped_share)
        assert len(script.times) == 1, failure
        assert shares == pytest.approx([1 / 2, 2 / 3, 3 / 4])  # dropped requests are demand


@virtual
async def test_dropped_retry_has_the_response_before_as_cause() -> None:
    script = Script(502)
    async with script.client(adaptive_throttling=STRICT) as client:
        with pytest.raises(RequestDropped) as caught:
            await client.get("http://a/")
    cause = caught.value.__cause__
    assert isinstance(cause, AttemptThrottled)
    assert (cause.status, cause.retry_after, len(script.times)) == (502, None, 1)


@every(LIMITS)
async def test_cancelled_and_rejected_requests_are_not_counted(integration: Integration) -> None:
    async with integration.serve(never, never, answer(), queue_timeout=0, **DROPPING) as at:
        async with at.limiter.throttle():
            with pytest.raises(ThrottleTimeout):
                await at.send()
        for count in (1, 2):
            task = at.start()
            await until(lambda count=count: len(at.seen) == count)  # type: ignore[misc]
            await cancel(task)
        assert (await at.send()).status == 200


@pair
async def test_requests_in_flight_are_not_dropped(integration: Integration) -> None:
    together = asyncio.Barrier(20)

    async def wait_for_others(_: web.Request) -> web.Response:
        await together.wait()
        return web.Response()

    options: dict[str, Any] = {"limiter": RateLimiter(), "connections": 20, **DROPPING}
    async with integration.serve(wait_for_others, **options) as at:
        for _ in range(2):
            replies = await asyncio.gather(*(at.send() for _ in range(20)))
            assert [reply.status for reply in replies] == [200] * 20


async def test_raised_response_counts_by_its_status() -> None:
    script = [*[answer(404)] * 3, answer(503)]
    async with SESSION.serve(*script, raise_for_status=True, **DROPPING) as at:
        for _ in script:
            with pytest.raises(aiohttp.ClientResponseError):
                await at.send()
        with pytest.raises(RequestDropped):
            await at.send()


@virtual
async def test_number_of_remembered_origins_is_bounded() -> None:
    async with Script(500).client(**DROPPING) as client:

        async def is_sent(host: object) -> bool:
            try:
                await client.get(f"http://{host}.example/")
            except RequestDropped:
                return False
            return True

        assert await is_sent("busy")
        for number in range(1100):
            assert await is_sent(number)
            assert not await is_sent("busy")
        # "busy" and the last 1023, of which the last use counts.
        assert [await is_sent(number) for number in (1099, 1100 - 1023)] == [False, False]
        assert await is_sent(1100 - 1024)

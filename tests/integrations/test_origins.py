"""What is remembered of each origin: its failures, its bare 503s, and what is suspected of it."""

import asyncio
import logging
import random
from typing import Any

import aiohttp
import httpx
import pytest

from aiothrottle import AdaptiveThrottling, RateLimiter, RequestDropped, ThrottleTimeout
from aiothrottle.events import Paused, Throttled, ThrottlingSuspected
from aiothrottle.retry import Retry
from tests.integrations.clients import ONCE, SESSION, Clock, Integration, cancel, every, pair
from tests.integrations.scripted import Script, client_of
from tests.support.observing import observed
from tests.support.serving import Handler, answer, hang_up, never, serving, until
from tests.support.virtually import turns, virtual

# ---- adaptive throttling: any dropped share above 0 drops the next request -----------------------

#: One failure is enough: then the dropped share is a half.
STRICT = AdaptiveThrottling(k=1.0)
DROPPING: dict[str, Any] = {"retry": ONCE, "adaptive_throttling": STRICT}


@pytest.fixture(autouse=True)
def _drop_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "random", lambda: 0.0)


@pytest.mark.parametrize("failing", [answer(500), hang_up, never], ids=["500", "cut off", "late"])
@every()
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


@pair
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


async def test_raised_response_counts_by_its_status() -> None:
    script = [*[answer(404)] * 3, answer(503)]
    for way in ("get", "ws_connect"):
        async with SESSION.serve(*script, raise_for_status=True, **DROPPING) as at:
            send: Any = getattr(at.client.raw, way)
            for _ in script:
                with pytest.raises(aiohttp.ClientResponseError):
                    await send(at.url)
            with pytest.raises(RequestDropped):
                await send(at.url)


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


SOON = Retry(attempts=1, backoff=1e-6, max_backoff=1e-6)
Verdict = tuple[frozenset[int], float]


@virtual
async def test_broken_page_holds_up_no_other_request() -> None:
    limiter, paths = RateLimiter(concurrency_limit=4), list[str]()
    events = observed(limiter, Paused, Throttled)

    def respond(request: httpx.Request) -> httpx.Response:
        paths.append(request.url.path)
        return httpx.Response(503 if request.url.path == "/broken" else 200)

    async with client_of(limiter, respond, retry=Retry()) as client:
        broken = asyncio.create_task(client.get("http://a/broken"))
        await turns(20)
        for number in range(40):
            assert (await client.get(f"http://a/{number}")).status_code == 200
        assert not broken.done()
        assert (await broken).status_code == 503
    assert paths.count("/broken") == 5
    assert events == []


# ---- a bare 503 --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statuses", "gaps", "throttled"),
    [
        # More than two thirds of the last ten answers, of at least four.
        ([503] * 6, {}, [3, 4, 5]),
        ([503, 200] * 10, {}, []),
        ([503, 200, 200, 503, 503, 503, 503], {}, [6]),
        ([503, *[200] * 9, *[503] * 7], {}, [16]),
        # Another suspect answer does not end the watch.
        ([503, 403, *[200] * 9, *[503] * 5], {2: 100}, []),
        # Counting begins with the first one, and what a host does is remembered for ten minutes.
        ([*[200] * 20, *[503] * 4], {}, [23]),
        ([*[503] * 4, *[200] * 20, 503], {}, [3, 24]),
        ([403, *[200] * 9, *[503] * 4], {}, [13]),
        ([503] * 9, {4: 600, 5: 601}, [3, 4, 8]),
    ],
    ids=lambda value: str(value)[:30],
)
@virtual
async def test_most_answers_503_throttle(
    statuses: list[int], gaps: dict[int, float], throttled: list[int]
) -> None:
    """The gaps are seconds before a request, a second before the others."""
    limiter, found = RateLimiter(concurrency_limit=4), list[int]()
    events = observed(limiter, Throttled)
    async with Script(*statuses).client(limiter, retry=SOON) as client:
        for number in range(len(statuses)):
            before = len(events)
            await asyncio.sleep(gaps.get(number, 1))
            await client.get("http://a/")
            if len(events) > before:
                found.append(number)
    assert found == throttled


# ---- suspicion ---------------------------------------------------------------------------------


async def suspected(
    statuses: list[int], *, gap: float = 1.0, retry: Retry | None = None
) -> list[Verdict]:
    """Return what is suspected when a host answers with these statuses, one every `gap` seconds."""
    limiter = RateLimiter(concurrency_limit=4)
    events = observed(limiter, ThrottlingSuspected)
    retry = Retry(attempts=1, throttled_statuses={429}) if retry is None else retry
    async with Script(*statuses).client(limiter, retry=retry) as client:
        for _ in statuses:
            await client.get("http://a/")
            await asyncio.sleep(gap)
    return [(it.statuses, it.part) for it in events]


@pytest.mark.parametrize(
    ("statuses", "found"),
    [
        # A share above 0.2 of at least 20 answers, once.
        ([403] * 19, []),
        ([403] * 60, [({403}, 1.0)]),
        ([403, 200, 200, 200] * 20, [({403}, 0.25)]),
        ([403, 503] * 20, [({403, 503}, 1.0)]),
        ([403, *[200] * 4] * 10, [({403}, 5 / 21)]),
        ([403, *[200] * 5] * 10, []),
        # Counting begins with the first one.
        ([*[200] * 10, *[403] * 20], [({403}, 1.0)]),
        # Other statuses have no second meaning.
        *(([status] * 50, []) for status in (200, 400, 404, 500, 502)),
    ],
    ids=lambda value: str(value)[:30],
)
@virtual
async def test_share_of_answers_is_suspect(statuses: list[int], found: list[Verdict]) -> None:
    assert await suspected(statuses, gap=0.1) == [(frozenset(of), part) for of, part in found]


@virtual
async def test_answers_count_for_a_minute_and_for_their_host() -> None:
    assert await suspected([403] * 100, gap=3.2) == []  # 19 in less than a minute
    assert await suspected([403] * 100, gap=3.1) == [(frozenset({403}), 1.0)]
    minutes = [*[403] * 4, *[200] * 16, 403, *[200] * 19]
    assert await suspected(minutes, gap=3.1) == []
    retry = Retry(attempts=1, throttled_statuses={403, 503}, backoff=1e-6, max_backoff=1e-6)
    assert await suspected([403, 503] * 30, gap=0.1, retry=retry) == []
    limiter = RateLimiter(concurrency_limit=4)
    events = observed(limiter, ThrottlingSuspected)
    async with Script(403).client(limiter) as client:
        for number in range(38):
            await client.get(f"http://{number % 2}.test/")
        await client.get("http://1.test/")
    assert [it.host for it in events] == ["1.test"]


@virtual
async def test_suspicion_is_logged_and_emitted_once(caplog: pytest.LogCaptureFixture) -> None:
    assert await suspected([403, 200, *[403] * 28], retry=ONCE) == [(frozenset({403}), 19 / 20)]
    [record] = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert "with 403, which does not count as throttled" in record.getMessage()
    assert "Retry(throttled_statuses={403, 420, 429, 529})" in record.getMessage()


async def test_answer_that_is_raised_is_suspect_too() -> None:
    limiter = RateLimiter(concurrency_limit=4)
    events = observed(limiter, ThrottlingSuspected)
    async with SESSION.serve(answer(403), answer(), answer(403), limiter=limiter) as at:
        await at.send()
        await at.send()
        for _ in range(18):
            with pytest.raises(aiohttp.WSServerHandshakeError):
                await at.client.raw.ws_connect(at.url)
        host = at.url.host
    assert events == [ThrottlingSuspected(None, host or "", frozenset({403}), 19 / 20)]

"""Statuses that may mean "throttled": a bare 503, and what is suspected of a host, once.

A 503 without Retry-After delays its own request; where most answers are such, it throttles.
"""

import asyncio
import logging

import httpx
import pytest

from aiothrottle import RateLimiter
from aiothrottle._http.origins import Origin
from aiothrottle.events import Event, Paused, Throttled, ThrottlingSuspected
from aiothrottle.httpx import ThrottledTransport
from aiothrottle.retry import Retry
from tests.integrations.clients import Feature, Integration, every
from tests.integrations.scripted import Script
from tests.support.serving import answer
from tests.support.virtually import turns, virtual

QUICK = Retry(attempts=1, backoff=1e-6, max_backoff=1e-6)
Verdict = tuple[frozenset[int], float]


def watched() -> tuple[RateLimiter, list[Event]]:
    limiter, events = RateLimiter(concurrency_limit=4), list[Event]()
    limiter.observe(events.append)
    return limiter, events


# ---- a bare 503 --------------------------------------------------------------------------------


@virtual
async def test_broken_page_holds_up_no_other_request() -> None:
    limiter, events = watched()
    paths: list[str] = []

    def respond(request: httpx.Request) -> httpx.Response:
        paths.append(request.url.path)
        return httpx.Response(503 if request.url.path == "/broken" else 200)

    mock = ThrottledTransport(limiter, transport=httpx.MockTransport(respond), retry=Retry())
    async with httpx.AsyncClient(transport=mock) as client:
        broken = asyncio.create_task(client.get("http://a/broken"))
        await turns(20)
        for number in range(40):
            assert (await client.get(f"http://a/{number}")).status_code == 200
        assert not broken.done()
        assert (await broken).status_code == 503
    assert paths.count("/broken") == 5
    assert not [it for it in events if isinstance(it, Paused | Throttled)]


@pytest.mark.parametrize(
    ("statuses", "throttled"),
    [
        # More than two thirds of the last ten answers, of at least four.
        ([503] * 6, [3, 4, 5]),
        ([503, 200] * 10, []),
        ([503, 503, 200, 503], [3]),
        ([503, 200, 200, 503, 503, 503, 503], [6]),
        ([503, *[200] * 9, *[503] * 7], [16]),
        # Counting begins with the first one, and what a host does is remembered.
        ([*[200] * 20, *[503] * 4], [23]),
        ([*[503] * 4, *[200] * 20, 503], [3, 24]),
    ],
    ids=lambda value: str(value)[:30],
)
@virtual
async def test_most_answers_503_throttle(statuses: list[int], throttled: list[int]) -> None:
    limiter, events = watched()
    found: list[int] = []
    async with Script(*statuses).client(limiter, retry=QUICK) as client:
        for number in range(len(statuses)):
            before = len(events)
            await client.get("http://a/")
            await asyncio.sleep(1)
            if any(isinstance(it, Throttled) for it in events[before:]):
                found.append(number)
    assert found == throttled


@virtual
async def test_host_that_throttled_by_503_is_forgotten_after_ten_minutes() -> None:
    limiter, events = watched()
    async with Script(503).client(limiter, retry=QUICK) as client:
        for seconds in (0, 0, 0, 0, 600, 601, 0, 0, 0):
            await asyncio.sleep(seconds)
            await client.get("http://a/")
        for host in ["b", *range(1024), "b", "b", "b"]:
            await client.get(f"http://{host}/")
    # The second host was one of too many, and counted anew.
    assert sum(isinstance(it, Throttled) for it in events) == 3


@virtual
async def test_other_suspect_answer_does_not_end_the_watch_of_503s() -> None:
    limiter, events = watched()
    statuses = [503, 403, *[200] * 9, *[503] * 5]
    async with Script(*statuses).client(limiter, retry=QUICK) as client:
        for number in range(len(statuses)):
            await client.get("http://a/")
            await asyncio.sleep(100 if number == 1 else 1)
    assert not [it for it in events if isinstance(it, Throttled)], "5 of the last ten"


def test_requests_that_are_throttled_before_a_wait_ends_share_it() -> None:
    origin = Origin(None)
    instants = (0.0, 61.0, 150.0, 182.0, 900.0)
    assert [origin.backoff(now, least=60.0) for now in instants] == [60, 120, 120, 240, 60]


# ---- suspicion ---------------------------------------------------------------------------------


async def suspected(
    statuses: list[int], *, gap: float = 1.0, retry: Retry | None = None
) -> list[Verdict]:
    """Return what is suspected when a host answers with these statuses, one every `gap` seconds."""
    limiter, events = watched()
    retry = Retry(attempts=1, throttled_statuses={429}) if retry is None else retry
    async with Script(*statuses).client(limiter, retry=retry) as client:
        for _ in statuses:
            await client.get("http://a/")
            await asyncio.sleep(gap)
    return [(it.statuses, it.part) for it in events if isinstance(it, ThrottlingSuspected)]


@pytest.mark.parametrize(
    ("statuses", "found"),
    [
        # A share above 0.2 of at least 20 answers, once.
        ([403] * 19, []),
        ([403] * 60, [({403}, 1.0)]),
        ([403, 200, 200, 200] * 20, [({403}, 0.25)]),
        ([403, 503] * 20, [({403, 503}, 1.0)]),
        ([403, *[200] * 4] * 10, [({403}, 5 / 21)]),
        ([*[403, *[200] * 4] * 4, 200, 200], []),
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
    limiter, events = watched()
    async with Script(403).client(limiter) as client:
        for host in [*range(600), 1, *range(600, 1100), *[0, 1, 100, 1099] * 19]:
            await client.get(f"http://{host}.test/")
    # The first one was forgotten, and then counted anew; the second one had been used meanwhile.
    hosts = [event.host for event in events if isinstance(event, ThrottlingSuspected)]
    assert hosts == ["1.test", "100.test", "1099.test"]


@every(Feature.LIMITS)
async def test_suspicion_is_logged_and_emitted_once(
    integration: Integration, caplog: pytest.LogCaptureFixture
) -> None:
    limiter, events = watched()
    async with integration.serve(answer(403), answer(), answer(403), limiter=limiter) as at:
        for _ in range(30):
            await at.send()
        host = at.url.host
    [event] = [event for event in events if isinstance(event, ThrottlingSuspected)]
    assert event == ThrottlingSuspected(None, host or "", frozenset({403}), 19 / 20)
    [record] = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert "with 403, which does not count as throttled" in record.getMessage()
    assert "Retry(throttled_statuses={403, 420, 429, 529})" in record.getMessage()

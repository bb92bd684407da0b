"""One warning for each host that seems to throttle by a status that does not count as throttled."""

import logging

import pytest
from aiohttp import web

from aiothrottle import RateLimiter
from aiothrottle._http.suspicion import Suspicion
from aiothrottle.aiohttp import Retry
from aiothrottle.events import Event, ThrottlingSuspected
from tests.integrations.clients import Feature, Integration, every
from tests.serving import Handler

LIMITS = Feature.LIMITS


def verdicts(
    *statuses: int, host: str = "a", suspicion: Suspicion | None = None
) -> list[tuple[set[int], float]]:
    """Return what is suspected when a host answers with these statuses, one a second."""
    suspicion = suspicion or Suspicion()
    found = [
        suspicion.count(host, status, float(second), throttled=False)
        for second, status in enumerate(statuses)
    ]
    return [each for each in found if each]


def test_too_many_answers_are_suspected_once() -> None:
    assert verdicts(*[403, 200, 200, 200] * 10) == [({403}, 0.25)]
    assert verdicts(*[403, 503] * 20) == [({403, 503}, 1.0)]


@pytest.mark.parametrize(
    "statuses",
    [
        [403] * 19,
        [403, *[200] * 5] * 10,
        [404] * 50,
        [500] * 50,
        [200] * 50,
        [403, *[200] * 15] * 10,
    ],
)
def test_few_answers_are_not_suspected(statuses: list[int]) -> None:
    assert verdicts(*statuses) == []


def test_throttled_answers_are_not_suspected() -> None:
    suspicion = Suspicion()
    for second in range(50):
        assert suspicion.count("a", 503, float(second), throttled=True) is None
    assert not suspicion.tallies


def test_counting_ends_after_a_minute() -> None:
    suspicion = Suspicion()
    for at in range(0, 1000, 4):  # 15 a minute
        assert suspicion.count("a", 403, float(at), throttled=False) is None
    assert suspicion.count("b", 200, 2000.0, throttled=False) is None
    assert not suspicion.tallies


def test_hosts_are_counted_apart_in_bounded_memory() -> None:
    suspicion = Suspicion()
    for host in range(3000):
        assert suspicion.count(str(host), 403, 0.0, throttled=False) is None
    assert len(suspicion.tallies) <= 1025
    assert verdicts(*[403] * 40, host="b", suspicion=suspicion) == [({403}, 1.0)]


def handler(status: int, every_nth: int) -> Handler:
    count = 0

    async def handle(_: web.Request) -> web.Response:
        nonlocal count
        count += 1
        return web.Response(status=200 if count % every_nth else status)

    return handle


@every(LIMITS)
async def test_suspicion_is_logged_and_emitted_once(
    integration: Integration, caplog: pytest.LogCaptureFixture
) -> None:
    limiter = RateLimiter(100_000)
    seen: list[Event] = []
    limiter.observe(seen.append)
    async with integration.serve(handler(403, 3), limiter=limiter) as at:
        for _ in range(60):
            await at.send()
        host = at.url.host
    [event] = [event for event in seen if isinstance(event, ThrottlingSuspected)]
    assert (event.key, event.host) == (None, host)
    assert event.statuses == frozenset({403})
    assert event.part == pytest.approx(0.35, abs=0.03)
    [record] = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert "with 403, which does not count as throttled" in record.getMessage()
    assert "Retry(throttled_statuses={403, 420, 429, 503, 529})" in record.getMessage()


@pytest.mark.parametrize("status", [404, 500])
@every(LIMITS)
async def test_other_statuses_are_not_suspected(
    integration: Integration, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with integration.serve(handler(status, 1), limiter=RateLimiter(100_000)) as at:
        for _ in range(30):
            await at.send()
    assert not [each for each in caplog.records if each.levelno == logging.WARNING]


@every(LIMITS)
async def test_status_that_counts_as_throttled_is_not_suspected(
    integration: Integration, caplog: pytest.LogCaptureFixture
) -> None:
    retry = Retry(attempts=1, throttled_statuses={403}, backoff=1e-6, max_backoff=1e-6)
    async with integration.serve(handler(403, 1), limiter=RateLimiter(1e6), retry=retry) as at:
        for _ in range(30):
            assert (await at.send()).status == 403
    assert not [each for each in caplog.records if each.levelno == logging.WARNING]

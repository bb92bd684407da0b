"""A session learns what servers with small bursts accept: the targets, in virtual time.

`RateLimiter("20/s", concurrency_limit=8)`, 24 workers, requests and responses that take 1 to 5 ms.
"""

import asyncio
from collections.abc import Callable

import pytest

from aiothrottle import RateLimiter
from aiothrottle.aiohttp import ThrottledSession
from aiothrottle.httpx import ThrottledTransport
from aiothrottle.testing import RateLimitedServer, greatest_count
from tests.adaptive.session_in_time import run
from tests.support.effort import seeds
from tests.support.observing import adaptations, observed
from tests.support.server_limits import (
    OF_TWENTY,
    Admits,
    nginx,
    rolling_window,
    token_bucket,
    vsthrottle,
)
from tests.support.virtually import now, on_virtual_loop, virtual, work_for

LARGE = ["nginx burst=20", "Traefik burst 20", "a rolling window"]
SMALL = [server for server in OF_TWENTY if server not in LARGE]


@pytest.mark.parametrize("server", SMALL)
def test_small_burst_is_learned_in_ten_seconds(server: str) -> None:
    records = [run(OF_TWENTY[server](), 30.0, seed=seed) for seed in seeds(1)]
    for record in records:
        assert record.part_throttled(0.0, 10.0) <= 0.03
        assert record.used(10.0, 30.0, 20.0) >= 0.85
    count = len(records)
    assert sum(record.part_throttled(0.0, 10.0) for record in records) / count <= 0.02
    assert sum(record.used(0.0, 10.0, 20.0) for record in records) / count >= 0.85
    assert sum(record.part_throttled(10.0, 30.0) for record in records) / count <= 0.005
    record = run(OF_TWENTY[server](), 100.0, every=4.0)  # 24 at once, every 4 seconds
    assert len(record.throttled) <= 7
    assert record.part_throttled(20.0, 100.0) <= 0.01
    assert len(record.admitted) >= 24 * 24


@pytest.mark.parametrize("server", LARGE)
def test_nothing_is_lost_where_bursts_are_welcome(server: str) -> None:
    for seed in seeds(2):
        record = run(OF_TWENTY[server](), 15.0, seed=seed)
        assert not record.throttled
        assert record.used(0.0, 15.0, 20.0) >= 0.97


@pytest.mark.parametrize("seed", seeds(2))
def test_long_pauses_of_varnish_are_rare(seed: int) -> None:
    record = run(vsthrottle(20), 60.0, seed=seed, retry_after=5)
    assert len(record.throttled) <= 8, "one event, of requests that were under way"
    assert record.part_throttled(10.0, 60.0) <= 0.005
    assert record.used(15.0, 60.0, 20.0) >= 0.85


def test_welcome_bursts_open_after_a_few() -> None:
    limiter = RateLimiter("20/s", concurrency_limit=8)
    seen = observed(limiter)
    record = run(nginx(20, 20), 30.0, every=4.0, limiter=limiter)
    assert [it.value for it in adaptations(seen, "burst")] == [2.0, 4.0, 8.0, 16.0, 20.0]
    assert limiter.statistics().burst == 20.0
    ThrottledTransport(limiter)  # a second session
    assert limiter.statistics().burst == 20.0
    # 20 at once, as fast as 8 slots allow.
    assert greatest_count((at for at in record.admitted if at > 20.0), 0.1) == 20


def test_given_burst_is_the_upper_bound_and_a_given_guard_learns_nothing() -> None:
    limiter = RateLimiter("20/s", concurrency_limit=8, burst=3)
    seen = observed(limiter)
    assert not run(nginx(20, 5), 20.0, limiter=limiter, every=4.0).throttled
    assert [it.value for it in adaptations(seen, "burst")] == [2.0, 3.0]
    limiter = RateLimiter("20/s", concurrency_limit=8, guard=0.01)
    assert len(run(nginx(20, 5), 5.0, limiter=limiter).throttled) > 10
    assert limiter.statistics().burst is None


@virtual
async def test_requests_of_children_teach_no_burst() -> None:
    parent = RateLimiter("20/s")  # its children may send to several servers
    child = RateLimiter("20/s", parent=parent)
    permits = [await child.acquire() for _ in range(8)]
    for permit in permits:
        permit.report_throttled(1.0)
        permit.release()
    assert (parent.statistics().burst, child.statistics().burst) == (20.0, 4.0)


def test_long_period_begins_with_the_whole_burst() -> None:
    record = run(rolling_window(1500), 1.0, limiter=RateLimiter("1500/h"), workers=60)
    assert len(record.admitted) > 1500 / 2
    assert not record.throttled


@pytest.mark.parametrize("rate", [{"requests": "600/min"}, "600/min"])
async def test_learned_burst_does_not_count_as_spent(rate: str | dict[str, str]) -> None:
    limiter = RateLimiter(rate)
    async with RateLimitedServer("600/min") as server, ThrottledSession(limiter) as session:
        for _ in range(5):
            await session.get(server.url)
    decision = await limiter.peek()
    assert decision.remaining == pytest.approx(595.0)
    assert not decision.allowed  # evenly spaced until the burst is learned
    assert 0.0 < decision.retry_after < 0.2
    assert limiter.statistics().utilisation == pytest.approx(5 / 600)


SLOW: dict[str, tuple[str, float, Callable[[], Admits]]] = {
    "nginx 60r/m": ("60/min", 1.0, lambda: nginx(1, 0)),
    "nginx 20r/m burst=3": ("20/min", 1 / 3, lambda: nginx(1 / 3, 3)),
    "a bucket of 10": ("0.5/s", 0.5, lambda: token_bucket(0.5, 10)),
    "a rolling window": ("60/min", 1.0, lambda: rolling_window(60, 60.0)),
    "a small window": ("2/5s", 0.4, lambda: rolling_window(2, 5.0)),
}


def test_learned_burst_grows_on_another_clock() -> None:
    limiter = RateLimiter("10/s")

    async def throttled() -> None:
        permits = [await limiter.acquire() for _ in range(10)]
        permits[0].report_throttled(0.5)
        for permit in permits:
            permit.release()

    async def work() -> None:
        while True:
            async with limiter.throttle() as permit:
                await asyncio.sleep(0.01)
                permit.report_success()

    on_virtual_loop(throttled(), start=10_000.0)
    assert limiter.statistics().burst == 5
    on_virtual_loop(work_for(120.0, (work() for _ in range(8))))
    assert limiter.statistics().burst == 10


@pytest.mark.parametrize("server", SLOW)
def test_slow_limit_begins_without_a_burst_that_the_server_may_lack(server: str) -> None:
    text, rate, admits = SLOW[server]
    record = run(admits(), 60.0, limiter=RateLimiter(text, concurrency_limit=8))
    assert len(record.throttled) <= 4
    assert record.used(0.0, 60.0, rate) >= 0.8


@virtual
async def test_slow_limit_waits_for_no_answer_that_never_comes() -> None:
    limiter = RateLimiter("24/day")
    ThrottledTransport(limiter)
    begun = now()
    for _ in range(5):
        await limiter.acquire()
    assert now() - begun == pytest.approx(8.0, abs=0.2)

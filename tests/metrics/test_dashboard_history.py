"""What the live page shows of the past, of other processes, and at the end."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest
from redis.asyncio import Redis

from aiothrottle import KeyedRateLimiter, RateLimiter, StoreUnavailable
from aiothrottle.dashboard import serve, server
from aiothrottle.dashboard.feed import Feed
from aiothrottle.dashboard.shared_use import shared_use
from aiothrottle.stores.redis import RedisStore
from tests.browser import BROWSER, open_tab
from tests.metrics.streaming import streaming
from tests.servers import Valkey
from tests.virtually import now, virtual

needs_browser = pytest.mark.skipif(
    BROWSER is None, reason="no server: a headless Chromium: there is none on the PATH"
)


@virtual
async def test_rates_are_sampled_without_a_page() -> None:
    limiter = RateLimiter("10/s")
    feed = Feed("limiter", limiter, None, now)
    for step in range(480):  # four minutes, of which the first has no requests
        feed.sample()
        if step >= 120:
            await limiter.acquire(5)
        await asyncio.sleep(0.5)
    feed.sample()
    points = feed.history()
    assert points[0][0] == now() - 120, "the last two minutes are kept"
    assert {limit for _, _, limit in points} == {10.0}
    assert all(rate == pytest.approx(10, rel=0.02) for _, rate, _ in points)
    assert feed.snapshot()["rate"] == pytest.approx(10, rel=0.02)


@virtual
async def test_history_has_the_limits_of_its_time() -> None:
    limiter = RateLimiter("10/s")
    feed = Feed("limiter", limiter, None, now)
    for step in range(60):
        feed.sample()
        if step == 30:
            limiter.update(rate_limit="2/s")
        await asyncio.sleep(0.5)
    limits = [limit for _, _, limit in feed.history()]
    assert limits == [10.0] * 26 + [2.0] * 29, "none in the first 2.5 s, which are no average"


@virtual
async def test_each_key_has_its_rate_and_its_limit() -> None:
    keyed = KeyedRateLimiter("100/s", overrides={"slow": {"rate_limit": "10/min"}})
    feed = Feed("keys", keyed, str, now)
    for _ in range(20):
        feed.sample()
        await keyed.acquire("fast", 4)
        await asyncio.sleep(0.5)
    await keyed.acquire("slow")
    feed.sample()
    fast, slow = feed.snapshot()["keys"] or []
    assert fast["rate"] == pytest.approx(8)
    assert fast["perSecond"] == 100.0
    assert slow["rate"] is None
    assert slow["perSecond"] == pytest.approx(1 / 6)


@virtual
async def test_pauses_of_a_key_are_one_line() -> None:
    keyed = KeyedRateLimiter("10/s")
    feed = Feed("keys", keyed, str, now)
    for seconds in (5, 9, 20):
        await asyncio.sleep(100.0)
        keyed.pause("a", seconds)
        keyed.pause("b", 7)
    keyed.pause("a", 30)
    last, other = feed.snapshot()["pauses"]
    assert (last["key"], last["count"], last["seconds"]) == ("a", 4, 30)
    assert (other["key"], other["count"], other["seconds"]) == ("b", 3, 7)
    for number in range(20):
        keyed.pause(f"key {number:02}", 5)
    assert [each["key"] for each in feed.snapshot()["pauses"]][::9] == ["key 19", "key 10"]


async def test_last_event_has_the_final_state() -> None:
    limiter = RateLimiter(100)
    facts = {"URLs done": "0"}
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(serve(limiter, facts=lambda: facts))
        async with streaming(url) as received:
            await received()
            await limiter.acquire(7)
            facts["URLs done"] = "7"
            await stack.aclose()
            last: Any = {}
            while (event := await received()) != "end":
                last = event
    assert last["facts"] == {"URLs done": "7"}
    assert last["limiters"][0]["granted"] == 1


async def test_shared_use_counts_all_processes(valkey: Valkey) -> None:
    async with Redis(port=valkey.port) as first, Redis(port=valkey.port) as second:
        shown, other = (
            RateLimiter("100/min", store=RedisStore(client), key="shared", guard=0.0)
            for client in (first, second)
        )
        async with shown, other, serve(shown) as url, streaming(url) as received:
            assert (await received())["limiters"][0]["inUse"] is None, "no store was asked yet"
            await shown.acquire(10)
            await other.acquire(30)
            in_use = None
            while in_use != pytest.approx(0.4, abs=0.001):
                in_use = (await received())["limiters"][0]["inUse"]


async def test_store_that_does_not_answer_leaves_the_use_unknown() -> None:
    async with Redis(port=1) as client:
        limiter = RateLimiter("100/min", store=RedisStore(client), key="x")
        async with limiter:
            with pytest.raises(StoreUnavailable):
                await limiter.acquire()
            assert await shared_use(limiter) is None
    assert await shared_use(RateLimiter(10)) is None


@needs_browser
async def test_browser_that_is_late_shows_the_past(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_TICK", 0.02)
    monkeypatch.setattr("aiothrottle.dashboard.feed._AVERAGED", 0.2)
    limiter = RateLimiter("100/s")
    async with serve(limiter) as url, open_tab() as tab:
        await asyncio.sleep(1.0)
        monkeypatch.setattr(server, "_TICK", 60.0)  # one event of the present
        await tab.open(url)
        await tab.until("document.getElementById('state').textContent === 'live'")
        path = await tab.evaluate("document.querySelector('path.rate').getAttribute('d')")
        assert path.count("L") >= 10
        spans = "[...document.querySelectorAll('.axis span')].map((each) => each.textContent)"
        assert await tab.evaluate(spans) == ["2 min ago", "1 min ago", "now"]
        shared = "document.querySelector('[data-is=inUse]').checkVisibility()"
        assert await tab.evaluate(shared) is False, "it has no store"
        assert tab.errors == []

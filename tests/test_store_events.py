"""A store that goes and comes back: who is told of it, and what the page and the metrics say."""

import asyncio
import contextlib
import logging

import pytest
from prometheus_client import CollectorRegistry

from aiothrottle import KeyedRateLimiter, RateLimiter, StoreUnavailable
from aiothrottle.dashboard.feed import Feed
from aiothrottle.events import Event, StoreDown, StoreUp
from aiothrottle.metrics.prometheus import PrometheusMetrics
from aiothrottle.sharing.standin import OnStoreError
from tests.failing import Client, Server
from tests.virtually import now, virtual

CHOICES: list[OnStoreError] = ["raise", "local", "open", "closed"]


async def ask(limiter: RateLimiter) -> None:
    """Ask for what may go, whether the store answers or not."""
    with contextlib.suppress(StoreUnavailable):
        await limiter.try_acquire()


def of_the_store(heard: list[Event]) -> list[StoreDown | StoreUp]:
    return [event for event in heard if isinstance(event, StoreDown | StoreUp)]


@pytest.mark.parametrize("choice", CHOICES)
@virtual
async def test_each_outage_is_told_once_with_its_error_and_its_length(
    choice: OnStoreError,
) -> None:
    server = Server()
    keyed = KeyedRateLimiter("20/s", store=Client(server), on_store_error=choice)
    heard: list[Event] = []
    keyed.observe(heard.append)
    await ask(keyed["ann"])
    assert of_the_store(heard) == []
    for _ in range(2):
        server.mode = "refuses"
        begin = now()
        for _ in range(30):
            await ask(keyed["ann"])
            await asyncio.sleep(0.1)
        (down,) = of_the_store(heard)
        assert isinstance(down, StoreDown)
        assert down.key == "ann"
        assert isinstance(down.error, StoreUnavailable)
        server.mode = "up"
        while len(of_the_store(heard)) == 1:
            await ask(keyed["ann"])
            await asyncio.sleep(0.01)
        _, up = of_the_store(heard)
        assert isinstance(up, StoreUp)
        assert up.key == "ann"
        assert up.after == pytest.approx(now() - begin, abs=0.02)
        heard.clear()
        await asyncio.sleep(5.0)
    await keyed.aclose()


@virtual
async def test_who_begins_while_the_store_is_away_is_told_why() -> None:
    server = Server()
    client = Client(server)
    first, second = (
        RateLimiter("20/s", store=client, key=key, on_store_error="open") for key in "ab"
    )
    heard: list[Event] = []
    second.observe(heard.append)
    server.mode = "stalls"
    await ask(first)
    await ask(second)
    (down,) = of_the_store(heard)
    assert isinstance(down, StoreDown)
    assert "late" in str(down.error)
    await first.aclose()
    await second.aclose()


@virtual
async def test_metrics_and_the_page_say_that_the_store_is_away() -> None:
    server = Server()
    limiter = RateLimiter("20/s", store=Client(server), on_store_error="open")
    registry = CollectorRegistry()
    PrometheusMetrics(registry).watch(limiter, "api")
    feed = Feed("api", limiter, None, now)

    def told() -> tuple[float | None, float | None]:
        gauge = registry.get_sample_value("aiothrottle_store_up", {"limiter": "api"})
        return gauge, feed.snapshot()["storeDownFor"]

    await ask(limiter)
    assert told() == (None, None)
    server.mode = "refuses"
    await ask(limiter)
    await asyncio.sleep(3.0)
    await ask(limiter)
    assert told() == (0.0, 3.0)
    server.mode = "up"
    await asyncio.sleep(3.0)
    assert told() == (1.0, None)
    await limiter.aclose()


@pytest.mark.parametrize("choice", CHOICES)
@virtual
async def test_it_is_back_also_if_who_missed_it_asks_no_more(
    choice: OnStoreError, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "aiothrottle")
    server = Server()
    client = Client(server)
    gone, other = (
        RateLimiter("20/s", store=client, key=key, on_store_error=choice) for key in "ab"
    )
    await ask(other)
    for _ in range(2):
        server.mode = "refuses"
        await ask(gone)
        await gone.aclose()
        server.mode = "up"
        await asyncio.sleep(5.0)
        async with other.throttle():
            pass
        gone = RateLimiter("20/s", store=client, key="a", on_store_error=choice)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"] * 2
    await other.aclose()


@virtual
async def test_at_the_switch_a_share_of_what_was_not_heard_of_may_go_on_top() -> None:
    """The true bound: less than twice the limit, in the period of the switch."""
    server = Server()
    busy, quiet = (
        RateLimiter("20/s", store=Client(server), on_store_error="local") for _ in range(2)
    )
    for _ in range(2):  # they sign, and know of each other
        await ask(busy)
        await ask(quiet)
        await asyncio.sleep(2.0)

    async def go(limiter: RateLimiter) -> int:
        went = 0
        while await limiter.try_acquire():
            went += 1
        return went

    assert await go(busy) == 20
    server.mode = "refuses"  # the quiet one has not heard of those
    assert await go(busy) == 0
    assert await go(quiet) == 10
    await asyncio.sleep(1.0)
    assert await go(busy) + await go(quiet) == 20
    await busy.aclose()
    await quiet.aclose()

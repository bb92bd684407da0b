"""Events of a store that fails and recovers, and what the dashboard and the metrics show."""

import asyncio
import contextlib
import json
import logging
from collections.abc import Sequence
from typing import Any, cast

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry

from aiothrottle import KeyedRateLimiter, RateLimiter, SharedConcurrency, StoreUnavailable
from aiothrottle.algorithms import Algorithm
from aiothrottle.dashboard.feed import Feed
from aiothrottle.events import Event, StoreDown, StoreUp
from aiothrottle.metrics.opentelemetry import OpenTelemetryMetrics
from aiothrottle.metrics.prometheus import PrometheusMetrics
from aiothrottle.stores import Answer, Claim, Granted, Key, MemoryStore
from aiothrottle.stores.share_size import OnStoreError
from tests.failing import Client, Server
from tests.sharing import Link, Shared
from tests.virtually import now, virtual

CHOICES: list[OnStoreError] = ["raise", "local", "open", "closed"]


async def ask(limiter: RateLimiter) -> None:
    """Send one request, whether the store answers or not."""
    with contextlib.suppress(StoreUnavailable):
        await limiter.try_acquire()


def of_the_store(events: list[Event]) -> list[StoreDown | StoreUp]:
    return [event for event in events if isinstance(event, StoreDown | StoreUp)]


@pytest.mark.parametrize("choice", CHOICES)
@virtual
async def test_outage_is_reported_once_with_error_and_duration(
    choice: OnStoreError,
) -> None:
    server = Server()
    keyed = KeyedRateLimiter("20/s", store=Client(server), key="k", on_store_error=choice)
    events: list[Event] = []
    keyed.observe(events.append)
    ann = keyed["ann"]  # referenced: a forgotten key would report its next outage again
    await ask(ann)
    assert of_the_store(events) == []
    for _ in range(2):
        server.mode = "refuses"
        begin = now()
        for _ in range(30):
            await ask(ann)
            await asyncio.sleep(0.1)
        (down,) = of_the_store(events)
        assert isinstance(down, StoreDown)
        assert down.key == "ann"
        assert isinstance(down.error, StoreUnavailable)
        server.mode = "up"
        while len(of_the_store(events)) == 1:
            await ask(ann)
            await asyncio.sleep(0.01)
        _, up = of_the_store(events)
        assert isinstance(up, StoreUp)
        assert up.key == "ann"
        assert up.after == pytest.approx(now() - begin, abs=0.02)
        events.clear()
        await asyncio.sleep(5.0)
    await keyed.aclose()


@virtual
async def test_limiter_made_during_an_outage_reports_its_reason() -> None:
    server = Server()
    client = Client(server)
    first, second = (
        RateLimiter("20/s", store=client, key=key, on_store_error="open") for key in "ab"
    )
    events: list[Event] = []
    second.observe(events.append)
    server.mode = "stalls"
    await ask(first)
    await ask(second)
    (down,) = of_the_store(events)
    assert isinstance(down, StoreDown)
    assert "late" in str(down.error)
    await first.aclose()
    await second.aclose()


@virtual
async def test_metrics_and_dashboard_show_the_outage() -> None:
    server = Server()
    limiter = RateLimiter("20/s", store=Client(server), key="k", on_store_error="open")
    registry = CollectorRegistry()
    PrometheusMetrics(registry).watch(limiter, "api")
    feed = Feed("api", limiter, None, now)

    def reported() -> tuple[float | None, float | None]:
        gauge = registry.get_sample_value("aiothrottle_store_up", {"limiter": "api"})
        return gauge, feed.snapshot()["storeDownFor"]

    await ask(limiter)
    assert reported() == (None, None)
    server.mode = "refuses"
    await ask(limiter)
    await asyncio.sleep(3.0)
    await ask(limiter)
    assert reported() == (0.0, 3.0)
    server.mode = "up"
    await asyncio.sleep(3.0)
    assert reported() == (1.0, None)
    await limiter.aclose()


@pytest.mark.parametrize("choice", CHOICES)
@virtual
async def test_recovery_is_reported_for_idle_limiters(
    choice: OnStoreError, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "aiothrottle")
    server = Server()
    client = Client(server)
    closed, other = (
        RateLimiter("20/s", store=client, key=key, on_store_error=choice) for key in "ab"
    )
    await ask(other)
    for _ in range(2):
        server.mode = "refuses"
        await ask(closed)
        await closed.aclose()
        server.mode = "up"
        await asyncio.sleep(5.0)
        async with other.throttle():
            pass
        closed = RateLimiter("20/s", store=client, key="a", on_store_error=choice)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"] * 2
    await other.aclose()


@virtual
async def test_switch_to_local_exceeds_limit_by_one_share() -> None:
    """The true bound: less than twice the limit, in the period of the switch."""
    server = Server()
    busy, quiet = (
        RateLimiter("20/s", guard=0.0, store=Client(server), key="k", on_store_error="local")
        for _ in range(2)
    )
    for _ in range(2):  # they renew, and count each other
        await ask(busy)
        await ask(quiet)
        await asyncio.sleep(2.0)

    async def go(limiter: RateLimiter) -> int:
        granted = 0
        while await limiter.try_acquire():
            granted += 1
        return granted

    assert await go(busy) == 20
    server.mode = "refuses"  # the quiet one does not know of those
    assert await go(busy) == 0
    assert await go(quiet) == 10
    await asyncio.sleep(1.0)
    assert await go(busy) + await go(quiet) == 20
    await busy.aclose()
    await quiet.aclose()


# ---- slots -------------------------------------------------------------------------------------


@pytest.mark.parametrize("choice", CHOICES)
@virtual
async def test_outage_of_shared_slots_is_reported_once(
    choice: OnStoreError,
) -> None:
    link = Link(Shared())
    slots = SharedConcurrency(3, 3.0)
    limiter = RateLimiter(concurrency_limit=slots, store=link, key="x", on_store_error=choice)
    events: list[Event] = []
    limiter.observe(events.append)
    for _ in range(2):
        link.error = StoreUnavailable("unreachable")
        begin = now()
        for _ in range(10):
            await ask(limiter)
            await asyncio.sleep(0.1)
        (down,) = of_the_store(events)
        assert isinstance(down, StoreDown)
        assert down.error is link.error
        assert limiter.statistics().store_up is False
        link.error = None
        while len(of_the_store(events)) == 1:
            await ask(limiter)
            await asyncio.sleep(0.01)
        _, up = of_the_store(events)
        assert isinstance(up, StoreUp)
        assert up.after == pytest.approx(now() - begin, abs=0.02)
        assert limiter.statistics().store_up is True
        events.clear()
    await limiter.aclose()


@pytest.mark.parametrize("choice", CHOICES)
@virtual
async def test_rate_and_slots_in_one_store_report_once(choice: OnStoreError) -> None:
    store = Both()
    limiter = RateLimiter(
        "20/s",
        concurrency_limit=SharedConcurrency(3, 3.0),
        store=store,
        key="k",
        on_store_error=choice,
    )
    events: list[Event] = []
    limiter.observe(events.append)
    await ask(limiter)
    for _ in range(2):
        store.error = StoreUnavailable("unreachable")
        for _ in range(30):
            await ask(limiter)
            await asyncio.sleep(0.1)
        assert [type(event) for event in of_the_store(events)] == [StoreDown]
        store.error = None
        for _ in range(30):
            await ask(limiter)
            await asyncio.sleep(0.1)
        assert [type(event) for event in of_the_store(events)] == [StoreDown, StoreUp]
        events.clear()
    await limiter.aclose()


class Both(MemoryStore):
    """A store of both that fails while `error` is set."""

    def __init__(self) -> None:
        super().__init__(clock=now)
        self.error: StoreUnavailable | None = None

    def check(self) -> None:
        if self.error is not None:
            raise self.error

    async def reserve(
        self,
        key: Key,
        algorithm: Algorithm[Any],
        costs: Sequence[float],
        *,
        horizon: float = 0.0,
    ) -> Answer:
        self.check()
        return await super().reserve(key, algorithm, costs, horizon=horizon)

    async def peek(self, key: Key, algorithm: Algorithm[Any], cost: float = 1.0) -> Answer:
        self.check()
        return await super().peek(key, algorithm, cost)

    async def record(self, key: Key, algorithm: Algorithm[Any], cost: float = 1.0) -> Answer:
        self.check()
        return await super().record(key, algorithm, cost)

    async def refund(
        self, key: Key, algorithm: Algorithm[Any], cost: float, instant: float
    ) -> None:
        self.check()
        await super().refund(key, algorithm, cost, instant)

    async def claim(self, key: Key, claim: Claim) -> Granted:
        self.check()
        return await super().claim(key, claim)


# ---- metrics -----------------------------------------------------------------------------------


@virtual
async def test_metrics_count_an_outage_once_for_all_keys() -> None:
    server = Server()
    keyed = KeyedRateLimiter("20/s", store=Client(server), key="k", on_store_error="open")
    other = KeyedRateLimiter("20/s", store=Client(Server()), key="k", on_store_error="open")
    registry, reader = CollectorRegistry(), InMemoryMetricReader()
    telemetry = OpenTelemetryMetrics(MeterProvider([reader]))
    prometheus = PrometheusMetrics(registry)
    for limiter, name in ((keyed, "api"), (other, "other")):
        telemetry.watch(limiter, name)
        prometheus.watch(limiter, name)

    def reported() -> list[float | None]:
        data = json.loads(cast("Any", reader.get_metrics_data()).to_json())
        points = [
            point["value"]
            for metric in data["resource_metrics"][0]["scope_metrics"][0]["metrics"]
            if metric["name"] == "aiothrottle.store.outages"
            for point in metric["data"]["data_points"]
            if point["attributes"] == {"aiothrottle.limiter.name": "api"}
        ]
        sample = registry.get_sample_value("aiothrottle_store_outages_total", {"limiter": "api"})
        return [*points, sample]

    for number in (1, 2):
        server.mode = "refuses"
        for key in "abc":
            await ask(keyed[key])
            await ask(other[key])
        assert reported() == [number, number]
        server.mode = "up"
        await asyncio.sleep(3.0)
        for key in "abc":
            await ask(keyed[key])
    sample = registry.get_sample_value("aiothrottle_store_outages_total", {"limiter": "other"})
    assert sample is None
    await keyed.aclose()
    await other.aclose()

"""Metrics of Prometheus and OpenTelemetry agree with what the limiter did."""

import asyncio
import math
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, generate_latest

from aiothrottle import (
    KeyedRateLimiter,
    RateLimiter,
    StoreUnavailable,
    ThrottleTimeout,
    TokenBucket,
)
from aiothrottle.metrics.opentelemetry import OpenTelemetryMetrics
from aiothrottle.metrics.prometheus import PrometheusMetrics
from tests.metrics.causing import outage, retries
from tests.support.failing import Client, Server
from tests.support.virtually import turns

DASHBOARD = Path(__file__).parents[2] / "examples" / "grafana.json"
Labels: TypeAlias = tuple[str, ...]


class Prometheus:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.metrics = PrometheusMetrics(self.registry, buckets=(0.1, 1.0))

    def __call__(self, name: str, **labels: str) -> float | None:
        """Return a value of the limiter without keys, or of a gauge of a limiter."""
        for given in ({"limiter": "api", "key": ""}, {"limiter": "api"}):
            value = self.registry.get_sample_value(f"aiothrottle_{name}", {**given, **labels})
            if value is not None:
                return value
        return None

    def keys(self, name: str) -> dict[str, float]:
        text = generate_latest(self.registry).decode()
        found = re.findall(rf'wait_seconds_count{{key="(.*)",limiter="{name}"}} (.*)', text)
        assert len(found) == len(dict(found)), "Prometheus rejects the same series twice"
        return {key: float(count) for key, count in found}


class Telemetry:
    def __init__(self) -> None:
        self.reader = InMemoryMetricReader()
        self.metrics = OpenTelemetryMetrics(MeterProvider([self.reader]))

    def points(self) -> dict[str, list[Any]]:
        data = self.reader.get_metrics_data()
        assert data is not None
        metrics = data.resource_metrics[0].scope_metrics[0].metrics
        return {it.name.removeprefix("aiothrottle."): list(it.data.data_points) for it in metrics}

    def values(self) -> dict[str, dict[Labels, float]]:
        return {
            name: {tuple(point.attributes.values())[1:]: point.value for point in points}
            for name, points in self.points().items()
            if name != "wait.duration"
        }

    def keys(self, name: str) -> dict[str, float]:
        return {
            point.attributes.get("aiothrottle.key", ""): point.count
            for point in self.points()["wait.duration"]
            if point.attributes["aiothrottle.limiter.name"] == name
        }


@pytest.fixture
def prometheus() -> Prometheus:
    return Prometheus()


@pytest.fixture
def telemetry() -> Telemetry:
    return Telemetry()


async def live(limiter: RateLimiter) -> list[object]:
    """Cause every event that needs no server. Return the permits still in flight."""
    async with limiter.throttle() as first:
        kept = [await limiter.acquire(0.5)]
        assert not (await limiter.try_acquire()).allowed
        with pytest.raises(ThrottleTimeout):
            await limiter.acquire(timeout=0.01)
        first.report_throttled(retry_after=3.0)
        limiter.pause(60.0)
        kept.append(await limiter.acquire())
    return [*kept]


# ---- what is counted -------------------------------------------------------------------------


async def test_every_event_is_counted(prometheus: Prometheus, telemetry: Telemetry) -> None:
    limiter = RateLimiter("1.5/s", concurrency_limit=4, algorithm=TokenBucket)
    for each in (prometheus, telemetry):
        each.metrics.watch(limiter, "api")
    _kept = await live(limiter)
    waiting = asyncio.create_task(limiter.acquire())
    await turns()
    waited = pytest.approx(limiter.statistics().waited_total)
    assert prometheus("wait_seconds_count") == limiter.statistics().granted == 3
    assert prometheus("wait_seconds_sum") == waited
    found = [prometheus("wait_seconds_bucket", le=bound) for bound in ("0.1", "1.0", "+Inf")]
    assert found == [2, 2, 3]
    assert prometheus("tokens_total") == 2.5
    assert [prometheus("rejected_total", reason=each) for each in ("no room", "timeout")] == [1, 1]
    assert prometheus("throttled_total") == 1
    reasons = ("retry-after", "requested")
    assert [prometheus("pauses_total", reason=each) for each in reasons] == [1, 1]
    gauges = ("in_flight", "waiting", "concurrency_limit", "rate_limit")
    assert [prometheus(name) for name in gauges] == [2, 1, 4, 1.5]
    assert prometheus("store_up") is None, "it has no store"
    (waits,) = telemetry.points()["wait.duration"]
    assert (waits.count, waits.attributes) == (3, {"aiothrottle.limiter.name": "api"})
    assert waits.sum == waited
    assert telemetry.values() == {
        "tokens": {(): 2.5},
        "rejected_requests": {("no room",): 1, ("timeout",): 1},
        "throttled_requests": {(): 1},
        "pauses": {("retry-after",): 1, ("requested",): 1},
        "active_requests": {(): 2},
        "pending_requests": {(): 1},
        "concurrency.limit": {(): 4},
        "rate.limit": {(): 1.5},
    }
    waiting.cancel()


async def test_retries_and_tokens_are_counted(prometheus: Prometheus, telemetry: Telemetry) -> None:
    limiter = RateLimiter({"requests": "600/min", "tokens": "100/s"})
    for each in (prometheus, telemetry):
        each.metrics.watch(limiter, "api")
    assert prometheus("rate_limit") == 10
    await retries(limiter, 500, 500)  # three grants
    async with limiter.throttle({"tokens": 60}), limiter.throttle():
        assert prometheus("retries_total") == 2
        assert prometheus("tokens_total") == 5
        assert prometheus("resource_tokens_total", resource="requests") == 5
        assert prometheus("resource_tokens_total", resource="tokens") == 60
    assert telemetry.values()["retries"] == {(): 2}
    assert telemetry.values()["resource.tokens"] == {("requests",): 5, ("tokens",): 60}


async def test_store_has_a_gauge_after_outage(prometheus: Prometheus, telemetry: Telemetry) -> None:
    async with outage() as (limiter, end):
        prometheus.metrics.watch(limiter, "api")
        telemetry.metrics.watch(limiter, "api")
        assert prometheus("store_up") is None
        await limiter.acquire()
        assert prometheus("store_up") == 0
        assert telemetry.values()["store.outages"] == {(): 1}
        await end()
        assert prometheus("store_up") == 1


async def test_outage_ends_also_if_its_key_was_forgotten(prometheus: Prometheus) -> None:
    server = Server()
    server.mode = "refuses"
    limiter = KeyedRateLimiter("5/s", store=Client(server), key="key")
    prometheus.metrics.watch(limiter, "api")
    with pytest.raises(StoreUnavailable):
        await limiter.acquire("a")
    await asyncio.sleep(100)
    assert (len(limiter), prometheus("store_up")) == (0, 0)
    server.mode = "up"
    await limiter.acquire("b")
    assert prometheus("store_up") == 1


# ---- keys --------------------------------------------------------------------------------------


async def test_keys_have_labels_on_request_up_to_a_bound(
    prometheus: Prometheus, telemetry: Telemetry
) -> None:
    keyed = KeyedRateLimiter(100)
    prometheus.metrics.watch(keyed, "unlabelled")
    kept = [await keyed.acquire(f"host-{number}") for number in range(50)]
    assert prometheus.keys("unlabelled") == {"": 50}
    assert prometheus("in_flight", limiter="unlabelled") == len(kept) == 50
    assert prometheus("rate_limit", limiter="unlabelled") is None, "each key has its own"
    hosts, users, one = KeyedRateLimiter(100), KeyedRateLimiter(100), RateLimiter(100)
    for either in (prometheus, telemetry):
        either.metrics.watch(hosts, "hosts", keys=2)
        either.metrics.watch(users, "users", keys=4)
        either.metrics.watch(one, "one", keys=2)
    await one.acquire()
    for key in ("a", "b", "c", "a", "d"):
        await hosts.acquire(key)
    texts: list[object] = [1, "1", "other", None, "a", "b", "c"]  # equal texts share a series
    for text in texts:
        await users.acquire(text)
    for either in (prometheus, telemetry):
        assert either.keys("hosts") == {"a": 2, "b": 1, "other": 2}
        assert either.keys("users") == {"1": 2, "None": 1, "a": 1, "b": 1, "other": 2}
        assert either.keys("one") == {"": 1}


async def test_key_that_is_no_valid_text_leaves_the_others_readable(
    prometheus: Prometheus, telemetry: Telemetry
) -> None:
    keyed = KeyedRateLimiter(100)
    for either in (prometheus, telemetry):
        either.metrics.watch(keyed, "keyed", keys=5)
    for key in ("a", "\ud800", "é"):
        await keyed.acquire(key)
    assert telemetry.keys("keyed") == {"a": 1, "\\ud800": 1, "é": 1}
    assert len(prometheus.keys("keyed")) == 4  # with that of other keys


async def test_unwatched_limiter_is_uncounted(prometheus: Prometheus, telemetry: Telemetry) -> None:
    limiter = RateLimiter(100)
    stop, stop_telemetry = (it.metrics.watch(limiter, "api") for it in (prometheus, telemetry))
    held = [await limiter.acquire()]
    stop()
    stop()
    stop_telemetry()
    held.append(await limiter.acquire())
    assert prometheus("in_flight") is None
    assert telemetry.points()["wait.duration"][0].count == 1
    assert "active_requests" not in telemetry.points()
    unwatch = prometheus.metrics.watch(limiter, "api")
    stop()
    assert prometheus("in_flight") == len(held), "that was another watch"
    unwatch()


async def test_prometheus_may_scrape_in_its_own_thread(prometheus: Prometheus) -> None:
    keyed = KeyedRateLimiter(100)
    prometheus.metrics.watch(keyed, "hosts", keys=1000)
    done = threading.Event()

    def scrape() -> None:
        while not done.is_set():
            generate_latest(prometheus.registry)

    with ThreadPoolExecutor(1) as threads:
        scraping = threads.submit(scrape)
        for number in range(300):
            await keyed.acquire(f"host-{number}")
        done.set()
    assert scraping.exception() is None


@pytest.mark.parametrize("kind", [PrometheusMetrics, OpenTelemetryMetrics])
def test_wrong_arguments_are_named(kind: Any) -> None:
    with pytest.raises(TypeError, match=r"registry must be a|meter_provider must be a"):
        kind("http://localhost:9090")
    watch = kind(None).watch
    with pytest.raises(TypeError, match="limiter must be a RateLimiter"):
        watch("api", "api")
    with pytest.raises(TypeError, match="name of a limiter must be a string, got None"):
        watch(KeyedRateLimiter(1))
    watch(RateLimiter(1, name="named"))
    with pytest.raises(ValueError, match="a limiter named 'named' is watched already"):
        watch(RateLimiter(1), "named")
    for keys in ("20", True, 1.5):
        with pytest.raises(TypeError, match="keys must be a whole number"):
            watch(KeyedRateLimiter(1), "api", keys=keys)
    with pytest.raises(ValueError, match="0 or more, got -1"):
        watch(KeyedRateLimiter(1), "api", keys=-1)
    watch(RateLimiter(1), "api")
    with pytest.raises(ValueError, match="is watched already"):
        watch(RateLimiter(1), "api")


def test_buckets_and_registry_must_be_valid(prometheus: Prometheus) -> None:
    for buckets in ((), (1.0, 1.0), (2.0, 1.0), (math.nan,), (math.inf,), (10**400,)):
        with pytest.raises(ValueError, match="buckets must be"):
            PrometheusMetrics(None, buckets=buckets)
    wrong: list[Any] = ["12", ("0.1", "1"), (True, 2.0), (None,)]
    for buckets in wrong:
        with pytest.raises(TypeError, match="each of buckets must be a finite number of seconds"):
            PrometheusMetrics(None, buckets=buckets)
    with pytest.raises(ValueError, match="uplicated"):
        PrometheusMetrics(prometheus.registry)
    registry = CollectorRegistry()
    PrometheusMetrics(registry, buckets=(0.1, 1.0, math.inf)).watch(RateLimiter(1), "api")
    prometheus.metrics.watch(RateLimiter(1), "api")
    assert generate_latest(registry) == generate_latest(prometheus.registry)


# ---- other programs ----------------------------------------------------------------------------


async def test_grafana_queries_name_existing_metrics(prometheus: Prometheus) -> None:
    async with outage() as (limiter, _):
        prometheus.metrics.watch(limiter, "api")
        await limiter.acquire()
        active = RateLimiter("1.5/s", concurrency_limit=4, algorithm=TokenBucket)
        prometheus.metrics.watch(active, "active")
        _kept = await live(active)
        await retries(limiter, 500)
        text = generate_latest(prometheus.registry).decode()
    there = set(re.findall(r"^(aiothrottle_\w+)\{", text, re.MULTILINE))
    queries = re.findall(r'"(?:expr|query)": "(.*)"', DASHBOARD.read_text(encoding="utf-8"))
    named = set(re.findall(r"aiothrottle_\w+", " ".join(queries)))
    assert named <= there
    used, all_of_them = (
        {re.sub(r"_(bucket|sum|count)$", "", name) for name in names} for names in (named, there)
    )
    assert used == all_of_them, "all are shown"


async def test_span_of_a_request_has_its_wait_and_retries(telemetry: Telemetry) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")
    limiter = RateLimiter("1/2s", guard=0)
    telemetry.metrics.watch(limiter, "api")
    with tracer.start_as_current_span("first"):
        await limiter.acquire()
    with tracer.start_as_current_span("second"):
        await retries(limiter, 503, httpx.ConnectError("no"))
    first, second = (
        [(event.name, dict(event.attributes or {})) for event in span.events]
        for span in exporter.get_finished_spans()
    )
    assert first == []
    for _, attributes in second:
        assert attributes.pop("aiothrottle.limiter.name") == "api"
    again = [each for name, each in second if name == "aiothrottle.retry"]
    delays: list[Any] = [each.pop("aiothrottle.retry.delay") for each in again]
    assert all(isinstance(delay, float) and 0 <= delay < 60 for delay in delays)
    assert again == [
        {"aiothrottle.retry.attempt": 2, "http.response.status_code": 503},
        {"aiothrottle.retry.attempt": 3, "error.type": "ConnectError"},
    ]
    waits = [each for name, each in second if name == "aiothrottle.wait"]
    assert waits[0] == {"aiothrottle.wait.duration": 2.0}

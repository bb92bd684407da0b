"""Metrics of Prometheus and OpenTelemetry agree with what the limiter did."""

import asyncio
import json
import re
import threading
from pathlib import Path
from typing import Any, cast

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, generate_latest

from aiothrottle import (
    AdaptiveRate,
    KeyedRateLimiter,
    Permit,
    Rate,
    RateLimiter,
    ThrottleTimeout,
    TokenBucket,
)
from aiothrottle._http.reports import report_retry
from aiothrottle.events import StoreDown, StoreUp
from aiothrottle.metrics.gauges import rates
from aiothrottle.metrics.opentelemetry import OpenTelemetryMetrics
from aiothrottle.metrics.prometheus import PrometheusMetrics
from aiothrottle.stores import MemoryStore
from tests.virtually import turns, virtual

DASHBOARD = Path(__file__).parents[2] / "examples" / "grafana.json"


class Prometheus:
    """A registry, and what a scrape of it reads."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.metrics = PrometheusMetrics(self.registry, buckets=(0.1, 1.0))

    def __call__(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"aiothrottle_{name}", labels)


@pytest.fixture
def prometheus() -> Prometheus:
    return Prometheus()


async def live(limiter: RateLimiter) -> list[Permit]:
    """Cause every event that is counted. Returns the permits still in flight."""
    async with limiter.throttle() as first:
        kept = [await limiter.acquire(0.5)]
        assert not (await limiter.try_acquire()).allowed
        with pytest.raises(ThrottleTimeout):
            await limiter.acquire(timeout=0.01)
        report_retry(first, 2, 0.5, status=503)
        first.report_throttled(retry_after=3.0)
        limiter.pause(60.0)
        kept.append(await limiter.acquire())
    return kept


# ---- Prometheus --------------------------------------------------------------------------------


@virtual
async def test_prometheus_counts_every_event(prometheus: Prometheus) -> None:
    limiter = RateLimiter("1.5/s", concurrency_limit=4, algorithm=TokenBucket)
    prometheus.metrics.watch(limiter, "api")
    _kept = await live(limiter)
    of = {"limiter": "api", "key": ""}
    assert prometheus("wait_seconds_count", **of) == limiter.statistics().granted == 3
    waited = limiter.statistics().waited_total
    assert prometheus("wait_seconds_sum", **of) == pytest.approx(waited)
    assert prometheus("wait_seconds_bucket", **of, le="0.1") == 2
    assert prometheus("wait_seconds_bucket", **of, le="1.0") == 2
    assert prometheus("wait_seconds_bucket", **of, le="+Inf") == 3
    assert prometheus("tokens_total", **of) == 2.5
    assert prometheus("rejected_total", **of, reason="no room") == 1
    assert prometheus("rejected_total", **of, reason="timeout") == 1
    assert prometheus("throttled_total", **of) == 1
    assert prometheus("pauses_total", **of, reason="retry-after") == 1
    assert prometheus("pauses_total", **of, reason="requested") == 1
    assert prometheus("retries_total", **of) == 1


@virtual
async def test_prometheus_counts_each_resource(prometheus: Prometheus) -> None:
    limiter = RateLimiter({"requests": "600/min", "tokens": "100/s"})
    prometheus.metrics.watch(limiter, "api")
    async with limiter.throttle({"tokens": 60}), limiter.throttle():
        of = {"limiter": "api", "key": ""}
        assert prometheus("tokens_total", **of) == 2
        assert prometheus("resource_tokens_total", **of, resource="requests") == 2
        assert prometheus("resource_tokens_total", **of, resource="tokens") == 60
        assert prometheus("rate_limit", limiter="api") == 10


@virtual
async def test_gauges_are_current_at_a_scrape(prometheus: Prometheus) -> None:
    limiter = RateLimiter(["10/s", "300/min"], concurrency_limit=2)
    prometheus.metrics.watch(limiter, "api")
    assert prometheus("concurrency_limit", limiter="api") == 2
    assert prometheus("rate_limit", limiter="api") == 5
    held = [await limiter.acquire() for _ in range(2)]
    waiting = asyncio.create_task(limiter.acquire())
    await turns()
    assert prometheus("in_flight", limiter="api") == 2
    assert prometheus("waiting", limiter="api") == 1
    held[0].release()
    await waiting
    held[1].release()
    assert prometheus("in_flight", limiter="api") == 1
    assert prometheus("waiting", limiter="api") == 0
    assert prometheus("store_up", limiter="api") is None, "it has no store"


@virtual
async def test_store_has_a_gauge_after_its_first_event(prometheus: Prometheus) -> None:
    limiter = RateLimiter(10)
    prometheus.metrics.watch(limiter, "api")
    limiter._engine.observers.emit(StoreDown(None, OSError()))
    assert prometheus("store_up", limiter="api") == 0
    limiter._engine.observers.emit(StoreUp(None, 3.0))
    assert prometheus("store_up", limiter="api") == 1


@virtual
async def test_keys_have_labels_only_on_request(prometheus: Prometheus) -> None:
    keyed = KeyedRateLimiter(100)
    prometheus.metrics.watch(keyed, "hosts")
    kept = [await keyed.acquire(f"host-{number}") for number in range(50)]
    assert prometheus("wait_seconds_count", limiter="hosts", key="") == 50
    assert prometheus("in_flight", limiter="hosts") == len(kept) == 50
    assert prometheus("wait_seconds_count", limiter="hosts", key="host-1") is None


@virtual
async def test_number_of_key_labels_is_bounded(prometheus: Prometheus) -> None:
    keyed = KeyedRateLimiter(100)
    prometheus.metrics.watch(keyed, "hosts", keys=2)
    for key in ("a", "b", "c", "a", "d"):
        await keyed.acquire(key)
    counts = [
        prometheus("wait_seconds_count", limiter="hosts", key=key) for key in ("a", "b", "other")
    ]
    assert counts == [2, 1, 2]
    assert prometheus("wait_seconds_count", limiter="hosts", key="c") is None


@virtual
async def test_keys_with_equal_text_share_a_series(prometheus: Prometheus) -> None:
    # Prometheus rejects a whole scrape with the same series twice.
    keyed = KeyedRateLimiter(100)
    prometheus.metrics.watch(keyed, "users", keys=3)
    for key in (1, "1", "other", "a", "b", "c"):
        await keyed.acquire(key)
    counts = [
        prometheus("wait_seconds_count", limiter="users", key=key)
        for key in ("1", "a", "b", "other")
    ]
    assert counts == [2, 1, 1, 2]
    lines = generate_latest(prometheus.registry).decode().splitlines()
    series = [line.rpartition(" ")[0] for line in lines if not line.startswith("#")]
    assert len(series) == len(set(series))


@virtual
async def test_unwatched_limiter_is_not_reported(prometheus: Prometheus) -> None:
    limiter = RateLimiter(100)
    stop = prometheus.metrics.watch(limiter, "api")
    stop()
    stop()
    assert prometheus("in_flight", limiter="api") is None
    assert not limiter._engine.observers.listeners
    unwatch = prometheus.metrics.watch(limiter, "api")
    stop()
    assert prometheus("in_flight", limiter="api") == 0, "that was another watch"
    unwatch()


@virtual
async def test_prometheus_may_scrape_in_its_own_thread(prometheus: Prometheus) -> None:
    keyed = KeyedRateLimiter(100)
    prometheus.metrics.watch(keyed, "hosts", keys=1000)
    done = threading.Event()
    failures: list[Exception] = []

    def scrape() -> None:
        try:
            while not done.is_set():
                generate_latest(prometheus.registry)
        except Exception as error:  # noqa: BLE001 - raised in the main thread
            failures.append(error)

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        for number in range(3000):
            await keyed.acquire(f"host-{number}")
    finally:
        done.set()
        thread.join()
    assert not failures


def rejects_wrong_arguments(watch: Any) -> None:  # noqa: ANN401 - it is called wrongly
    with pytest.raises(TypeError, match="limiter must be a RateLimiter"):
        watch("api", "api")
    with pytest.raises(TypeError, match="name of a limiter must be a string, got None"):
        watch(RateLimiter(1), None)
    for keys in ("20", True, 1.5):
        with pytest.raises(TypeError, match="keys must be a whole number"):
            watch(KeyedRateLimiter(1), "api", keys=keys)
    with pytest.raises(ValueError, match="0 or more, got -1"):
        watch(KeyedRateLimiter(1), "api", keys=-1)


@pytest.mark.parametrize("kind", [PrometheusMetrics, OpenTelemetryMetrics])
def test_target_of_the_metrics_must_be_valid(kind: Any) -> None:  # noqa: ANN401
    with pytest.raises(TypeError, match=r"registry must be a|meter_provider must be a"):
        kind("http://localhost:9090")


def test_wrong_arguments_are_named(prometheus: Prometheus) -> None:
    rejects_wrong_arguments(prometheus.metrics.watch)
    prometheus.metrics.watch(RateLimiter(1), "api")
    with pytest.raises(ValueError, match="is watched already"):
        prometheus.metrics.watch(RateLimiter(1), "api")
    for buckets in ((), (1.0, 1.0), (2.0, 1.0)):
        with pytest.raises(ValueError, match="ascending"):
            PrometheusMetrics(None, buckets=buckets)
    with pytest.raises(ValueError, match="uplicated"):
        PrometheusMetrics(prometheus.registry)


@virtual
async def test_grafana_queries_name_existing_metrics(
    prometheus: Prometheus,
) -> None:
    limiter = RateLimiter("1.5/s", concurrency_limit=4, algorithm=TokenBucket)
    prometheus.metrics.watch(limiter, "api")
    _kept = await live(limiter)
    limiter._engine.observers.emit(StoreUp(None, 3.0))
    there = set(
        re.findall(
            r"^(aiothrottle_\w+)\{", generate_latest(prometheus.registry).decode(), re.MULTILINE
        )
    )
    named = {
        name
        for query in queries(json.loads(DASHBOARD.read_text(encoding="utf-8")))
        for name in re.findall(r"aiothrottle_\w+", query)
    }
    assert named <= there
    used = {re.sub(r"_(bucket|sum|count)$", "", name) for name in named}
    assert used == {re.sub(r"_(bucket|sum|count)$", "", name) for name in there}, "all are shown"


def queries(dashboard: object) -> list[str]:
    """Return each query in it, at any depth."""
    if isinstance(dashboard, dict):
        dashboard = cast("dict[str, object]", dashboard)
        own = [str(value) for key, value in dashboard.items() if key in {"expr", "query"}]
        return own + [query for value in dashboard.values() for query in queries(value)]
    if isinstance(dashboard, list):
        return [query for value in cast("list[object]", dashboard) for query in queries(value)]
    return []


# ---- OpenTelemetry -----------------------------------------------------------------------------


class Telemetry:
    """Return what the SDK has collected."""

    def __init__(self) -> None:
        self.reader = InMemoryMetricReader()
        self.metrics = OpenTelemetryMetrics(MeterProvider([self.reader]))

    def points(self) -> dict[str, list[Any]]:
        data = self.reader.get_metrics_data()
        assert data is not None
        return {
            metric.name: list(metric.data.data_points)
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@virtual
async def test_opentelemetry_counts_every_event() -> None:
    telemetry = Telemetry()
    limiter = RateLimiter("1.5/s", concurrency_limit=4, algorithm=TokenBucket)
    telemetry.metrics.watch(limiter, "api")
    _kept = await live(limiter)
    limiter._engine.observers.emit(StoreDown(None, OSError()))
    points = telemetry.points()
    (waits,) = points["aiothrottle.wait.duration"]
    assert (waits.count, waits.attributes) == (3, {"aiothrottle.limiter.name": "api"})
    assert waits.sum == pytest.approx(limiter.statistics().waited_total)
    values = {
        name: {tuple(point.attributes.values())[1:]: point.value for point in of}
        for name, of in points.items()
        if name != "aiothrottle.wait.duration"
    }
    assert values == {
        "aiothrottle.tokens": {(): 2.5},
        "aiothrottle.rejected_requests": {("no room",): 1, ("timeout",): 1},
        "aiothrottle.throttled_requests": {(): 1},
        "aiothrottle.pauses": {("retry-after",): 1, ("requested",): 1},
        "aiothrottle.retries": {(): 1},
        "aiothrottle.store.outages": {(): 1},
        "aiothrottle.active_requests": {(): 2},
        "aiothrottle.pending_requests": {(): 0},
        "aiothrottle.concurrency.limit": {(): 4},
        "aiothrottle.rate.limit": {(): 1.5},
    }


@virtual
async def test_opentelemetry_counts_each_resource() -> None:
    telemetry = Telemetry()
    limiter = RateLimiter({"tokens": "100/s"})
    telemetry.metrics.watch(limiter, "api")
    async with limiter.throttle({"tokens": 60}):
        points = telemetry.points()["aiothrottle.resource.tokens"]
    assert {point.attributes["aiothrottle.resource.name"]: point.value for point in points} == {
        "tokens": 60
    }


@virtual
async def test_opentelemetry_bounds_the_number_of_key_labels() -> None:
    telemetry = Telemetry()
    keyed = KeyedRateLimiter(100)
    stop = telemetry.metrics.watch(keyed, "hosts", keys=2)
    for key in ("a", "b", "c", "a", "d"):
        await keyed.acquire(key)
    counts = {
        point.attributes["aiothrottle.key"]: point.count
        for point in telemetry.points()["aiothrottle.wait.duration"]
    }
    assert counts == {"a": 2, "b": 1, "other": 2}
    stop()
    await keyed.acquire("a")
    points = telemetry.points()
    assert sum(point.count for point in points["aiothrottle.wait.duration"]) == 5
    assert "aiothrottle.active_requests" not in points


@virtual
async def test_opentelemetry_keys_with_equal_text_share_a_label() -> None:
    telemetry = Telemetry()
    keyed = KeyedRateLimiter(100)
    telemetry.metrics.watch(keyed, "users", keys=2)
    for key in (1, "1", "a", "b"):
        await keyed.acquire(key)
    counts = {
        point.attributes["aiothrottle.key"]: point.count
        for point in telemetry.points()["aiothrottle.wait.duration"]
    }
    assert counts == {"1": 2, "a": 1, "other": 1}


@virtual
async def test_span_of_a_request_has_its_wait() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")
    limiter = RateLimiter(1)
    Telemetry().metrics.watch(limiter, "api")

    async def request(name: str) -> None:
        with tracer.start_as_current_span(name):
            async with limiter.throttle() as permit:
                if name == "second":
                    report_retry(permit, 2, 0.5, status=503)
                    report_retry(permit, 3, 0.5, error=OSError())

    await asyncio.gather(request("first"), request("second"))
    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert recorded(spans["first"]) == []
    limiter_name = {"aiothrottle.limiter.name": "api"}
    assert recorded(spans["second"]) == [
        ("aiothrottle.wait", {**limiter_name, "aiothrottle.wait.duration": 1.0}),
        ("aiothrottle.retry", {**limiter_name, **_attempt(2), "http.response.status_code": 503}),
        ("aiothrottle.retry", {**limiter_name, **_attempt(3), "error.type": "OSError"}),
    ]


def _attempt(number: int) -> dict[str, float]:
    return {"aiothrottle.retry.attempt": number, "aiothrottle.retry.delay": 0.5}


def recorded(span: ReadableSpan) -> list[tuple[str, dict[str, Any]]]:
    return [(event.name, dict(event.attributes or {})) for event in span.events]


def test_opentelemetry_names_wrong_arguments() -> None:
    metrics = OpenTelemetryMetrics()
    rejects_wrong_arguments(metrics.watch)
    metrics.watch(RateLimiter(1), "api")
    with pytest.raises(ValueError, match="is watched already"):
        metrics.watch(RateLimiter(1), "api")


# ---- the rates in force --------------------------------------------------------------------------


@virtual
async def test_rates_are_read_from_any_algorithm() -> None:
    assert rates(RateLimiter()) == ()
    assert rates(RateLimiter("10/s", burst=2)) == (Rate(10),)
    assert rates(RateLimiter(10, guard=0.5)) == (Rate(10, 1.5),)
    assert rates(RateLimiter(10, store=MemoryStore(), key="k")) == (Rate(10),)
    assert rates(RateLimiter(AdaptiveRate(4, 1, 1000))) == (Rate(4),)
    adjusted = RateLimiter(["10/s", "100/min"])
    permit = await adjusted.acquire()
    permit.update_quota(5, 10.0)
    assert rates(adjusted) == (Rate(10), Rate(100, 60))
    followed = RateLimiter("server")
    assert rates(followed) == ()
    followed.follow("7/s")
    assert rates(followed) == (Rate(7),)

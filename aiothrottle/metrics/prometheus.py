"""Metrics of limiters for Prometheus, through `prometheus_client`.

>>> from aiothrottle import RateLimiter
>>> from prometheus_client import CollectorRegistry, generate_latest
>>> registry = CollectorRegistry()  # usually you leave it out: there is one for the whole program
>>> limiter = RateLimiter("10/s", concurrency_limit=5)
>>> stop = PrometheusMetrics(registry).watch(limiter, "github")
>>> "aiothrottle_rate_limit" in generate_latest(registry).decode()
True

Each request costs a count or two: the counters are kept here and given to Prometheus when it asks,
as those of `prometheus_client` take a lock each time. For the same reason they are not part of its
multiprocess mode: have Prometheus ask each process.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from aiothrottle import gauges
from aiothrottle.events import Paused, Rejected, Retried, StoreDown, Throttled
from aiothrottle.metrics.recorder import Counted, Counts, Recorder, Recording
from aiothrottle.redact import shown

__all__ = ["BUCKETS", "PrometheusMetrics"]

#: Seconds: the upper bounds of the classes into which waits are sorted, if none are given.
BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)

_LABELS = ("limiter", "key")
_RATE = "Tokens per second, in the long run, that the limiter allows."
_GAUGES = (
    ("in_flight", "Permits that are out.", gauges.in_flight),
    ("waiting", "Requests that wait.", gauges.waiting),
    ("concurrency_limit", "Permits that may be out.", gauges.concurrency_limit),
    ("rate_limit", _RATE, gauges.tokens_per_second),
)


class PrometheusMetrics(Recorder[Counts], Collector):
    """Gives Prometheus the figures of all limiters that it watches, each by the label ``limiter``.

    Keys that are told apart have the label ``key``. What is watched no more has no series.

    Args:
        registry: Where it registers itself.
        buckets: Seconds, ascending: the upper bounds of the classes of `aiothrottle_wait_seconds`.

    Raises:
        TypeError: `registry` is none.
        ValueError: The buckets are none, or not ascending; or the registry has such metrics
            already: one of these is enough for all limiters.
    """

    def __init__(
        self, registry: CollectorRegistry | None = REGISTRY, *, buckets: Sequence[float] = BUCKETS
    ) -> None:
        if registry is not None and not isinstance(registry, CollectorRegistry):
            raise TypeError(
                f"registry is a prometheus_client.CollectorRegistry, not {shown(registry)}"
            )
        bounds = tuple(map(float, buckets))
        if not bounds or any(low >= high for low, high in pairwise(bounds)):
            raise ValueError(f"buckets are bounds in seconds, one or more, ascending: {buckets!r}")
        self._bounds = bounds
        super().__init__(lambda _, label: Counts(label or "", bounds))
        if registry is not None:
            registry.register(self)

    def describe(self) -> Iterable[Metric]:
        """Name the metrics, so that the registry need not count anything for it."""
        return self._collect({})

    def collect(self) -> Iterable[Metric]:
        """Give the figures; in any thread."""
        return self._collect(self._recorded())

    def _collect(self, recorded: dict[str, Recording[Counts]]) -> Iterator[Metric]:
        waits = HistogramMetricFamily(
            "aiothrottle_wait_seconds",
            "How long requests waited that were let through.",
            labels=_LABELS,
        )
        tokens = _counter("tokens", "What requests cost that were let through.")
        kinds: dict[type[Counted], CounterMetricFamily] = {
            Rejected: _counter("rejected", "Requests that the limiter rejected.", "reason"),
            Throttled: _counter("throttled", "Requests that the server throttled."),
            Paused: _counter("pauses", "Pauses that began, or became longer.", "reason"),
            Retried: _counter("retries", "Requests that were sent again."),
        }
        for name, recording in recorded.items():
            for key, counts in list(recording.series.items()):
                labels = [name, key]
                waits.add_metric(labels, _cumulated(self._bounds, counts.waits), counts.waited)
                tokens.add_metric(labels, counts.tokens)
                kinds[Throttled].add_metric(labels, counts.total(Throttled))
                kinds[Retried].add_metric(labels, counts.total(Retried))
                for (kind, reason), count in list(counts.kinds.items()):
                    if reason:
                        kinds[kind].add_metric([*labels, reason], count)
        yield from (waits, tokens, *kinds.values())
        yield from _of_limiters(recorded)


def _of_limiters(recorded: dict[str, Recording[Counts]]) -> Iterator[Metric]:
    """Give the metrics that have no label ``key``."""
    outages = CounterMetricFamily(
        "aiothrottle_store_outages", "How often the store ceased to answer.", labels=_LABELS[:1]
    )
    store = _gauge("store_up", "Whether the store answers, of which it has been heard once.")
    for name, recording in recorded.items():
        if recording.store_up is not None:
            outages.add_metric([name], recording.own.total(StoreDown))
            store.add_metric([name], recording.store_up)
    yield outages
    for called, text, read in _GAUGES:
        family = _gauge(called, text)
        for name, recording in recorded.items():
            if (value := read(recording.limiter)) is not None:
                family.add_metric([name], value)
        yield family
    yield store


def _cumulated(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    names = [*map(str, bounds), "+Inf"]
    return list(zip(names, accumulate(counts), strict=True))


def _counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"aiothrottle_{name}", text, labels=(*_LABELS, *labels))


def _gauge(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"aiothrottle_{name}", text, labels=_LABELS[:1])

"""Metrics of limiters for Prometheus, through `prometheus_client`.

>>> from aiothrottle import RateLimiter
>>> from prometheus_client import CollectorRegistry, generate_latest
>>> registry = CollectorRegistry()  # usually left out: there is a global one
>>> limiter = RateLimiter("10/s", concurrency_limit=5)
>>> stop = PrometheusMetrics(registry).watch(limiter, "github")
>>> "aiothrottle_rate_limit" in generate_latest(registry).decode()
True

The counters are kept here and collected at each scrape, as those of `prometheus_client` take a lock
at each increment. For the same reason they are not part of its multiprocess mode: let Prometheus
scrape each process.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from aiothrottle._checks import check_number, shown
from aiothrottle.events import Paused, Rejected, Retried, StoreDown, Throttled
from aiothrottle.metrics import gauges
from aiothrottle.metrics.recorder import Counted, Counts, Recorder, Recording

__all__ = ["BUCKETS", "PrometheusMetrics"]

#: Seconds: the default upper bounds of the buckets of `aiothrottle_wait_seconds`.
BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)

_LABELS = ("limiter", "key")
_RATE = "The average rate that is allowed, in tokens per second."
_GAUGES = (
    ("in_flight", "Permits that are held.", gauges.in_flight),
    ("waiting", "Requests that wait.", gauges.waiting),
    ("concurrency_limit", "The concurrency limit.", gauges.concurrency_limit),
    ("rate_limit", _RATE, gauges.tokens_per_second),
)


class PrometheusMetrics(Recorder[Counts], Collector):
    """A Prometheus collector of limiters, with the label ``limiter``.

    Keys with a series of their own have the label ``key``. A limiter that is no longer watched has
    no series.

    Args:
        registry: The registry to register in; None: none.
        buckets: Seconds, ascending: the upper bounds of the buckets of `aiothrottle_wait_seconds`.

    Raises:
        TypeError: `registry` is not a `CollectorRegistry`, or a bucket is not a number.
        ValueError: There are no buckets, or they are not ascending; or the registry has these
            metrics already: one collector is enough for all limiters.
    """

    def __init__(
        self, registry: CollectorRegistry | None = REGISTRY, *, buckets: Sequence[float] = BUCKETS
    ) -> None:
        if registry is not None and not isinstance(registry, CollectorRegistry):
            raise TypeError(
                f"registry must be a prometheus_client.CollectorRegistry, got {shown(registry)}"
            )
        # A last bound of infinity, as in the buckets of `prometheus_client`, is there anyway.
        bounds = tuple(bound for bound in buckets if bound != math.inf)
        for bound in bounds:
            check_number("each of buckets", bound, "seconds", least=-math.inf)
        if not bounds or not all(low < high for low, high in pairwise((-math.inf, *bounds))):
            raise ValueError(
                f"buckets must be one or more ascending bounds in seconds, got {buckets!r}"
            )
        self._names = [*(str(float(bound)) for bound in bounds), "+Inf"]
        super().__init__(lambda _, label: Counts(label or "", bounds))
        if registry is not None:
            registry.register(self)

    def describe(self) -> Iterable[Metric]:
        """Yield the metrics without samples, so that the registry need not collect for it."""
        return self._collect({})

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics; in any thread."""
        return self._collect(self._recordings.copy())

    def _collect(self, recorded: dict[str, Recording[Counts]]) -> list[Metric]:
        waits = HistogramMetricFamily(
            "aiothrottle_wait_seconds", "The wait of granted requests.", labels=_LABELS
        )
        tokens = _counter("tokens", "The cost of granted requests.")
        resources = _counter(
            "resource_tokens", "The cost of granted requests in each resource.", "resource"
        )
        kinds: dict[type[Counted], CounterMetricFamily] = {
            Rejected: _counter("rejected", "Requests that the limiter rejected.", "reason"),
            Throttled: _counter("throttled", "Requests that the server throttled."),
            Paused: _counter("pauses", "Pauses that began, or became longer.", "reason"),
            Retried: _counter("retries", "Retries of requests."),
        }
        outages = CounterMetricFamily(
            "aiothrottle_store_outages", "Outages of the store.", labels=_LABELS[:1]
        )
        present = {read: _gauge(called, text) for called, text, read in _GAUGES}
        store = _gauge("store_up", "Whether the store answers; exists after its first outage.")
        for name, recording in recorded.items():
            # Copies, as the loop's thread goes on: `list` makes a tuple of each item, at which a
            # garbage collection may let that thread run.
            for key, counts in recording.series.copy().items():
                labels = [name, key]
                buckets = zip(self._names, accumulate(counts.waits), strict=True)
                waits.add_metric(labels, [*buckets], counts.waited)
                tokens.add_metric(labels, counts.tokens)
                for resource, cost in counts.resources.copy().items():
                    resources.add_metric([*labels, resource], cost)
                kinds[Throttled].add_metric(labels, counts.total(Throttled))
                kinds[Retried].add_metric(labels, counts.total(Retried))
                for (kind, reason), count in counts.kinds.copy().items():
                    if reason:
                        kinds[kind].add_metric([*labels, reason], count)
            if recording.store_up is not None:
                outages.add_metric([name], recording.own.total(StoreDown))
                store.add_metric([name], recording.store_up)
            for read, family in present.items():
                if (value := read(recording.limiter)) is not None:
                    family.add_metric([name], value)
        return [waits, tokens, resources, *kinds.values(), outages, *present.values(), store]


def _counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"aiothrottle_{name}", text, labels=(*_LABELS, *labels))


def _gauge(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"aiothrottle_{name}", text, labels=_LABELS[:1])

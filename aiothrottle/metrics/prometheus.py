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

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import accumulate, pairwise

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from aiothrottle import gauges
from aiothrottle.events import (
    Event,
    Granted,
    Paused,
    Refused,
    Retried,
    ServerRefused,
    StoreDown,
    StoreUp,
)
from aiothrottle.limiter import RateLimiter
from aiothrottle.redact import shown

__all__ = ["BUCKETS", "PrometheusMetrics"]

#: Seconds: the upper bounds of the classes into which waits are sorted, if none are given.
BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)

_LABELS = ("limiter", "key")
# What keys are called that have no label of their own.
_OTHER = "other"


class PrometheusMetrics(Collector):
    """Gives Prometheus the figures of all limiters that it watches.

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
        self._watches: dict[str, _Watch] = {}
        if registry is not None:
            registry.register(self)

    def watch(self, limiter: gauges.AnyLimiter, name: str, *, keys: int = 0) -> Callable[[], None]:
        """Watch a limiter from now on.

        Args:
            limiter: What to watch.
            name: The value of the label ``limiter``.
            keys: How many keys of a `KeyedRateLimiter` get a label ``key`` of their own, first
                come first served; the others are ``other``. 0: keys are not told apart.

        Returns:
            A function that ends it, and with it the series of that name.

        Raises:
            TypeError: The limiter is none, the name no text, or `keys` no number.
            ValueError: There is one of that name already; or `keys` is below 0.
        """
        gauges.check(limiter, name, keys)
        if name in self._watches:
            raise ValueError(f"there is a limiter named {name!r} already: give another name")
        watch = self._watches[name] = _Watch(limiter, name, keys, self._bounds)
        forget = limiter.observe(watch.hear)

        def stop() -> None:
            forget()
            if self._watches.get(name) is watch:
                del self._watches[name]

        return stop

    def describe(self) -> Iterable[Metric]:
        """Name the metrics, so that the registry need not count anything for it."""
        return self._collect([])

    def collect(self) -> Iterable[Metric]:
        """Give the figures; in any thread."""
        return self._collect(list(self._watches.values()))

    def _collect(self, watches: "list[_Watch]") -> Iterator[Metric]:
        waits = HistogramMetricFamily(
            "aiothrottle_wait_seconds",
            "How long requests waited that were let through.",
            labels=_LABELS,
        )
        tokens = _counter("tokens", "What requests cost that were let through.")
        refused = _counter("refused", "Requests that the limiter told no.", "reason")
        by_server = _counter("server_refused", "Requests that the server told no.")
        pauses = _counter("pauses", "Pauses that began, or became longer.", "reason")
        retries = _counter("retries", "Requests that were sent again.")
        for labels, series in (item for watch in watches for item in watch.items()):
            waits.add_metric(labels, _cumulated(self._bounds, series.counts), series.waited)
            tokens.add_metric(labels, series.tokens)
            by_server.add_metric(labels, series.refused_by_server)
            retries.add_metric(labels, series.retries)
            for family, counts in ((refused, series.refused), (pauses, series.pauses)):
                for reason, count in list(counts.items()):
                    family.add_metric([*labels, reason], count)
        outages = CounterMetricFamily(
            "aiothrottle_store_outages", "How often the store ceased to answer.", labels=_LABELS[:1]
        )
        for watch in watches:
            if watch.store_up is not None:
                outages.add_metric([watch.name], watch.outages)
        yield from (waits, tokens, refused, by_server, pauses, retries, outages)
        yield from _gauges(watches)


def _gauges(watches: "list[_Watch]") -> Iterator[Metric]:
    in_flight = _gauge("in_flight", "Permits that are out.")
    waiting = _gauge("waiting", "Requests that wait.")
    slots = _gauge("concurrency_limit", "Permits that may be out.")
    rate = _gauge("rate_limit", "Tokens per second, in the long run, that the limiter allows.")
    store = _gauge("store_up", "Whether the store answers, of which it has been heard once.")
    for watch in watches:
        labels, limiter = [watch.name], watch.limiter
        in_flight.add_metric(labels, gauges.in_flight(limiter))
        waiting.add_metric(labels, gauges.waiting(limiter))
        if watch.store_up is not None:
            store.add_metric(labels, watch.store_up)
        if isinstance(limiter, RateLimiter):
            if (limit := gauges.concurrency_limit(limiter)) is not None:
                slots.add_metric(labels, limit)
            if rates := gauges.rates(limiter):
                rate.add_metric(labels, min(it.limit / it.period for it in rates))
    yield from (in_flight, waiting, slots, rate, store)


class _Series:
    """What is counted for one key, or for all."""

    __slots__ = ("counts", "pauses", "refused", "refused_by_server", "retries", "tokens", "waited")

    def __init__(self, classes: int) -> None:
        self.counts = [0] * classes
        self.waited = 0.0
        self.tokens = 0.0
        self.refused = Counter[str]()
        self.refused_by_server = 0
        self.pauses = Counter[str]()
        self.retries = 0


class _Watch:
    """One limiter, and what it has told."""

    def __init__(
        self, limiter: gauges.AnyLimiter, name: str, keys: int, bounds: Sequence[float]
    ) -> None:
        self.limiter = limiter
        self.name = name
        self.store_up: bool | None = None
        self.outages = 0
        self._last_outage = -1
        self._bounds = bounds
        self._keys = keys
        # Of those without a label of their own.
        self._rest = _Series(len(bounds) + 1)
        # By label and not by key: Prometheus would refuse the same one twice, as of 1 and "1".
        self._series: dict[str, _Series] = {_OTHER if keys else "": self._rest}

    def items(self) -> Iterator[tuple[list[str], _Series]]:
        """Give all series with their labels."""
        for label, series in list(self._series.items()):
            yield [self.name, label], series

    def hear(self, event: Event) -> None:
        """Count."""
        series = self._of(event.key) if self._keys else self._rest
        match event:
            case Granted():  # the first, since the most
                waited = event.waited
                series.counts[bisect_left(self._bounds, waited)] += 1
                series.waited += waited
                series.tokens += event.cost
            case Refused():
                series.refused[event.reason] += 1
            case ServerRefused():
                series.refused_by_server += 1
            case Paused():
                series.pauses[event.reason] += 1
            case Retried():
                series.retries += 1
            case StoreDown():
                self.store_up = False
                # Each key tells of it; the numbers grow.
                self.outages += event.outage > self._last_outage
                self._last_outage = max(self._last_outage, event.outage)
            case StoreUp():
                self.store_up = True
            case _:  # what adapts and what is announced shows in the gauges
                pass

    def _of(self, key: Hashable) -> _Series:
        if key is None:
            return self._rest
        label = str(key)
        series = self._series.get(label)
        if series is None:
            if len(self._series) > self._keys:  # one is that of the others
                return self._rest
            series = self._series[label] = _Series(len(self._bounds) + 1)
        return series


def _cumulated(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    names = [*map(str, bounds), "+Inf"]
    return list(zip(names, accumulate(counts), strict=True))


def _counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"aiothrottle_{name}", text, labels=(*_LABELS, *labels))


def _gauge(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"aiothrottle_{name}", text, labels=_LABELS[:1])

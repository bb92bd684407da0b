"""Metrics and span events of limiters for OpenTelemetry, through its API.

The SDK and the exporter of the program process them. A request that waited adds an event
``aiothrottle.wait`` to the current span, with the seconds as ``aiothrottle.wait.duration``; a retry
adds an event ``aiothrottle.retry``.

>>> from aiothrottle import RateLimiter
>>> stop = OpenTelemetryMetrics().watch(RateLimiter("10/s", concurrency_limit=5), "github")
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from opentelemetry import metrics, trace
from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

from aiothrottle._checks import shown
from aiothrottle.events import Granted, Paused, Rejected, Retried, StoreDown, Throttled
from aiothrottle.metrics import gauges
from aiothrottle.metrics.recorder import Counted, Recorder

__all__ = ["OpenTelemetryMetrics"]

_NAME = "aiothrottle.limiter.name"

_COUNTERS: tuple[tuple[type[Counted], str, str, str], ...] = (
    (Rejected, "rejected_requests", "{request}", "Requests that the limiter rejected."),
    (Throttled, "throttled_requests", "{request}", "Requests that the server throttled."),
    (Paused, "pauses", "{pause}", "Pauses that began, or became longer."),
    (Retried, "retries", "{request}", "Retries of requests."),
    (StoreDown, "store.outages", "{outage}", "Outages of the store."),
)
_GAUGES = (
    ("active_requests", "{request}", "Permits that are held.", gauges.in_flight),
    ("pending_requests", "{request}", "Requests that wait.", gauges.waiting),
    ("concurrency.limit", "{request}", "The concurrency limit.", gauges.concurrency_limit),
    ("rate.limit", "{token}/s", "The average rate that is allowed.", gauges.tokens_per_second),
)
# The attribute with the reason.
_REASONS: dict[type[Counted], str] = {
    Rejected: "aiothrottle.rejection.reason",
    Paused: "aiothrottle.pause.reason",
}


@dataclass(slots=True)
class _Series:
    """One series: passes its events to the instruments."""

    metrics: "OpenTelemetryMetrics"
    attributes: dict[str, str]

    def grant(self, event: Granted) -> None:
        to, attributes = self.metrics, self.attributes
        to._waits.record(event.waited, attributes)
        to._tokens.add(event.cost, attributes)
        for name, tokens in event.costs.items():
            to._resources.add(tokens, attributes | {"aiothrottle.resource.name": name})
        if event.waited > 0.0:
            self._note("aiothrottle.wait", {"aiothrottle.wait.duration": event.waited})

    def count(self, event: Counted, reason: str) -> None:
        why = {_REASONS[type(event)]: reason} if reason else {}
        self.metrics._kinds[type(event)].add(1, self.attributes | why)
        if isinstance(event, Retried):
            self._note("aiothrottle.retry", dict(_attempt(event)))

    def _note(self, name: str, more: Mapping[str, str | float]) -> None:
        trace.get_current_span().add_event(name, {**self.attributes, **more})


def _attempt(event: Retried) -> Iterator[tuple[str, int | float | str]]:
    yield "aiothrottle.retry.attempt", event.attempt
    yield "aiothrottle.retry.delay", event.delay
    if event.status is not None:
        yield "http.response.status_code", event.status
    if event.error is not None:
        yield "error.type", type(event.error).__qualname__


class OpenTelemetryMetrics(Recorder[_Series]):
    """Reports limiters to OpenTelemetry, with the attribute ``aiothrottle.limiter.name``.

    Keys with a series of their own have the attribute ``aiothrottle.key``.

    Args:
        meter_provider: The provider of the instruments; None: the global one.

    Raises:
        TypeError: `meter_provider` is not a `MeterProvider`.
    """

    def __init__(self, meter_provider: MeterProvider | None = None) -> None:
        if meter_provider is not None and not isinstance(meter_provider, MeterProvider):
            raise TypeError(f"meter_provider must be a MeterProvider, got {shown(meter_provider)}")
        meter = metrics.get_meter("aiothrottle", meter_provider=meter_provider)
        self._waits = meter.create_histogram(
            "aiothrottle.wait.duration", "s", "The wait of granted requests."
        )
        counter = meter.create_counter
        self._tokens = counter("aiothrottle.tokens", "{token}", "The cost of granted requests.")
        self._resources = counter(
            "aiothrottle.resource.tokens", "{token}", "The cost of granted requests, by resource."
        )
        self._kinds = {
            kind: counter(f"aiothrottle.{name}", unit, text) for kind, name, unit, text in _COUNTERS
        }
        super().__init__(self._series)
        for name, unit, text, read in _GAUGES:
            meter.create_observable_gauge(f"aiothrottle.{name}", [self._reader(read)], unit, text)

    def _series(self, name: str, key: str | None) -> _Series:
        labelled = {} if key is None else {"aiothrottle.key": key}
        return _Series(self, {_NAME: name, **labelled})

    def _reader(self, read: gauges.Gauge) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            for name, recording in self._recordings.copy().items():
                if (value := read(recording.limiter)) is not None:
                    yield Observation(value, {_NAME: name})

        return observe

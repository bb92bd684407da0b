"""Metrics and span events of limiters for OpenTelemetry, through its API.

What is done with them is up to the SDK and the exporter that the program has set up. A request
that had to wait gets an event ``aiothrottle.wait`` in the span that is current, with the seconds as
``aiothrottle.wait.duration``; one that is sent again an event ``aiothrottle.retry``.

>>> from aiothrottle import RateLimiter
>>> stop = OpenTelemetryMetrics().watch(RateLimiter("10/s", concurrency_limit=5), "github")
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping

from opentelemetry import metrics, trace
from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation

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

__all__ = ["OpenTelemetryMetrics"]

_NAME = "aiothrottle.limiter.name"
_KEY = "aiothrottle.key"
_OTHER = "other"

Attributes = Mapping[str, str]


class OpenTelemetryMetrics:
    """Tells OpenTelemetry of all limiters that it watches.

    Args:
        meter_provider: Where the metrics go; None: to the one of the whole program.

    Raises:
        TypeError: `meter_provider` is none.
    """

    def __init__(self, meter_provider: MeterProvider | None = None) -> None:
        if meter_provider is not None and not isinstance(meter_provider, MeterProvider):
            raise TypeError(f"meter_provider is a MeterProvider, not {shown(meter_provider)}")
        meter = metrics.get_meter("aiothrottle", meter_provider=meter_provider)
        self._waits = meter.create_histogram(
            "aiothrottle.wait.duration", "s", "How long requests waited that were let through."
        )
        self._tokens = meter.create_counter(
            "aiothrottle.tokens", "{token}", "What requests cost that were let through."
        )
        self._refused = meter.create_counter(
            "aiothrottle.refused_requests", "{request}", "Requests that the limiter told no."
        )
        self._refused_by_server = meter.create_counter(
            "aiothrottle.server.refused_requests", "{request}", "Requests that the server told no."
        )
        self._pauses = meter.create_counter(
            "aiothrottle.pauses", "{pause}", "Pauses that began, or became longer."
        )
        self._retries = meter.create_counter(
            "aiothrottle.retries", "{request}", "Requests that were sent again."
        )
        self._store_outages = meter.create_counter(
            "aiothrottle.store.outages", "{outage}", "How often the store ceased to answer."
        )
        self._watched: dict[str, gauges.AnyLimiter] = {}
        self._gauges(meter)

    def watch(self, limiter: gauges.AnyLimiter, name: str, *, keys: int = 0) -> Callable[[], None]:
        """Watch a limiter from now on.

        Args:
            limiter: What to watch.
            name: The value of the attribute ``aiothrottle.limiter.name``.
            keys: How many keys of a `KeyedRateLimiter` get an attribute ``aiothrottle.key`` of
                their own, first come first served; the others are ``other``. 0: keys are not told
                apart.

        Returns:
            A function that ends it.

        Raises:
            TypeError: The limiter is none, the name no text, or `keys` no number.
            ValueError: There is one of that name already; or `keys` is below 0.
        """
        gauges.check(limiter, name, keys)
        if name in self._watched:
            raise ValueError(f"there is a limiter named {name!r} already: give another name")
        self._watched[name] = limiter
        named = _Attributes(name, keys)
        forget = limiter.observe(lambda event: self._hear(event, named))

        def stop() -> None:
            forget()
            if self._watched.get(name) is limiter:
                del self._watched[name]

        return stop

    def _hear(self, event: Event, named: "_Attributes") -> None:
        attributes = named[event.key]
        match event:
            case Granted():
                self._waits.record(event.waited, attributes)
                self._tokens.add(event.cost, attributes)
                if event.waited > 0.0:
                    told: dict[str, str | float] = {**attributes}
                    told["aiothrottle.wait.duration"] = event.waited
                    trace.get_current_span().add_event("aiothrottle.wait", told)
            case Refused():
                self._refused.add(1, {**attributes, "aiothrottle.refusal.reason": event.reason})
            case ServerRefused():
                self._refused_by_server.add(1, attributes)
            case Paused():
                self._pauses.add(1, {**attributes, "aiothrottle.pause.reason": event.reason})
            case Retried():
                self._retries.add(1, attributes)
                span = trace.get_current_span()
                span.add_event("aiothrottle.retry", {**attributes, **dict(_told_of(event))})
            case StoreDown():
                # Each key tells of it; the numbers grow.
                if event.outage > named.last_outage:
                    named.last_outage = event.outage
                    self._store_outages.add(1, {_NAME: named.name})
            case StoreUp() | _:  # what adapts and what is announced shows in the gauges
                pass

    def _gauges(self, meter: Meter) -> None:
        def gauge(
            name: str, unit: str, text: str, read: Callable[[gauges.AnyLimiter], float | None]
        ) -> None:
            def observe(_: CallbackOptions) -> Iterable[Observation]:
                for of, limiter in list(self._watched.items()):
                    if (value := read(limiter)) is not None:
                        yield Observation(value, {_NAME: of})

            meter.create_observable_gauge(name, [observe], unit, text)

        gauge("aiothrottle.active_requests", "{request}", "Permits that are out.", gauges.in_flight)
        gauge("aiothrottle.pending_requests", "{request}", "Requests that wait.", gauges.waiting)
        gauge("aiothrottle.concurrency.limit", "{request}", "Permits that may be out.", _slots)
        gauge("aiothrottle.rate.limit", "{token}/s", "Allowed in the long run.", _rate)


class _Attributes(dict[Hashable, Attributes]):
    """The attributes of each key, made when it is first seen."""

    def __init__(self, name: str, keys: int) -> None:
        super().__init__()
        self.name = name
        self.last_outage = -1
        self._keys = keys
        self._rest = {_NAME: name, _KEY: _OTHER} if keys else {_NAME: name}

    def __missing__(self, key: Hashable) -> Attributes:
        if key is None or len(self) >= self._keys:
            return self._rest
        attributes = self[key] = {_NAME: self.name, _KEY: str(key)}
        return attributes


def _told_of(event: Retried) -> Iterator[tuple[str, int | float | str]]:
    yield "aiothrottle.retry.attempt", event.attempt
    yield "aiothrottle.retry.delay", event.delay
    if event.status is not None:
        yield "http.response.status_code", event.status
    if event.error is not None:
        yield "error.type", type(event.error).__qualname__


def _slots(limiter: gauges.AnyLimiter) -> float | None:
    return gauges.concurrency_limit(limiter) if isinstance(limiter, RateLimiter) else None


def _rate(limiter: gauges.AnyLimiter) -> float | None:
    rates = gauges.rates(limiter) if isinstance(limiter, RateLimiter) else ()
    return min((rate.limit / rate.period for rate in rates), default=None)

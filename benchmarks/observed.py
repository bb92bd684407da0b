"""The cost of observers: `uv run benchmarks/observed.py`.

The observer that does nothing shows what the limiter spends on events. OpenTelemetry is used with
its SDK.
"""

import asyncio
from functools import partial

from contestant import Made
from measure import Report, arguments, interleave, machine, show
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry

from aiothrottle import KeyedRateLimiter, Rate, RateLimiter
from aiothrottle.metrics.opentelemetry import OpenTelemetryMetrics
from aiothrottle.metrics.prometheus import PrometheusMetrics

__all__ = ["report"]

# Such a high rate that no entry waits.
PLENTY = Rate(1_000_000, 0.001)


def contestants() -> dict[str, Made]:
    """Return the same limiter, observed in each way."""
    limiters = [RateLimiter(PLENTY, concurrency_limit=1000) for _ in range(4)]
    _, idle, scraped, metered = limiters
    keyed = KeyedRateLimiter(PLENTY, concurrency_limit=1000)
    idle.observe(lambda _: None)
    prometheus = PrometheusMetrics(CollectorRegistry())
    prometheus.watch(scraped, "one")
    prometheus.watch(keyed, "keyed", keys=10)
    OpenTelemetryMetrics(MeterProvider([InMemoryMetricReader()])).watch(metered, "one")
    names = ("none", "does nothing", "Prometheus", "OpenTelemetry")
    made = {name: Made(it.throttle) for name, it in zip(names, limiters, strict=True)}
    unobserved = KeyedRateLimiter(PLENTY, concurrency_limit=1000)
    return {
        **made,
        "keyed, none": Made(partial(unobserved.throttle, "a")),
        "keyed, Prometheus": Made(partial(keyed.throttle, "a")),
    }


def report(rounds: int = 25, repeat: int = 20_000) -> Report:
    """Measure, and compare the results with the target."""
    found = Report("Observed")
    runs = {name: partial(it.repeat, repeat) for name, it in contestants().items()}
    medians = asyncio.run(interleave(runs, rounds=rounds, per_round=repeat))
    rows = [["observer", "ns an entry", "more than without"]]
    for name, ns in medians.items():
        none = medians["keyed, none" if "keyed" in name else "none"]
        rows.append([name, f"{ns:.0f}", f"{ns - none:.0f}"])
    found.add(f"Median of {rounds} interleaved rounds of {repeat:,} entries.", rows)
    microseconds = (medians["Prometheus"] - medians["none"]) / 1000
    found.want("Prometheus, for each entry", microseconds, 1.5, " µs")
    return found


def main() -> None:
    """Measure and print."""
    options = arguments(__doc__, rounds=(25, "rounds"), repeat=(20_000, "entries a round"))
    print(machine())
    show(report(options.rounds, options.repeat))


if __name__ == "__main__":
    main()

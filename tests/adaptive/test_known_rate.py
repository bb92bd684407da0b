"""A rate that is given, and higher than what the server admits: the limiter learns the true one."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from aiothrottle import AdaptiveConcurrency, RateLimiter
from aiothrottle.errors import CostTooHigh
from aiothrottle.rate import Rate
from aiothrottle.simulation import Server, simulate
from tests.adaptive.session_in_time import Record, run
from tests.adaptive.test_learned_slots import minute
from tests.support.effort import seeds
from tests.support.observing import adaptations, observed
from tests.support.server_limits import rolling_window

SERVERS = {
    "a window": Server("10/s", retry_after="none"),
    "a fixed window": Server("10/s", "fixed-window"),
    "a bucket": Server("10/s", "token-bucket", burst=5, retry_after="exact"),
    "even spacing": Server("10/s", "token-bucket", burst=1, retry_after="none"),
    "little": Server("2/s"),
}


def crawl(limiter: RateLimiter, server: Server, **options: Any) -> Record:
    return seen_by(server, lambda: limiter, workers=24, **options)


def seen_by(
    server: Server,
    client: Callable[[], RateLimiter],
    *,
    latency: float = 0.01,
    jitter: float = 0.005,
    **options: Any,
) -> Record:
    """Return what a simulated server sees."""
    arrivals = simulate(client, server, latency=latency, jitter=jitter, **options).arrivals
    admitted = [it.at for it in arrivals if not it.throttled]
    return Record(admitted, [it.at for it in arrivals if it.throttled])


@pytest.mark.parametrize("factor", [1.3, 2.0, 5.0])
@pytest.mark.parametrize("server", SERVERS.values(), ids=SERVERS.keys())
def test_rate_that_is_too_high_is_corrected(server: Server, factor: float) -> None:
    true = server.rate.limit
    for seed in seeds(1):
        limiter = RateLimiter(Rate(factor * true, 1.0), concurrency_limit=8)
        found = crawl(limiter, server, seed=seed)
        assert found.part_throttled(30.0, 60.0) <= 0.03
        assert found.used(20.0, 60.0, true) >= 0.75


def test_without_that_it_is_throttled_for_ever() -> None:
    limiter = RateLimiter("20/s", concurrency_limit=8, learn_rate=False)
    assert crawl(limiter, SERVERS["a window"]).part_throttled(30.0, 60.0) >= 0.05


def test_three_clients_with_the_whole_rate_each_share_it() -> None:
    client = partial(RateLimiter, "20/s", concurrency_limit=8)
    found = seen_by(Server("20/s"), client, clients=3, seed=1)
    assert found.part_throttled(15.0, 60.0) <= 0.02
    assert found.used(15.0, 60.0, 20.0) >= 0.8


def test_given_rate_is_back_when_the_server_admits_it() -> None:
    limiter = RateLimiter("20/s", concurrency_limit=8)
    seen = observed(limiter)
    found = crawl(limiter, SERVERS["a window"], seconds=300.0, changes={60.0: Server("20/s")})
    *rates, given = adaptations(seen, "rate")
    assert rates[0].before == given.value == math.inf
    assert 19.5 <= given.before <= max(it.value for it in rates) <= 20.0
    assert found.part_throttled(200.0, 300.0) == 0.0
    assert found.used(200.0, 300.0, 20.0) >= 0.95
    assert limiter.statistics().bound_by == "rate"


def test_cost_above_the_given_rate_is_rejected_while_a_lower_one_is_learned() -> None:
    limiter = RateLimiter("20/s", concurrency_limit=8)
    crawl(limiter, SERVERS["a window"])
    assert limiter.statistics().bound_by == "learned rate"
    with pytest.raises(CostTooHigh):
        limiter.throttle(21)


@pytest.mark.parametrize(
    ("rate", "latency", "jitter", "least"),
    [
        (38, 0.03, 0.047, 0.25),
        (38, 0.05, 0.047, 0.25),
        (20, 0.03, 0.02, 0.5),
        (48, 0.03, 0.01, 0.5),
    ],
)
def test_jitter_longer_than_the_spacing_is_found(
    rate: int, latency: float, jitter: float, least: float
) -> None:
    server = Server(Rate(rate, 1.0), "token-bucket", burst=1, retry_after="none")
    limiter = RateLimiter(f"{rate}/s", concurrency_limit=8)
    found = crawl(limiter, server, latency=latency, jitter=jitter)
    assert found.part_throttled(20.0, 60.0) <= 0.03
    assert found.used(20.0, 60.0, rate) >= least


@pytest.mark.parametrize(("slots", "seconds"), [(2, 0.3), (5, 0.2), (7, 1.5)])
def test_limit_of_requests_at_once_is_found_besides(slots: int, seconds: float) -> None:
    for seed in seeds(1):
        found = minute(slots, seconds, 0.5, seed, RateLimiter("100/s", concurrency_limit=8))
        assert (found.slots, found.rate) == (slots, 100.0)
        assert found.throttled <= 6
        assert found.used >= 0.85


def test_next_loop_does_not_go_beyond_the_given_rate() -> None:
    limiter = RateLimiter("12/s", concurrency_limit=8)
    # Each has a loop and a clock of its own; in the first one there is only time for one event.
    for seconds in (1.5, 60.0):
        run(rolling_window(6), seconds, limiter=limiter)
    assert limiter.statistics().rate_limit == pytest.approx(6.0, rel=0.1)
    record = run(rolling_window(100), 60.0, limiter=limiter)
    assert record.used(0.0, 60.0, 12.0) <= 1.02
    assert limiter.statistics().rate_limit == 12.0


class Reporting:
    """A server with windows of a second, which reports what remains, but not their length."""

    def __init__(self, limit: int) -> None:
        self.limit, self.second, self.count = limit, 0, 0

    def admits(self, now: float) -> bool:
        if int(now) > self.second:
            self.second, self.count = int(now), 0
        self.count += self.count < self.limit
        return self.count < self.limit

    def reports(self, now: float) -> dict[str, str]:
        remaining, reset = self.limit - self.count, math.ceil(self.second + 1 - now)
        names = ("X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset")
        return dict(zip(names, map(str, (self.limit, remaining, reset)), strict=True))


@pytest.mark.parametrize("updates", [False, True])
def test_reports_hold_once_the_given_rate_is_throttled(*, updates: bool) -> None:
    limiter, server = RateLimiter(["10/s"], concurrency_limit=16), Reporting(5)
    # So long that its burst is back by then.
    found = run(server.admits, 300.0, limiter=limiter, retry_after=1, reports=server.reports)
    assert limiter.statistics().rate_limit == 5.0
    assert found.part_throttled(10.0, 60.0) <= 0.02
    assert found.used(10.0, 60.0, 4.0) >= 0.75
    if updates:
        limiter.update(concurrency_limit=12)
    server = Reporting(50)
    found = run(server.admits, 60.0, limiter=limiter, retry_after=1, reports=server.reports)
    assert limiter.statistics().rate_limit == 10.0, "the given one, as the server allows more"
    assert 0.8 <= found.used(10.0, 60.0, 10.0) <= 1.02


def test_adaptive_slots_are_not_learned_besides() -> None:
    limiter = RateLimiter("100/s", concurrency_limit=AdaptiveConcurrency(8, 2, 16))
    seen = observed(limiter)
    minute(7, 0.2, 0.1, 0, limiter)
    slots = {it.value for it in adaptations(seen, "slots")}
    assert slots
    assert slots <= set(range(2, 17)), "never without a limit, as learned ones are"


def test_rates_of_resources_stay() -> None:
    limiter = RateLimiter({"requests": "20/s"}, concurrency_limit=8)
    crawl(limiter, SERVERS["a window"])
    assert limiter.statistics().rate_limit == 20.0

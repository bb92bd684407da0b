"""The adaptive limits in front of servers with small buckets and few slots, in pure time."""

import pytest

from aiothrottle import AdaptiveConcurrency, AdaptiveRate, RateLimiter
from aiothrottle.simulation import Server, simulate
from tests.adaptive.searching import Arrival, count, search, search_slots
from tests.support.effort import seeds
from tests.support.server_limits import envoy, nginx, sliding_counter, token_bucket, vsthrottle

LIMIT = 20.0
SERVERS = {
    "nginx burst=20": lambda: nginx(20, 20),
    "nginx burst=5": lambda: nginx(20, 5),
    "nginx without burst": lambda: nginx(20, 0),
    "HAProxy": lambda: sliding_counter(20),
    "Envoy": lambda: envoy(5, 0.25),
    "Traefik burst=5": lambda: token_bucket(20.0, 5.0, debt=0.5),
}


@pytest.mark.parametrize("name", SERVERS)
@pytest.mark.parametrize(("initial", "least"), [(100.0, 0.85), (20.0, 0.85), (2.0, 0.85)])
def test_small_bucket_is_used_after_fifteen_seconds(
    name: str, initial: float, least: float
) -> None:
    runs = [
        search(AdaptiveRate(initial, 1, 1000), SERVERS[name](), 120.0, seed=s) for s in seeds(3)
    ]
    for begin, end in [(15.0, 60.0), (60.0, 120.0)]:
        results = [count(arrivals, begin, end) for arrivals in runs]
        assert sum(rate for rate, _ in results) / len(runs) >= least * LIMIT
        assert max(throttled for _, throttled in results) <= 0.01


@pytest.mark.parametrize("initial", [80.0, 2.0])
@pytest.mark.parametrize("server", [Server("20/s"), Server("20/s", "token-bucket")])
def test_limit_is_found_within_ten_windows(server: Server, initial: float) -> None:
    adaptive = AdaptiveRate(initial, 0.2, 400)
    outcome = simulate(lambda: RateLimiter(adaptive), server, workers=50, seconds=30.0)
    rate, throttled = count([Arrival(it.at, not it.throttled) for it in outcome.arrivals], 10, 30)
    assert rate >= 0.85 * LIMIT  # one pause of a second takes 5 %
    assert throttled <= 0.01


@pytest.mark.parametrize("initial", [100.0, 2.0])
def test_long_retry_after_is_not_the_window(initial: float) -> None:
    # A bucket of 20, and a Retry-After of 5 s, though 50 ms would be enough.
    bucket = token_bucket(20.0, 20.0)
    arrivals = search(AdaptiveRate(initial, 1, 1000), bucket, 400.0, retry_after=5.0)
    assert count(arrivals, 20.0, 60.0)[0] >= 0.75 * LIMIT  # one pause takes 13 %
    assert count(arrivals, 60.0, 400.0)[0] >= 0.9 * LIMIT


@pytest.mark.parametrize("seed", seeds(2))
def test_varnish_is_used_within_twenty_seconds(seed: int) -> None:
    adaptive = AdaptiveRate(100, 1, 1000)
    arrivals = search(adaptive, vsthrottle(20), 400.0, retry_after=5.0, seed=seed)
    for begin, end in ((10.0, 20.0), (20.0, 400.0)):  # half of the first ten is the pause
        assert count(arrivals, begin, end)[0] >= 0.85 * LIMIT


@pytest.mark.parametrize("initial", [1, 4, 24, 64])
@pytest.mark.parametrize("capacity", [1, 2, 8, 16])
def test_few_slots_of_a_server_are_used(initial: int, capacity: int) -> None:
    arrivals = search_slots(AdaptiveConcurrency(initial, 1, 64), capacity, 60.0)
    rate, throttled = count(arrivals, 10.0, 60.0)
    assert rate >= 0.85 * capacity / 0.075
    assert throttled <= 0.03
    assert sum(not it.admitted for it in arrivals if it.at < 15.0) <= 60


@pytest.mark.parametrize("capacity", [2, 8])
def test_slots_of_a_server_that_fails_are_used(capacity: int) -> None:
    arrivals = search_slots(AdaptiveConcurrency(1, 1, 64), capacity, 60.0, fails=True)
    rate, failed = count(arrivals, 10.0, 60.0)
    assert rate >= 0.85 * capacity / 0.075
    assert failed <= 0.05

"""The adaptive limits in front of servers with small buckets and few slots, in pure time."""

import pytest

from aiothrottle import AdaptiveConcurrency, AdaptiveRate, RateLimiter
from aiothrottle.simulation import Server, simulate
from aiothrottle.testing.server import AlgorithmName
from tests.adaptive.searching import Arrival, count, search, search_slots
from tests.server_limits import Admits, envoy, nginx, sliding_counter, token_bucket, vsthrottle

LIMIT = 20.0
SERVERS = {
    "nginx burst=20": lambda: nginx(20, 20),
    "nginx burst=5": lambda: nginx(20, 5),
    "nginx without burst": lambda: nginx(20, 0),
    "HAProxy": lambda: sliding_counter(20),
    "Envoy": lambda: envoy(5, 0.25),
    "Traefik burst=5": lambda: token_bucket(20.0, 5.0, debt=0.5),
}


def server(name: str) -> Admits:
    return SERVERS[name]()


@pytest.mark.parametrize("name", SERVERS)
@pytest.mark.parametrize("initial", [100.0, 20.0, 2.0])
def test_small_bucket_is_used_after_fifteen_seconds(name: str, initial: float) -> None:
    runs = [search(AdaptiveRate(initial, 1, 1000), server(name), 120.0, seed=s) for s in range(5)]
    for begin, end in [(15.0, 60.0), (60.0, 120.0)]:
        results = [count(arrivals, begin, end) for arrivals in runs]
        assert sum(rate for rate, _ in results) / len(runs) >= 0.85 * LIMIT
        assert max(throttled for _, throttled in results) <= 0.01


@pytest.mark.parametrize("name", SERVERS)
def test_start_ten_times_too_slow_uses_ninety_percent(name: str) -> None:
    rates = [
        count(search(AdaptiveRate(2, 1, 1000), server(name), 75.0, seed=seed), 15.0, 75.0)[0]
        for seed in range(5)
    ]
    assert sum(rates) / 5 >= 0.9 * LIMIT


@pytest.mark.parametrize("initial", [80.0, 2.0])
@pytest.mark.parametrize("algorithm", ["sliding-window-log", "token-bucket"])
def test_limit_is_found_within_ten_windows(algorithm: AlgorithmName, initial: float) -> None:
    for seed in range(3):
        outcome = simulate(
            lambda: RateLimiter(AdaptiveRate(initial, 0.2, 400)),
            Server("20/s", algorithm),
            workers=50,
            seconds=30.0,
            seed=seed,
        )
        rate, throttled = count([Arrival(it.at, not it.refused) for it in outcome.arrivals], 10, 30)
        assert rate >= 0.9 * LIMIT
        assert throttled <= 0.01


@pytest.mark.parametrize("initial", [100.0, 2.0])
def test_long_retry_after_is_not_the_window(initial: float) -> None:
    # A bucket of 20, and a Retry-After of 5 s, though 50 ms would be enough.
    bucket = token_bucket(20.0, 20.0)
    arrivals = search(AdaptiveRate(initial, 1, 1000), bucket, 400.0, retry_after=5.0)
    assert count(arrivals, 20.0, 60.0)[0] >= 0.8 * LIMIT
    assert count(arrivals, 60.0, 400.0)[0] >= 0.9 * LIMIT


@pytest.mark.parametrize("seed", range(5))
def test_varnish_is_used_within_twenty_seconds(seed: int) -> None:
    adaptive = AdaptiveRate(100, 1, 1000)
    arrivals = search(adaptive, vsthrottle(20), 400.0, retry_after=5.0, seed=seed)
    # Half of the first ten seconds is the pause.
    assert count(arrivals, 10.0, 20.0)[0] >= 0.85 * LIMIT
    assert count(arrivals, 20.0, 400.0)[0] >= 0.85 * LIMIT


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

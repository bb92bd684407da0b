"""A session learns what servers with small bursts accept: the targets, in virtual time.

`RateLimiter("20/s", concurrency_limit=8)`, 24 workers, requests and responses that take 1 to 5 ms.
"""

from collections.abc import Callable

import pytest

from aiothrottle import RateLimiter, events
from aiothrottle.httpx import ThrottledTransport
from aiothrottle.testing.audit import greatest_count
from tests.adaptive.session_in_time import run
from tests.server_limits import (
    Admits,
    envoy,
    nginx,
    rolling_window,
    sliding_counter,
    token_bucket,
    vsthrottle,
)

SMALL: list[tuple[str, Callable[[], Admits]]] = [
    ("nginx burst=5", lambda: nginx(20, 5)),
    ("nginx without burst", lambda: nginx(20, 0)),
    ("HAProxy", lambda: sliding_counter(20)),
    ("Envoy 5", lambda: envoy(5, 0.25)),
    ("Traefik burst 5", lambda: token_bucket(20, 5, debt=0.5)),
    ("Traefik burst 1", lambda: token_bucket(20, 1, debt=0.5)),
]
LARGE: list[tuple[str, Callable[[], Admits]]] = [
    ("nginx burst=20", lambda: nginx(20, 20)),
    ("Traefik burst 20", lambda: token_bucket(20, 20, debt=0.5)),
    ("a rolling window", lambda: rolling_window(20)),
]


def cases(servers: list[tuple[str, Callable[[], Admits]]]) -> list[object]:
    return [pytest.param(make, id=name) for name, make in servers]


@pytest.mark.parametrize("make", cases(SMALL))
def test_small_burst_is_learned_in_ten_seconds(make: Callable[[], Admits]) -> None:
    records = [run(make(), 40.0, seed=seed) for seed in range(6)]
    for record in records:
        assert record.part_throttled(0.0, 10.0) <= 0.03
        assert record.used(10.0, 40.0, 20.0) >= 0.85
    first = [record.part_throttled(0.0, 10.0) for record in records]
    later = [record.part_throttled(10.0, 40.0) for record in records]
    used = [record.used(0.0, 10.0, 20.0) for record in records]
    assert sum(first) / len(records) <= 0.02
    assert sum(used) / len(records) >= 0.85
    assert sum(later) / len(records) <= 0.005


@pytest.mark.parametrize("make", cases(LARGE))
def test_nothing_is_lost_where_bursts_are_welcome(make: Callable[[], Admits]) -> None:
    for seed in range(3):
        record = run(make(), 20.0, seed=seed)
        assert not record.throttled
        assert record.used(0.0, 20.0, 20.0) >= 0.97


@pytest.mark.parametrize("make", cases(SMALL))
def test_bursts_after_idle_times_are_learned(make: Callable[[], Admits]) -> None:
    record = run(make(), 100.0, every=4.0)  # 24 at once, every 4 seconds
    assert len(record.throttled) <= 7
    assert record.part_throttled(20.0, 100.0) <= 0.01
    assert len(record.admitted) >= 24 * 24


def test_long_pauses_of_varnish_are_rare() -> None:
    for seed in range(6):
        record = run(vsthrottle(20), 60.0, seed=seed, retry_after=5)
        assert len(record.throttled) <= 8, "one event, of requests that were under way"
        assert record.part_throttled(10.0, 60.0) <= 0.005
        assert record.used(15.0, 60.0, 20.0) >= 0.85


def test_welcome_bursts_open_after_a_few() -> None:
    limiters: list[RateLimiter] = []
    adapted: list[float] = []

    def watch(limiter: RateLimiter) -> None:
        limiters.append(limiter)
        limiter.observe(
            lambda event: (
                adapted.append(event.value)
                if isinstance(event, events.Adapted) and event.what == "burst"
                else None
            )
        )
        assert limiter.statistics().burst == 20.0

    record = run(nginx(20, 20), 30.0, every=4.0, watch=watch)
    assert adapted == [2.0, 4.0, 8.0, 16.0, 20.0]
    assert limiters[0].statistics().burst == 20.0
    assert "BoundedBurst" not in repr(limiters[0])
    ThrottledTransport(limiters[0])  # a second session
    assert limiters[0].statistics().burst == 20.0
    # 20 at once, as fast as 8 slots allow.
    assert greatest_count((at for at in record.admitted if at > 20.0), 0.1) == 20


def test_long_period_begins_with_the_whole_burst() -> None:
    record = run(rolling_window(5000), 1.0, limiter=lambda: RateLimiter("5000/h"), workers=200)
    assert len(record.admitted) > 5000 / 2
    assert not record.throttled


def test_given_guard_learns_nothing() -> None:
    limiter = RateLimiter("20/s", concurrency_limit=8, guard=0.01)
    record = run(nginx(20, 5), 5.0, limiter=lambda: limiter)
    assert len(record.throttled) > 10
    assert limiter.statistics().burst is None


def test_given_burst_is_the_upper_bound() -> None:
    sizes: list[float] = []

    def watch(limiter: RateLimiter) -> None:
        limiter.observe(
            lambda event: (
                sizes.append(event.value)
                if isinstance(event, events.Adapted) and event.what == "burst"
                else None
            )
        )

    limiter = RateLimiter("20/s", concurrency_limit=8, burst=3)
    record = run(nginx(20, 5), 20.0, limiter=lambda: limiter, every=4.0, watch=watch)
    assert not record.throttled
    assert sizes == [2.0, 3.0]

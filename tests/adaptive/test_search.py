"""The adaptive limits of a session in front of servers with small buckets and few slots."""

import pytest

from aiothrottle import AdaptiveConcurrency, AdaptiveRate, RateLimiter
from tests.adaptive.session_in_time import run
from tests.adaptive.test_learned_slots import minute
from tests.support.server_limits import OF_TWENTY, token_bucket, vsthrottle

LIMIT = 20.0


def adaptive(initial: float) -> RateLimiter:
    return RateLimiter(AdaptiveRate(initial, 1, 1000), concurrency_limit=8)


@pytest.mark.parametrize("name", OF_TWENTY)
@pytest.mark.parametrize("initial", [100.0, 2.0])
def test_limit_is_used_after_fifteen_seconds(name: str, initial: float) -> None:
    record = run(OF_TWENTY[name](), 60.0, limiter=adaptive(initial))
    assert record.used(15.0, 60.0, LIMIT) >= 0.85
    assert record.part_throttled(15.0, 60.0) <= 0.01


@pytest.mark.parametrize("initial", [100.0, 2.0])
def test_long_retry_after_is_not_the_window(initial: float) -> None:
    # A bucket of 20, and a Retry-After of 5 s, though 50 ms would be enough.
    bucket = token_bucket(20.0, 20.0)
    record = run(bucket, 200.0, limiter=adaptive(initial), retry_after=5)
    assert record.used(20.0, 60.0, LIMIT) >= 0.75  # one pause takes 13 %
    assert record.used(60.0, 200.0, LIMIT) >= 0.9


def test_varnish_is_used_within_twenty_seconds() -> None:
    record = run(vsthrottle(20), 200.0, limiter=adaptive(100.0), retry_after=5)
    for begin, end in ((10.0, 20.0), (20.0, 200.0)):  # half of the first ten is the pause
        assert record.used(begin, end, LIMIT) >= 0.85


@pytest.mark.parametrize(
    ("capacity", "initial", "status", "failed"),
    [
        *((capacity, initial, 429, 0.03) for capacity in (1, 2, 8) for initial in (1, 4, 24, 64)),
        *((capacity, 1, 500, 0.05) for capacity in (2, 8)),
    ],
)
def test_few_slots_of_a_server_are_used(
    capacity: int, initial: int, status: int, failed: float
) -> None:
    limiter = RateLimiter(concurrency_limit=AdaptiveConcurrency(initial, 1, 64))
    found = minute(
        capacity, 0.075, 0.33, 0, limiter, lasts=30.0, way=0.001, status=status, rest=0.5
    )
    assert found.slots == capacity
    assert found.used >= 0.85
    assert found.later <= failed * 20.0 * capacity / 0.075
    assert found.throttled - found.later <= 80

"""The bound of a learned burst, which stands beside the algorithm of the bucket."""

import asyncio
import math

import pytest

from aiothrottle import RateLimiter
from aiothrottle._core.bucket import LocalBucket
from aiothrottle._core.feedback import Change
from aiothrottle._core.wait_queue import Waiter
from aiothrottle.algorithms import PerResource, SlidingWindowLog, Unlimited, amounts
from aiothrottle.events import Adapted
from tests.support.observing import observed
from tests.support.virtually import virtual, visits


def bucket_of(burst: float, interval: float, *, taken: int = 0) -> LocalBucket:
    """A bucket of 10,000 an hour, under which so many tokens count, with a bound of the burst."""
    bucket = LocalBucket(SlidingWindowLog("10000/h"), float)
    for _ in range(taken):
        bucket.take(0.0, 1.0)
    bucket.bind_burst(0.0, burst, interval)
    return bucket


def test_smaller_burst_forgives_what_the_server_accepted_but_no_debt() -> None:
    bucket = bucket_of(500, 3.6, taken=600)
    assert bucket.delay(0.0, 1) == pytest.approx(3.6)
    bucket.bind_burst(0.0, 250, 3.6)
    assert bucket.delay(0.0, 1) == pytest.approx(3.6)
    bucket.bind_burst(0.0, 1000, 3.6)
    assert bucket.startable(0.0, 2000) == 750
    bucket = bucket_of(4, 0.1)
    assert bucket.delay(0.0, 20) == 0.0  # a heavy cost
    bucket.take(0.0, 20)
    assert bucket.delay(0.0, 1) == pytest.approx(1.7)
    bucket.bind_burst(0.0, 2, 0.1)
    assert bucket.delay(0.0, 1) == pytest.approx(1.7)


@virtual
async def test_learned_burst_begins_used_up() -> None:
    limiter = RateLimiter("60/min")
    permits = [await limiter.acquire() for _ in range(30)]
    permits[0].report_throttled(1.0)
    for permit in permits:
        permit.release()
    begun = await asyncio.gather(*visits(limiter, 5))
    assert limiter.statistics().burst == 15
    assert begun[1:] == pytest.approx([2, 3, 4, 5])


def test_burst_of_one_is_evenly_spaced_and_refunded() -> None:
    bucket, last = bucket_of(1, 0.25), Waiter()
    for at in (0.0, 0.25, 0.5):
        assert bucket.delay(at, 1) == 0.0
        bucket.take(at, 1)
        assert bucket.delay(at, 1) == 0.25
        assert bucket.startable(at, 9) == 0
    assert bucket.delay(0.5, 1, ahead=2) == 0.75
    last.at = 0.5
    bucket.refund(last, 0.5, 1)
    assert (bucket.delay(0.5, 1), bucket.startable(0.5, 9)) == (0.0, 1)


def test_of_several_resources_only_the_requests_count() -> None:
    algorithm = PerResource(("requests", Unlimited()), ("tokens", Unlimited()))
    bucket = LocalBucket(algorithm, float)
    bucket.bind_burst(0.0, 1, 0.25)
    bucket.take(0.0, amounts({"requests": 1.0, "tokens": 7.0}))
    tokens = amounts({"tokens": 7.0})
    bucket.take(0.0, tokens)
    assert (bucket.delay(0.0, tokens), bucket.delay(0.0, 1)) == (0.0, 0.25)
    assert bucket.delay(0.0, 1, ahead=2.0 + tokens) == 0.75


def test_learned_rate_ends_the_bound_whatever_changes_with_it() -> None:
    limiter = RateLimiter("10/s", burst=4)
    adapted = observed(limiter, Adapted)
    adaptation = limiter._engine.adaptation
    changes = [Change("rate", 5.0, math.inf), Change("burst", 1.0, 4.0), Change("guard", 0.1, 0.0)]
    assert adaptation.apply(tuple(changes))
    assert adaptation.bucket.bound is None
    assert limiter.statistics().rate_limit == 5.0
    assert [it.what for it in adapted] == ["rate"]

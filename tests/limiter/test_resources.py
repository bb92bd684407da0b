"""Specifies limiters of several resources: a request takes its tokens of all of them, or of none.

In queue order, for every cost; settled and refunded by resource, at the instant of the grant.
"""

import asyncio
import math
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiothrottle import (
    AdaptiveRate,
    Cooldown,
    CostTooHigh,
    Decision,
    FixedWindow,
    KeyedRateLimiter,
    LeakyBucket,
    QueueFull,
    RateLimiter,
    SlidingWindowCounter,
    SlidingWindowLog,
    ThrottleTimeout,
    TokenBucket,
    WaitUntil,
)
from aiothrottle.algorithms import PerResource
from aiothrottle.events import Event, Granted
from aiothrottle.httpx import ThrottledTransport
from aiothrottle.resource import Resource
from tests.virtually import counts, now, turns, virtual, visit, visits

Unchecked: TypeAlias = Any  # arguments of callers without type checks

BOTH: Mapping[str, str] = {"requests": "3/s", "tokens": "10/s"}


def free(decision: Decision) -> dict[str, float]:
    return {name: resource.remaining for name, resource in decision.resources.items()}


async def remaining(limiter: RateLimiter) -> dict[str, float]:
    return free(await limiter.peek())


# --- All, or none, in order ---


@virtual
async def test_request_waits_for_each_of_its_resources() -> None:
    limiter = RateLimiter(BOTH)
    tasks = [*visits(limiter, 2, {"tokens": 4}), *visits(limiter, 3, {"tokens": 3})]
    assert await asyncio.gather(*tasks) == [0, 0, 1, 1, 1]
    assert await asyncio.gather(*visits(limiter, 4)) == [2, 2, 2, 3]


@virtual
async def test_waiter_takes_nothing_while_one_resource_is_missing() -> None:
    limiter = RateLimiter(BOTH)
    await visit(limiter, {"tokens": 8})
    (waiting,) = visits(limiter, 1, {"tokens": 8})
    await turns()
    assert await remaining(limiter) == {"requests": 2, "tokens": 2}
    assert await waiting == 1


@virtual
async def test_request_without_tokens_never_overtakes() -> None:
    limiter = RateLimiter(BOTH)
    await visit(limiter, {"tokens": 8})
    heavy = visits(limiter, 1, {"tokens": 8})
    await turns()
    light = visits(limiter, 2)
    assert await asyncio.gather(*heavy, *light) == [1, 1, 1]


@virtual
async def test_waiters_that_left_leave_no_rounding_ahead() -> None:
    limiter = RateLimiter({"requests": "1/s", "tokens": "1/min"}, algorithm=LeakyBucket)
    await visit(limiter, {"tokens": 1})
    first, *left, last = (
        asyncio.create_task(visit(limiter, {"tokens": tokens})) for tokens in (0, 0.1, 0.2, 0.3, 0)
    )
    await turns()
    for waiting in left:  # 0.1 + 0.2 + 0.3 - 0.1 - 0.2 - 0.3 is above zero
        waiting.cancel()
    await turns()
    assert await visit(limiter, timeout=10) == pytest.approx(3, abs=0.01)
    assert first.done()
    assert last.done()


@virtual
async def test_several_rates_of_one_resource_hold() -> None:
    limiter = RateLimiter({"tokens": ["10/s", "25/min"]})
    tasks = visits(limiter, 4, {"tokens": 8})
    assert await asyncio.gather(*tasks) == [0, 1, 2, 60]


@virtual
async def test_requests_are_free_where_they_have_no_limit() -> None:
    limiter = RateLimiter({"tokens": "10/s"})
    assert await asyncio.gather(*visits(limiter, 50)) == [0] * 50
    assert await remaining(limiter) == {"tokens": 10}


@virtual
async def test_request_may_cost_several_requests_or_none() -> None:
    limiter = RateLimiter(BOTH)
    async with limiter.throttle({"requests": 3}) as permit:
        assert permit.costs == {"requests": 3, "tokens": 0}
    assert await visit(limiter, {"requests": 0, "tokens": 10}) == 0
    assert await visit(limiter, {"requests": 0}) == 0
    assert await remaining(limiter) == {"requests": 0, "tokens": 0}


@virtual
async def test_concurrency_limit_holds_besides() -> None:
    limiter = RateLimiter(BOTH, concurrency_limit=1)
    tasks = visits(limiter, 3, {"tokens": 1}, stay=0.25)
    assert await asyncio.gather(*tasks) == [0, 0.25, 0.5]


@virtual
async def test_cancelled_waiter_takes_nothing() -> None:
    limiter = RateLimiter(BOTH, concurrency_limit=1)
    held = await limiter.acquire({"tokens": 8})
    first, second = visits(limiter, 2, {"tokens": 8})
    await turns()
    first.cancel()
    await asyncio.sleep(0.5)
    held.release()
    await turns()
    second.cancel()
    await asyncio.sleep(0.5)
    assert counts(limiter) == (0, 0)
    assert await remaining(limiter) == {"requests": 3, "tokens": 10}


@virtual
async def test_grant_cancelled_before_its_start_takes_nothing() -> None:
    limiter = RateLimiter(BOTH)
    await visit(limiter, {"tokens": 8})
    waiting = visits(limiter, 2, {"tokens": 4})
    asyncio.get_running_loop().call_later(1.0, waiting[0].cancel)
    assert await waiting[1] == 1
    assert await remaining(limiter) == {"requests": 2, "tokens": 6}


@pytest.mark.parametrize(
    ("algorithm", "starts"),
    [
        (SlidingWindowLog, [0, 0, 1, 1]),
        (FixedWindow, [0, 0, 1, 1]),
        (SlidingWindowCounter(buckets=10), [0, 0, 1, 1]),
        (TokenBucket, [0, 0, 0.5, 1]),
        (TokenBucket(burst=5), [0, 0.5, 1, 1.5]),
        (LeakyBucket, [0, 0.5, 1, 1.5]),
    ],
)
@virtual
async def test_every_algorithm_counts_its_resource(algorithm: Unchecked, starts: Unchecked) -> None:
    limiter = RateLimiter({"requests": "100/s", "tokens": "10/s"}, algorithm=algorithm, guard=0)
    tasks = visits(limiter, 4, {"tokens": 5})
    assert await asyncio.gather(*tasks) == pytest.approx(starts, abs=0.02)


@virtual
async def test_algorithm_may_be_given_by_resource() -> None:
    tokens = TokenBucket("10/s", burst=5)
    pace = WaitUntil(interval=0.25, raise_after=1, limit=2)
    limiter = RateLimiter(algorithm=PerResource(("requests", pace), ("tokens", tokens)))
    tasks = [*visits(limiter, 3, {"tokens": 4}), *visits(limiter, 1)]
    assert await asyncio.gather(*tasks) == pytest.approx([0, 0.3, 0.7, 0.95])
    waiting = visits(limiter, 4, {"tokens": 1})
    await turns()
    with pytest.raises(ThrottleTimeout):
        await visit(limiter, {"tokens": 1})
    await asyncio.gather(*waiting)
    with pytest.raises(ValueError, match="the new rate_limit none"):
        limiter.update(rate_limit="3/s")


@virtual
async def test_burst_is_given_by_resource() -> None:
    limiter = RateLimiter({"requests": "100/s", "tokens": "10/s"}, burst={"tokens": 5})
    assert await asyncio.gather(*visits(limiter, 3, {"tokens": 5})) == pytest.approx([0, 0.5, 1])


@virtual
async def test_guard_stretches_each_period() -> None:
    limiter = RateLimiter({"requests": "100/s", "tokens": ["10/s", "20/min"]}, guard=0.5)
    assert await asyncio.gather(*visits(limiter, 3, {"tokens": 10})) == [0, 1.5, 60.5]


@virtual
async def test_measured_guard_keeps_what_was_taken() -> None:
    limiter = RateLimiter({"requests": "1000/s", "tokens": "1000/s"})
    for place in range(100):
        async with limiter.throttle({"tokens": 5}) as permit:
            await asyncio.sleep(0.001 + 0.004 * (place % 2))
            permit.report_success()
    stats = limiter.statistics()
    assert stats.guard is not None
    assert stats.guard > 0
    assert stats.resources == {"requests": Resource(1000, 900), "tokens": Resource(1000, 500)}


@virtual
async def test_default_cost_is_granted_on_credit() -> None:
    limiter = RateLimiter(BOTH)
    await visit(limiter, {"tokens": 1})
    bucket = limiter._engine.bucket
    assert bucket.credit == 2
    await visit(limiter)
    assert bucket.credit == 1
    assert await remaining(limiter) == {"requests": 1, "tokens": 9}


# --- Settlement ---


@virtual
async def test_settled_resource_is_refunded_at_the_grant() -> None:
    limiter = RateLimiter(BOTH)
    early = await limiter.acquire({"tokens": 6})
    await asyncio.sleep(0.5)
    await limiter.acquire({"tokens": 4})
    early.settle({"tokens": 1})
    assert early.costs == {"requests": 1, "tokens": 1}
    assert await remaining(limiter) == {"requests": 1, "tokens": 5}
    await asyncio.sleep(0.5)
    assert await remaining(limiter) == {"requests": 2, "tokens": 6}


@virtual
async def test_settle_charges_and_refunds_at_once() -> None:
    limiter = RateLimiter(BOTH)
    async with limiter.throttle({"requests": 2, "tokens": 4}) as permit:
        permit.settle({"requests": 0, "tokens": 7})
        assert await remaining(limiter) == {"requests": 3, "tokens": 3}
        await asyncio.sleep(0.25)
        permit.settle({"requests": 1, "tokens": 9})
        permit.settle({"tokens": 8})
        assert await remaining(limiter) == {"requests": 2, "tokens": 2}
    # What was charged later leaves the window later.
    await asyncio.sleep(0.75)
    assert await remaining(limiter) == {"requests": 2, "tokens": 9}


@virtual
async def test_settled_default_cost_may_name_tokens() -> None:
    limiter = RateLimiter(BOTH)
    async with limiter.throttle() as permit:
        assert permit.costs == {"requests": 1, "tokens": 0}
        permit.settle({"tokens": 12})
        assert (permit.cost, permit.costs) == (1, {"requests": 1, "tokens": 12})
    assert await visit(limiter) == 0  # a debt of tokens delays only those that need some
    assert await visit(limiter, {"tokens": 1}) == 1


@virtual
async def test_refund_serves_the_waiter_at_once() -> None:
    limiter = RateLimiter(BOTH)
    permit = await limiter.acquire({"tokens": 10})
    (waiting,) = visits(limiter, 1, {"tokens": 5})
    await asyncio.sleep(0.25)
    permit.settle({"tokens": 5})
    assert await waiting == 0.25


@virtual
async def test_recorded_cost_counts() -> None:
    limiter = RateLimiter(BOTH)
    await limiter.record({"tokens": 15})
    await limiter.record()
    assert await remaining(limiter) == {"requests": 1, "tokens": 0}
    assert await visit(limiter, {"tokens": 1}) == 1


# --- What else a limiter does ---


@virtual
async def test_known_wait_for_tokens_rejects_at_once() -> None:
    limiter = RateLimiter({"requests": "3/s", "tokens": "10/min"}, max_queue=2)
    await visit(limiter, {"tokens": 10})
    with pytest.raises(ThrottleTimeout) as rejected:
        await visit(limiter, {"tokens": 1}, timeout=30)
    assert (now(), rejected.value.retry_after) == (0, 60)
    waiting = visits(limiter, 1, {"tokens": 5})
    await turns()
    # It needs no token, but is behind a request that does.
    with pytest.raises(ThrottleTimeout) as rejected:
        await visit(limiter, timeout=30)
    assert (now(), rejected.value.retry_after) == (0, 60)
    waiting += visits(limiter, 1, {"tokens": 5}, timeout=90)
    await turns()
    with pytest.raises(QueueFull):
        await visit(limiter)
    assert await asyncio.gather(*waiting) == [60, 60]


@virtual
async def test_priority_decides_between_waiters() -> None:
    limiter = RateLimiter({"requests": "100/s", "tokens": "10/s"})
    await visit(limiter, {"tokens": 10})
    low = visits(limiter, 1, {"tokens": 10})
    high = visits(limiter, 1, {"tokens": 10}, priority=1)
    assert await asyncio.gather(*high, *low) == [1, 2]


@virtual
async def test_try_acquire_and_peek_name_each_resource() -> None:
    limiter = RateLimiter(BOTH)
    decision = await limiter.try_acquire({"tokens": 8})
    assert decision.resources == {"requests": Resource(3, 2), "tokens": Resource(10, 2)}
    assert (decision.limit, decision.remaining) == (3, 2)
    assert decision.permit is not None
    assert decision.permit.costs == {"requests": 1, "tokens": 8}
    rejected = await limiter.try_acquire({"tokens": 3})
    assert (bool(rejected), rejected.retry_after) == (False, 1)
    assert free(rejected) == free(decision)
    assert await limiter.peek({"tokens": 2})
    assert not await limiter.peek({"requests": 3})


@virtual
async def test_statistics_have_each_resource() -> None:
    limiter = RateLimiter(BOTH)
    await visit(limiter, {"tokens": 8})
    stats = limiter.statistics()
    assert stats.resources == {"requests": Resource(3, 2), "tokens": Resource(10, 2)}
    assert (stats.granted, stats.utilisation) == (1, 0.8)
    assert stats.resources["requests"].utilisation == pytest.approx(1 / 3)


@virtual
async def test_granted_event_has_each_resource() -> None:
    seen: list[Event] = []
    limiter = RateLimiter(BOTH)
    limiter.observe(seen.append)
    await visit(limiter, {"tokens": 8})
    await visit(limiter, {"tokens": 8})
    costs = {"requests": 1, "tokens": 8}
    assert seen == [Granted(None, 1.0, 0.0, costs), Granted(None, 1.0, 1.0, costs)]


@virtual
async def test_update_changes_the_rates_of_the_same_resources() -> None:
    limiter = RateLimiter(BOTH)
    await visit(limiter, {"tokens": 8})
    (waiting,) = visits(limiter, 1, {"tokens": 8})
    await turns()
    limiter.update(rate_limit={"requests": "3/s", "tokens": ["20/s", "100/min"]})
    assert await waiting == 0
    assert await remaining(limiter) == {"requests": 1, "tokens": 4}
    limiter.update(rate_limit=None)
    assert await visit(limiter, {"tokens": 10_000}) == 0
    assert await remaining(limiter) == {"requests": math.inf, "tokens": math.inf}


@virtual
async def test_update_fails_waiters_above_the_new_limit() -> None:
    limiter = RateLimiter(BOTH)
    await visit(limiter, {"tokens": 8})
    (waiting,) = visits(limiter, 1, {"tokens": 8})
    await turns()
    limiter.update(rate_limit={"requests": "3/s", "tokens": "5/s"})
    with pytest.raises(CostTooHigh, match="cost must be at most 5 of 'tokens', got 8"):
        await waiting


@pytest.mark.parametrize("rate_limit", ["3/s", {"tokens": "3/s"}, {**BOTH, "more": 1}])
def test_update_keeps_the_resources(rate_limit: Unchecked) -> None:
    limiter = RateLimiter(BOTH)
    with pytest.raises(ValueError, match="this limiter has requests, tokens"):
        limiter.update(rate_limit=rate_limit)
    with pytest.raises(ValueError, match="this limiter has no resources"):
        RateLimiter("3/s").update(rate_limit=BOTH)


@virtual
async def test_reset_forgets_all_resources() -> None:
    limiter = RateLimiter(BOTH)
    await visit(limiter, {"tokens": 8})
    await limiter.reset()
    assert await remaining(limiter) == {"requests": 3, "tokens": 10}


@virtual
async def test_quota_of_the_server_is_of_requests() -> None:
    limiter = RateLimiter(BOTH)
    async with limiter.throttle({"tokens": 5}) as permit:
        permit.update_quota(1, reset_after=60)
    assert await remaining(limiter) == {"requests": 1, "tokens": 5}
    assert await visit(limiter, {"requests": 0, "tokens": 5}) == 0
    assert await visit(limiter, {"tokens": 5}) == 1
    limiter.update(rate_limit={"requests": "30/s", "tokens": "100/s"})
    assert limiter.statistics().quota_remaining == 0
    await limiter.reset()
    assert await visit(limiter) == 60


async def throttle_all(limiter: RateLimiter, requests: int) -> None:
    permits = [await limiter.acquire({"tokens": 1}) for _ in range(requests)]
    await asyncio.sleep(0.01)
    for permit in permits:
        permit.report_throttled(0.1)
        permit.release()
    await asyncio.sleep(0.2)


async def use_for(limiter: RateLimiter, seconds: float) -> None:
    """Send for so many seconds, each request as soon as it may start, and report each success."""
    end = now() + seconds
    while now() < end:
        async with limiter.throttle({"tokens": 1}) as permit:
            await asyncio.sleep(0.001)
        permit.report_success()


@virtual
async def test_learned_burst_is_of_requests() -> None:
    limiter = RateLimiter({"tokens": "1000/s", "requests": "10/s"})
    assert limiter.statistics().burst == 10
    await throttle_all(limiter, 4)
    assert limiter.statistics().burst == 2
    assert repr(limiter).count("requests: BoundedBurst") == 1
    assert "tokens: BoundedBurst" not in repr(limiter)
    began_at = now()
    for _ in range(6):
        await visit(limiter, {"tokens": 100})
    assert now() - began_at == pytest.approx(0.4)  # two at once, as the pause has drained it
    limiter.update(rate_limit={"tokens": "1000/s", "requests": "20/s"})
    assert limiter.statistics().burst == 2


@virtual
async def test_learned_burst_grows_only_while_it_is_used_up() -> None:
    limiter = RateLimiter({"requests": "10/s", "tokens": "1000/s"})
    await throttle_all(limiter, 4)
    async with limiter.throttle({"tokens": 0}) as permit:
        permit.update_quota(1000, reset_after=3600)  # stands behind the burst
    for _ in range(200):
        await asyncio.sleep(1.0)
        async with limiter.throttle({"tokens": 900}) as permit:  # of tokens little remains
            pass
        permit.report_success()
    assert limiter.statistics().burst == 2
    await use_for(limiter, 70)
    assert limiter.statistics().burst == 4
    burst = limiter.statistics().burst
    assert type(burst) is float


@virtual
async def test_debt_of_requests_bounds_a_learned_burst() -> None:
    limiter = RateLimiter({"requests": "10/s", "tokens": "1000/s"})
    await limiter.record({"requests": 6, "tokens": 900})
    await throttle_all(limiter, 2)
    assert limiter.statistics().burst == 4  # half of the eight requests that counted


@virtual
async def test_without_a_limit_of_requests_only_the_guard_widens() -> None:
    limiter = RateLimiter({"tokens": "1000/s"})
    assert limiter.statistics().burst is None
    guard = limiter.statistics().guard
    assert guard is not None
    await throttle_all(limiter, 4)
    wider = limiter.statistics().guard
    assert wider is not None
    assert wider > guard
    assert "BoundedBurst" not in repr(limiter)
    await use_for(limiter, 70)
    assert limiter.statistics().guard == pytest.approx(guard, abs=0.02)
    assert limiter.statistics().burst is None


def test_limiter_of_a_session_begins_with_one_request() -> None:
    limiter, tokens = RateLimiter({"requests": "10/s", "tokens": "1/s"}), RateLimiter({"t": "9/s"})
    for each in (limiter, tokens):
        ThrottledTransport(each)
    assert limiter.statistics().burst == 1
    assert tokens.statistics().burst is None


@virtual
async def test_quota_that_the_rate_of_requests_keeps_changes_nothing() -> None:
    limiter = RateLimiter({"requests": "10/s", "tokens": "1000/s"})
    async with limiter.throttle({"tokens": 900}) as permit:
        permit.update_quota(600, reset_after=60)
    assert (await remaining(limiter))["requests"] == 9
    assert limiter.statistics().quota_remaining == 600
    async with limiter.throttle() as permit:
        permit.update_quota(5, reset_after=60)
    assert (await remaining(limiter))["requests"] == 5
    tokens = RateLimiter({"tokens": "1000/s"})
    async with tokens.throttle({"tokens": 5}) as permit:
        permit.update_quota(2, reset_after=60)
    assert [await visit(tokens, {"tokens": 1}) for _ in range(3)] == [0, 0, 60]


@virtual
async def test_quota_counts_requests_without_a_rate_limit() -> None:
    limiter = RateLimiter(BOTH)
    limiter.update(rate_limit=None)
    async with limiter.throttle({"tokens": 5}) as permit:
        permit.update_quota(3, reset_after=60)
    assert await visit(limiter, {"tokens": 5}) == 0
    left = limiter.statistics().quota_remaining
    assert (type(left), left) == (float, 2)
    await limiter.record({"requests": 3, "tokens": 5})  # a debt
    assert await visit(limiter, {"requests": 0, "tokens": 5}) == 0
    assert await visit(limiter, {"tokens": 5}) == 60


@virtual
async def test_each_key_has_its_resources() -> None:
    limiter = KeyedRateLimiter(BOTH, overrides={"b": {"rate_limit": {"tokens": "20/s"}}})
    for _ in range(2):
        async with limiter.throttle("a", {"tokens": 8}):
            pass
        async with limiter.throttle("b", {"tokens": 10}) as permit:
            permit.settle({"tokens": 9})
    assert now() == 1
    await limiter.record("a", {"tokens": 1})
    assert free(await limiter.peek("a")) == {"requests": 1, "tokens": 1}
    assert free(await limiter.peek("b", {"tokens": 1})) == {"tokens": 11}


@virtual
async def test_decorated_function_costs_its_resources() -> None:
    limiter = RateLimiter(BOTH)

    @limiter.throttled({"tokens": 8})
    async def call() -> float:
        return now()

    assert [await call(), await call()] == [0, 1]


# --- Parents ---


@virtual
async def test_parent_has_the_same_resources() -> None:
    parent = RateLimiter({"tokens": "12/s", "requests": "4/s"})
    first, second = RateLimiter(BOTH, parent=parent), RateLimiter(BOTH, parent=parent)
    tasks = [*visits(first, 1, {"tokens": 8}), *visits(second, 1, {"tokens": 8})]
    assert await asyncio.gather(*tasks) == [0, 1]
    assert await remaining(first) == {"requests": 3, "tokens": 4}
    permit = await first.acquire({"tokens": 2})
    permit.settle({"tokens": 4})
    assert await remaining(parent) == {"requests": 2, "tokens": 0}


@virtual
async def test_parent_without_resources_counts_requests() -> None:
    parent = RateLimiter("2/s")
    child = RateLimiter(BOTH, parent=parent)
    tasks = visits(child, 3, {"tokens": 1})
    assert await asyncio.gather(*tasks) == [0, 0, 1]
    async with child.throttle({"tokens": 1}) as permit:
        permit.settle({"requests": 0, "tokens": 5})
    await child.record({"tokens": 1})
    assert (await parent.peek()).remaining == 0
    assert (await child.peek()).remaining == 0
    with pytest.raises(ThrottleTimeout):
        await visit(child, {"tokens": 1}, timeout=0.5)


@virtual
async def test_parent_may_have_resources_of_its_own() -> None:
    parent = RateLimiter({"tokens": "10/s"})
    child = RateLimiter({"requests": "2/s"}, parent=parent)
    free_child = RateLimiter(parent=parent, concurrency_limit=1)
    assert await visit(child, {"tokens": 8}) == 0
    assert await visit(free_child, {"tokens": 2}) == 0
    assert await remaining(child) == {"requests": 1, "tokens": 0}
    assert await visit(free_child, {"tokens": 2}) == 1
    with pytest.raises(CostTooHigh, match="at most 10 of 'tokens', got 11") as error:
        child.throttle({"tokens": 11})
    assert (error.value.resource, error.value.limit) == ("tokens", 10)
    for limit in ("2/s", AdaptiveRate(1, 1, 2), "server"):
        with pytest.raises(ValueError, match="the parent has the resources tokens"):
            RateLimiter(limit, parent=parent)
    with pytest.raises(ValueError, match="the parent has the resources tokens"):
        RateLimiter(algorithm=Cooldown(1, 1), parent=parent)


@virtual
async def test_waiter_of_a_chain_leaves_no_trace() -> None:
    parent = RateLimiter({"tokens": "10/s"})
    child = RateLimiter(BOTH, parent=parent)
    await visit(parent, {"tokens": 10})
    (waiting,) = visits(child, 1, {"tokens": 8})
    await turns()
    waiting.cancel()
    await asyncio.sleep(1)
    assert await remaining(child) == {"requests": 3, "tokens": 10}
    assert counts(parent) == counts(child) == (0, 0)


# --- Wrong arguments ---


@pytest.mark.parametrize(
    ("cost", "error", "message"),
    [
        (1, TypeError, "a cost must be a mapping of the resources requests, tokens"),
        (1.0, TypeError, "a cost must be a mapping of the resources requests, tokens"),
        (None, TypeError, "such as {'tokens': 2}, got None"),
        ({"token": 1}, ValueError, "may have the resources requests, tokens, got 'token'"),
        ({"tokens": -1}, ValueError, "a cost must be a finite number of tokens, 0"),
        ({"tokens": math.nan}, ValueError, "a cost must be a finite number of tokens"),
        ({"tokens": math.inf}, ValueError, "a cost must be a finite number of tokens"),
        ({"tokens": "5"}, TypeError, "a cost must be a finite number of tokens"),
        ({"tokens": True}, TypeError, "a cost must be a finite number of tokens"),
    ],
)
@virtual
async def test_wrong_cost_raises_and_takes_nothing(
    cost: Unchecked, error: type[Exception], message: str
) -> None:
    limiter = RateLimiter(BOTH, concurrency_limit=2)
    permit = await limiter.acquire({"tokens": 1})
    for call in (limiter.throttle, limiter.throttled, permit.settle):
        with pytest.raises(error, match=message):
            call(cost)
    for method in (limiter.acquire, limiter.try_acquire, limiter.peek, limiter.record):
        with pytest.raises(error, match=message):
            await method(cost)
    assert await remaining(limiter) == {"requests": 2, "tokens": 9}
    assert counts(limiter) == (1, 0)
    permit.release()


def test_cost_above_the_limit_raises() -> None:
    limiter = RateLimiter({"requests": "3/s", "tokens": ["10/s", "20/min"]})
    with pytest.raises(CostTooHigh, match="cost must be at most 10 of 'tokens', got 11"):
        limiter.throttle({"tokens": 11})
    with pytest.raises(CostTooHigh, match="cost must be at most 3 of 'requests', got 4"):
        limiter.throttle({"requests": 4})


def test_mapping_needs_a_limiter_with_resources() -> None:
    cost: Unchecked = {"tokens": 1}
    with pytest.raises(TypeError, match="a cost must be a finite number of tokens"):
        RateLimiter("3/s").throttle(cost)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"rate_limit": {}}, ValueError, "rate_limit is an empty mapping; write a rate for each"),
        ({"rate_limit": {1: "3/s"}}, TypeError, "a resource must have a name, a text, got 1"),
        ({"rate_limit": {"": "3/s"}}, TypeError, "a resource must have a name, a text, got ''"),
        ({"rate_limit": {"a": "3 rpx"}}, ValueError, "the resource 'a': "),
        ({"rate_limit": {"a": None}}, TypeError, "the resource 'a': None is not a rate"),
        ({"rate_limit": {"a": []}}, ValueError, "the resource 'a': rate_limit is an empty list"),
        ({"rate_limit": {"a": (1, 2)}}, TypeError, "a rate is not a tuple"),
        (
            {"rate_limit": {"a": AdaptiveRate(1, 1, 2)}},
            TypeError,
            "the resource 'a': .*is not a rate",
        ),
        ({"rate_limit": BOTH, "burst": 2}, TypeError, "burst must be a mapping of the resources"),
        ({"rate_limit": BOTH, "burst": {"b": 2}}, ValueError, "burst may have the resources"),
        ({"rate_limit": BOTH, "burst": {"tokens": 0}}, ValueError, "the burst of 'tokens' must"),
        ({"rate_limit": BOTH, "burst": {"tokens": 20}}, ValueError, "the resource 'tokens': burst"),
        ({"rate_limit": "3/s", "burst": {"tokens": 2}}, TypeError, "burst must be a finite number"),
    ],
)
def test_wrong_resources_raise(arguments: Unchecked, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        RateLimiter(**arguments)


def test_resources_need_an_algorithm() -> None:
    with pytest.raises(ValueError, match="needs one algorithm or more"):
        PerResource()


def test_later_change_of_the_mapping_has_no_effect() -> None:
    rates: dict[str, Unchecked] = {"requests": "3/s", "tokens": ["10/s"]}
    limiter = RateLimiter(rates)
    rates["tokens"].append("1/s")
    rates.clear()
    assert limiter.statistics().resources["tokens"].limit == 10


@virtual
async def test_representations_name_the_resources() -> None:
    limiter = RateLimiter(BOTH)
    permit = await limiter.acquire({"tokens": 1500 / 1000})
    assert repr(permit) == "<Permit of 1 requests, 1.5 tokens, held>"
    assert "PerResource(requests: SlidingWindowLog(" in repr(limiter)


# --- An oracle: windows on a grid of eighths of a second ---


class Visit(NamedTuple):
    """One request; all times in eighths of a second."""

    arrives: int
    tokens: int
    requests: int
    stays: int
    #: What is refunded at the end.
    refund: int


def planned_visit(arrives: int, tokens: int, requests: int, stays: int, part: int) -> Visit:
    return Visit(arrives, tokens, requests, stays, tokens * part // 4)


VISITS = st.lists(
    st.builds(
        planned_visit,
        *(st.integers(0, 12), st.integers(0, 6), st.integers(0, 2)),
        *(st.integers(0, 9), st.integers(0, 4)),
    ),
    min_size=1,
    max_size=9,
).map(sorted)

LIMITS = {"requests": (3, 8), "tokens": (8, 12)}  # per so many eighths


def expected(visits: list[Visit]) -> list[int]:
    """Return the starts: at each eighth the head starts if all windows have room."""
    starts: list[int] = []
    time = 0
    while len(starts) < len(visits):
        head = visits[len(starts)]
        fits = head.arrives <= time
        for name, (limit, period) in LIMITS.items():
            cost = head.tokens if name == "tokens" else head.requests
            taken = sum(
                each.requests
                if name == "requests"
                else each.tokens - each.refund * (start + each.stays <= time)
                for each, start in zip(visits, starts, strict=False)
                if start + period > time
            )
            fits = fits and (not cost or taken + cost <= limit)
        if fits:
            starts.append(time)
        else:
            time += 1
    return starts


@given(VISITS)
def test_starts_are_those_of_the_oracle(planned: list[Visit]) -> None:
    async def one(limiter: RateLimiter, each: Visit) -> float:
        cost = {"tokens": each.tokens, "requests": each.requests}
        async with limiter.throttle(cost) as permit:
            start = now()
            await asyncio.sleep(each.stays / 8)
            permit.settle({"tokens": each.tokens - each.refund})
        return start * 8

    @virtual
    async def run() -> None:
        limiter = RateLimiter(
            {name: f"{limit}/{period / 8}s" for name, (limit, period) in LIMITS.items()}, guard=0
        )
        tasks: list[asyncio.Task[float]] = []
        for each in planned:
            await asyncio.sleep(each.arrives / 8 - now())
            tasks.append(asyncio.create_task(one(limiter, each)))
        starts = await asyncio.gather(*tasks)
        assert starts == expected(planned)
        await asyncio.sleep(2)
        assert await remaining(limiter) == {"requests": 3, "tokens": 8}

    run()


@given(VISITS, st.lists(st.integers(0, 8), max_size=5))
def test_only_granted_requests_have_taken(planned: list[Visit], cancelled: list[int]) -> None:
    @virtual
    async def run() -> None:
        limiter = RateLimiter({"requests": "3/h", "tokens": "20/h"}, concurrency_limit=2)
        taken = {"requests": 0, "tokens": 0}

        async def one(each: Visit) -> None:
            cost = {"tokens": each.tokens, "requests": each.requests}
            async with limiter.throttle(cost) as permit:
                taken["requests"] += each.requests
                taken["tokens"] += each.tokens - each.refund
                permit.settle({"tokens": each.tokens - each.refund})
                await asyncio.sleep(0)

        tasks = [asyncio.create_task(one(each)) for each in planned]
        for place in cancelled:
            await asyncio.sleep(0)
            tasks[place % len(tasks)].cancel()
        await asyncio.sleep(1)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert counts(limiter) == (0, 0)
        left = {"requests": 3 - taken["requests"], "tokens": 20 - taken["tokens"]}
        assert await remaining(limiter) == left

    run()

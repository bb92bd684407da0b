"""Specifies limiters of several resources: a request takes its tokens of all of them, or of none.

In queue order, for every cost; settled and refunded by resource, at the instant of the grant.
"""

import asyncio
import math
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiothrottle import (
    AdaptiveRate,
    FixedWindow,
    LeakyBucket,
    RateLimiter,
    Resource,
    SlidingWindowCounter,
    TokenBucket,
    WaitUntil,
    errors,
)
from aiothrottle.algorithms import PerResource
from aiothrottle.events import Granted
from tests.limiter.common import Unchecked, each_rejects, left_of_each, queued, together
from tests.support.effort import examples
from tests.support.observing import observed
from tests.support.virtually import cancel, counts, now, turns, virtual, visit, visits

BOTH = {"requests": "3/s", "tokens": "10/s"}
MANY = {"requests": "100/s", "tokens": "10/s"}
PACE = WaitUntil(interval=0.25, raise_after=1, limit=2)
EACH = PerResource(("requests", PACE), ("tokens", TokenBucket("10/s", burst=5)))


@pytest.mark.parametrize(
    ("rates", "options", "costs", "expected"),
    [
        (BOTH, {}, [4, 4, 3, 3, 3, 0, 0], [0, 0, 1, 1, 1, 2, 2]),
        (BOTH, {}, [8, 8, 0, 0], [0, 1, 1, 1]),  # without tokens it does not overtake
        ({"tokens": ["10/s", "25/min"]}, {}, [8, 8, 8, 8], [0, 1, 2, 60]),
        ({"tokens": "10/s"}, {}, [0] * 50, [0] * 50),  # requests are free without a limit
        (MANY, {"burst": {"tokens": 5}}, [5] * 3, [0, 0.5, 1]),
        ({"tokens": ["10/s", "20/min"]}, {"guard": 0.5}, [10] * 3, [0, 1.5, 60.5]),
        (MANY, {"algorithm": FixedWindow}, [5] * 4, [0, 0, 1, 1]),
        (MANY, {"algorithm": SlidingWindowCounter(buckets=10), "guard": 0}, [5] * 3, [0, 0, 1]),
        (MANY, {"algorithm": TokenBucket}, [5] * 4, [0, 0, 0.5, 1]),
        (MANY, {"algorithm": TokenBucket(burst=5)}, [5] * 4, [0, 0.5, 1, 1.5]),
        (MANY, {"algorithm": LeakyBucket}, [5] * 3, [0, 0.498, 0.998]),  # up to 2 ms early
        (None, {"algorithm": EACH}, [4, 4, 4, 0], [0, 0.3, 0.7, 0.95]),
    ],
)
async def test_request_waits_for_each_of_its_resources(
    rates: Unchecked, options: Unchecked, costs: list[float], expected: list[float]
) -> None:
    limiter = RateLimiter(rates, **options)
    tasks = [task for tokens in costs for task in visits(limiter, 1, {"tokens": tokens})]
    assert await together(*tasks) == pytest.approx(expected)


async def test_settle_charges_and_refunds_at_once() -> None:
    limiter = RateLimiter(BOTH)
    async with limiter.throttle({"requests": 2, "tokens": 4}) as permit:
        permit.settle({"requests": 0, "tokens": 7})
        assert await left_of_each(limiter) == {"requests": 3, "tokens": 3}
        await asyncio.sleep(0.25)
        permit.settle({"requests": 1, "tokens": 9})
        permit.settle({"tokens": 8})
        assert await left_of_each(limiter) == {"requests": 2, "tokens": 2}
    await asyncio.sleep(0.75)  # what was charged later leaves the window later
    assert await left_of_each(limiter) == {"requests": 2, "tokens": 9}
    await asyncio.sleep(1)
    async with limiter.throttle() as permit:
        assert permit.costs == {"requests": 1, "tokens": 0}
        permit.settle({"tokens": 12})  # the default cost named no tokens
        assert (permit.cost, permit.costs) == (1, {"requests": 1, "tokens": 12})
    assert await visit(limiter) == 2  # a debt of tokens delays only those that need some
    assert await visit(limiter, {"tokens": 1}) == 3
    await asyncio.sleep(1)
    permit = await limiter.acquire({"tokens": 1})
    for tokens in (2, 3):
        await asyncio.sleep(0.25)
        permit.settle({"requests": 1, "tokens": tokens})
    for tokens in (3, 2):
        permit.settle({"requests": 0, "tokens": tokens})
    await asyncio.sleep(0.8)  # what was charged last is refunded first
    assert await left_of_each(limiter) == {"requests": 3, "tokens": 10}


async def test_decisions_statistics_and_events_name_each_resource() -> None:
    limiter = RateLimiter(BOTH)
    granted = observed(limiter, Granted)
    decision = await limiter.try_acquire({"tokens": 8})
    assert decision.resources == {"requests": Resource(3, 2), "tokens": Resource(10, 2)}
    assert (decision.limit, decision.remaining) == (3, 2)
    assert decision.permit is not None
    assert decision.permit.costs == {"requests": 1, "tokens": 8}
    assert repr(decision.permit) == "<Permit of 1 requests, 8 tokens, held>"
    for name, limit in (("tokens", 10), ("requests", 3)):
        message = f"cost must be at most {limit} of '{name}', got {limit + 1}"
        with pytest.raises(errors.CostTooHigh, match=message):
            limiter.throttle({name: limit + 1})
    rejected = await limiter.try_acquire({"tokens": 3})
    assert (rejected.allowed, rejected.retry_after) == (False, 1)
    assert await limiter.peek({"tokens": 2})
    assert not await limiter.peek({"requests": 3})
    stats = limiter.statistics()
    assert stats.resources == rejected.resources == decision.resources
    assert (stats.granted, stats.utilisation) == (1, 0.8)
    assert stats.resources["requests"].utilisation == pytest.approx(1 / 3)
    await visit(limiter, {"tokens": 8})
    costs = {"requests": 1, "tokens": 8}
    assert granted == [Granted(None, 1.0, 0.0, costs), Granted(None, 1.0, 1.0, costs)]


async def test_update_and_reset_are_of_all_resources() -> None:
    limiter = RateLimiter(BOTH)
    await visit(limiter, {"tokens": 8})
    (waiting,) = await queued(limiter, 1, {"tokens": 8})
    limiter.update(rate_limit={"requests": "3/s", "tokens": ["20/s", "100/min"]})
    assert await waiting == 0
    assert await left_of_each(limiter) == {"requests": 1, "tokens": 4}
    (waiting,) = await queued(limiter, 1, {"tokens": 8})
    limiter.update(rate_limit={"requests": "3/s", "tokens": "5/s"})
    with pytest.raises(errors.CostTooHigh, match="cost must be at most 5 of 'tokens', got 8"):
        await waiting
    await limiter.reset()
    assert await left_of_each(limiter) == {"requests": 3, "tokens": 5}
    wrong: list[Unchecked] = ["3/s", {"tokens": "3/s"}, {**BOTH, "more": 1}]
    for rate_limit in wrong:
        with pytest.raises(ValueError, match="this limiter has requests, tokens"):
            limiter.update(rate_limit=rate_limit)
    limiter.update(rate_limit=None)
    assert await visit(limiter, {"tokens": 10_000}) == 0
    assert await left_of_each(limiter) == {"requests": math.inf, "tokens": math.inf}


async def test_parent_has_the_same_resources_or_others() -> None:
    parent = RateLimiter({"tokens": "12/s", "requests": "4/s"})
    first, second = RateLimiter(BOTH, parent=parent), RateLimiter(BOTH, parent=parent)
    tasks = [*visits(first, 1, {"tokens": 8}), *visits(second, 1, {"tokens": 8})]
    assert await together(*tasks) == [0, 1]
    assert await left_of_each(first) == {"requests": 3, "tokens": 4}
    permit = await first.acquire({"tokens": 2})
    permit.settle({"tokens": 4})
    (waiting,) = await queued(first, 1, {"tokens": 8})
    waiting.cancel()
    await turns()
    assert await left_of_each(parent) == {"requests": 2, "tokens": 0}
    assert counts(parent) == counts(first) == (1, 0)
    parent = RateLimiter({"tokens": "10/s"})
    child = RateLimiter({"requests": "2/s"}, parent=parent)
    free_child = RateLimiter(parent=parent, concurrency_limit=1)
    assert await visit(child, {"tokens": 8}) == await visit(free_child, {"tokens": 2}) == 1
    assert await left_of_each(child) == {"requests": 1, "tokens": 0}
    assert await visit(free_child, {"tokens": 2}) == 2
    with pytest.raises(errors.CostTooHigh, match="at most 10 of 'tokens', got 11") as error:
        child.throttle({"tokens": 11})
    assert (error.value.resource, error.value.limit) == ("tokens", 10)
    limits: list[Unchecked] = [{"algorithm": TokenBucket("1/s")}, {"rate_limit": "server"}]
    limits += [{"rate_limit": "2/s"}, {"rate_limit": AdaptiveRate(1, 1, 2)}]
    for options in limits:
        with pytest.raises(ValueError, match="the parent has the resources tokens"):
            RateLimiter(**options, parent=parent)


async def test_parent_without_resources_counts_requests() -> None:
    parent = RateLimiter("2/s")
    child = RateLimiter(BOTH, parent=parent)
    assert await together(*visits(child, 3, {"tokens": 1})) == [0, 0, 1]
    async with child.throttle({"tokens": 1}) as permit:
        permit.settle({"requests": 0, "tokens": 5})
    await child.record({"tokens": 1})
    assert (await parent.peek()).remaining == (await child.peek()).remaining == 0
    with pytest.raises(errors.ThrottleTimeout):
        await visit(child, {"tokens": 1}, timeout=0.5)
    with pytest.raises(TypeError, match="a cost by resource needs a limiter with these"):
        await visit(parent, {"tokens": 1})


@pytest.mark.parametrize(
    ("cost", "error", "message"),
    [
        (1, TypeError, "a cost must be a mapping of the resources requests, tokens"),
        (None, TypeError, "such as {'tokens': 2}, got None"),
        ({"token": 1}, ValueError, "may have the resources requests, tokens, got 'token'"),
        ({"tokens": -1}, ValueError, "a cost must be a finite number of tokens, 0"),
        ({"tokens": math.nan}, ValueError, "a cost must be a finite number of tokens"),
        ({"tokens": 1e17}, ValueError, "finite number of tokens, 0 or more, at most 1e.12, got"),
        ({"tokens": "5"}, TypeError, "a cost must be a finite number of tokens"),
    ],
)
async def test_wrong_cost_raises_and_takes_nothing(
    cost: Unchecked, error: type[Exception], message: str
) -> None:
    limiter = RateLimiter(BOTH, concurrency_limit=2)
    permit = await limiter.acquire({"tokens": 1})
    await each_rejects(limiter, permit, cost, error, message)
    assert await left_of_each(limiter) == {"requests": 2, "tokens": 9}
    assert counts(limiter) == (1, 0)
    permit.release()


class Visit(NamedTuple):
    """One request; all times in eighths of a second."""

    arrives: int
    tokens: int
    requests: int
    stays: int
    #: What is refunded at the end, in quarters.
    quarters: int

    @property
    def final(self) -> int:
        return self.tokens - self.tokens * self.quarters // 4


VISITS = st.lists(
    st.builds(
        Visit,
        *(st.integers(0, 12), st.integers(0, 6), st.integers(0, 2)),
        *(st.integers(0, 9), st.integers(0, 4)),
    ),
    min_size=1,
    max_size=9,
).map(sorted)

REQUESTS, TOKENS = (3, 8), (8, 12)  # per so many eighths


def expected_starts(visits: list[Visit]) -> list[int]:
    """Return the starts: at each eighth the head starts if all windows have room."""
    started: list[tuple[int, Visit]] = []
    time = 0
    while len(started) < len(visits):
        head = visits[len(started)]
        requests = sum(each.requests for at, each in started if at + REQUESTS[1] > time)
        tokens = sum(
            each.final if at + each.stays <= time else each.tokens
            for at, each in started
            if at + TOKENS[1] > time
        )
        if (
            head.arrives <= time
            and (not head.requests or requests + head.requests <= REQUESTS[0])
            and (not head.tokens or tokens + head.tokens <= TOKENS[0])
        ):
            started.append((time, head))
        else:
            time += 1
    return [at for at, _ in started]


@examples(30)
@given(VISITS)
@virtual
async def test_starts_are_those_of_the_oracle(planned: list[Visit]) -> None:
    async def one(limiter: RateLimiter, each: Visit) -> float:
        async with limiter.throttle({"tokens": each.tokens, "requests": each.requests}) as permit:
            start = now()
            await asyncio.sleep(each.stays / 8)
            permit.settle({"tokens": each.final})
        return start * 8

    limiter = RateLimiter({"requests": "3/s", "tokens": "8/1.5s"}, guard=0)
    tasks: list[asyncio.Task[float]] = []
    for each in planned:
        await asyncio.sleep(each.arrives / 8 - now())
        tasks.append(asyncio.create_task(one(limiter, each)))
    assert await together(*tasks) == expected_starts(planned)
    await asyncio.sleep(2)
    assert await left_of_each(limiter) == {"requests": 3, "tokens": 8}


@examples(30)
@given(VISITS, st.lists(st.integers(0, 8), max_size=5))
@virtual
async def test_only_granted_requests_have_taken(planned: list[Visit], cancelled: list[int]) -> None:
    limiter = RateLimiter({"requests": "3/h", "tokens": "20/h"}, concurrency_limit=2)
    left = {"requests": 3, "tokens": 20}

    async def one(each: Visit) -> None:
        cost = {"tokens": each.tokens, "requests": each.requests}
        async with limiter.throttle(cost) as permit:
            left["requests"] -= each.requests
            left["tokens"] -= each.final
            permit.settle({"tokens": each.final})
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(one(each)) for each in planned]
    for place in cancelled:
        await asyncio.sleep(0)
        tasks[place % len(tasks)].cancel()
    await asyncio.sleep(1)
    await cancel(*tasks)
    assert counts(limiter) == (0, 0)
    assert await left_of_each(limiter) == left

"""Specifies the queue: timeouts, a bound and priorities; who is rejected and who is next."""

import asyncio
import time
from collections.abc import Collection, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiothrottle import RateLimiter, ThrottleTimeout, TokenBucket, WaitUntil, errors
from tests.limiter.common import queued, starts, together
from tests.support.effort import examples
from tests.support.virtually import cancel, counts, now, outcomes, turns, virtual, visit, visits


async def rejection(
    limiter: RateLimiter, timeout: float, cost: float = 1.0
) -> errors.ThrottleTimeout:
    with pytest.raises(errors.ThrottleTimeout) as error:
        await visit(limiter, cost, timeout=timeout)
    return error.value


async def test_wait_of_31_days_is_rejected_at_once() -> None:
    limiter = RateLimiter("1/31d")
    await visit(limiter)
    error = await rejection(limiter, timeout=30)
    assert (now(), error.retry_after, error.timeout) == (0, 31 * 86400, 30)
    assert isinstance(error, errors.ThrottleError)
    assert isinstance(error, TimeoutError)
    assert (counts(limiter), limiter.statistics().rejected) == ((0, 0), 1)
    assert await visit(limiter, timeout=31 * 86400) == 31 * 86400


@pytest.mark.parametrize(
    ("ahead", "cost", "timeout", "expected"),
    [
        *((0, 1, 1.0, 1.0), (0, 1, 0.999, None), (0, 1, 0, None)),  # exactly the wait is enough
        *((2, 1, 1.5, None), (2, 1, 2.0, 2.0)),
        *((1, 2, 1.5, None), (1, 2, 2.0, 2.0)),  # a heavy one does not fit beside the one ahead
        *((9, 1, 5.0, 5.0), (9, 1, 4.9, None)),
    ],
)
async def test_requests_ahead_count(
    ahead: int, cost: float, timeout: float, expected: float | None
) -> None:
    limiter = RateLimiter("2/s")
    await limiter.acquire(2, timeout=0)
    waiting = await queued(limiter, ahead)
    if expected is None:
        for _ in range(3):  # a rejected request takes no place and no token
            assert (await rejection(limiter, timeout, cost)).retry_after > timeout
        assert (now(), counts(limiter)) == (0, (0, ahead))
        await limiter.aclose(drain=True)
    else:
        assert await visit(limiter, cost, timeout=timeout) == expected
    assert await together(*waiting) == [1 + place // 2 for place in range(ahead)]
    spaced = RateLimiter("10/s", algorithm=TokenBucket(burst=1))
    await asyncio.sleep(1 / 3)
    for _ in range(20):
        await visit(spaced)
        wait = (await spaced.peek()).retry_after
        assert await visit(spaced, timeout=wait) == pytest.approx(now(), abs=1e-9)


async def test_pause_counts_before_and_during_a_wait() -> None:
    limiter = RateLimiter("1/s")
    limiter.pause(60)
    assert (await rejection(limiter, timeout=59)).retry_after == 60
    assert now() == 0
    assert await visit(limiter, timeout=60) == 60
    asyncio.get_running_loop().call_later(0.5, limiter.pause, 10)
    assert (await rejection(limiter, timeout=2)).retry_after == pytest.approx(8.5, abs=0.01)
    assert now() == pytest.approx(62, abs=0.01)
    assert counts(limiter) == (0, 0)


async def test_surrounding_timeout_is_not_mistaken_for_its_own() -> None:
    limiter = RateLimiter(concurrency_limit=1)
    _inside = await limiter.acquire()
    with pytest.raises(TimeoutError) as error:
        async with asyncio.timeout(1), limiter.throttle(timeout=5):
            pass
    assert not isinstance(error.value, errors.ThrottleTimeout)
    assert (now(), counts(limiter)) == (1, (1, 0))
    (cancelled,) = await queued(limiter, timeout=5)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert limiter.statistics().rejected == 0


async def test_full_queue_rejects_further_requests() -> None:
    limiter = RateLimiter("1/s", max_queue=2)
    await visit(limiter)
    waiting = await queued(limiter, 2)
    with pytest.raises(errors.QueueFull, match="max_queue") as error:
        await visit(limiter)
    assert (now(), error.value.waiting, error.value.retry_after) == (0, 2, 3)
    assert isinstance(error.value, errors.ThrottleError)
    assert limiter.statistics().rejected == 1
    await asyncio.sleep(1)
    waiting += await queued(limiter)
    assert await together(*waiting) == [1, 2, 3]
    limiter = RateLimiter("3/s", max_queue=1)
    assert await starts(limiter, 3) == [3, 3, 3]  # they need no wait
    (waiter,) = await queued(limiter)
    waiter.cancel()
    await turns()
    assert await visit(limiter) == 4  # in the place of the one that was cancelled
    limiter = RateLimiter(algorithm=WaitUntil(1, raise_after=1, limit=10), max_queue=2)
    await visit(limiter)
    waiting = await queued(limiter)
    for _ in range(2):  # one that is rejected counts, but waits for nothing
        await rejection(limiter, timeout=9)
    assert await together(*waiting) == [5]


async def test_reported_wait_behind_a_queue_is_exact() -> None:
    limiter = RateLimiter("2/s")
    await limiter.acquire(2)
    for ahead, wait in enumerate([1, 1, 2, 2, 3, 3, 4]):
        for ask in (limiter.peek, limiter.try_acquire):
            decision = await ask()
            assert (decision.allowed, decision.permit, decision.retry_after) == (False, None, wait)
        await queued(limiter)
        assert counts(limiter)[1] == ahead + 1
    assert limiter.statistics().rejected == 7  # a peek is no request
    await limiter.aclose(drain=True)
    limiter = RateLimiter("10/s")
    for pause in (0.5, 0.125):
        await starts(limiter, 5)
        await asyncio.sleep(pause)
    (heavy,), _ = await queued(limiter, 1, 5), await queued(limiter, 12)
    heavy.cancel()
    await turns()
    assert now() + (await limiter.peek()).retry_after == await visit(limiter)


async def test_wait_until_grants_one_queues_five_rejects_the_others() -> None:
    limiter = RateLimiter(algorithm=WaitUntil(1, 5, 10))
    tasks = await queued(limiter, 10)
    statistics = limiter.statistics()
    assert (statistics.granted, statistics.waiting, statistics.rejected) == (1, 5, 4)
    assert await outcomes(tasks) == [0, 1, 2, 3, 4, 5, "6", "7", "8", "9"]
    # Rejected requests count: the next one at 5 waits until 10.
    assert (await limiter.peek()).retry_after == 5
    assert await visit(limiter) == 10
    bounded = RateLimiter(algorithm=WaitUntil(1, 5, 10))
    answers = (await outcomes(visits(bounded, 30)))[6:]
    assert answers == ["6", "7", "8", "9", *["10"] * 20]
    limiter = RateLimiter(algorithm=WaitUntil(1, 3, 10))
    _, *waiting = await queued(limiter, 6)  # three wait, two are rejected
    for task in waiting:
        task.cancel()
    await asyncio.sleep(0.5)
    assert counts(limiter) == (0, 0)
    assert (await limiter.peek()).retry_after == 2.5  # of the first, and of two rejected ones
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_wait_until_rejects_in_the_turn_of_a_grant_and_serves_on() -> None:
    limiter = RateLimiter(algorithm=WaitUntil(1, 1, 10))

    async def nested() -> None:
        async with limiter.throttle():
            with pytest.raises(ThrottleTimeout, match="retry after 2 s"):
                await visit(limiter)

    await visit(limiter)
    granted = asyncio.create_task(nested())
    await asyncio.sleep(0)
    with pytest.raises(ThrottleTimeout):
        await visit(limiter)
    await granted
    await asyncio.sleep(100 - now())
    assert await outcomes(visits(limiter, 2)) == [100, 101]


async def test_timeout_in_a_long_queue_is_decided_quickly() -> None:
    limiter = RateLimiter("1000/s")
    began = time.process_time()
    tasks = visits(limiter, 10_000, timeout=100)
    await turns(3)
    # Half a second; walking the queue for each of them would take ten times as long.
    assert time.process_time() - began < 3
    assert counts(limiter)[1] == 9_000
    await limiter.aclose()
    await asyncio.gather(*tasks, return_exceptions=True)


# ---- priorities: each step counts as ten seconds of waiting --------------------------------------


def coming(limiter: RateLimiter, *priorities: float) -> list[asyncio.Task[float]]:
    return [task for each in priorities for task in visits(limiter, 1, priority=each)]


async def served(
    limiter: RateLimiter, guests: Sequence[tuple[float, float]], cancelled: Collection[int] = ()
) -> list[int]:
    """Return the order in which guests (arrival, priority) start, without the cancelled ones."""
    order: list[int] = []

    async def guest(name: int, arrival: float, priority: float) -> None:
        await asyncio.sleep(arrival)
        async with limiter.throttle(priority=priority):
            order.append(name)

    await visit(limiter)
    tasks = [asyncio.create_task(guest(name, *about)) for name, about in enumerate(guests)]
    await asyncio.sleep(max(arrival for arrival, _ in guests))
    await turns()
    for name in sorted(cancelled):
        tasks[name].cancel()
    await asyncio.wait(tasks)
    assert counts(limiter) == (0, 0)
    return order


async def test_waiters_of_many_priorities_leave_quickly() -> None:
    limiter = RateLimiter("1/h")
    tasks = coming(limiter, *range(3_000))
    await turns()
    began = time.process_time()
    await cancel(*tasks)
    # A tenth of a second; looking for the head for each of them would take fifty times as long.
    assert time.process_time() - began < 1
    assert counts(limiter) == (0, 0)


ARRIVALS = st.lists(st.integers(0, 479), min_size=1, max_size=40, unique=True)


@examples(25)
@given(ARRIVALS, st.data())
@virtual
async def test_a_step_is_worth_ten_seconds_of_waiting(
    arrivals: list[int], data: st.DataObject
) -> None:
    priorities = st.sampled_from([0, 0, 1, 1.5, 4, -2, 1e300, -1e300])
    slots = data.draw(st.sampled_from([None, 1]))
    guests = [(eighths / 8, data.draw(priorities)) for eighths in arrivals]
    cancelled = data.draw(st.sets(st.sampled_from(range(len(guests)))))
    # At a draw, the higher priority is first.
    places = [(arrival - 10 * priority, -priority, arrival) for arrival, priority in guests]
    expected = sorted({*range(len(guests))} - cancelled, key=places.__getitem__)
    limiter = RateLimiter("1/min", concurrency_limit=slots)
    assert await served(limiter, guests, cancelled) == expected


async def test_stream_of_higher_priority_starves_no_waiter() -> None:
    limiter = RateLimiter("1/s")
    await visit(limiter)
    (patient,) = await queued(limiter)
    stream: list[asyncio.Task[float]] = []
    while not patient.done():
        stream += coming(limiter, 3)
        await asyncio.sleep(1)
    # The requests that come within thirty seconds are first, and the one at the draw.
    assert await patient == 32
    await together(*stream)


@pytest.mark.parametrize(("priority", "place"), [(0, 5), (0.25, 4), (1, 3), (2, 2), (3, 1)])
async def test_wait_behind_aged_waiters_is_exact(priority: float, place: int) -> None:
    limiter = RateLimiter("1/100s")
    await visit(limiter)
    coming(limiter, 0, 1)
    for seconds in (7, 4):
        await asyncio.sleep(seconds)
        coming(limiter, 0)
    await turns()
    with pytest.raises(ThrottleTimeout) as error:
        await visit(limiter, priority=priority, timeout=1)
    assert error.value.retry_after == 100 * place - 11
    await limiter.aclose(drain=True)

"""Specifies timeouts and bounded queues: which requests are rejected, when, and the error."""

import asyncio
from typing import Any, TypeAlias

import pytest

from aiothrottle import (
    LimiterClosed,
    QueueFull,
    RateLimiter,
    ThrottleError,
    ThrottleTimeout,
    TokenBucket,
    WaitUntil,
)
from aiothrottle.testing import VirtualTimeLoop
from tests.virtually import counts, now, turns, virtual, visit, visits

Unchecked: TypeAlias = Any  # arguments of callers without type checks


async def rejection(limiter: RateLimiter, timeout: float, cost: float = 1.0) -> ThrottleTimeout:
    with pytest.raises(ThrottleTimeout) as error:
        await visit(limiter, cost, timeout=timeout)
    return error.value


# --- The wait is known ---


@virtual
async def test_wait_of_31_days_is_rejected_at_once() -> None:
    limiter = RateLimiter("1/31d")
    await visit(limiter)
    error = await rejection(limiter, timeout=30)
    assert (now(), error.retry_after) == (0, 31 * 86400)
    assert str(error) == "not granted within the timeout of 30 s: retry after 31 d"
    assert error.timeout == 30
    assert isinstance(error, ThrottleError)
    assert isinstance(error, TimeoutError)
    assert limiter.statistics().rejected == 1
    assert await visit(limiter, timeout=31 * 86400) == 31 * 86400


@pytest.mark.parametrize(
    ("ahead", "cost", "timeout", "expected"),
    [
        (0, 1, 1.0, 1.0),  # exactly the wait is enough
        (0, 1, 0.999, None),
        (1, 1, 1.0, 1.0),
        (2, 1, 1.5, None),
        (2, 1, 2.0, 2.0),
        (1, 2, 1.5, None),  # a heavy request does not fit beside the one ahead
        (1, 2, 2.0, 2.0),
        (9, 1, 5.0, 5.0),
        (9, 1, 4.9, None),
    ],
)
@virtual
async def test_requests_ahead_count(
    ahead: int, cost: float, timeout: float, expected: float | None
) -> None:
    limiter = RateLimiter("2/s")
    await limiter.acquire(2)
    waiting = visits(limiter, ahead)
    await turns()
    if expected is None:
        error = await rejection(limiter, timeout, cost)
        assert now() == 0
        assert error.retry_after > timeout
    else:
        assert await visit(limiter, cost, timeout=timeout) == expected
    await asyncio.gather(*waiting)


@virtual
async def test_rejected_request_takes_no_place_and_no_token() -> None:
    limiter = RateLimiter("1/s")
    await visit(limiter)
    for _ in range(50):
        await rejection(limiter, timeout=0.5)
    assert counts(limiter) == (0, 0)
    assert limiter.statistics().rejected == 50
    assert await asyncio.gather(*visits(limiter, 2)) == [1, 2]


@virtual
async def test_pause_counts_as_a_known_wait() -> None:
    limiter = RateLimiter("10/s")
    await visit(limiter)
    limiter.pause(60)
    assert (await rejection(limiter, timeout=59)).retry_after == 60
    assert now() == 0
    assert await visit(limiter, timeout=60) == 60


@virtual
async def test_timeout_0_is_granted_at_once_or_rejected() -> None:
    limiter = RateLimiter("1/s")
    assert await visit(limiter, timeout=0) == 0
    assert (await rejection(limiter, timeout=0)).retry_after == 1
    assert now() == 0


@virtual
async def test_timeout_of_exactly_the_wait_is_enough() -> None:
    limiter = RateLimiter("10/s", algorithm=TokenBucket(burst=1))
    await asyncio.sleep(1 / 3)
    for _ in range(200):
        await visit(limiter)
        wait = (await limiter.peek()).retry_after
        assert await visit(limiter, timeout=wait) == pytest.approx(now(), abs=1e-9)


# --- The wait is not known ---


@virtual
async def test_wait_for_a_slot_lasts_until_the_timeout() -> None:
    limiter = RateLimiter("10/s", concurrency_limit=1)
    inside = asyncio.create_task(visit(limiter, stay=10))
    await turns()
    error = await rejection(limiter, timeout=3)
    assert now() == pytest.approx(3, abs=0.01)
    assert error.retry_after == 0  # the rate would allow it: only the slot is missing
    assert counts(limiter) == (1, 0)
    assert limiter.statistics().rejected == 1
    assert await visit(limiter, timeout=7.5) == 10
    await inside


@virtual
async def test_timeout_0_does_not_wait_for_a_slot() -> None:
    limiter = RateLimiter(concurrency_limit=1)
    permit = await limiter.acquire()
    await rejection(limiter, timeout=0)
    assert now() == pytest.approx(0, abs=0.01)
    permit.release()
    await visit(limiter, timeout=0)


@virtual
async def test_pause_during_a_wait_exceeds_the_timeout() -> None:
    limiter = RateLimiter("1/s")
    await visit(limiter)
    (waiter,) = visits(limiter, 1, timeout=2)
    await asyncio.sleep(0.5)
    limiter.pause(10)
    with pytest.raises(ThrottleTimeout) as error:
        await waiter
    assert now() == pytest.approx(2, abs=0.01)
    assert error.value.retry_after == pytest.approx(8.5, abs=0.01)
    assert counts(limiter) == (0, 0)


@virtual
async def test_timeout_amid_the_queue_delays_nobody() -> None:
    limiter = RateLimiter("10/s", concurrency_limit=1)
    inside = asyncio.create_task(visit(limiter, stay=10))
    await turns()
    first, impatient, last = (
        *visits(limiter, 1),
        *visits(limiter, 1, timeout=5),
        *visits(limiter, 1),
    )
    with pytest.raises(ThrottleTimeout):
        await impatient
    assert [await first, await last] == [10, 10]
    await inside


@virtual
async def test_timeout_does_not_apply_inside_the_block() -> None:
    limiter = RateLimiter("10/s")
    assert await visit(limiter, timeout=1, stay=100) == 0
    assert now() == 100


@virtual
async def test_surrounding_timeout_is_not_mistaken_for_its_own() -> None:
    limiter = RateLimiter(concurrency_limit=1)
    _inside = await limiter.acquire()
    with pytest.raises(TimeoutError) as error:
        async with asyncio.timeout(1), limiter.throttle(timeout=5):
            pass
    assert not isinstance(error.value, ThrottleTimeout)
    assert (now(), counts(limiter)) == (1, (1, 0))
    (cancelled,) = visits(limiter, 1, timeout=5)
    await turns()
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert limiter.statistics().rejected == 0


# --- Bad input ---


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"timeout": -1}, ValueError),
        ({"timeout": float("nan")}, ValueError),
        ({"timeout": float("inf")}, ValueError),
        ({"timeout": "1"}, TypeError),
        ({"timeout": True}, TypeError),
        ({"priority": float("nan")}, ValueError),
        ({"priority": float("-inf")}, ValueError),
        ({"priority": "high"}, TypeError),
    ],
)
@virtual
async def test_bad_options_raise_by_name(options: Unchecked, error: type[Exception]) -> None:
    limiter = RateLimiter("1/s")
    (name,) = options
    for ask in (limiter.throttle, limiter.throttled):
        with pytest.raises(error, match=name):
            ask(**options)
    with pytest.raises(error, match=name):
        await limiter.acquire(**options)
    assert await visit(limiter) == 0


# --- A bounded queue ---


@virtual
async def test_full_queue_rejects_further_requests() -> None:
    limiter = RateLimiter("1/s", max_queue=2)
    await visit(limiter)
    waiting = visits(limiter, 2)
    await turns()
    with pytest.raises(QueueFull, match="max_queue") as error:
        await visit(limiter)
    assert (now(), error.value.waiting, error.value.retry_after) == (0, 2, 3)
    assert isinstance(error.value, ThrottleError)
    assert limiter.statistics().rejected == 1
    await asyncio.sleep(1)
    await turns()
    waiting += visits(limiter, 1)
    assert await asyncio.gather(*waiting) == [1, 2, 3]


@virtual
async def test_full_queue_grants_requests_that_need_no_wait() -> None:
    limiter = RateLimiter("3/s", max_queue=1)
    assert await asyncio.gather(*visits(limiter, 3)) == [0, 0, 0]
    (waiter,) = visits(limiter, 1)
    await turns()
    waiter.cancel()
    await turns()
    (waiter,) = visits(limiter, 1)  # the place of the waiter that gave up
    assert await waiter == 1


@pytest.mark.parametrize("bad", [0, -1])
def test_queue_of_less_than_one_raises(bad: int) -> None:
    with pytest.raises(ValueError, match="max_queue"):
        RateLimiter("1/s", max_queue=bad)


# --- The reported wait ---


@virtual
async def test_peek_and_try_acquire_report_queue_wait() -> None:
    limiter = RateLimiter("2/s")
    await limiter.acquire(2)
    for ahead, wait in enumerate([1, 1, 2, 2, 3, 3, 4]):
        for ask in (limiter.peek, limiter.try_acquire):
            decision = await ask()
            assert (decision.allowed, decision.permit, decision.retry_after) == (False, None, wait)
        visits(limiter, 1)
        await turns()
        assert counts(limiter)[1] == ahead + 1
    assert limiter.statistics().rejected == 7  # a peek is no request
    await limiter.aclose(drain=True)


@virtual
async def test_reported_wait_behind_a_queue_is_exact() -> None:
    limiter = RateLimiter("10/s")
    await asyncio.gather(*visits(limiter, 5))
    await asyncio.sleep(0.5)
    await asyncio.gather(*visits(limiter, 5))
    await asyncio.sleep(0.125)
    visits(limiter, 12)
    await turns()
    wait, asked = (await limiter.peek()).retry_after, now()
    assert await visit(limiter) - asked == wait


@virtual
async def test_peek_and_a_decision_in_a_condition() -> None:
    limiter = RateLimiter("1/s", concurrency_limit=1)
    assert await limiter.peek()
    assert await limiter.peek()  # nothing was spent
    inside = await limiter.acquire()
    decision = await limiter.peek()
    assert (bool(decision), decision.retry_after, decision.reset_after) == (False, 1, 1)
    await asyncio.sleep(1)
    decision = await limiter.peek()
    assert (bool(decision), decision.retry_after) == (False, 0)  # the slot alone
    inside.release()
    assert await limiter.peek()


@virtual
async def test_peek_and_try_acquire_of_a_closed_limiter() -> None:
    limiter = RateLimiter("1/s")
    await limiter.aclose()
    for ask in (limiter.peek, limiter.try_acquire, limiter.acquire):
        with pytest.raises(LimiterClosed):
            await ask()


# --- An algorithm that rejects by itself ---


async def outcomes(tasks: list[asyncio.Task[float]]) -> list[float | str]:
    """Return the time of each grant, or the `retry_after` of its rejection as text."""
    answers: list[float | str] = []
    for answer in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(answer, ThrottleTimeout):
            answers.append(f"{answer.retry_after:g}")
        else:
            assert not isinstance(answer, BaseException), answer
            answers.append(answer)
    return answers


@virtual
async def test_wait_until_grants_one_queues_five_rejects_four() -> None:
    limiter = RateLimiter(algorithm=WaitUntil(1, 5, 10))
    tasks = visits(limiter, 10)
    await turns()
    statistics = limiter.statistics()
    assert (statistics.granted, statistics.waiting, statistics.rejected) == (1, 5, 4)
    assert await outcomes(tasks) == [0, 1, 2, 3, 4, 5, "6", "7", "8", "9"]
    # Rejected requests count: the next one at 5 waits until 10.
    assert (await limiter.peek()).retry_after == 5
    assert await visit(limiter) == 10


@virtual
async def test_wait_until_bounds_the_reported_wait() -> None:
    limiter = RateLimiter(algorithm=WaitUntil(1, 5, 10))
    answers = await outcomes(visits(limiter, 30))
    assert answers == [0, 1, 2, 3, 4, 5, "6", "7", "8", "9", *["10"] * 20]


def test_rejected_requests_do_not_delay_the_loop_end() -> None:
    loop = VirtualTimeLoop()

    async def main() -> None:
        limiter = RateLimiter(algorithm=WaitUntil(1, 5, 10))
        tasks = visits(limiter, 10)
        await turns()
        assert limiter.statistics().waiting == 5
        for task in tasks[6:]:
            assert isinstance(task.exception(), ThrottleTimeout)

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(main())
        assert loop.time() == 0  # the five waiters were cancelled, not waited for
    assert loop.is_closed()


@virtual
async def test_timeout_in_a_long_queue_is_decided_quickly() -> None:
    # Walking the queue for each of 20,000 would take minutes; the test has a time limit.
    limiter = RateLimiter("1000/s")
    tasks = visits(limiter, 20_000, timeout=100)
    await turns(3)
    assert counts(limiter)[1] == 19_000
    await limiter.aclose()
    await asyncio.gather(*tasks, return_exceptions=True)


@virtual
async def test_newcomer_while_draining_is_rejected_at_once() -> None:
    limiter = RateLimiter("1/s")
    waiting = visits(limiter, 3)
    await turns()
    closing = asyncio.create_task(limiter.aclose(drain=True))
    await turns()
    with pytest.raises(LimiterClosed):
        await visit(limiter)
    assert now() == 0.0
    assert [await task for task in waiting] == [0.0, 1.0, 2.0]
    await closing


@virtual
async def test_granted_waiter_closed_before_it_starts_is_rejected() -> None:
    limiter = RateLimiter("1/s")

    async def close() -> None:
        await asyncio.sleep(1.0)
        await limiter.aclose()

    # Wakes in the turn in which the second request is granted, and before that one.
    closing = asyncio.create_task(close())
    await turns()
    first, second = visits(limiter, 2)
    assert await first == 0.0
    with pytest.raises(LimiterClosed):
        await second
    assert now() == 1.0
    await closing
    assert limiter.statistics().granted == 1
    assert limiter.statistics().in_flight == 0

"""Not for ever and not too many: what is refused, when, and what the refusal says."""

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

Unchecked: TypeAlias = Any  # what callers pass who do not check their types


async def refusal(limiter: RateLimiter, timeout: float, cost: float = 1.0) -> ThrottleTimeout:
    with pytest.raises(ThrottleTimeout) as error:
        await visit(limiter, cost, timeout=timeout)
    return error.value


# --- The wait is known ---


@virtual
async def test_a_wait_of_31_days_is_refused_at_once() -> None:
    limiter = RateLimiter("1/31d")
    await visit(limiter)
    error = await refusal(limiter, timeout=30)
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
        (1, 2, 1.5, None),  # a heavy one does not fit beside the one ahead
        (1, 2, 2.0, 2.0),
        (9, 1, 5.0, 5.0),
        (9, 1, 4.9, None),
    ],
)
@virtual
async def test_those_ahead_count(
    ahead: int, cost: float, timeout: float, expected: float | None
) -> None:
    limiter = RateLimiter("2/s")
    await limiter.acquire(2)
    waiting = visits(limiter, ahead)
    await turns()
    if expected is None:
        error = await refusal(limiter, timeout, cost)
        assert now() == 0
        assert error.retry_after > timeout
    else:
        assert await visit(limiter, cost, timeout=timeout) == expected
    await asyncio.gather(*waiting)


@virtual
async def test_a_refused_one_takes_no_place_and_no_token() -> None:
    limiter = RateLimiter("1/s")
    await visit(limiter)
    for _ in range(50):
        await refusal(limiter, timeout=0.5)
    assert counts(limiter) == (0, 0)
    assert limiter.statistics().rejected == 50
    assert await asyncio.gather(*visits(limiter, 2)) == [1, 2]


@virtual
async def test_a_pause_counts_as_a_wait_that_is_known() -> None:
    limiter = RateLimiter("10/s")
    await visit(limiter)
    limiter.pause(60)
    assert (await refusal(limiter, timeout=59)).retry_after == 60
    assert now() == 0
    assert await visit(limiter, timeout=60) == 60


@virtual
async def test_time_out_0_goes_at_once_or_not_at_all() -> None:
    limiter = RateLimiter("1/s")
    assert await visit(limiter, timeout=0) == 0
    assert (await refusal(limiter, timeout=0)).retry_after == 1
    assert now() == 0


@virtual
async def test_a_time_out_of_exactly_the_wait_is_enough_however_it_is_rounded() -> None:
    limiter = RateLimiter("10/s", algorithm=TokenBucket(burst=1))
    await asyncio.sleep(1 / 3)
    for _ in range(200):
        await visit(limiter)
        told = (await limiter.peek()).retry_after
        assert await visit(limiter, timeout=told) == pytest.approx(now(), abs=1e-9)


# --- The wait is not known ---


@virtual
async def test_a_slot_that_does_not_come_free_in_time_is_waited_for_so_long() -> None:
    limiter = RateLimiter("10/s", concurrency_limit=1)
    inside = asyncio.create_task(visit(limiter, stay=10))
    await turns()
    error = await refusal(limiter, timeout=3)
    assert now() == pytest.approx(3, abs=0.01)
    assert error.retry_after == 0  # by the rate it might go: it is the slot that is missing
    assert counts(limiter) == (1, 0)
    assert limiter.statistics().rejected == 1
    assert await visit(limiter, timeout=7.5) == 10
    await inside


@virtual
async def test_time_out_0_does_not_wait_for_a_slot() -> None:
    limiter = RateLimiter(concurrency_limit=1)
    permit = await limiter.acquire()
    await refusal(limiter, timeout=0)
    assert now() == pytest.approx(0, abs=0.01)
    permit.release()
    await visit(limiter, timeout=0)


@virtual
async def test_a_pause_that_comes_while_one_waits_makes_it_late() -> None:
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
async def test_who_times_out_in_the_middle_of_the_line_delays_nobody() -> None:
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
async def test_time_is_not_up_inside_the_block() -> None:
    limiter = RateLimiter("10/s")
    assert await visit(limiter, timeout=1, stay=100) == 0
    assert now() == 100


@virtual
async def test_a_time_out_around_it_is_not_taken_for_its_own() -> None:
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
async def test_bad_options_are_refused_by_name(options: Unchecked, error: type[Exception]) -> None:
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
async def test_no_more_wait_than_may() -> None:
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
async def test_a_full_queue_is_no_matter_to_who_need_not_wait() -> None:
    limiter = RateLimiter("3/s", max_queue=1)
    assert await asyncio.gather(*visits(limiter, 3)) == [0, 0, 0]
    (waiter,) = visits(limiter, 1)
    await turns()
    waiter.cancel()
    await turns()
    (waiter,) = visits(limiter, 1)  # the place of who gave up
    assert await waiter == 1


@pytest.mark.parametrize("bad", [0, -1])
def test_a_queue_for_nobody_is_refused(bad: int) -> None:
    with pytest.raises(ValueError, match="max_queue"):
        RateLimiter("1/s", max_queue=bad)


# --- What is told of the wait ---


@virtual
async def test_peek_and_try_acquire_tell_the_wait_behind_those_who_wait() -> None:
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
async def test_what_is_told_behind_a_line_is_what_it_takes() -> None:
    limiter = RateLimiter("10/s")
    await asyncio.gather(*visits(limiter, 5))
    await asyncio.sleep(0.5)
    await asyncio.gather(*visits(limiter, 5))
    await asyncio.sleep(0.125)
    visits(limiter, 12)
    await turns()
    told, asked = (await limiter.peek()).retry_after, now()
    assert await visit(limiter) - asked == told


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
async def test_asking_a_closed_limiter_is_told() -> None:
    limiter = RateLimiter("1/s")
    await limiter.aclose()
    for ask in (limiter.peek, limiter.try_acquire, limiter.acquire):
        with pytest.raises(LimiterClosed):
            await ask()


# --- An algorithm that refuses by itself ---


async def outcomes(tasks: list[asyncio.Task[float]]) -> list[float | str]:
    """Give when each went, or how long it was told to wait, as text."""
    answers: list[float | str] = []
    for answer in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(answer, ThrottleTimeout):
            answers.append(f"{answer.retry_after:g}")
        else:
            assert not isinstance(answer, BaseException), answer
            answers.append(answer)
    return answers


@virtual
async def test_wait_until_lets_one_go_five_wait_and_four_are_refused() -> None:
    limiter = RateLimiter(algorithm=WaitUntil(1, 5, 10))
    tasks = visits(limiter, 10)
    await turns()
    figures = limiter.statistics()
    assert (figures.granted, figures.waiting, figures.rejected) == (1, 5, 4)
    assert await outcomes(tasks) == [0, 1, 2, 3, 4, 5, "6", "7", "8", "9"]
    # The refused ones count: the next one at 5 waits until 10.
    assert (await limiter.peek()).retry_after == 5
    assert await visit(limiter) == 10


@virtual
async def test_wait_until_never_makes_anyone_wait_longer_than_its_limit() -> None:
    limiter = RateLimiter(algorithm=WaitUntil(1, 5, 10))
    answers = await outcomes(visits(limiter, 30))
    assert answers == [0, 1, 2, 3, 4, 5, "6", "7", "8", "9", *["10"] * 20]


def test_refused_ones_do_not_hold_up_the_end_of_the_loop() -> None:
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
        assert loop.time() == 0  # and the five who wait have been cancelled, not waited for
    assert loop.is_closed()


@virtual
async def test_in_a_long_line_a_time_out_is_decided_without_walking_the_line() -> None:
    # 20,000 who had to walk past all before them would take minutes; the test has a time limit.
    limiter = RateLimiter("1000/s")
    tasks = visits(limiter, 20_000, timeout=100)
    await turns(3)
    assert counts(limiter)[1] == 19_000
    await limiter.aclose()
    await asyncio.gather(*tasks, return_exceptions=True)


@virtual
async def test_who_comes_while_a_closed_limiter_drains_is_told_at_once() -> None:
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
async def test_who_was_granted_and_is_closed_before_it_goes_is_told() -> None:
    limiter = RateLimiter("1/s")

    async def close() -> None:
        await asyncio.sleep(1.0)
        await limiter.aclose()

    # It wakes in the turn in which the second one was granted, and before that one.
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

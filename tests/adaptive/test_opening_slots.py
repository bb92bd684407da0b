"""Slots open with the answers, where nothing says how many requests the server admits at once."""

import asyncio
import random
from collections.abc import Sequence

import pytest

from aiothrottle import Permit, RateLimiter
from aiothrottle.httpx import ThrottledTransport
from tests.limiter.common import throttle_one
from tests.support.virtually import now, on_virtual_loop, virtual, visit, work_for


def limiter_of_a_session(**limits: object) -> RateLimiter:
    limiter = RateLimiter(**limits)  # type: ignore[arg-type]
    ThrottledTransport(limiter)  # which reports the outcomes
    return limiter


async def starts_of(limiter: RateLimiter, number: int, seconds: float) -> list[float]:
    """Send so many requests that take so long, all at once; return when each one started."""
    starts = list[float]()
    began_at = now()

    async def send() -> None:
        async with limiter.throttle() as permit:
            starts.append(round(now() - began_at, 6))
            await asyncio.sleep(seconds)
            permit.report_success()

    await asyncio.gather(*(send() for _ in range(number)))
    return starts


def counts_of(starts: Sequence[float]) -> list[int]:
    """Return how many started at each instant."""
    return [starts.count(at) for at in sorted(set(starts))]


@pytest.mark.parametrize(
    ("limit", "seconds", "started"),
    [
        (7, 0.07, [1, 2, 4, 7, 7]),  # they double with the answers
        (9, 30.0, [1, 1, 2, 4, 1, 1]),  # or each second, without an answer
        (None, 0.01, [1, 2, 4, 8, 16, 32, 64, 273]),  # many at once after 64 answers
    ],
)
@virtual
async def test_requests_in_flight_double(
    limit: int | None, seconds: float, started: list[int]
) -> None:
    limiter = limiter_of_a_session(concurrency_limit=limit)
    assert counts_of(await starts_of(limiter, sum(started), seconds)) == started
    assert limiter.statistics().concurrency_limit == limit


@virtual
async def test_slots_that_are_open_stay_open() -> None:
    limiter = limiter_of_a_session(concurrency_limit=7)
    await starts_of(limiter, 21, 0.07)
    assert counts_of(await starts_of(limiter, 21, 0.07)) == [7, 7, 7]


@virtual
async def test_requests_from_before_a_429_take_no_open_slot() -> None:
    limiter = limiter_of_a_session(concurrency_limit=32)
    early = asyncio.create_task(starts_of(limiter, 16, 30.0))
    await asyncio.sleep(4.5)
    await throttle_one(limiter, 2.0, took=0.0)
    late = await starts_of(limiter, 6, 30.0)
    # After the pause the trial, for which the others wait for five seconds.
    assert counts_of(late) == [1, 2, 3]
    assert late[-1] < 15.0
    await early


@virtual
async def test_slots_open_without_reports_too() -> None:
    limiter = limiter_of_a_session(concurrency_limit=3)
    began_at = now()
    for _ in range(3):
        await visit(limiter)
    permits = [await limiter.acquire() for _ in range(3)]
    assert now() - began_at == pytest.approx(2.0)
    for permit in permits:
        permit.release()


@virtual
async def test_tries_open_slots_too() -> None:
    limiter = limiter_of_a_session(concurrency_limit=3)
    child = RateLimiter(parent=limiter)
    _held = await limiter.acquire()
    for ask in (limiter.try_acquire, child.try_acquire, child.peek):
        decision = await ask()
        assert (decision.allowed, decision.retry_after) == (False, 1.0)
    permits = list[Permit | None]()
    for ask in (child.try_acquire, limiter.try_acquire):
        await asyncio.sleep(1.0)
        permits.append((await ask()).permit)
    assert None not in permits
    decision = await child.try_acquire()
    assert (decision.allowed, decision.retry_after) == (False, 0.0), "a slot is held: not known"


@virtual
async def test_slots_close_after_a_429_and_open_again() -> None:
    limiter = limiter_of_a_session(concurrency_limit=4)
    await starts_of(limiter, 8, 0.01)
    random.seed(1)
    for _ in range(2):  # the second one loses no slot
        await throttle_one(limiter, 2.0, took=0.0)
    starts = await starts_of(limiter, 11, 0.01)
    assert counts_of(starts) == [1, 2, 4, 4]
    assert 2.0 <= starts[0] <= 2.2
    assert limiter.statistics().concurrency_limit == 4


def test_closed_slots_stay_closed_on_the_next_loop() -> None:
    limiter = limiter_of_a_session(concurrency_limit=4)

    async def throttle() -> None:
        await starts_of(limiter, 8, 0.01)
        await throttle_one(limiter, 2.0, took=0.0)

    on_virtual_loop(throttle())
    assert counts_of(on_virtual_loop(starts_of(limiter, 11, 0.01))) == [1, 2, 4, 4]


@virtual
async def test_answers_to_requests_before_a_429_open_nothing() -> None:
    limiter = limiter_of_a_session(concurrency_limit=4)
    await starts_of(limiter, 8, 0.01)
    early = [await limiter.acquire() for _ in range(3)]
    await throttle_one(limiter, 2.0, took=0.0)
    for permit in early:
        permit.report_success()
        permit.release()
    assert counts_of(await starts_of(limiter, 3, 0.01)) == [1, 2]


@virtual
async def test_cancelled_requests_leave_every_slot_usable() -> None:
    limiter = limiter_of_a_session(concurrency_limit=4)
    for after in (0.0, 0.5, 1.0, 1.5):
        await work_for(after, [starts_of(limiter, 6, 3.0)])
    assert counts_of(await starts_of(limiter, 8, 3.0)) == [4, 4]
    assert limiter.statistics().in_flight == 0


@virtual
async def test_new_limits_and_other_limiters_use_all_slots_at_once() -> None:
    updated = limiter_of_a_session(concurrency_limit=4)
    updated.update(concurrency_limit=6)
    without = limiter_of_a_session(concurrency_limit=6, learn_rate=False)
    for limiter in (updated, without, RateLimiter(concurrency_limit=6)):
        assert counts_of(await starts_of(limiter, 6, 0.01)) == [6]


@virtual
async def test_waiting_request_starts_when_the_limits_are_updated() -> None:
    limiter = limiter_of_a_session(concurrency_limit=4)
    sending = asyncio.create_task(starts_of(limiter, 4, 5.0))
    await asyncio.sleep(0.25)
    limiter.update(concurrency_limit=3)
    assert await sending == [0.0, 0.25, 0.25, 5.0]


def test_slots_open_on_another_clock_too() -> None:
    limiter = limiter_of_a_session(concurrency_limit=3)
    on_virtual_loop(work_for(0.5, [starts_of(limiter, 3, 5.0)]), start=1000.0)
    assert on_virtual_loop(starts_of(limiter, 3, 5.0)) == [0.0, 1.0, 2.0]

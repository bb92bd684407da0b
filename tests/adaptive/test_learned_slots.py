"""A server that limits the requests at once gets fewer slots, and no slower rate."""

import asyncio
import math
import random
from typing import NamedTuple

import pytest

from aiothrottle import RateLimiter
from aiothrottle.adaptive.evidence import LearnedSlots
from aiothrottle.httpx import ThrottledTransport
from tests.support.effort import seeds
from tests.support.observing import adaptations, observed
from tests.support.virtually import now, on_virtual_loop, work_for


class Found(NamedTuple):
    """The outcome of a minute: 429s, those after 10 s, the used part, and the limits at the end."""

    throttled: int
    later: int
    used: float
    slots: int | None
    rate: float | None


def minute(
    slots: int,
    seconds: float,
    unevenness: float,
    seed: int,
    limiter: RateLimiter,
    workers: int = 24,
    lasts: float = 60.0,
    way: float = 0.005,
    status: int = 429,
    rest: float = 0.0,
) -> Found:
    """Send to a server that works on so many requests at once, for so many seconds each.

    It answers all others with that status, after which a worker rests. `way` is that of a request,
    and of a response.
    """
    chance = random.Random(seed)
    throttled = list[float]()
    at_work, worked, begun = 0, 0.0, 0.0

    async def work() -> None:
        nonlocal at_work, worked
        while True:
            async with limiter.throttle() as permit:
                await asyncio.sleep(way)
                if at_work >= slots:
                    throttled.append(now() - begun)
                    await asyncio.sleep(way)
                    permit.report(status, {})
                    permit.release()
                    await asyncio.sleep(rest)
                    continue
                at_work += 1
                took = seconds * chance.uniform(1 - unevenness, 1 + unevenness)
                await asyncio.sleep(took)
                at_work -= 1
                worked += took
                await asyncio.sleep(way)
                permit.report_success()

    async def main() -> None:
        nonlocal begun
        begun = now()
        ThrottledTransport(limiter)  # which reports the outcomes
        await work_for(lasts, (work() for _ in range(workers)))

    random.seed(seed)
    on_virtual_loop(main())
    later = sum(at >= 10.0 for at in throttled)
    limits = limiter.statistics()
    used = worked / (slots * lasts)
    return Found(len(throttled), later, used, limits.concurrency_limit, limits.rate_limit)


@pytest.mark.parametrize(("slots", "seconds"), [(2, 0.3), (3, 0.1), (3, 0.5), (5, 0.2), (7, 1.5)])
@pytest.mark.parametrize("unevenness", [0.1, 0.9])
def test_limit_of_requests_at_once_is_found(slots: int, seconds: float, unevenness: float) -> None:
    for seed in seeds(1):
        found = minute(slots, seconds, unevenness, seed, RateLimiter(concurrency_limit=8))
        assert (found.slots, found.rate) in {(slots, None), (slots + 1, None), (8, None)}
        assert found.throttled <= 20
        assert found.later <= 4
        assert found.used >= 0.75


@pytest.mark.parametrize(("slots", "seconds"), [(2, 8.0), (5, 20.0), (20, 20.0), (6, 0.02)])
def test_limit_is_found_at_a_slow_server_and_at_a_very_fast_one(slots: int, seconds: float) -> None:
    """The next 429 comes before the first answer, or much of a request is spent on the way."""
    limiter = RateLimiter(concurrency_limit=32)
    found = minute(slots, seconds, 0.5, 0, limiter, workers=64, lasts=max(60.0, 30.0 * seconds))
    assert (found.slots, found.rate) in {(slots, None), (slots + 1, None)}
    assert found.throttled <= 25
    assert found.used >= (0.8 if seconds >= 1.0 else 0.6)  # a third of the time on the way


def test_limit_is_found_without_a_limit_of_ones_own_and_shows_in_events() -> None:
    limiter = RateLimiter()
    seen = observed(limiter)
    found = minute(20, 0.2, 0.5, 0, limiter, workers=200)
    assert (found.slots, found.rate) == (20, None)
    assert 20.0 in {it.value for it in adaptations(seen)}
    assert {it.what for it in adaptations(seen)} == {"slots"}
    limiter.update(concurrency_limit=30)
    assert limiter.statistics().concurrency_limit == 30


def test_found_limit_is_forgotten_with_its_clock() -> None:
    limiter = RateLimiter(concurrency_limit=8)
    assert minute(3, 0.2, 0.1, 0, limiter).slots in {3, 4}
    on_virtual_loop(limiter.peek())
    assert limiter.statistics().concurrency_limit == 8


def test_without_it_the_same_server_throttles_half_of_the_requests() -> None:
    limiter = RateLimiter(concurrency_limit=8, learn_rate=False)
    assert minute(3, 0.1, 0.5, 0, limiter).throttled > 200


# ---- the controller ------------------------------------------------------------------------------


def event(slots: LearnedSlots, at: float, in_flight: int, number: int) -> float:
    """Throttle so many of those in flight, and admit one after it; return the slots."""
    for _ in range(number):
        slots.throttled(at, at - 0.5, in_flight)
    slots.succeeded(at + 1.0)
    return slots.size


def test_what_is_not_throttled_at_once_fits() -> None:
    assert event(LearnedSlots(8.0), 1.0, in_flight=8, number=5) == 3.0
    # One may be what an even spacing leaves; and eight are the limit of the user.
    assert event(LearnedSlots(8.0), 1.0, in_flight=8, number=7) == math.inf
    assert event(LearnedSlots(8.0), 1.0, in_flight=9, number=1) == math.inf
    assert event(LearnedSlots(math.inf), 1.0, in_flight=900, number=1) == 899.0


def test_another_slot_is_tried_later_each_time() -> None:
    slots = LearnedSlots(math.inf)
    event(slots, 1.0, in_flight=8, number=5)
    answers = list[int]()
    for at in (10.0, 20.0, 30.0):
        answers.append(1)  # that of the event before
        while slots.size < 4.0:
            slots.succeeded(at - 0.5)
            answers[-1] += 1
        assert event(slots, at, in_flight=4, number=1) == 3.0
    assert answers == [10, 80, 640]


def test_tries_that_succeed_lead_to_the_limit_of_the_user() -> None:
    slots = LearnedSlots(6.0)
    event(slots, 1.0, in_flight=6, number=3)
    sizes = [slots.size]
    for _ in range(40):
        slots.succeeded(5.0)
        sizes.append(slots.size)
    assert sorted(set(sizes)) == [3.0, 4.0, 5.0, math.inf]


def test_429s_without_more_in_flight_correct_it_once_and_then_refute_it() -> None:
    slots = LearnedSlots(8.0)
    assert event(slots, 1.0, in_flight=8, number=3) == 5.0
    assert event(slots, 10.0, in_flight=5, number=1) == 4.0
    assert slots.explain_429s
    assert event(slots, 20.0, in_flight=4, number=1) == math.inf
    assert not slots.explain_429s
    assert event(slots, 30.0, in_flight=8, number=3) == math.inf


def test_next_429_ends_an_event_too() -> None:
    """Where answers take long, none comes in between."""
    slots = LearnedSlots(32.0)
    slots.throttled(1.0, 0.9, in_flight=20)
    slots.throttled(5.0, 4.9, in_flight=20)
    assert slots.size == 19.0


def test_slightly_fewer_of_many_refute_nothing() -> None:
    slots = LearnedSlots(32.0)
    for at, in_flight, left in ((1.0, 32, 25), (2.0, 25, 22), (3.0, 22, 19), (4.0, 19, 17)):
        assert event(slots, at, in_flight, in_flight - left) == left
    event(slots, 5.0, in_flight=17, number=3)
    assert event(slots, 6.0, in_flight=14, number=3) == math.inf


def test_429s_of_nearly_all_in_flight_are_not_explained_by_slots() -> None:
    slots = LearnedSlots(8.0)
    event(slots, 1.0, in_flight=8, number=5)
    explained = list[bool]()
    for _ in range(3):
        slots.throttled(10.0, 9.0, in_flight=4)
        explained.append(slots.explain_429s)
    assert explained == [True, True, False]


def test_answers_to_earlier_requests_do_not_end_an_event() -> None:
    slots = LearnedSlots(8.0)
    slots.throttled(1.0, 0.5, in_flight=8)
    slots.succeeded(0.5)
    slots.throttled(1.1, 0.5, in_flight=7)
    slots.succeeded(1.5)
    assert slots.size == 6.0

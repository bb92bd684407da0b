"""Those who wait, against a list that is sorted each time."""

import asyncio
import random
from collections.abc import Iterator

import pytest

from aiothrottle import RateLimiter
from aiothrottle.permit import ParticularPermit, Permit, make_permit
from aiothrottle.waiters import AGEING, Waiters

LINE = RateLimiter(1)._line


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def come(at: float, tokens: float = 1.0, priority: float = 0) -> ParticularPermit:
    permit = make_permit(LINE, tokens, priority)
    permit._at = at
    return permit


def alive(waiters: Waiters) -> list[Permit]:
    return [permit for permit in waiters if permit._future is not None]


def test_no_rounding_is_left_where_nobody_waits(loop: asyncio.AbstractEventLoop) -> None:
    waiters = Waiters()
    permits = [come(0.0, tokens) for tokens in (0.1, 0.2, 0.3, 0.7)]
    for permit in permits:
        waiters.add(permit, loop.create_future())
    for permit in permits:
        waiters.remove(permit)
    assert waiters.cost_ahead(come(1.0)) == 0.0


@pytest.mark.parametrize("priorities", [(0,), (0, 1), (0, 1, -2.5)], ids=str)
@pytest.mark.parametrize("seed", range(5))
def test_they_are_as_a_sorted_list(
    loop: asyncio.AbstractEventLoop, priorities: tuple[float, ...], seed: int
) -> None:
    chance, waiters, now = random.Random(seed), Waiters(), 0.0
    listed: list[ParticularPermit] = []

    def place(permit: ParticularPermit) -> tuple[float, float]:
        return permit._at - AGEING * permit._priority, -permit._priority

    for _ in range(400):
        if chance.random() < (0.6 if len(listed) < 30 else 0.4) or not listed:
            now += chance.choice([0.0, 1.0, 8.0])
            permit = come(now, chance.choice([0.5, 1.0, 3.0]), chance.choice(priorities))
            if all(place(other)[0] != place(permit)[0] for other in listed):
                ahead = [other._tokens for other in listed if place(other) < place(permit)]
                assert waiters.cost_ahead(permit) == sum(ahead)
            waiters.add(permit, loop.create_future())
            listed.append(permit)
            listed.sort(key=place)
        else:
            permit = chance.choice([listed[0], listed[-1], chance.choice(listed)])
            listed.remove(permit)
            waiters.remove(permit)
            assert permit._future is None
        assert waiters.count == len(listed)
        assert set(waiters.others) == {permit._priority for permit in listed} - {0}
        if listed:
            assert waiters.head is listed[0]
            assert alive(waiters) == listed
    waiters.clear()
    assert (waiters.count, waiters.others, list(waiters)) == (0, {}, [])
    assert all(permit._future is None for permit in listed)


def test_a_higher_priority_stands_behind_those_who_have_waited_for_longer(
    loop: asyncio.AbstractEventLoop,
) -> None:
    waiters = Waiters()
    early, gone, late = come(0.0, 2.0), come(0.5, 4.0), come(15.0, 8.0)
    for permit in (early, gone, late):
        waiters.add(permit, loop.create_future())
    waiters.remove(gone)
    assert waiters.cost_ahead(come(20.0, priority=1)) == 2.0
    assert waiters.cost_ahead(come(20.0)) == 10.0
    assert waiters.cost_ahead(come(9.0, priority=1)) == 0.0
    waiters.add(come(20.0, 16.0, priority=1), loop.create_future())
    assert waiters.cost_ahead(come(20.0)) == 26.0
    assert waiters.cost_ahead(come(21.0, priority=2)) == 2.0


def test_who_left_from_the_middle_is_dropped_when_half_of_the_lane_has(
    loop: asyncio.AbstractEventLoop,
) -> None:
    waiters = Waiters()
    permits = [come(float(at)) for at in range(6)]
    for permit in permits:
        waiters.add(permit, loop.create_future())
    for which, left in ((2, 6), (3, 6), (4, 6), (1, 2)):
        waiters.remove(permits[which])
        assert len(list(waiters)) == left
    assert list(waiters) == [permits[0], permits[5]]
    # Gaps behind the head go with it.
    newcomers = [come(float(at)) for at in range(10, 16)]
    for permit in newcomers:
        waiters.add(permit, loop.create_future())
    waiters.remove(permits[5])
    waiters.remove(newcomers[0])
    waiters.remove(permits[0])
    assert list(waiters) == newcomers[1:]

"""The rows about limits and waiters: how many are granted, in what order, after a cancellation."""

import asyncio
from typing import Any
from unittest.mock import patch

import pytest

from aiothrottle import RateLimiter
from aiothrottle.testing import greatest_count
from tests.peers.limiters import (
    WAITING,
    Acquire,
    TickingLoop,
    in_virtual_time,
    window_of_limits,
)
from tests.peers.table import NO, OURS, YES, cell, columns, the_package

NEVER_OVER = "Never over the limit in any period"
IN_ORDER = "Requests start in the order of arrival"
CANCELLED = "A cancelled waiter takes no tokens"
VIRTUAL = "Tests in virtual time"
NO_WAITING = "does not wait"


async def saturate(acquire: Acquire, limit: int) -> list[float]:
    """Return when each of four times the limit was granted."""
    loop = asyncio.get_running_loop()
    granted: list[float] = []

    async def request() -> None:
        await acquire(1)
        granted.append(loop.time())

    await asyncio.gather(*(request() for _ in range(4 * limit)))
    return granted


async def start_in_order(acquire: Acquire, costs: list[int], limit: int) -> list[int]:
    """Return the order in which waiters were granted that came one after the other."""
    await asyncio.gather(*(acquire(1) for _ in range(limit)))
    granted: list[int] = []

    async def request(place: int, cost: int) -> None:
        await acquire(cost)
        granted.append(place)

    waiters: list[asyncio.Task[None]] = []
    for place, cost in enumerate(costs):
        waiters.append(asyncio.create_task(request(place, cost)))
        await asyncio.sleep(0.0037)
    await asyncio.gather(*waiters)
    return granted


@columns(*WAITING)
def test_count_in_any_period(column: str) -> None:
    # A tick of the clock is all that two grants may be too near.
    count = greatest_count(in_virtual_time(column, 10, saturate), 1 - 1e-3)
    assert cell(NEVER_OVER, column) == (YES if count <= 10 else NO), count


def test_count_in_any_period_of_limits() -> None:
    limiter = window_of_limits()
    ten, granted = the_package("limits").parse("10/second"), list[float]()
    with patch("time.time") as clock:
        for tick in range(400):
            clock.return_value = 1e9 + tick / 100
            granted += [clock.return_value for _ in range(2) if limiter.hit(ten)]
    assert len(granted) == 40
    assert greatest_count(granted, 1 - 1e-3) == 10
    assert cell(NEVER_OVER, "limits") == YES


@columns(*WAITING)
def test_order_of_waiters(column: str) -> None:
    equal = in_virtual_time(column, 10, lambda a, n: start_in_order(a, [1] * 6, n))
    # asyncio-throttle has no costs, but loses its order without them too.
    mixed = in_virtual_time(column, 10, lambda a, n: start_in_order(a, [5, 1, 1], n))
    expected = NO
    if equal == sorted(equal):
        expected = YES if mixed == sorted(mixed) else "of equal cost"
    assert cell(IN_ORDER, column) == expected, (equal, mixed)


def test_limits_rejects_in_place_of_waiting() -> None:
    limiter = window_of_limits()
    hour = the_package("limits").parse("1/hour")
    assert limiter.hit(hour)
    assert not limiter.hit(hour)
    methods = {name for name in dir(limiter) if not name.startswith("_")}
    assert methods == {"clear", "get_window_stats", "hit", "storage", "test"}
    assert cell(IN_ORDER, "limits") == cell(CANCELLED, "limits") == NO_WAITING


async def cancel_and_wait(acquire: Acquire, limit: int) -> tuple[float, float]:
    """Return the waits of a request behind no other waiter, and behind ten that are cancelled."""
    loop = asyncio.get_running_loop()
    waits: list[float] = []
    for victims in (0, 10):
        await asyncio.sleep(100)
        await asyncio.gather(*(acquire(1) for _ in range(limit)))
        began = loop.time()
        cancelled = [asyncio.ensure_future(acquire(1)) for _ in range(victims)]
        await asyncio.sleep(0.01)
        waiter = asyncio.ensure_future(acquire(1))
        await asyncio.sleep(0.01)
        for task in cancelled:
            task.cancel()
        await waiter
        waits.append(loop.time() - began)
    return waits[0], waits[1]


@columns(*WAITING)
def test_cancelled_waiters_take_no_tokens(column: str) -> None:
    alone, behind = in_virtual_time(column, 10, cancel_and_wait)
    assert cell(CANCELLED, column) == (YES if behind == pytest.approx(alone, abs=0.05) else NO)


@columns(OURS, "aiolimiter", "pyrate-limiter")
def test_limit_of_an_hour_is_tested_in_no_time(column: str) -> None:
    package = the_package(column)

    async def wait_for_three() -> float:
        loop = asyncio.get_running_loop()
        if column == OURS:
            acquire = RateLimiter("2/h").acquire
        elif column == "aiolimiter":
            acquire = package.AsyncLimiter(2, 3600).acquire
        else:

            def now(_: object) -> int:
                return int(loop.time() * 1000)

            # As its page says: a bucket of one's own has the clock.
            kind: Any = type("Bucket", (package.InMemoryBucket,), {"now": now})
            bucket = kind([package.Rate(2, package.Duration.HOUR)])
            acquire = package.Limiter(package.BucketAsyncWrapper(bucket)).try_acquire_async
        for _ in range(3):
            await acquire()
        return loop.time()

    with asyncio.Runner(loop_factory=TickingLoop) as runner:
        assert runner.run(wait_for_three()) >= 1800
    assert cell(VIRTUAL, column) == YES

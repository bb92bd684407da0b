"""A limiter for which time changes nothing sets no timer, so virtual time finds what never ends."""

import asyncio
import gc
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from aiothrottle import KeyedRateLimiter
from aiothrottle.testing import VirtualTimeLoop
from tests.support.virtually import virtual


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def never() -> "asyncio.Future[None]":
    return asyncio.get_running_loop().create_future()


async def after_update() -> None:
    limiter = KeyedRateLimiter("10/s", concurrency_limit=1)
    async with limiter.throttle("a"):
        pass
    limiter.update("a", rate_limit="20/s")
    await never()


async def with_a_held_slot() -> None:
    limiter = KeyedRateLimiter("10/s", concurrency_limit=1)
    permit = await limiter.acquire("a")
    await limiter.acquire("a")
    permit.release()


@pytest.mark.parametrize("main", [after_update, with_a_held_slot])
@pytest.mark.usefixtures("no_collector")
def test_endless_wait_on_virtual_time_raises(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with (
        asyncio.Runner(loop_factory=VirtualTimeLoop) as runner,
        pytest.raises(RuntimeError, match="nothing can ever wake the event loop"),
    ):
        runner.run(main())


@virtual
async def test_keys_are_forgotten_again_after_they_were_in_use() -> None:
    limiter = KeyedRateLimiter("10/s", concurrency_limit=1)
    permits = [await limiter.acquire(key) for key in range(100)]
    await asyncio.sleep(300)
    assert len(limiter) == 100
    for permit in permits:
        permit.release()
    async with limiter.throttle("another"):
        await asyncio.sleep(300)
    assert len(limiter) == 1

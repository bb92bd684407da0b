"""A change to a limiter in a thread other than that of its loop raises an error."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial

import pytest

from aiothrottle import AdaptiveRate, KeyedRateLimiter, Permit, RateLimiter
from aiothrottle.events import Event
from tests.support.virtually import counts, turns, virtual, visit

events: list[Event] = []


async def read(limiter: RateLimiter) -> None:
    limiter.statistics()


CHANGES: dict[str, Callable[[RateLimiter, Permit], object]] = {
    "pause": lambda limiter, _: limiter.pause(0.0),
    "statistics on a loop": lambda limiter, _: asyncio.run(read(limiter)),
    "update the rate": lambda limiter, _: limiter.update(rate_limit=None),
    "update the slots": lambda limiter, _: limiter.update(concurrency_limit=None),
    "observe": lambda limiter, _: limiter.observe(events.append),
    "statistics": lambda limiter, _: limiter.statistics(),
    "settle": lambda _, permit: permit.settle(0.0),
    "server quota": lambda _, permit: permit.update_quota(0.0, 1.0),
    "succeeded": lambda _, permit: permit.report_success(),
    "throttled": lambda _, permit: permit.report_throttled(),
    "record": lambda limiter, _: asyncio.run(limiter.record()),
    "acquire": lambda limiter, _: asyncio.run(limiter.acquire()),
    "close": lambda limiter, _: asyncio.run(limiter.aclose()),
}


def elsewhere(change: Callable[[], object]) -> list[BaseException]:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            change()
        except BaseException as error:  # noqa: BLE001 - returned to the test
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return errors


@pytest.mark.parametrize("change", CHANGES)
async def test_change_in_another_thread_raises(change: str) -> None:
    limiter = RateLimiter(AdaptiveRate(10, 1, 100), concurrency_limit=1)
    permit = await limiter.acquire()
    waiter = asyncio.create_task(visit(limiter))
    await turns()
    before = repr(limiter)
    (error,) = await asyncio.to_thread(elsewhere, lambda: CHANGES[change](limiter, permit))
    assert isinstance(error, RuntimeError)
    assert "this limiter belongs to <" in str(error)
    await turns()
    assert repr(limiter) == before
    permit.release()
    await asyncio.wait_for(waiter, 30)
    assert counts(limiter) == (0, 0)
    assert events == []


async def test_error_names_the_thread_safe_call() -> None:
    limiter = RateLimiter(10)
    await visit(limiter)
    (error,) = await asyncio.to_thread(elsewhere, lambda: limiter.pause(1))
    assert "loop.call_soon_threadsafe" in str(error)
    later = asyncio.get_running_loop().call_soon_threadsafe
    assert not await asyncio.to_thread(elsewhere, lambda: later(limiter.pause, 60))
    await turns()
    assert limiter.statistics().paused_for > 50


async def test_keys_in_another_thread_raise() -> None:
    limiter = KeyedRateLimiter("10/s")
    async with limiter.throttle("a"):
        pass
    for change in (
        partial(limiter.pause, "b", 1.0),
        partial(limiter.statistics, "b"),
        partial(limiter.update, "b"),
        limiter.total,
        partial(limiter.observe, events.append),
    ):
        (error,) = await asyncio.to_thread(elsewhere, change)
        assert isinstance(error, RuntimeError)
        assert "b" not in limiter


def test_keys_stay_on_the_loop_that_used_them() -> None:
    limiter = KeyedRateLimiter("10/s")
    limiter.pause("a", 0.0)

    async def look() -> None:
        assert not limiter["a"].statistics().paused_for

    async def total() -> None:
        limiter.total()

    @virtual
    async def use(another: asyncio.AbstractEventLoop) -> None:
        await visit(limiter["a"])
        await visit(limiter["b"])
        await asyncio.sleep(5)
        assert list(limiter) == []  # both were forgotten
        for ask in (look, total):
            (error,) = elsewhere(partial(another.run_until_complete, ask()))
            assert "this limiter belongs to <" in str(error)
        await visit(limiter["c"])

    with closing(asyncio.new_event_loop()) as another:
        assert not elsewhere(lambda: another.run_until_complete(look()))
        use(another)


def test_loop_continued_in_another_thread_keeps_its_limiter() -> None:
    limiter, loop = RateLimiter(10, concurrency_limit=1), asyncio.new_event_loop()
    loop.run_until_complete(visit(limiter))

    async def change() -> None:
        limiter.pause(0.0)
        limiter.update(rate_limit=5)

    assert not elsewhere(lambda: loop.run_until_complete(change()))
    loop.close()

"""A store that is back while the loop changes: a try that a closed loop left ends nothing here.

Its task stays suspended, and its `finally` runs whenever it is collected.
"""

import asyncio
import gc
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from aiothrottle import RateLimiter, StoreUnavailable
from aiothrottle.stores import MemoryStore
from tests.support.serving import until


class Returning(MemoryStore):
    """Fails in all methods; or, once it is back, hangs in `record` until it is released."""

    __slots__ = ("hanging", "is_down")

    def __init__(self) -> None:
        super().__init__()
        self.is_down = True
        self.hanging: list[asyncio.Future[None]] = []

    async def _execute(self, key: Any, algorithm: Any, step: Any) -> Any:
        if self.is_down:
            raise StoreUnavailable("no server")
        if step.method == "record":
            self.hanging.append(asyncio.get_running_loop().create_future())
            await self.hanging[-1]
        return await super()._execute(key, algorithm, step)


def on_a_loop(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run to its end, and close the loop with all tasks that are left, as they are."""
    loop = asyncio.new_event_loop()  # of one clock with the next: the outage goes on
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()


@pytest.mark.usefixtures("no_automatic_collection")
def test_dead_return_ends_no_other_return(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "asyncio")  # of the task that the first loop leaves
    store = Returning()
    limiter = RateLimiter(
        "1000/s", store=store, key="k", guard=0, on_store_error="local", local_share=0.5
    )

    async def first() -> None:
        for _ in range(2):  # the second one has the store tried again
            async with limiter.throttle():
                pass
        store.is_down = False
        async with asyncio.timeout(5):
            await until(lambda: bool(store.hanging))

    async def second() -> None:
        store.hanging.clear()
        begun = asyncio.create_task(limiter.acquire())
        async with asyncio.timeout(5):
            await until(lambda: bool(store.hanging))
        gc.collect()
        asked = asyncio.create_task(limiter.acquire())
        await asyncio.sleep(0.05)
        assert not asked.done()
        store.hanging[0].set_result(None)
        await asyncio.gather(begun, asked)

    on_a_loop(first)
    on_a_loop(second)
    gc.collect()

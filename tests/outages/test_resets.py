"""Connections that are reset at any point: a `StoreUnavailable` with its cause, and nothing else.

Real servers behind a proxy, all drivers, on asyncio's loop and on uvloop.
"""

import asyncio
import gc
import random
from collections.abc import Awaitable, Callable, Iterator
from importlib.util import find_spec
from typing import Any

import pytest

from aiothrottle import SlidingWindowLog, StoreUnavailable, ThrottleTimeout, TokenBucket, WaitUntil
from aiothrottle.algorithms import Algorithm
from aiothrottle.stores import Store
from tests.outages.drivers import DRIVERS, leaks_sockets, store_on
from tests.support.servers import FaultProxy

pytestmark = [pytest.mark.uvloop, leaks_sockets]

ALGORITHMS: list[Algorithm[Any]] = [
    SlidingWindowLog("1000/s"),
    TokenBucket("1000/s"),
    WaitUntil(0.001, 5, 10),
]


@pytest.fixture(autouse=True)
def _drivers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have emcache reconnect at once, and collect what drivers leave here."""
    if find_spec("emcache"):
        monkeypatch.setattr("emcache.connection_pool.CREATE_CONNECTION_MAX_BACKOFF", 0.1)
    yield
    gc.collect()


def some_call(store: Store, lots: random.Random) -> Callable[[], Awaitable[object]]:
    place = lots.randrange(len(ALGORITHMS))
    key, algorithm = f"key {lots.randrange(2)} {place}", ALGORITHMS[place]
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: store.reserve(key, algorithm, [1]),
        lambda: store.peek(key, algorithm),
        lambda: store.record(key, algorithm),
        lambda: store.clear(key),
    ]
    return lots.choice(calls)


async def outage(call: Callable[[], Awaitable[object]]) -> bool:
    """Make the call. Return whether it raises an outage, which must have a cause."""
    try:
        await call()
    except StoreUnavailable as error:
        cause: BaseException | None = error
        while isinstance(cause, StoreUnavailable):
            cause = cause.__cause__
        assert isinstance(cause, Exception)
        return True
    except ThrottleTimeout:
        pass
    return False


@pytest.mark.parametrize("served", DRIVERS, indirect=True)
async def test_methods_raise_nothing_but_outages(served: tuple[str, int]) -> None:
    """Several calls at once, one of them cancelled, and a reset at some point of that."""
    driver, port = served
    lots, found = random.Random(1), list[Any]()
    async with FaultProxy(port) as proxy, store_on(driver, proxy.port, timeout=0.2) as store:
        proxy.lots = random.Random(5)
        for mode in ("pass", "pass", "lots", "pass"):
            proxy.mode = mode
            for count in (1, 2, 4):
                calls = [some_call(store, lots) for _ in range(count)]
                tasks = [asyncio.create_task(outage(call)) for call in calls]
                for _ in range(lots.randrange(25)):
                    await asyncio.sleep(0)
                await asyncio.sleep(lots.choice([0.0, lots.uniform(0.0, 0.002)]))
                proxy.reset()
                tasks[-1].cancel()
                found += await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(each) for each in found} <= {bool, asyncio.CancelledError}
        assert False in found, "no call succeeded"
        proxy.mode = "reset"
        assert await outage(lambda: store.peek("key", ALGORITHMS[0]))
        proxy.mode = "pass"
        async with asyncio.timeout(20):
            while await outage(  # noqa: ASYNC110 - a server sets no event
                lambda: store.reserve("afterwards", ALGORITHMS[0], [1])
            ):
                await asyncio.sleep(0.05)

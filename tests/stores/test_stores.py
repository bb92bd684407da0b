"""All stores: the contract, a limit under concurrency, by the server's clock; and a custom one."""

import asyncio
import time
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest
import redis

from aiothrottle import (
    RateLimiter,
    SlidingWindowLog,
    StoreUnavailable,
    ThrottleTimeout,
    TokenBucket,
    WaitUntil,
)
from aiothrottle.stores import Key, MemoryStore
from aiothrottle.stores.mongo import MongoStore
from aiothrottle.stores.redis import RedisStore
from aiothrottle.testing.store_contract import CHECKS, Check, ManualClock
from tests.stores.conftest import Open
from tests.stores.servers import KINDS, SERVERS
from tests.support.stored import DictStore
from tests.support.virtually import visit

# Other ways to the same server: what reads replies, finds keys and compares and swaps differs. That
# of Sentinels has connections of its own alone, which other tests use.
FEW = {
    "it_decides_as_a_store_in_memory_does",
    "many_at_once_get_the_limit_and_no_more",
    "refunded_tokens_can_be_taken_again-SlidingWindowLog",
    "any_text_is_its_own_key",
    "another_algorithm_on_the_key_is_rejected",
}
# Each machine has a clock of its own, and memcached shares none.
OF_ONE_CLOCK = ("memcached", "a_clock_that_stepped_back_delays_nothing")
CASES = [
    pytest.param(kind, check, id=f"{kind}-{check.__name__}")
    for kind in [kind for kind in SERVERS if kind != "sentinel"]
    for check in CHECKS
    if (kind in KINDS or check.__name__ in FEW) and (kind, check.__name__) != OF_ONE_CLOCK
]


# ---- stores that need no server ------------------------------------------------------------------


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_stores_without_a_server_keep_the_contract(check: Check) -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    await check(lambda: store, clock)
    clock = ManualClock()
    records: dict[Key, bytes] = {}
    await check(lambda: DictStore(records, clock), clock)


async def test_memory_store_drops_expired_records() -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    for number in range(5000):
        await store.record(str(number), SlidingWindowLog("10/s"))
        clock.advance(0.01)  # a hundred keys in a second
    assert 100 <= len(store) <= 300


class Beaten(DictStore):
    """A store in which another process always writes first."""

    rounds = 0

    async def swap(self, key: Key, mark: bytes | None, data: bytes | None, seconds: float) -> bool:  # noqa: ARG002
        self.rounds += 1
        return False


async def test_changes_are_written_and_conflicts_end(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, window = ManualClock(), SlidingWindowLog(1)
    records: dict[Key, bytes] = {}
    await DictStore(records, clock).reserve("key", window, [1])
    store, sleep = Beaten(records, clock), asyncio.sleep
    await store.reserve("key", window, [1])
    await store.peek("key", window)
    await store.record("other", window, 0)
    await store.refund("nobody", window, 1, 0.0)
    assert store.rounds == 0

    async def hardly(_: float) -> None:
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", hardly)  # the pauses grow to half a second
    with pytest.raises(StoreUnavailable, match="64 times in a row"):
        await store.record("key", window)
    assert store.rounds == 64


# ---- servers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "check"), CASES)
async def test_server_keeps_the_contract(open_stores: Open, kind: str, check: Check) -> None:
    async with open_stores(kind) as make:
        clock = ManualClock()
        await check(lambda: make(clock=clock), clock)


@pytest.mark.parametrize("kind", KINDS)
async def test_time_is_since_2026(open_stores: Open, kind: str) -> None:
    async with open_stores(kind) as make:
        before = await make().record("key", TokenBucket(1))
        after = await make().peek("key", TokenBucket(1))
    assert 0.0 <= after.now - before.now < 5.0
    assert abs(time.time() - 1767225600 - after.now) < 60.0


@pytest.mark.parametrize("kind", ["redis", "cluster", "sentinel", "memcached", "mongodb", "sqlite"])
async def test_limit_holds_under_concurrency(open_stores: Open, kind: str) -> None:
    """By the server's clock; each process with a client of its own, and several resources."""
    rates = {"requests": "50/h", "tokens": ["100/h", "1000/day"]}
    async with open_stores(kind) as one, open_stores(kind) as other:
        limiters = [RateLimiter(rates, store=make(), key="k") for make in (one, other) * 2]

        async def remaining() -> dict[str, float]:
            found = (await limiters[0].peek()).resources
            return {name: resource.remaining for name, resource in found.items()}

        asking = (limiters[place % 4].try_acquire({"tokens": 7}) for place in range(40))
        decisions = await asyncio.gather(*asking)
        assert sum(map(bool, decisions)) == 14
        assert await remaining() == {"requests": 36, "tokens": 2}
        await asyncio.gather(*(visit(limiter, {"tokens": 0.5}) for limiter in limiters))
        for decision in decisions:
            if decision.permit:
                decision.permit.settle({"tokens": 2})
        for limiter in limiters:
            await limiter.aclose()  # when all is settled
        limiters = [RateLimiter(rates, store=one(), key="k")]
        assert await remaining() == {"requests": 32, "tokens": 70}


# ---- `WaitUntil`, by the server's clock ----------------------------------------------------------


async def hits(limiter: RateLimiter, count: int) -> tuple[list[float], list[float]]:
    """Return the seconds until the grants, and the waits reported to rejected requests."""
    clock = asyncio.get_running_loop().time
    begin, granted_at, waits = clock(), list[float](), list[float]()

    async def hit() -> None:
        try:
            async with limiter.throttle():
                granted_at.append(clock() - begin)
        except ThrottleTimeout as error:
            waits.append(error.retry_after)

    await asyncio.gather(*(hit() for _ in range(count)))
    return granted_at, waits


@pytest.mark.parametrize("kind", KINDS)
async def test_wait_until_decides_by_the_server_clock(open_stores: Open, kind: str) -> None:
    async with open_stores(kind) as make:
        algorithm = WaitUntil(0.05, raise_after=0.25, limit=1)
        async with RateLimiter(algorithm=algorithm, store=make(), key="ten") as limiter:
            granted_at, waits = await hits(limiter, 10)
        assert waits == pytest.approx([0.3, 0.35, 0.4, 0.45])
        assert len(granted_at) == 6
        # The clock of MongoDB counts milliseconds.
        assert all(at >= 0.05 * place - 0.002 for place, at in enumerate(granted_at))
        algorithm = WaitUntil(100, raise_after=0, limit=1000)
        async with RateLimiter(algorithm=algorithm, store=make(), key="many") as limiter:
            granted_at, waits = await hits(limiter, 5)
            assert len(granted_at) == 1
            assert waits == pytest.approx([100, 200, 300, 400])
            granted_at, waits = await hits(limiter, 20)
            assert not granted_at
            assert waits[0] == pytest.approx(500, abs=60)  # less the time that has passed
            assert waits[-10:] == pytest.approx([1000] * 10)
            assert not await limiter.try_acquire()
            assert (await limiter.peek()).retry_after == pytest.approx(1000, abs=60)


# ---- wrong arguments -----------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [0, -1, float("inf"), "1"])
@pytest.mark.parametrize("kind", ["redis", "mongodb", "sqlite"])
async def test_wrong_timeout_is_rejected(open_stores: Open, kind: str, timeout: Any) -> None:
    async with open_stores(kind) as make:
        with pytest.raises((TypeError, ValueError), match=r"timeout must be a .*of seconds"):
            make(timeout=timeout)


def test_wrong_client_is_rejected() -> None:
    module = "aiothrottle.stores.memcached"
    wrong: list[tuple[Any, object, str]] = [
        (RedisStore, redis.Redis(), r"of redis\.asyncio"),
        (RedisStore, "redis://localhost", r"of redis\.asyncio"),
        (MongoStore, None, "AsyncMongoClient"),
    ]
    if find_spec("emcache"):
        wrong.append((import_module(module).MemcachedStore, None, "emcache"))
    for store, client, error in wrong:
        with pytest.raises(TypeError, match=error):
            store(client)

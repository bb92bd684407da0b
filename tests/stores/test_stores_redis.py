"""`RedisStore` on real servers: the contract, the script and Python compared, bad input."""

import asyncio
import math
import os
import random
import struct
from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis, RedisCluster

from aiothrottle import RateLimiter, SharedConcurrency
from aiothrottle.algorithms import (
    Algorithm,
    AllOf,
    Cooldown,
    FixedWindow,
    LeakyBucket,
    PerResource,
    SlidingWindowCounter,
    SlidingWindowLog,
    TokenBucket,
    Unlimited,
    WaitUntil,
)
from aiothrottle.algorithms.timestamps import edge
from aiothrottle.amounts import amounts
from aiothrottle.errors import StoreUnavailable
from aiothrottle.stores.health import Health
from aiothrottle.stores.redis import RedisStore
from aiothrottle.stores.request import LOAD, RECORD, Requests
from aiothrottle.testing.store_contract import CHECKS, Check, ManualClock
from tests.servers import Cluster, Sentinels, Valkey, free_port
from tests.stores.test_stores import DictStore

Server = Valkey | Cluster | Sentinels

# The command for more: AIOTHROTTLE_DECISIONS=100000 pytest tests/stores/test_stores_redis.py
DECISIONS = int(os.environ.get("AIOTHROTTLE_DECISIONS", "10000"))


@pytest.fixture(scope="module")
def valkey() -> Iterator[Valkey]:
    server = Valkey()
    yield server
    server.stop()


@pytest.fixture(scope="module", params=["single", "cluster", "sentinel"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    kinds: dict[str, type[Server]] = {"single": Valkey, "cluster": Cluster, "sentinel": Sentinels}
    server = kinds[request.param]()
    yield server
    server.stop()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_store_keeps_the_contract(server: Server, check: Check) -> None:
    async with server.connect() as client:
        clock = ManualClock()
        prefix = check.__name__
        await check(lambda: RedisStore(client, prefix, clock=clock, timeout=5), clock)


# ---- the script compared with the Python ---------------------------------------------------------

PORTED: list[Algorithm[Any]] = [
    SlidingWindowLog("3/s"),
    SlidingWindowLog("20/s"),
    SlidingWindowLog("2.5/min"),
    SlidingWindowLog("0.3/s"),
    SlidingWindowLog("1000/s"),
    TokenBucket("3/s", burst=2),
    TokenBucket("1000/s"),
    TokenBucket("100000/s", burst=3),
    LeakyBucket("3/s"),
    LeakyBucket("1000/s"),
    FixedWindow("3/s"),
    FixedWindow("2.5/700ms"),
    SlidingWindowCounter("3/s", buckets=4),
    SlidingWindowCounter("20/s"),
    SlidingWindowCounter("0.3/s", buckets=1),
    WaitUntil(1, 5, 10),
    WaitUntil(0.1, 0.5, 0.7),
    Cooldown(3, 60),
    Cooldown(7, 1),
    AllOf(SlidingWindowLog("3/s"), SlidingWindowLog("12/min")),
    AllOf(FixedWindow("3/700ms"), TokenBucket("5/s", burst=2)),
    AllOf(SlidingWindowCounter("5/s"), Unlimited(), SlidingWindowLog("7/2s"), Cooldown(5, 1)),
    PerResource(("requests", SlidingWindowLog("3/s")), ("tokens", SlidingWindowLog("9/s"))),
    PerResource(
        ("tokens", TokenBucket("20/s", burst=6)),
        ("requests", LeakyBucket("10/s")),
        ("tokens", SlidingWindowCounter("40/3s")),
        ("bytes", FixedWindow("20/700ms")),
        ("more", Unlimited()),
    ),
    PerResource(("tokens", SlidingWindowLog("9/s")), ("tokens", SlidingWindowLog("20/min"))),
    PerResource(("bytes", Cooldown(7, 1))),
    Unlimited(),
]


class Life:
    """Random calls for one record: the same to the script and to the Python."""

    def __init__(self, dice: random.Random, algorithm: Algorithm[Any], clock: ManualClock) -> None:
        self.dice = dice
        self.algorithm = algorithm
        self.clock = clock
        clock.now = dice.choice(
            [0.0, 0.1, 2.8e7, 2.8e7 + dice.random(), -5.0, 1e9 * dice.random(), 2e9]
        )
        self.scale = dice.choice([0.02, 0.3, 1.0, 1.0, 5.0])
        self.fractions = dice.random() < 0.5
        self.granted: list[tuple[float, float]] = []

    def pass_time(self) -> None:
        if self.dice.random() < 0.05:
            self.clock.advance(-3.0 * self.dice.random())
        else:
            wait = self.dice.random() * self.scale
            self.clock.advance(self.dice.choice([0.0, 0.0, wait, 0.1, 1 / 3, 1.0]))

    def cost(self) -> float:
        if not isinstance(self.algorithm, PerResource) or self.dice.random() < 0.2:
            return self.number()
        return amounts(
            {
                name: self.dice.choice([0.0, 1.0, 1.0, 2.0, self.number()])
                for name in self.algorithm.resources
            }
        )

    def number(self) -> float:
        kind = self.dice.random()
        if kind < 0.6 or (kind < 0.8 and not self.fractions):
            return 1.0
        if kind < 0.65:
            return 0.0
        if kind < 0.8:
            return self.dice.randint(1, 4)
        part = self.dice.choice([self.dice.random(), 0.1, 1 / 3, 1.0, 1.1])
        return part * min(self.algorithm.capacity.real, 10)

    def step(self) -> tuple[str, tuple[Any, ...], dict[str, float]]:
        kind = self.dice.random()
        if kind < 0.15 and self.granted:
            place = self.dice.choice([-1, self.dice.randrange(len(self.granted))])
            instant, cost = self.granted.pop(place)
            return "refund", (cost * self.dice.choice([1, 1, 0.5]), instant), {}
        if kind < 0.4:
            return self.dice.choice(["peek", "record"]), (self.cost(),), {}
        costs = [self.cost() for _ in range(self.dice.choice([1, 1, 2, 5, 30]))]
        horizon = self.dice.choice([0.0, 0.0, 0.3, 2.0, 10.0, math.inf])
        return "reserve", (costs,), {"horizon": horizon}


async def test_script_decides_as_python_to_the_last_bit(valkey: Valkey) -> None:
    dice = random.Random(DECISIONS)
    clock = ManualClock()
    decisions, record = 0, 0
    async with valkey.connect() as client:
        script = RedisStore(client, "bits", clock=clock, timeout=5)
        python = DictStore({}, clock)
        while decisions < DECISIONS:
            algorithm, key = PORTED[record % len(PORTED)], str(record)
            record += 1
            life = Life(dice, algorithm, clock)
            for _ in range(40):
                life.pass_time()
                method, arguments, options = life.step()
                expected = await getattr(python, method)(key, algorithm, *arguments, **options)
                found = await getattr(script, method)(key, algorithm, *arguments, **options)
                assert found == expected, (algorithm, clock(), method, arguments, options)
                if method == "reserve":
                    life.granted += [
                        pair
                        for pair in zip(expected.instants, arguments[0], strict=False)
                        if pair[1]
                    ]
                    decisions += len(expected.instants)
                decisions += 1


@pytest.mark.parametrize(
    "algorithm", [TokenBucket("1/s", burst=1000), Cooldown(1000, 1000)], ids=repr
)
async def test_refunds_of_many_records_are_equal(valkey: Valkey, algorithm: Any) -> None:  # noqa: ANN401
    """More rising levels than are kept: where they become fewer, too."""
    dice, clock = random.Random(3), ManualClock(1e9)
    granted = list[float]()
    async with valkey.connect() as client:
        await client.flushall()
        script, python = RedisStore(client, "settled", clock=clock, timeout=5), DictStore({}, clock)
        for _ in range(400):
            clock.advance(dice.choice([0.01, 0.5, dice.random()]))
            expected = await python.reserve("key", algorithm, [2])
            assert await script.reserve("key", algorithm, [2]) == expected
            granted += expected.instants
            if dice.random() < 0.2:
                instant = granted.pop(dice.randrange(len(granted)))
                await python.refund("key", algorithm, 1.5, instant)
                await script.refund("key", algorithm, 1.5, instant)
            assert await script.peek("key", algorithm) == await python.peek("key", algorithm)


NUMBERS = [0.1, 1 / 3, 1.0, 3.0, 1e16, 2.0**53, 1.0 + 2**-52, 2.0**-53, 2.0**-60, 1e-300, 7e5]


async def test_script_arithmetic_equals_python_arithmetic(valkey: Valkey) -> None:
    """Sums that are rounded once, and the edges of periods, from just below to just above."""
    algorithms = RECORD.partition("-- The methods of a record in stores/ledger.py")[0]
    code = """
        local numbers = {}
        for place, packed in ipairs(ARGV) do numbers[place] = struct.unpack('<d', packed) end
        local index, width, number = unpack(numbers)
        return struct.pack('<ddd', fsum(numbers, 1), edge(index, width), above(number))
    """
    dice = random.Random(6)
    async with valkey.connect() as client:
        script = client.register_script(algorithms + code)
        for _ in range(2000):
            index, width = (
                float(dice.randint(-(10**6), 10**9)),
                dice.choice([0.1, 0.7, 1 / 3, 60.0]),
            )
            near = math.nextafter(dice.choice([-1, 1]) * dice.choice(NUMBERS), math.inf)
            numbers = [index, width, near, *dice.choices(NUMBERS, k=dice.randint(0, 6))]
            reply = await script(args=[struct.pack("<d", number) for number in numbers])
            expected = (math.fsum(numbers), edge(index, width), math.nextafter(near, math.inf))
            assert struct.unpack("<ddd", reply) == expected, numbers
        powers = [-1.0, -0.5, -2.0, 0.5, 1.0, 4.0]
        for power in powers:
            numbers = [1.0, 1.0, power]
            reply = await script(args=[struct.pack("<d", number) for number in numbers])
            assert struct.unpack("<ddd", reply)[2] == math.nextafter(power, math.inf)


# ---- the server's own clock ----------------------------------------------------------------------


async def test_record_expires_when_it_may_be_forgotten(valkey: Valkey) -> None:
    async with valkey.connect() as client:
        store = RedisStore(client, "expiry")
        for algorithm in PORTED[:-1]:
            await store.reserve(repr(algorithm), algorithm, [1, 1], horizon=1)
            # So much that it is still there when a busy machine reads it.
            answer = await store.record(repr(algorithm), algorithm, 10_000)
            names = [name async for name in client.scan_iter("{expiry:*")]
            assert len(names) >= 2
            for name in names:
                expires_in = await client.pttl(name)
                if b"#" in name.partition(b"}")[2]:  # an answer, kept for a resent call
                    assert 0 < expires_in <= 5000
                else:
                    assert 0 < expires_in <= answer.reset_after * 1000 + 2, algorithm
            await client.flushall()


async def test_time_is_the_servers_since_2026(valkey: Valkey) -> None:
    async with valkey.connect() as client:
        answer = await RedisStore(client).peek("key", SlidingWindowLog(1))
        seconds, microseconds = await client.time()
        assert 0 <= seconds + microseconds / 1e6 - 1767225600 - answer.now < 1


async def test_script_lost_by_the_server_is_resent(valkey: Valkey) -> None:
    async with valkey.connect() as client:
        store = RedisStore(client, "lost")
        for remaining in (9.0, 8.0):
            await client.script_flush()
            assert (await store.reserve("key", SlidingWindowLog(10), [1])).remaining == remaining


async def test_decision_costs_the_same_for_any_window(valkey: Valkey) -> None:
    """Counted in commands of the script, by the server's own count."""

    async def commands_of(limit: int) -> int:
        async with valkey.connect() as client:
            clock = ManualClock()
            store = RedisStore(client, "long", clock=clock, timeout=5)
            window = SlidingWindowLog(f"{limit}/s")
            await client.flushall()
            for _ in range(limit // 10):
                await store.reserve("key", window, [1] * 10)
                clock.advance(10 / limit)
            await client.config_resetstat()
            for _ in range(20):
                await store.reserve("key", window, [1])
                clock.advance(1 / limit)
            stats = await client.info("commandstats")
            return sum(stat["calls"] for stat in stats.values())

    # A command more for each expired entry, and for a bisection of the rest.
    counts = [await commands_of(limit) for limit in (10, 100, 1000, 10_000)]
    assert max(counts) <= counts[0] + 20, counts


# ---- what a driver does --------------------------------------------------------------------------

HOURLY = SlidingWindowLog("10/h")


@pytest.mark.parametrize("window", [HOURLY, AllOf(AllOf(HOURLY))], ids=repr)
async def test_resent_command_counts_once(valkey: Valkey, window: Algorithm[Any]) -> None:
    async with valkey.connect() as client:
        store = RedisStore(client, f"twice {window}")
        send, load = client.execute_command, client.register_script(LOAD).sha

        async def send_twice(*command: object, **options: object) -> object:
            first = await send(*command, **options)
            if command[0] == "INFO" or {"peek", load} & set(command):
                return first
            second = await send(*command, **options)
            assert second == first
            return second

        client.execute_command = send_twice
        answer = await store.reserve("key", window, [1, 1, 1])
        assert answer.remaining == 7.0
        assert (await store.record("key", window)).remaining == 6.0
        await store.refund("key", window, 1, answer.instants[0])
        assert (await store.peek("key", window)).remaining == 7.0


def test_forked_child_has_ids_of_its_own() -> None:
    requests = Requests("prefix", 1.0)
    one, other = (requests.make("peek", "key", SlidingWindowLog(1), [1]) for _ in range(2))
    assert one is not None
    assert other is not None
    assert f"#{os.getpid():x}-" in one.keys[1]
    assert one.keys[1] != other.keys[1]


async def test_client_that_decodes_replies_works(valkey: Valkey) -> None:
    async with valkey.connect(decode_responses=True) as client:
        for check in CHECKS:
            await client.flushall()
            clock = ManualClock()
            await check(partial(RedisStore, client, clock=clock, timeout=5), clock)


async def test_closed_client_reconnects(valkey: Valkey) -> None:
    async with valkey.connect() as client:
        store = RedisStore(client, "closed")
        await store.record("key", SlidingWindowLog(10))
        await client.aclose()
        assert (await store.peek("key", SlidingWindowLog(10))).remaining == 9.0


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_client_of_valkey_py_works(valkey: Valkey, check: Check) -> None:
    from valkey.asyncio import Valkey as Client

    clock: Any = ManualClock()
    client: Any = Client(port=valkey.port)
    async with client:
        await client.script_flush()
        prefix = f"py-{check.__name__}"
        await check(lambda: RedisStore(client, prefix, clock=clock, timeout=5), clock)


async def test_errors_of_valkey_py_are_reported() -> None:
    from valkey.asyncio import Valkey as Client

    client: Any = Client(port=free_port())
    async with client:
        with pytest.raises(StoreUnavailable) as caught:
            await RedisStore(client).peek("key", SlidingWindowLog(1))
    assert type(caught.value.__cause__).__module__.startswith("valkey.")


def test_wrong_client_is_rejected() -> None:
    import redis

    for client in (redis.Redis(), None, "redis://localhost"):
        with pytest.raises(TypeError, match=r"of redis\.asyncio"):
            RedisStore(client)  # type: ignore[arg-type]


@pytest.mark.parametrize("timeout", [0, -1, float("inf"), "1"])
async def test_invalid_timeout_is_rejected(timeout: Any) -> None:  # noqa: ANN401
    client: Any = Redis()
    async with client:
        with pytest.raises((TypeError, ValueError), match=r"timeout must be a .*number of seconds"):
            RedisStore(client, timeout=timeout)


async def test_evicting_server_policy_is_warned_of_once() -> None:
    server = Valkey("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
    try:
        async with server.connect() as client:
            store = RedisStore(client)
            with pytest.warns(RuntimeWarning, match="allkeys-lru.*noeviction"):
                await store.peek("key", SlidingWindowLog(1))
            await store.peek("key", SlidingWindowLog(1))
    finally:
        server.stop()


async def test_outdated_server_is_rejected(valkey: Valkey) -> None:
    async with valkey.connect() as client:

        async def info() -> dict[str, Any]:
            return {"redis_version": "6.0.16"}

        client.info = info
        with pytest.raises(StoreUnavailable, match=r"6\.0\.16 is too old"):
            await RedisStore(client).peek("key", SlidingWindowLog(1))


async def test_documented_commands_are_sufficient(valkey: Valkey) -> None:
    """The access control lists of docs/guides/production.md."""
    page = (Path(__file__).parents[2] / "docs" / "guides" / "production.md").read_text(
        encoding="utf-8"
    )
    line, slots = [line for line in page.splitlines() if line.startswith("ACL SETUSER")]
    user = {"username": "aiothrottle", "password": "secret"}
    async with valkey.connect() as admin, valkey.connect(**user) as client:
        await admin.execute_command(*line.split())
        await admin.script_flush()
        for check in CHECKS:
            await admin.flushall()
            clock = ManualClock()
            await check(partial(RedisStore, client, clock=clock, timeout=5), clock)
        for algorithm in (*PORTED, AllOf(AllOf(SlidingWindowLog(1)))):
            store = RedisStore(client)
            answer = await store.reserve(repr(algorithm), algorithm, [0.5, 0.5], horizon=1)
            await store.refund(repr(algorithm), algorithm, 0.5, answer.instants[-1])
            await store.record(repr(algorithm), algorithm, 0.5)
            await store.peek(repr(algorithm), algorithm)
            await store.clear(repr(algorithm))
        await Health.of(own := RedisStore(client)).counter.register(own)
        await admin.execute_command(*slots.split())
        limiters = [
            RateLimiter(
                concurrency_limit=SharedConcurrency(1),
                store=RedisStore(client, timeout=5),
                key="acl",
            )
            for _ in range(2)
        ]
        first = await limiters[0].acquire()
        waiter = asyncio.create_task(limiters[1].acquire())
        channels = 0
        while not channels:  # the other one subscribes
            channels = len(valkey.command("PUBSUB", "CHANNELS", "aiothrottle:wake:*"))
            await asyncio.sleep(0.01)
        first.release()  # without a notification it would wait for 10 seconds
        async with asyncio.timeout(9):
            (await waiter).release()
        for limiter in limiters:
            await limiter.aclose()


# ---- a pipeline of the caller's ------------------------------------------------------------------


async def test_methods_join_a_transaction_of_the_caller(server: Server) -> None:
    window = SlidingWindowLog(2)
    async with server.connect() as client:
        store = RedisStore(client, "joined")
        pipe = client.pipeline() if isinstance(client, RedisCluster) else client.pipeline(True)
        joined = store.pipeline(pipe)
        pipe.incr("{joined:key}mine")
        taken = joined.reserve("key", window, [1, 1, 1])
        joined_peek = joined.peek("key", window)
        counted = joined.record("key", window)
        joined.clear("key")
        fresh = joined.peek("key", window)
        replies = await pipe.execute()
        assert replies[0] == 1
        assert taken.answer(replies).delays == (0.0, 0.0)
        assert joined_peek.answer(replies).remaining == counted.answer(replies).remaining == 0.0
        assert fresh.answer(replies).remaining == 2.0
        assert (await store.peek("key", window)).remaining == 2.0


async def test_failed_transaction_spends_nothing(valkey: Valkey) -> None:
    async with valkey.connect() as client, valkey.connect() as other:
        store = RedisStore(client, "watched")
        async with client.pipeline() as pipe:
            await pipe.watch("mine")
            pipe.multi()
            store.pipeline(pipe).reserve("key", SlidingWindowLog(2), [1])
            await other.set("mine", "changed")
            with pytest.raises(Exception, match="Watched variable changed"):
                await pipe.execute()
        assert (await store.peek("key", SlidingWindowLog(2))).remaining == 2.0


async def test_pipeline_rejects_algorithms_unknown_to_the_script(valkey: Valkey) -> None:
    async with valkey.connect() as client:
        joined = RedisStore(client).pipeline(client.pipeline())
        with pytest.raises(TypeError, match="algorithms of this package"):
            joined.peek("key", AllOf(AllOf(SlidingWindowLog(1))))


# ---- many at once --------------------------------------------------------------------------------


async def test_concurrent_calls_for_a_key_get_the_limit(server: Server) -> None:
    """On the server's clock, for a real second, with reservations."""
    window = SlidingWindowLog("200/s")

    async def worker(store: RedisStore) -> list[float]:
        granted_at: list[float] = []
        for _ in range(30):
            granted_at += (await store.reserve("key", window, [1] * 3, horizon=0.1)).instants
            await asyncio.sleep(0.01)
        return granted_at

    async with server.connect() as one, server.connect() as other:
        stores = [RedisStore(client, "many", timeout=5) for client in (one, other) * 4]
        granted_at = sorted(chain.from_iterable(await asyncio.gather(*map(worker, stores))))
    assert len(granted_at) >= 200
    assert all(
        later - first >= 1.0 for first, later in zip(granted_at, granted_at[200:], strict=False)
    )

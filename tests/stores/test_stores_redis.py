"""`RedisStore`: the script compared with the Python, the server's clock, pipelines, bad input."""

import asyncio
import math
import random
import re
import struct
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis, RedisCluster
from redis.exceptions import ResponseError

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
from aiothrottle.amounts import amounts
from aiothrottle.errors import StoreUnavailable
from aiothrottle.stores import Claim
from aiothrottle.stores.record import EPOCH
from aiothrottle.stores.redis import RedisStore
from aiothrottle.stores.redis_scripts import LOAD, RECORD
from aiothrottle.testing.store_contract import ManualClock
from tests.support.effort import EFFORT, SEED
from tests.support.servers import Cluster, Valkey
from tests.support.stored import DictStore

DECISIONS = round(7_000 * EFFORT)
HOURLY = SlidingWindowLog("10/h")


@pytest.fixture
async def client(valkey: Valkey) -> AsyncIterator[Any]:
    async with valkey.connect() as client:
        yield client


# ---- the script compared with the Python ---------------------------------------------------------

PORTED: list[Algorithm[Any]] = [
    *map(SlidingWindowLog, ("3/s", "20/s", "2.5/min", "0.3/s", "1000/s")),
    TokenBucket("3/s", burst=2),
    TokenBucket("1000/s"),
    TokenBucket("100000/s", burst=3),
    *map(LeakyBucket, ("3/s", "1000/s")),
    *map(FixedWindow, ("3/s", "2.5/700ms")),
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
        self.resources = getattr(algorithm, "resources", ())
        self.clock = clock
        clock.now = dice.choice(
            [0.0, 0.1, 2.8e7, 2.8e7 + dice.random(), -5.0, 1e9 * dice.random(), 2e9]
        )
        self.scale = dice.choice([0.02, 0.3, 1.0, 1.0, 5.0])
        self.fractions = dice.random() < 0.5
        self.granted: list[tuple[float, float]] = []

    def pass_time(self) -> None:
        kind = self.dice.random()
        if kind < 0.05:
            self.clock.advance(-3.0 * self.dice.random())
        elif kind < 0.15:  # just before, at, or just after the edge of a period
            width = self.dice.choice([1.0, 0.7, 0.25, 1 / 3])
            edge = math.ceil(self.clock.now / width) * width
            self.clock.now = math.nextafter(edge, self.dice.choice([-math.inf, edge, math.inf]))
        else:
            wait = self.dice.random() * self.scale
            self.clock.advance(self.dice.choice([0.0, 0.0, wait, 0.1, 1 / 3, 1.0]))

    def cost(self) -> float:
        if self.resources and self.dice.random() > 0.2:
            parts = [0.0, 1.0, 1.0, 2.0, self.dice.randint(1, 4), 10 * self.dice.random()]
            names = {*self.resources, "requests"}
            return amounts({name: self.dice.choice(parts) for name in sorted(names)})
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
        max_reservation = self.dice.choice([0.0, 0.0, 0.3, 2.0, 10.0, math.inf])
        return "reserve", (costs,), {"max_reservation": max_reservation}


async def test_script_decides_as_python_to_the_last_bit(client: Any) -> None:
    dice, clock = random.Random(10_000 + SEED), ManualClock()
    script = RedisStore(client, clock=clock, timeout=5)
    python = DictStore({}, clock)
    decisions, record = 0, 0
    while decisions < DECISIONS:
        algorithm, key = PORTED[record % len(PORTED)], str(record)
        record += 1
        life = Life(dice, algorithm, clock)
        for _ in range(40):
            life.pass_time()
            method, arguments, options = life.step()
            expected = await getattr(python, method)(key, algorithm, *arguments, **options)
            found = await getattr(script, method)(key, algorithm, *arguments, **options)
            assert found == expected, (SEED, algorithm, clock(), method, arguments, options)
            if method == "reserve":
                pairs = zip(expected.instants, arguments[0], strict=False)
                life.granted += [pair for pair in pairs if pair[1]]
                decisions += len(expected.instants)
            decisions += 1


async def test_script_grants_slots_as_python(client: Any) -> None:
    dice, clock = random.Random(10_000 + SEED), ManualClock()
    script, python = RedisStore(client, clock=clock, timeout=5), DictStore({}, clock)
    for record in range(20):
        held = dict.fromkeys("abcde", 0)
        limit = dice.choice([1, 2, 4, 7, 12])
        for number in range(60):
            clock.advance(dice.choice([0.0, 0.1, 0.9, dice.choice([0.0, 0.0, 5.0])]))
            owner = dice.choice("abcde")
            kept, wanted = dice.randint(0, held[owner]), dice.choice([0, 0, 1, 2, 9])
            claim = Claim(owner, limit, kept, wanted, dice.choice([3.0, 10.0]), number)
            expected = await python.claim(str(record), claim)
            found = await script.claim(str(record), claim)
            # It remembers an owner without slots: that lease may be the first to expire.
            found = replace(found, retry_after=expected.retry_after)
            assert found == expected, (SEED, record, claim)
            held[owner] = kept + expected.granted


@pytest.mark.parametrize("algorithm", [TokenBucket("1/s", burst=1000), Cooldown(1000, 1000)])
async def test_refunds_of_many_records_are_equal(client: Any, algorithm: Any) -> None:
    """More rising levels than are kept: where they become fewer, too."""
    dice, clock = random.Random(3), ManualClock(1e9)
    granted = list[float]()
    script, python = RedisStore(client, clock=clock, timeout=5), DictStore({}, clock)
    for _ in range(400):
        clock.advance(dice.choice([0.01, 0.5, dice.random()]))
        expected = await python.reserve("key", algorithm, [2])
        assert await script.reserve("key", algorithm, [2]) == expected
        granted += expected.instants
        if dice.random() < 0.2:
            instant = granted.pop(dice.randrange(len(granted)))
            for store in (script, python):
                await store.refund("key", algorithm, 1.5, instant)
    assert await script.peek("key", algorithm) == await python.peek("key", algorithm)


NUMBERS = [0.1, 1 / 3, 1.0, 3.0, 1e16, 2.0**53, 1.0 + 2**-52, 2.0**-53, 2.0**-60, 1e-300, 7e5]


async def test_script_arithmetic_equals_python_arithmetic(client: Any) -> None:
    """Sums that are rounded once, and the next number above."""
    algorithms = RECORD.partition("-- The methods of a record in stores/record.py")[0]
    code = """
        local numbers = {}
        for place, packed in ipairs(ARGV) do numbers[place] = struct.unpack('<d', packed) end
        return struct.pack('<dd', fsum(numbers, 1), above(numbers[1]))
    """
    dice = random.Random(6)
    script = client.register_script(algorithms + code)
    powers = [-1.0, -0.5, -2.0, 0.5, 1.0, 4.0]
    near = [dice.choice([-1, 1]) * math.nextafter(each, math.inf) for each in NUMBERS * 60]
    for number in powers + near:
        numbers = [number, *dice.choices(NUMBERS, k=dice.randint(0, 6))]
        reply = await script(args=[struct.pack("<d", each) for each in numbers])
        expected = (math.fsum(numbers), math.nextafter(number, math.inf))
        assert struct.unpack("<dd", reply) == expected, numbers


# ---- the server ----------------------------------------------------------------------------------


async def test_record_expires_when_it_may_be_forgotten(client: Any) -> None:
    store = RedisStore(client, "expiry")
    for algorithm in (*PORTED[:-1], AllOf(AllOf(HOURLY))):  # the last one is swapped
        await store.reserve(repr(algorithm), algorithm, [1, 1], max_reservation=1)
        # So much that it is still there when a busy machine reads it.
        answer = await store.record(repr(algorithm), algorithm, 10_000)
        names = [name async for name in client.scan_iter("{expiry:*")]
        assert len(names) >= 2
        for name in names:
            is_reply = b"#" in name.partition(b"}")[2]  # kept for a resent call
            longest = 5000 if is_reply else answer.reset_after * 1000 + 2
            assert max(0, longest - 3000) < await client.pttl(name) <= longest, algorithm
        await client.flushall()
    await store.record("never", TokenBucket("1/90d"), 1e12)  # the server knows no such time
    own = AllOf(AllOf(HOURLY))
    (instant,) = (await store.reserve("own", own, [1])).instants
    await store.refund("own", own, 1, instant)
    assert not await client.exists("{expiry:own}"), "nothing of it is spent"
    for owner, lease in (("ann", 30.0), ("bob", 1.0)):
        await store.claim("slots", Claim(owner, 2, 1, 0, lease, 1))
    assert await client.pttl("{expiry:slots}:slots") > 25_000, "the longest lease counts"


async def test_clock_of_the_server_counts_to_the_microsecond(client: Any) -> None:
    async def time() -> float:
        seconds, microseconds = await client.time()
        return float((seconds - EPOCH) + microseconds / 1e6)

    store = RedisStore(client, timeout=5)
    for algorithm in (HOURLY, AllOf(AllOf(HOURLY))):  # the second one is swapped
        before = await time()
        answer = await store.record(repr(algorithm), algorithm)
        assert before <= answer.now <= await time()
    before = await time()
    await store.claim("slots", Claim("ann", 1, 0, 1, 30.0, 1))
    ((_, expires),) = await client.zrange("{aiothrottle:slots}:leases", 0, -1, withscores=True)
    assert before - 1e-6 <= expires - 30.0 <= await time() + 1e-6


async def test_decision_costs_the_same_for_any_window(client: Any) -> None:
    """Counted in commands of the script, by the server's own count."""

    async def commands_of(limit: int) -> int:
        clock = ManualClock()
        store = RedisStore(client, clock=clock, timeout=5)
        window = SlidingWindowLog(f"{limit}/s")
        for _ in range(10):
            await store.reserve(f"{limit}", window, [1] * (limit // 10))
            clock.advance(0.1)
        await client.config_resetstat()
        for _ in range(20):
            await store.reserve(f"{limit}", window, [1])
            clock.advance(1 / limit)
        stats = await client.info("commandstats")
        return sum(stat["calls"] for stat in stats.values())

    # A command more for each expired entry, and for a bisection of the rest.
    counts = [await commands_of(limit) for limit in (10, 100, 1000, 10_000)]
    assert max(counts) <= counts[0] + 20, counts


async def test_unsuitable_server_is_warned_of_or_rejected(own_valkey: Valkey) -> None:
    async def info() -> dict[str, Any]:
        return {"redis_version": "6.0.16"}

    async def forbidden() -> None:
        raise ResponseError("NOPERM")

    own_valkey.command("CONFIG", "SET", "maxmemory", "100mb", "maxmemory-policy", "allkeys-lru")
    async with own_valkey.connect() as client:
        store = RedisStore(client)
        with pytest.warns(RuntimeWarning, match="allkeys-lru.*noeviction"):
            await store.peek("key", HOURLY)
        await store.peek("key", HOURLY)  # once
        client.info = info
        with pytest.raises(StoreUnavailable, match=r"6\.0\.16 is too old"):
            await RedisStore(client).peek("key", HOURLY)
        client.info = forbidden  # then nothing is known of it
        assert (await RedisStore(client).peek("key", HOURLY)).remaining == 10


@asynccontextmanager
async def sharing_a_slot(client: Any) -> AsyncGenerator[tuple[RateLimiter, RateLimiter]]:
    limits: dict[str, Any] = {"concurrency_limit": SharedConcurrency(1), "key": "slot"}
    stores = RedisStore(client, timeout=5), RedisStore(client, timeout=5)
    async with (
        RateLimiter(store=stores[0], **limits) as one,
        RateLimiter(store=stores[1], **limits) as other,
    ):
        yield one, other


async def test_documented_commands_are_sufficient(valkey: Valkey, client: Any) -> None:
    """The access control lists of docs/guides/production.md."""
    page = (Path(__file__).parents[2] / "docs/guides/production.md").read_text(encoding="utf-8")
    line, slots = [line for line in page.splitlines() if line.startswith("ACL SETUSER")]
    async with valkey.connect(username="aiothrottle", password="secret") as user:
        await client.execute_command(*line.split())
        store = RedisStore(user, timeout=5)
        for algorithm in (*PORTED, AllOf(AllOf(SlidingWindowLog(1)))):
            answer = await store.reserve(repr(algorithm), algorithm, [0.5, 0.5], max_reservation=1)
            await store.refund(repr(algorithm), algorithm, 0.5, answer.instants[-1])
            await store.record(repr(algorithm), algorithm, 0.5)
            await store.peek(repr(algorithm), algorithm)
            await store.clear(repr(algorithm))
        await client.execute_command(*slots.split())
        async with sharing_a_slot(user) as (one, other):
            first = await one.acquire()
            waiter = asyncio.create_task(other.acquire())
            while not valkey.command("PUBSUB", "CHANNELS", "aiothrottle:wake:*"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)  # the other one subscribes
            first.release()  # without a notification it would wait for 10 seconds
            async with asyncio.timeout(9):
                (await waiter).release()
        sentence = page.partition("`RedisStore.pipeline` also needs ")[2].partition(".")[0]
        more = re.findall(r"\+\w+", sentence)
        await client.execute_command("ACL", "SETUSER", "aiothrottle", *more)
        async with user.pipeline() as pipe:
            taken = store.pipeline(pipe).reserve("pipe", HOURLY, [1])
            assert taken.answer(await pipe.execute()).remaining == 9


@pytest.mark.parametrize("rules", [["resetchannels"], ["allchannels", "-publish"]], ids=str)
async def test_slots_change_hands_without_permission_for_messages(
    valkey: Valkey, client: Any, caplog: pytest.LogCaptureFixture, rules: list[str]
) -> None:
    await client.execute_command("ACL", "SETUSER", "mute", "on", ">secret", "~*", "+@all", *rules)
    user: Any = Redis(port=valkey.port, username="mute", password="secret")
    async with user, sharing_a_slot(user) as (one, other):
        permit = await one.acquire()
        for limiter in (other, one):
            waiter = asyncio.create_task(limiter.acquire())
            await asyncio.sleep(0.02)  # so that the release has somebody to wake
            permit.release()
            async with asyncio.timeout(5):
                permit = await waiter
        permit.release()
        assert one.statistics().store_up
        assert other.statistics().store_up
    messages = [it.getMessage() for it in caplog.records if it.levelname == "WARNING"]
    assert len(messages) <= 2, messages  # one of each store
    assert messages
    assert all("wake-ups" in it and "ermissions" in it for it in messages)


async def test_forbidden_command_is_an_outage_and_no_damage(
    valkey: Valkey, client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    own, claim = AllOf(AllOf(HOURLY)), Claim("ann", 1, 1, 0, 30.0, 1)
    store = RedisStore(client)
    for algorithm in (HOURLY, own):
        await store.record(repr(algorithm), algorithm)
    user: Any = Redis(port=valkey.port, username="mute", password="secret")
    async with user:
        mute = RedisStore(user)
        for command, call in (
            ("get", lambda: mute.peek(repr(HOURLY), HOURLY)),
            ("get", lambda: mute.peek(repr(own), own)),
            ("llen", lambda: mute.peek(repr(HOURLY), HOURLY)),
            ("hmget", lambda: mute.claim("slots", claim)),
        ):
            rules = ("on", ">secret", "~*", "+@all", f"-{command}")
            await client.execute_command("ACL", "SETUSER", "mute", "reset", *rules)
            with pytest.raises(StoreUnavailable, match=r"ermission|can't run"):
                await call()
    for algorithm in (HOURLY, own):
        assert (await store.peek(repr(algorithm), algorithm)).remaining == 9
    assert not caplog.messages


# ---- what a driver does --------------------------------------------------------------------------


@pytest.mark.parametrize("window", [HOURLY, AllOf(AllOf(HOURLY))], ids=repr)
async def test_resent_command_counts_once(client: Any, window: Algorithm[Any]) -> None:
    store = RedisStore(client)
    send, load = client.execute_command, client.register_script(LOAD).sha

    async def send_twice(*command: object, **options: object) -> object:
        first = await send(*command, **options)
        if command[0] != "INFO" and not {"peek", load} & set(command):
            assert await send(*command, **options) == first
        return first

    client.execute_command = send_twice
    answer = await store.reserve("key", window, [1, 1, 1])
    assert answer.remaining == 7.0
    assert (await store.record("key", window)).remaining == 6.0
    await store.refund("key", window, 1, answer.instants[0])
    assert (await store.peek("key", window)).remaining == 7.0


# ---- a pipeline of the caller's ------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["valkey", "cluster"])
async def test_methods_join_a_transaction(request: pytest.FixtureRequest, kind: str) -> None:
    window, server = SlidingWindowLog(2), request.getfixturevalue(kind)
    assert isinstance(server, Valkey | Cluster)
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
        with pytest.raises(TypeError, match="algorithms of this package"):
            joined.peek("key", AllOf(AllOf(HOURLY)))
        replies = await pipe.execute()
        assert replies[0] == 1
        assert taken.answer(replies).delays == (0.0, 0.0)
        assert joined_peek.answer(replies).remaining == counted.answer(replies).remaining == 0.0
        assert fresh.answer(replies).remaining == 2.0
        assert (await store.peek("key", window)).remaining == 2.0


async def test_failed_transaction_spends_nothing(client: Any) -> None:
    store = RedisStore(client)
    async with client.pipeline() as pipe:
        await pipe.watch("mine")
        pipe.multi()
        store.pipeline(pipe).reserve("key", HOURLY, [1])
        await client.set("mine", "changed")
        with pytest.raises(Exception, match="Watched variable changed"):
            await pipe.execute()
        with pytest.raises(TypeError, match="algorithms of this package"):
            store.pipeline(pipe).peek("key", AllOf(AllOf(HOURLY)))
    assert (await store.peek("key", HOURLY)).remaining == 10.0


async def test_lost_script_is_resent_and_closed_client_reconnects(client: Any) -> None:
    store = RedisStore(client)
    for remaining in (9.0, 8.0):
        await client.script_flush()
        assert (await store.reserve("key", HOURLY, [1])).remaining == remaining
    await client.script_flush()
    # The first call is sent alone; those behind it, in one batch, need another script.
    limits: list[Algorithm[Any]] = [HOURLY, *[AllOf(AllOf(HOURLY))] * 9]
    calls = (store.peek(f"{number}", limit) for number, limit in enumerate(limits))
    assert {answer.remaining for answer in await asyncio.gather(*calls)} == {10.0}
    await client.aclose()
    assert (await store.peek("key", HOURLY)).remaining == 8.0

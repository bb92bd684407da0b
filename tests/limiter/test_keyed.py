"""A limiter for each key: separate, merged if the server says so, forgotten when it may be."""

import asyncio
import gc
import tracemalloc
from collections.abc import Awaitable, Callable, Hashable

import pytest

from aiothrottle import KeyedRateLimiter, RateLimiter, TokenBucket, errors, events
from aiothrottle.stores import MemoryStore
from aiothrottle.testing import VirtualTimeLoop
from tests.limiter.common import Unchecked, errors_of, queued, starts, throttle_one, together
from tests.support.observing import observed
from tests.support.virtually import now, on_virtual_loop, turns, visit, visits


def visits_of(
    limiter: KeyedRateLimiter, *keys: Hashable, stay: float = 0.0
) -> list[asyncio.Task[float]]:
    return [task for key in keys for task in visits(limiter[key], 1, stay=stay)]


@pytest.mark.parametrize("parent", [None, RateLimiter("1000/s", concurrency_limit=500)])
async def test_free_key_does_not_wait_for_busy_key(parent: RateLimiter | None) -> None:
    limiter = KeyedRateLimiter("1/h", concurrency_limit=1, parent=parent)
    busy = visits_of(limiter, *["busy"] * 100, stay=10)
    await asyncio.sleep(5)
    for key in range(50):
        assert await visit(limiter[key]) == 5
        assert not await limiter.try_acquire("busy")
        assert await limiter.try_acquire(-1 - key)
    for task in busy:
        task.cancel()


async def test_override_replaces_its_arguments_for_its_key_alone() -> None:
    overrides: dict[Hashable, Unchecked] = {
        "fast": {"rate_limit": "3/s", "concurrency_limit": None},
        "free": {"rate_limit": None},
        "smooth": {"algorithm": TokenBucket, "rate_limit": "2/s", "burst": 1},
        "short": {"max_queue": 1},
        None: {"rate_limit": "1/min"},
    }
    limiter = KeyedRateLimiter("1/s", concurrency_limit=1, overrides=overrides)
    overrides["fast"]["rate_limit"] = "nonsense"  # they are copied
    overrides["any"] = {"rate_limit": "9/s"}
    for key, expected in {
        "any": [0, 1, 2, 3],
        "fast": [0, 0, 0, 1],
        "free": [0, 0, 0, 0],
        "smooth": [0, 0.5, 1, 1.5],
        None: [0, 60, 120, 180],
    }.items():
        began = now()
        assert [at - began for at in await starts(limiter[key], 4)] == expected, key
    assert set(await errors_of(visits(limiter["short"], 3))) == {float, errors.QueueFull}


async def test_every_method_works_for_a_key() -> None:
    limiter = KeyedRateLimiter("2/min", concurrency_limit=2)
    permit = await limiter.acquire("a")
    assert limiter.statistics("a").in_flight == 1
    permit.release()
    assert (await limiter.peek("a")).remaining == 1
    await limiter.record("a", 1)
    with pytest.raises(errors.ThrottleTimeout):
        await limiter.acquire("a", timeout=59)
    with pytest.raises(errors.ThrottleTimeout):
        await limiter.throttle("a", timeout=59).__aenter__()
    limiter.pause("b", 10)
    async with limiter.throttle("b", 2, priority=1):
        assert now() == 10
    assert limiter.statistics("a").rejected == 2
    assert limiter["b"].statistics().granted == 1
    limiter.update("a", rate_limit="3/min", concurrency_limit=1)
    assert repr(limiter["a"]).endswith(", 0 of 1 in flight, 0 waiting>")

    @limiter.throttled("a")
    async def time_of_call() -> float:
        return now()

    assert await time_of_call() == 10
    with pytest.raises(TypeError, match="the same key for each call, not a function"):
        limiter.throttled(time_of_call)
    await limiter.reset("a")
    assert (await limiter.peek("a")).remaining == 3
    with pytest.raises(ValueError, match="fast"):
        limiter.update("a", rate_limit="fast")
    bad: Unchecked = ["a", "list"]
    with pytest.raises(TypeError, match="unhashable"):
        limiter.throttle(bad)
    assert repr(limiter) == "<KeyedRateLimiter of 2 keys>"
    assert (list(limiter), len(limiter)) == (["a", "b"], 2)
    assert ("a" in limiter, "c" in limiter) == (True, False)


async def test_limiter_and_store_that_are_empty_are_true() -> None:
    for given in (KeyedRateLimiter("1/s"), MemoryStore()):
        assert given, "`given or another` would make a second limit"


@pytest.mark.parametrize(
    ("rate", "busy_for"), [("1/s", 1), ("10/min", 60), ("1000/h", 3600), (None, 0)]
)
async def test_key_is_kept_as_long_as_it_matters(rate: str | None, busy_for: float) -> None:
    limiter = KeyedRateLimiter(rate)
    await visit(limiter["a"])
    while now() + 0.25 < busy_for:
        assert "a" in limiter
        await asyncio.sleep(busy_for / 8)
    await asyncio.sleep(61)
    assert ("a" in limiter, len(limiter)) == (False, 0)
    assert await visit(limiter["a"]) == now()  # as good as new


async def wait_in_queue(limiter: KeyedRateLimiter) -> Unchecked:
    limiter["a"].update(concurrency_limit=1)
    return await limiter.acquire("a"), await queued(limiter["a"])


async def spend_the_quota(limiter: KeyedRateLimiter) -> None:
    async with limiter.throttle("a") as permit:
        permit.update_quota(0, reset_after=1000)


USES: list[Callable[[KeyedRateLimiter], Awaitable[Unchecked] | None]] = [
    lambda limiter: limiter.acquire("a"),
    lambda limiter: limiter.record("a", 1000),
    lambda limiter: limiter.pause("a", 1000),
    lambda limiter: limiter["a"].update(rate_limit="2/s"),
    lambda limiter: throttle_one(limiter["a"]),  # its backoff is remembered
    wait_in_queue,
    spend_the_quota,
]


@pytest.mark.parametrize("use", USES)
async def test_key_in_use_is_not_forgotten(
    use: Callable[[KeyedRateLimiter], Awaitable[Unchecked] | None],
) -> None:
    limiter = KeyedRateLimiter("1/s", concurrency_limit=9, algorithm=TokenBucket)
    used = use(limiter)
    kept = await used if used is not None else None
    await asyncio.sleep(500)
    assert "a" in limiter
    await limiter.aclose()
    del kept


async def test_updated_key_that_follows_the_server_is_not_forgotten() -> None:
    limiter = KeyedRateLimiter("server", concurrency_limit=3)
    limiter.update("a", concurrency_limit=7)
    limiter["a"].follow("5/s")
    await asyncio.sleep(500)
    assert limiter.statistics("a").concurrency_limit == 7


@pytest.mark.parametrize("kind", ["permit", "limiter", "child"])
async def test_reference_to_an_idle_key_shares_its_limiter(kind: str) -> None:
    limiter = KeyedRateLimiter(concurrency_limit=1)
    if kind == "permit":
        permit = limiter.throttle("a")
    else:
        one = limiter["a"]
        permit = (one if kind == "limiter" else RateLimiter(None, parent=one)).throttle()
        del one
    await asyncio.sleep(100)
    async with permit:
        assert not await limiter.try_acquire("a")
    assert await limiter.try_acquire("a")


async def test_key_with_an_observer_of_its_own_is_not_forgotten() -> None:
    limiter = KeyedRateLimiter("1/s")
    limiter.observe(lambda _: None)  # one of all keys keeps none of them
    seen = list[events.Event]()
    stop = limiter["a"].observe(seen.append)
    for _ in range(2):
        await visit(limiter["a"])
        await visit(limiter["b"])
        await asyncio.sleep(100)
    assert (len(seen), [*limiter]) == (2, ["a"])
    stop()
    await visit(limiter["b"])
    await asyncio.sleep(100)
    assert not len(limiter)


async def test_key_whose_waiter_waits_for_hours_is_forgotten_afterwards() -> None:
    limiter = KeyedRateLimiter("1/d")
    for _ in range(2):
        await visit(limiter["a"])
    await asyncio.sleep(2 * 86400)
    assert not len(limiter)


async def test_key_remembers_what_its_last_reference_did() -> None:
    limiter = KeyedRateLimiter("2/s")
    async with limiter.throttle("a") as permit:
        await asyncio.sleep(100)  # a slow answer
        permit.report_throttled(60)
    one = limiter["b"]
    await asyncio.sleep(10)
    await starts(one, 2)
    del permit, one
    assert (await limiter.peek("a")).retry_after >= 50
    assert (await limiter.peek("b")).retry_after == 1
    await asyncio.sleep(600)
    assert (list(limiter), limiter.total().throttled) == ([], 1)


@pytest.mark.parametrize("after_turns", range(6))
async def test_request_that_is_paused_at_its_start_counts_in_no_total(after_turns: int) -> None:
    keyed = KeyedRateLimiter("1/s", guard=0)
    seen = observed(keyed)
    child = RateLimiter(None, parent=keyed["a"])
    await visit(child)
    (task,) = visits(child, 1, stay=1)
    await asyncio.sleep(1)
    await turns(after_turns)
    child.pause(60)
    await turns()
    started = 1 + child.statistics().in_flight
    total = keyed.total()
    assert total.granted == len(seen) == started
    assert total.waited_total == started - 1  # the second one waited for a second
    task.cancel()
    await turns()
    del child, task
    await asyncio.sleep(100)
    assert "a" not in keyed
    assert keyed.total().granted == started


async def test_thousands_of_keys_used_once_are_forgotten() -> None:
    """Else the memory could be filled by choosing keys."""
    limiter = KeyedRateLimiter("5/s", concurrency_limit=2)
    limiter.update("stays", rate_limit="1/day")
    await visit(limiter["stays"])
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for key in range(600):
        await visit(limiter[key])
    assert len(limiter) == 601
    filled = tracemalloc.get_traced_memory()[0]
    await asyncio.sleep(61)
    gc.collect()
    left = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert list(limiter) == ["stays"]
    assert left - before < (filled - before) / 40  # the tables have shrunk too
    assert not await limiter.try_acquire("stays")


async def test_aclose_closes_every_key_but_not_the_parent() -> None:
    parent = RateLimiter("100/s")
    limiter, drained = KeyedRateLimiter("1/s", parent=parent), KeyedRateLimiter("1/s")
    idle = limiter["idle"]
    await visit(idle)
    await asyncio.sleep(100)
    tasks, served = visits_of(limiter, *"aabb"), visits_of(drained, *"aabbb")
    await turns()
    await limiter.aclose()
    assert await errors_of(tasks) == (float, errors.LimiterClosed) * 2
    with pytest.raises(errors.LimiterClosed):
        await limiter.try_acquire("a")
    for each in (idle, *(limiter[key] for key in ("a", "b", "new", "idle"))):
        with pytest.raises(errors.LimiterClosed):
            await each.acquire()
    assert await visit(parent) == 100
    await drained.aclose(drain=True)
    assert await together(*served) == [100, 101, 100, 101, 102]
    for key in ("a", *range(100)):
        with pytest.raises(errors.LimiterClosed):
            await drained.acquire(key)
    await asyncio.sleep(100)
    assert not any(isinstance(key, int) for key in drained), "new keys are forgotten"


def test_next_loop_finds_the_buckets_and_forgets_keys() -> None:
    clock = VirtualTimeLoop()
    limiter, idle = KeyedRateLimiter("2/h", clock=clock.time), KeyedRateLimiter("2/s")
    limiter["a"].throttled()  # before any loop runs

    async def spend(keys: int) -> float:
        for key in range(keys):
            await visit(idle[key])
        await limiter.acquire("a")
        return (await limiter.peek("a")).remaining

    assert on_virtual_loop(spend(100)) == 1
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        assert runner.run(spend(200)) == 0
        assert len(idle) == 200
        runner.run(asyncio.sleep(1000))
        assert len(idle) == 0
    clock.close()


async def test_merged_keys_share_the_limiter_and_its_waiters() -> None:
    limiters = KeyedRateLimiter("2/s")
    waiting = await queued(limiters["/a"], 3)
    for key in ("/a", "/b"):
        limiters.merge(key, "bucket")
    assert limiters["/a"] is limiters["/b"] is limiters["bucket"]
    seen = observed(limiters)
    waiting += visits_of(limiters, "/b", "bucket", "/a")
    assert await together(*waiting) == [0, 0, 1, 1, 2, 2]
    assert (limiters.total().granted, len(seen)) == (6, 4)  # two were granted before


async def test_key_in_use_is_charged_what_the_other_has_spent() -> None:
    limiters = KeyedRateLimiter("4/s")
    for key in ("/a", "/b"):
        await starts(limiters[key], 3)
    blocked = await queued(limiters["/b"], 2)
    for key in ("/a", "/b"):
        limiters.merge(key, "bucket")
    # 3 of /a, 3 and a waiter of /b that were granted there, and the one that waits there.
    assert (await limiters.peek("/b")).retry_after == 1.0
    assert await together(*blocked) == [0, 1]
    assert [await visit(limiters["bucket"]) for _ in range(5)] == [1, 1, 1, 1, 2]
    parent = RateLimiter("100/s")
    limiters = KeyedRateLimiter({"requests": "5/s", "tokens": ["10/s", "60/min"]}, parent=parent)
    for key, tokens in (("/a", 4), ("/b", 7)):
        await visit(limiters[key], {"tokens": tokens})
        limiters.merge(key, "bucket")
    found = await limiters.peek("/a", {"tokens": 1})
    assert (found.remaining, found.resources["tokens"].remaining) == (3, 0)
    assert (parent.statistics().granted, (await parent.peek()).remaining) == (2, 98)


async def test_pause_of_a_merged_key_holds_for_the_other_with_its_reason() -> None:
    limiters = KeyedRateLimiter("9/s")
    await visit(limiters["bucket"])
    async with limiters.throttle("/a") as permit:
        permit.report_throttled(5.0)
    pauses = observed(limiters, events.Paused)
    limiters.merge("/a", "bucket")
    assert [(it.key, it.reason) for it in pauses] == [("bucket", "retry-after")]
    assert await visit(limiters["bucket"]) >= 5.0


async def test_decorated_function_follows_its_merged_key() -> None:
    limiters = KeyedRateLimiter("1/s")
    starts_at: list[float] = []

    @limiters.throttled("/a")
    async def call() -> None:
        starts_at.append(now())

    await call()
    await visit(limiters["bucket"])
    limiters.merge("/a", "bucket")
    await asyncio.gather(call(), visit(limiters["bucket"]), call())
    assert starts_at == [0.0, 1.0, 3.0]


async def test_waiters_of_a_merged_key_count_and_are_closed() -> None:
    limiters = KeyedRateLimiter("1/h")
    for key in ("/a", "bucket"):
        await visit(limiters[key])
    waiting = await queued(limiters["/a"], 2)
    limiters.merge("/a", "bucket")
    assert limiters.total().waiting == 2
    await asyncio.sleep(3600)
    await limiters.aclose()
    assert await errors_of(waiting) == (float, errors.LimiterClosed)
    waiting.clear()
    assert limiters.total().granted == 3


async def test_keys_of_a_store_are_not_merged() -> None:
    stored: Unchecked = {"store": MemoryStore(), "key": "shared"}
    for limiters in (
        KeyedRateLimiter("5/s", overrides={"stored": stored}),
        KeyedRateLimiter("5/s", **stored),
    ):
        for key, into in (("/a", "stored"), ("stored", "/a")):
            with pytest.raises(ValueError, match="keys of a store cannot be merged"):
                limiters.merge(key, into)


async def test_key_that_changes_its_bucket_leaves_the_others_there() -> None:
    limiters = KeyedRateLimiter("10/h")
    for key, bucket in (("/a", "1"), ("/b", "1"), ("/b", "2"), ("/c", "3")):
        await visit(limiters[key])
        limiters.merge(key, bucket)
    assert limiters["/a"] is limiters["1"] is not limiters["/b"] is limiters["2"]
    for bucket in ("1", "3", "2") * 9:
        limiters.merge("/b", bucket)
    remaining = [(await limiters.peek(bucket)).remaining for bucket in "123"]
    assert remaining == [7, 10, 9]


async def test_merged_key_keeps_the_limits_of_its_own_override() -> None:
    limiters = KeyedRateLimiter("1/s", overrides={"bucket": {"rate_limit": "3/s"}})
    await visit(limiters["/a"])
    limiters.merge("/a", "bucket")
    assert (await limiters.peek("/a")).remaining == 2


async def test_merged_keys_are_forgotten_together() -> None:
    limiters = KeyedRateLimiter("2/s", concurrency_limit=1)
    for key in ("/a", "/b", "/c"):
        await visit(limiters[key])
        limiters.merge(key, "bucket")
    limiters.merge("/a", "bucket")  # once more changes nothing
    assert sorted(map(str, limiters)) == ["/a", "/b", "/c", "bucket"]
    permit = await limiters.acquire("/a")
    await asyncio.sleep(60)
    assert limiters["/c"].statistics().in_flight == 1  # the permit keeps their limiter
    permit.release()
    del permit
    await asyncio.sleep(60)
    assert (len(limiters), limiters.total().granted) == (0, 4)
    assert await visit(limiters["/b"]) == now()
    limiters.merge("/a", "unused")
    limiters.merge("same", "same")
    assert [*limiters] == ["/b", "unused", "/a"]

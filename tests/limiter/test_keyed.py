"""A limiter for each key: separate from each other, and forgotten when that changes nothing."""

import asyncio
import gc
import sys
import time
import weakref
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, TypeAlias

import pytest

from aiothrottle import (
    CostTooHigh,
    KeyedRateLimiter,
    LimiterClosed,
    QueueFull,
    RateLimiter,
    ThrottleError,
    ThrottleTimeout,
    TokenBucket,
)
from aiothrottle.testing import VirtualTimeLoop
from tests.virtually import now, turns, virtual

Unchecked: TypeAlias = Any  # arguments of callers without type checks


async def visit(
    limiter: KeyedRateLimiter, key: Hashable, *, stay: float = 0.0, **options: Unchecked
) -> float:
    """Enter the limiter once, and return the time of the grant."""
    async with limiter.throttle(key, **options):
        began = now()
        if stay:
            await asyncio.sleep(stay)
        return began


def visits(
    limiter: KeyedRateLimiter, *keys: Hashable, stay: float = 0.0
) -> list[asyncio.Task[float]]:
    return [asyncio.create_task(visit(limiter, key, stay=stay)) for key in keys]


# --- Separate from each other ---


@virtual
async def test_each_key_has_limits_of_its_own() -> None:
    limiter = KeyedRateLimiter("1/s", concurrency_limit=1)
    assert await asyncio.gather(*visits(limiter, *"aabbba")) == [0, 1, 0, 1, 2, 2]
    slots = KeyedRateLimiter(concurrency_limit=1)
    assert await asyncio.gather(*visits(slots, *"aabc", stay=3)) == [2, 5, 2, 2]


@pytest.mark.parametrize("parent", [None, RateLimiter("1000/s", concurrency_limit=500)])
@virtual
async def test_free_key_does_not_wait_for_busy_key(parent: RateLimiter | None) -> None:
    limiter = KeyedRateLimiter("1/h", concurrency_limit=1, parent=parent)
    busy = visits(limiter, *["busy"] * 100, stay=10)
    await asyncio.sleep(5)
    for key in range(50):
        assert await visit(limiter, key) == 5
        assert not await limiter.try_acquire("busy")
        assert (await limiter.try_acquire(-1 - key)).allowed
    assert now() == 5
    for task in busy:
        task.cancel()


@virtual
async def test_override_replaces_its_arguments_for_its_key_alone() -> None:
    limiter = KeyedRateLimiter(
        "1/s",
        concurrency_limit=1,
        overrides={
            "fast": {"rate_limit": "3/s", "concurrency_limit": None},
            "free": {"rate_limit": None},
            "smooth": {"algorithm": TokenBucket, "rate_limit": "2/s", "burst": 1},
            "short": {"max_queue": 1},
            None: {"rate_limit": "1/min"},
        },
    )
    for key, expected in {
        "any": [0, 1, 2, 3],
        "fast": [0, 0, 0, 1],
        "free": [0, 0, 0, 0],
        "smooth": [0, 0.5, 1, 1.5],
        None: [0, 60, 120, 180],
    }.items():
        began = now()
        times = await asyncio.gather(*visits(limiter, *[key] * 4))
        assert [at - began for at in times] == expected, key
    await visit(limiter, "short")
    (waiter,) = visits(limiter, "short")
    await turns()
    with pytest.raises(QueueFull):
        await visit(limiter, "short")
    await waiter


@virtual
async def test_every_method_works_for_a_key() -> None:
    limiter = KeyedRateLimiter("2/min", concurrency_limit=2)
    permit = await limiter.acquire("a")
    assert limiter.statistics("a").in_flight == 1
    permit.release()
    assert (await limiter.peek("a")).remaining == 1
    await limiter.record("a", 1)
    with pytest.raises(ThrottleTimeout):
        await limiter.acquire("a", timeout=59)
    with pytest.raises(ThrottleTimeout):
        await visit(limiter, "a", timeout=59)
    await limiter.peek("b")
    limiter.pause("b", 10)
    assert await visit(limiter, "b", cost=2, priority=1) == 10
    assert limiter.statistics("a").rejected == 2
    assert limiter["b"].statistics().granted == 1
    limiter.update("a", rate_limit="3/min", concurrency_limit=1)
    assert repr(limiter["a"]).endswith(", 0 of 1 in flight, 0 waiting>")
    seen = list[float]()

    @limiter.throttled("a")
    async def note() -> None:
        seen.append(now())

    await note()
    assert seen == [10]
    with pytest.raises(ValueError, match="fast"):
        limiter.update("a", rate_limit="fast")
    assert repr(limiter) == "<KeyedRateLimiter of 2 keys>"


@virtual
async def test_error_names_its_key() -> None:
    limiter = KeyedRateLimiter("1/s", max_queue=1)
    await limiter.acquire("a")
    waiter = asyncio.create_task(limiter.acquire("a"))
    await turns()

    async def key_of(error: type[ThrottleError], **options: float) -> Hashable:
        with pytest.raises(error) as caught:
            await limiter.acquire("a", **options)
        return caught.value.key

    assert await key_of(CostTooHigh, cost=2) == "a"
    assert await key_of(QueueFull) == "a"
    await waiter
    assert await key_of(ThrottleTimeout, timeout=0.5) == "a"
    await limiter.aclose()
    assert await key_of(LimiterClosed) == "a"
    with pytest.raises(CostTooHigh) as alone:
        await RateLimiter("1/s").acquire(2)
    assert alone.value.key is None


@virtual
async def test_keys_waiting_for_the_parent_take_turns() -> None:
    limiter, order = KeyedRateLimiter(parent=RateLimiter("1/s")), list[str]()

    async def guest(key: str) -> None:
        async with limiter.throttle(key):
            order.append(key)

    await visit(limiter, "z")
    await asyncio.gather(*map(guest, "aaaabbc"))
    assert "".join(order) == "abcabaa"


# --- How long keys are kept ---


@pytest.mark.parametrize(
    ("rate", "busy_for"), [("1/s", 1), ("10/min", 60), ("1000/h", 3600), (None, 0)]
)
@virtual
async def test_key_is_kept_as_long_as_it_matters(rate: str | None, busy_for: float) -> None:
    limiter = KeyedRateLimiter(rate)
    await visit(limiter, "a")
    while now() + 0.25 < busy_for:
        assert "a" in limiter
        await asyncio.sleep(busy_for / 8)
    await asyncio.sleep(61)
    assert "a" not in limiter
    assert len(limiter) == 0
    assert await visit(limiter, "a") == now()  # as good as new


@virtual
async def test_forgotten_keys_never_exceed_the_limit() -> None:
    limiter, instants = KeyedRateLimiter("3/10s"), list[float]()
    for _ in range(200):
        instants.append(await visit(limiter, "a"))
        await asyncio.sleep(len(instants) % 7 * 0.75)
    assert all(later - early >= 10 for early, later in zip(instants, instants[3:], strict=False))


async def hold(limiter: KeyedRateLimiter) -> Unchecked:
    return await limiter.acquire("a")


async def wait_in_queue(limiter: KeyedRateLimiter) -> Unchecked:
    limiter["a"].update(concurrency_limit=1)
    permit = await limiter.acquire("a")
    return permit, visits(limiter, "a")


async def pause(limiter: KeyedRateLimiter) -> None:
    limiter.pause("a", 1000)


async def overdraw(limiter: KeyedRateLimiter) -> None:
    async with limiter.throttle("a") as permit:
        permit.settle(1000)


async def change(limiter: KeyedRateLimiter) -> None:
    limiter["a"].update(rate_limit="2/s")


@pytest.mark.parametrize("what", [hold, wait_in_queue, pause, overdraw, change])
@virtual
async def test_key_in_use_is_not_forgotten(
    what: Callable[[KeyedRateLimiter], Awaitable[Unchecked]],
) -> None:
    limiter = KeyedRateLimiter("1/s", concurrency_limit=9, algorithm=TokenBucket)
    kept = await what(limiter)
    await asyncio.sleep(500)
    assert "a" in limiter
    await limiter.aclose()
    del kept


@pytest.mark.parametrize("kind", ["permit", "limiter", "child"])
@virtual
async def test_reference_to_a_forgotten_key_shares_its_limiter(kind: str) -> None:
    limiter = KeyedRateLimiter(concurrency_limit=1)
    if kind == "permit":
        permit = limiter.throttle("a")
    elif kind == "limiter":
        permit = limiter["a"].throttle()
    else:
        permit = RateLimiter(None, parent=limiter["a"]).throttle()
    await asyncio.sleep(100)
    async with permit:
        assert not await limiter.try_acquire("a")
    assert await limiter.try_acquire("a")


@virtual
async def test_twenty_thousand_keys_used_once_are_forgotten() -> None:
    limiter = KeyedRateLimiter("5/s", concurrency_limit=2)
    for key in range(20_000):
        async with limiter.throttle(key):
            pass
    alive = [weakref.ref(limiter[key]) for key in range(0, 20_000, 100)]
    assert len(limiter) == 20_000
    await asyncio.sleep(61)
    assert len(limiter) == 0
    gc.collect()
    assert not any(ref() for ref in alive)


@virtual
async def test_tables_shrink_while_one_key_stays() -> None:
    limiter = KeyedRateLimiter("5/s")
    limiter.update("stays", rate_limit="1/day")
    await visit(limiter, "stays")
    for key in range(20_000):
        await visit(limiter, key)
    before = sys.getsizeof(limiter._limiters)
    await asyncio.sleep(61)
    assert len(limiter) == 1
    assert sys.getsizeof(limiter._limiters) < before / 100
    assert not await limiter.try_acquire("stays")


@virtual
async def test_among_changing_keys_only_relevant_ones_stay() -> None:
    limiter, most = KeyedRateLimiter("10/s"), 0
    for key in range(10_000):
        await visit(limiter, key)
        await asyncio.sleep(0.01)
        most = max(most, len(limiter))
    assert most < 1000


def test_tidying_does_not_spin() -> None:
    async def main() -> None:
        limiter = KeyedRateLimiter("1000/day")
        for key in range(501):
            await visit(limiter, key)
        began = time.process_time()
        # An hour has at most 3600 checks; a busy loop would never let time pass.
        await asyncio.sleep(3600)
        assert time.process_time() - began < 5
        assert len(limiter) == 501

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main())


@virtual
async def test_no_timer_keeps_the_limiter_alive() -> None:
    limiter = KeyedRateLimiter("1000/day")
    await asyncio.gather(*visits(limiter, *range(10)))
    alive = weakref.ref(limiter)
    del limiter
    gc.collect()
    assert alive() is None
    await asyncio.sleep(100)  # and the remaining timer finds nothing to do


# --- Closing ---


@virtual
async def test_aclose_closes_every_key_but_not_the_parent() -> None:
    parent = RateLimiter("100/s")
    limiter = KeyedRateLimiter("1/s", parent=parent)
    tasks = visits(limiter, *"aabb")
    await turns()
    await limiter.aclose()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(outcome, LimiterClosed) for outcome in outcomes] == [False, True] * 2
    for key in "abc":
        with pytest.raises(LimiterClosed):
            await visit(limiter, key)
        with pytest.raises(LimiterClosed):
            await limiter.try_acquire(key)
    async with parent.throttle():
        pass


@virtual
async def test_drain_serves_the_queues_of_all_keys() -> None:
    async with KeyedRateLimiter("1/s") as limiter:
        tasks = visits(limiter, *"aabbb")
        await turns()
        await limiter.aclose(drain=True)
        assert [await task for task in tasks] == [0, 1, 0, 1, 2]
        assert now() == 2
    with pytest.raises(LimiterClosed):
        await visit(limiter, "a")


@virtual
async def test_aclose_reaches_a_forgotten_key_still_referenced() -> None:
    limiter = KeyedRateLimiter(concurrency_limit=1)
    held = limiter["a"]
    await visit(limiter, "a")
    await asyncio.sleep(100)
    assert "a" not in limiter
    await limiter.aclose()
    with pytest.raises(LimiterClosed):
        await held.acquire()
    with pytest.raises(LimiterClosed):
        await visit(limiter, "a")


# --- Loops, and bad input ---


def test_next_loop_finds_the_buckets_unchanged() -> None:
    clock = VirtualTimeLoop()
    limiter = KeyedRateLimiter("2/h", clock=clock.time)

    async def spend() -> float:
        await limiter.acquire("a")
        return (await limiter.peek("a")).remaining

    for expected in (1, 0):
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            assert runner.run(spend()) == expected
    clock.close()


def test_next_loop_forgets_keys_of_a_closed_one() -> None:
    limiter = KeyedRateLimiter("2/s")

    async def touch(keys: int) -> None:
        for key in range(keys):
            await visit(limiter, key)

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(touch(100))
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(touch(200))
        assert len(limiter) == 200
        runner.run(asyncio.sleep(1000))
        assert len(limiter) == 0


def test_limiter_works_before_any_loop_runs() -> None:
    limiter = KeyedRateLimiter("1/s", concurrency_limit=1)
    limiter["a"].throttled()
    assert (len(limiter), "a" in limiter, "b" in limiter) == (1, True, False)

    async def main() -> list[float]:
        return await asyncio.gather(*visits(limiter, *"aab"))

    for _ in range(2):
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            assert runner.run(main()) == [0, 1, 0]


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"rate_limit": "fast"}, ValueError, "rate"),
        ({"rate_limit": "1/s", "concurrency_limit": 0}, ValueError, "concurrency_limit"),
        ({"rate_limit": "1/s", "burst": 5}, ValueError, "burst"),
        ({"rate_limit": "1/s", "parent": "50/s"}, TypeError, "parent"),
        ({"rate_limit": "1/s", "max_queue": 0}, ValueError, "max_queue"),
        ({"rate_limit": "1/s", "speed": 3}, TypeError, "speed"),
        ({"overrides": {"a": {"rate_limit": "slow"}}}, ValueError, "of 'a': cannot read 'slow'"),
        ({"overrides": {"a": {"rate_limit": 3, "burst": "x"}}}, TypeError, "of 'a': burst"),
        (
            {"overrides": {"a": {"rates": "1/s"}}},
            TypeError,
            "unknown argument .rates. in the override of .a.: a RateLimiter takes rate_limit, ",
        ),
    ],
)
def test_bad_arguments_raise_at_construction(
    options: Unchecked, error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named):
        KeyedRateLimiter(**options)


@virtual
async def test_unhashable_key_raises() -> None:
    limiter = KeyedRateLimiter("1/s")
    bad: Unchecked = ["a", "list"]
    with pytest.raises(TypeError, match="unhashable"):
        limiter.throttle(bad)
    assert len(limiter) == 0


@virtual
async def test_overrides_are_copied() -> None:
    overrides: dict[Hashable, dict[str, Unchecked]] = {"a": {"rate_limit": "2/s"}}
    limiter = KeyedRateLimiter("1/s", overrides=overrides)
    overrides["a"]["rate_limit"] = "nonsense"
    overrides["b"] = {"rate_limit": "9/s"}
    assert await asyncio.gather(*visits(limiter, *"aabb")) == [0, 0, 0, 1]


async def test_keys_can_be_iterated() -> None:
    limiter = KeyedRateLimiter("1/s")
    for key in ("a", "b"):
        assert await limiter.try_acquire(key)
    assert list(limiter) == ["a", "b"]
    assert [limiter.statistics(key).granted for key in limiter] == [1, 1]
    assert len(limiter) == 2


@pytest.mark.parametrize("overrides", [{"a": "10/s"}, {"a": None}, ["a"]])
def test_wrong_overrides_are_named(overrides: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="overrid"):
        KeyedRateLimiter("1/s", overrides=overrides)

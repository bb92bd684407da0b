"""What was taken, and until when it counts: what every store must remember alike."""

from typing import Any

from aiothrottle.algorithms import (
    Algorithm,
    AllOf,
    Cooldown,
    FixedWindow,
    LeakyBucket,
    SlidingWindowCounter,
    SlidingWindowLog,
    TokenBucket,
    Unlimited,
    WaitUntil,
)
from aiothrottle.stores import Answer, Key, Store
from aiothrottle.testing.manual_clock import ManualClock
from aiothrottle.testing.store_contract.algorithms import ALGORITHMS, TEN, OneByOne
from aiothrottle.testing.store_contract.check import Check, Make, about, close, listed_in, raises

__all__ = ["RECORDS"]

RECORDS: list[Check] = []

_LIMITS = [algorithm for algorithm in ALGORITHMS if algorithm != Unlimited()]


@listed_in(RECORDS)
async def record_counts_without_asking(make: Make, clock: ManualClock) -> None:
    """There can be a debt afterwards, which is paid by waiting."""
    store = make()
    about(await store.record("key", TEN, 4), remaining=6.0, retry_after=0.0)
    clock.advance(0.5)
    about(await store.record("key", TEN, 11), remaining=0.0)
    about(await store.peek("key", TEN), retry_after=1.0)
    clock.advance(0.5)
    about(await store.peek("key", TEN), retry_after=0.5)


@listed_in(RECORDS)
async def refunded_tokens_can_be_taken_again(make: Make, clock: ManualClock) -> None:
    """To the last token, for the timestamp that it was taken for; nothing is given back twice."""
    store = make()
    answer = await store.reserve("key", TEN, [1] * 9 + [0.5])
    for instant in answer.instants[:3]:
        await make().refund("key", TEN, 1, instant)
    about(await store.peek("key", TEN), remaining=3.5)
    clock.advance(0.5)
    answer = await store.reserve("key", TEN, [1, 1, 1, 1], horizon=1)
    assert close(answer.delays, (0.0, 0.0, 0.0, 0.5)), answer
    await store.refund("key", TEN, 1, answer.instants[-1])
    clock.advance(0.5)
    about(await store.peek("key", TEN), remaining=7.0)
    (instant,) = (await store.reserve("whole", TEN, [2])).instants
    await store.refund("whole", TEN, 2, instant)
    assert len((await store.reserve("whole", TEN, [5, 5, 1])).instants) == 2
    await store.refund("unused", TEN, 1, clock())
    about(await store.peek("unused", TEN), remaining=10.0)


@listed_in(RECORDS)
async def tokens_that_later_ones_build_on_stay_taken(make: Make, clock: ManualClock) -> None:
    """Where requests start one at a time, a refund before later reservations frees nothing."""
    store = make()
    for algorithm in (WaitUntil(1, 5, 10), LeakyBucket("1/s"), TokenBucket("1/s", burst=1)):
        one, both = repr(algorithm), AllOf(SlidingWindowLog("9/s"), algorithm)
        answer = await store.reserve(one, algorithm, [1, 1, 1], horizon=5)
        await store.reserve("both" + one, both, [1, 1, 1], horizon=5)
        clock.advance(0.25)
        for key, asked in ((one, algorithm), ("both" + one, both)):
            await store.refund(key, asked, 1, answer.instants[0])
            peeked = await store.peek(key, asked)
            assert peeked.retry_after > 2.7, (asked, peeked)
        # The last reservation does, and so does what had not drained if no reservation follows.
        await store.refund(one, algorithm, 1, answer.instants[2])
        about(
            await store.reserve(one, algorithm, [1], horizon=0), retry_after=answer.delays[2] - 0.25
        )
        await store.clear(one)
        answer = await store.reserve(one, algorithm, [1])
        clock.advance(0.5)
        await store.refund(one, algorithm, 1, answer.instants[0])
        about(await store.peek(one, algorithm), retry_after=0.0)


@listed_in(RECORDS)
async def a_refund_keeps_the_present_period(make: Make, clock: ManualClock) -> None:
    """A refund for the next period frees nothing in this one."""
    store, fixed = make(), FixedWindow("2/s")
    clock.advance(1000.25 - clock() % 1)
    answer = await store.reserve("key", fixed, [1, 1, 1], horizon=1)
    assert close(answer.delays, (0.0, 0.0, 0.75)), answer
    await store.refund("key", fixed, 1, answer.instants[-1])
    assert not (await store.reserve("key", fixed, [1])).instants
    clock.advance(0.8)
    assert len((await store.reserve("key", fixed, [1, 1, 1])).instants) == 2


@listed_in(RECORDS)
async def a_record_can_be_cleared(make: Make, clock: ManualClock) -> None:  # noqa: ARG001
    """Then it is as if nothing had been taken."""
    store = make()
    for algorithm in ALGORITHMS:
        fresh = await store.peek("key", algorithm)
        once = await store.reserve("key", algorithm, [1])
        peeked = await store.peek("key", algorithm)
        await make().clear("key")
        assert await store.peek("key", algorithm) == fresh, algorithm
        assert await store.reserve("key", algorithm, [1]) == once, algorithm
        assert await store.peek("key", algorithm) == peeked, algorithm
        await store.clear("key")
    await store.clear("unused")


@listed_in(RECORDS)
async def a_clock_that_steps_back_mints_nothing(make: Make, clock: ManualClock) -> None:
    """What was taken counts until as much time has passed as before."""
    store = make()
    for algorithm in _LIMITS:
        clock.advance(100.0)
        answer = await _spend_all(store, algorithm)
        clock.advance(-20.0)
        again = await store.reserve(repr(algorithm), algorithm, [1])
        assert not again.instants, (algorithm, again)
        about(again, retry_after=answer.retry_after)
        clock.advance(answer.retry_after / 2)
        assert not (await store.reserve(repr(algorithm), algorithm, [1])).instants, algorithm


@listed_in(RECORDS)
async def a_clock_that_stepped_back_delays_nothing(make: Make, clock: ManualClock) -> None:
    """Time continues from where it was; not where each machine has its own: see `one_clock`."""
    store = make()
    for algorithm in _LIMITS:
        clock.advance(100.0)
        answer = await _spend_all(store, algorithm)
        clock.advance(-20.0)
        assert not (await store.reserve(repr(algorithm), algorithm, [1])).instants, algorithm
        clock.advance(answer.retry_after + 1e-5)
        assert (await store.reserve(repr(algorithm), algorithm, [1])).delays == (0.0,), algorithm


@listed_in(RECORDS)
async def records_end_after_reset_after(make: Make, clock: ManualClock) -> None:
    """After `reset_after` the record is equivalent to none."""
    store = make()
    for algorithm in ALGORITHMS:
        fresh = await store.peek(repr(algorithm), algorithm)
        answer = await store.reserve(repr(algorithm), algorithm, [1, 1], horizon=2)
        assert answer.reset_after > 0.0 or algorithm == Unlimited(), algorithm
        clock.advance(answer.reset_after + 1e-5)
        again = await store.peek(repr(algorithm), algorithm)
        about(again, remaining=fresh.remaining, retry_after=0.0, reset_after=0.0)


@listed_in(RECORDS)
async def any_text_is_its_own_key(make: Make, clock: ManualClock) -> None:  # noqa: ARG001
    """Blanks, braces, colons, non-ASCII text, a lone surrogate, and a megabyte."""
    keys: list[Key] = [
        "",
        " ",
        "a b",
        "a\r\nb",
        "a\0b",
        "{a}b",
        "}{",
        "{}",
        "%",
        "%25",
        "é",
        "\udcff",
    ]
    keys += ["a:b", ("a", "b"), ("a:b", ""), ("a", ":b"), ("", "a"), ("a", ""), "a", "A", "#"]
    keys += ["x" * 1_000_000, "x" * 999_999 + "y", "x" * 999_999, ("x" * 199, "y"), "é" * 100]
    store = make()
    for key in keys:
        assert len((await store.reserve(key, TEN, [1])).instants) == 1
    for key in keys:
        about(await store.peek(key, TEN), remaining=9.0)
        await store.clear(key)
    for key in keys:
        about(await store.peek(key, TEN), remaining=10.0)


@listed_in(RECORDS)
async def a_lower_limit_can_use_the_same_record(make: Make, clock: ManualClock) -> None:
    """A sliding window log can have a shorter period too; the record is not changed."""
    store, minute = make(), SlidingWindowLog("100/min")
    for _ in range(6):
        await store.reserve("key", minute, [1, 1])
        clock.advance(1.0)
    for asked, retry_after, remaining in (
        (SlidingWindowLog("100/min"), 0.0, 88.0),
        (SlidingWindowLog("12/min"), 54.0, 0.0),
        (SlidingWindowLog("3/2.5s"), 0.5, 0.0),
        (SlidingWindowLog("5/2.5s"), 0.0, 1.0),
        (SlidingWindowLog("4/500ms"), 0.0, 4.0),
    ):
        about(await store.peek("key", asked), retry_after=retry_after, remaining=remaining)
    about(await store.peek("key", minute), remaining=88.0)


@listed_in(RECORDS)
async def two_limits_on_one_key_each_hold(make: Make, clock: ManualClock) -> None:
    """Each counts what both have taken."""
    for slow, fast in (
        (SlidingWindowLog("5/s"), SlidingWindowLog("10/s")),
        (TokenBucket("5/s"), TokenBucket("10/s")),
        (FixedWindow("5/s"), FixedWindow("10/s")),
        (AllOf(SlidingWindowLog("5/s"), TEN), AllOf(SlidingWindowLog("10/s"), TEN)),
    ):
        store = make()
        assert len((await store.reserve(repr(slow), slow, [1] * 20)).instants) == 5, slow
        taken = len((await store.reserve(repr(slow), fast, [1] * 20)).instants)
        assert taken == 5 or (isinstance(slow, TokenBucket) and taken == 0), fast
        assert not (await store.reserve(repr(slow), slow, [1])).instants, slow
        clock.advance(3.0)
        assert len((await store.reserve(repr(slow), slow, [1] * 20)).instants) == 5, slow


@listed_in(RECORDS)
async def another_algorithm_on_the_key_is_rejected(make: Make, clock: ManualClock) -> None:
    """Windows of another period too: their counts would mean something else."""
    clock.advance(-clock() % 60)
    algorithms: list[Algorithm[Any]] = [
        TokenBucket("10/s"),
        Cooldown(10, 1),
        SlidingWindowLog("10/s"),
        FixedWindow("10/s"),
        FixedWindow("10/min"),
        SlidingWindowCounter("10/s", buckets=2),
        SlidingWindowCounter("10/s", buckets=3),
        AllOf(SlidingWindowLog("10/s"), SlidingWindowLog("10/s")),
        OneByOne(),
    ]
    store = make()
    for algorithm in algorithms:
        await store.reserve("key", algorithm, [1])
        peeked = await store.peek("key", algorithm)
        for other in algorithms:
            if other is not algorithm:
                for call in (
                    store.reserve("key", other, [1]),
                    store.peek("key", other),
                    store.record("key", other),
                    store.refund("key", other, 1, clock()),
                ):
                    await raises(ValueError, call)
        assert await store.peek("key", algorithm) == peeked, algorithm
        await store.clear("key")


async def _spend_all(store: Store, algorithm: Algorithm[Any]) -> Answer:
    """Take tokens one by one until the first rejection, and return that."""
    while (answer := await store.reserve(repr(algorithm), algorithm, [1])).instants:
        pass
    return answer

"""Whether and when tokens can be taken: what every store must decide alike."""

import asyncio
import math
import random
from typing import TYPE_CHECKING, cast

from aiothrottle.algorithms import (
    AllOf,
    FixedWindow,
    PerResource,
    SlidingWindowLog,
    TokenBucket,
    WaitUntil,
)
from aiothrottle.amounts import Amounts, amounts
from aiothrottle.testing.manual_clock import ManualClock
from aiothrottle.testing.store_contract.algorithms import ALGORITHMS, TEN
from aiothrottle.testing.store_contract.check import Check, Make, about, close, listed_in, raises

if TYPE_CHECKING:
    from aiothrottle.stores import Key

__all__ = ["DECISIONS"]

DECISIONS: list[Check] = []


@listed_in(DECISIONS)
async def what_fits_is_taken_with_delay_of_the_rest(make: Make, clock: ManualClock) -> None:
    """Three of five are taken now, the fourth can be in a second."""
    store = make()
    answer = await store.reserve("key", SlidingWindowLog("3/s"), [1, 1, 1, 1, 1])
    assert answer.delays == (0.0, 0.0, 0.0), answer
    about(answer, retry_after=1.0, remaining=0.0, reset_after=1.0)
    clock.advance(0.5)
    about(await store.peek("key", SlidingWindowLog("3/s")), retry_after=0.5, remaining=0.0)
    clock.advance(0.6)
    about(await store.reserve("key", SlidingWindowLog("3/s"), [1]), remaining=2.0, retry_after=0.0)


@listed_in(DECISIONS)
async def tokens_within_the_horizon_are_reserved(make: Make, clock: ManualClock) -> None:
    """Reservations are granted in order, up to `horizon` and no further."""
    store = make()
    pace = TokenBucket("4/s", burst=1)
    answer = await store.reserve("key", pace, [1] * 9, horizon=1.1)
    assert close(answer.delays, (0.0, 0.25, 0.5, 0.75, 1.0)), answer
    about(answer, retry_after=1.25, remaining=0.0)
    clock.advance(0.5)
    answer = await make().reserve("key", pace, [1] * 9, horizon=1.1)
    assert close(answer.delays, (0.75, 1.0)), answer


@listed_in(DECISIONS)
async def earlier_requests_are_not_overtaken(make: Make, clock: ManualClock) -> None:
    """A heavy cost is overtaken neither by costs behind it nor by later requests."""
    store = make()
    await store.reserve("key", TEN, [5])
    clock.advance(0.25)
    answer = await store.reserve("key", TEN, [8, 1])
    assert answer.delays == (), answer
    answer = await store.reserve("key", TEN, [8], horizon=2)
    assert close(answer.delays, (0.75,)), answer
    answer = await make().reserve("key", TEN, [1, 1, 1], horizon=0.8)
    assert close(answer.delays, (0.75, 0.75)), answer
    fixed = FixedWindow("10/s")
    clock.advance(1000.25 - clock() % 1)
    await store.reserve("fixed", fixed, [5, 8], horizon=2)
    answer = await store.reserve("fixed", fixed, [1])
    assert not answer.instants, answer
    about(answer, retry_after=0.75, remaining=0.0)


@listed_in(DECISIONS)
async def a_rejection_spends_nothing(make: Make, clock: ManualClock) -> None:
    """However often it is rejected, it can be taken after the first `retry_after`."""
    store = make()
    for algorithm in ALGORITHMS:
        answer = await store.reserve(repr(algorithm), algorithm, [1] * 200)
        if answer.retry_after == 0.0:
            continue  # no limit
        for _ in range(3):
            again = await store.reserve(repr(algorithm), algorithm, [1] * 200)
            assert not again.instants, (algorithm, again)
            about(again, retry_after=answer.retry_after)
    clock.advance(72.0)
    for algorithm in ALGORITHMS:
        assert (await store.reserve(repr(algorithm), algorithm, [1])).delays == (0.0,), algorithm


@listed_in(DECISIONS)
async def peek_spends_nothing_and_is_right(make: Make, clock: ManualClock) -> None:
    """`peek` returns what `reserve` returns then."""
    store = make()
    for algorithm in ALGORITHMS:
        for _ in range(12):
            await store.peek(repr(algorithm), algorithm, 1)
            peeked = await store.peek(repr(algorithm), algorithm, 1)
            answer = await store.reserve(repr(algorithm), algorithm, [1], horizon=1000)
            assert close(answer.delays, (peeked.retry_after,)), (algorithm, peeked, answer)
            clock.advance(0.1)
    about(await store.peek("fresh", TEN, 7), retry_after=0.0, remaining=10.0, reset_after=0.0)


@listed_in(DECISIONS)
async def a_cost_of_zero_is_always_taken(make: Make, clock: ManualClock) -> None:  # noqa: ARG001
    """And changes nothing."""
    store = make()
    await store.record("key", TEN, 15)
    peeked = await store.peek("key", TEN)
    answer = await store.reserve("key", TEN, [0, 0])
    assert answer.delays == (0.0, 0.0), answer
    assert (await store.peek("key", TEN, 0)).retry_after == 0.0
    await store.record("key", TEN, 0)
    assert await store.peek("key", TEN) == peeked


@listed_in(DECISIONS)
async def what_never_fits_has_an_infinite_delay(make: Make, clock: ManualClock) -> None:  # noqa: ARG001
    """It is not taken with an infinite `horizon` either."""
    store = make()
    for horizon in (0.0, math.inf):
        answer = await store.reserve("key", TEN, [1, 11, 1], horizon=horizon)
        assert answer.retry_after == math.inf, answer
        assert answer.delays == (0.0,), answer


@listed_in(DECISIONS)
async def bad_arguments_are_rejected(make: Make, clock: ManualClock) -> None:  # noqa: ARG001
    """A negative cost would make tokens."""
    store = make()
    for cost in (-1.0, math.nan, math.inf):
        for call in (
            store.reserve("key", TEN, [1, cost]),
            store.peek("key", TEN, cost),
            store.record("key", TEN, cost),
            store.refund("key", TEN, cost, 0.0),
        ):
            await raises(ValueError, call)
    for horizon in (-1.0, math.nan):
        await raises(ValueError, store.reserve("key", TEN, [1], horizon=horizon))
    await raises(ValueError, store.refund("key", TEN, 1, math.nan))
    for key in (1, None, b"key", ["key"], ("key", 1)):
        await raises(TypeError, store.record(cast("Key", key), TEN))
    about(await store.peek("key", TEN), remaining=10.0)


@listed_in(DECISIONS)
async def many_at_once_get_the_limit_and_no_more(make: Make, clock: ManualClock) -> None:  # noqa: ARG001
    """Of sixty-four tasks on four stores, ten take a token."""
    stores = [make() for _ in range(4)]
    for algorithm in (
        TEN,
        TokenBucket("10/s"),
        AllOf(TEN, FixedWindow("50/min")),
        AllOf(AllOf(TEN)),
        PerResource(("requests", TEN), ("tokens", SlidingWindowLog("20/s"))),
    ):
        answers = await asyncio.gather(
            *(stores[place % 4].reserve(repr(algorithm), algorithm, [1]) for place in range(64))
        )
        assert sum(len(answer.instants) for answer in answers) == 10, algorithm


@listed_in(DECISIONS)
async def several_limits_are_all_taken_or_none(make: Make, clock: ManualClock) -> None:
    """A cost that one limit rejects takes nothing from the other."""
    store = make()
    both = AllOf(SlidingWindowLog("2/s"), SlidingWindowLog("5/min"))
    for _ in range(2):
        assert len((await store.reserve("key", both, [1] * 9)).instants) == 2
        clock.advance(1.0)
    answer = await store.reserve("key", both, [1] * 9)
    assert len(answer.instants) == 1, answer
    about(answer, retry_after=58.0)


@listed_in(DECISIONS)
async def several_resources_are_all_taken_or_none(make: Make, clock: ManualClock) -> None:
    """Costs are taken and refunded by resource, in order, and from one record."""
    store = make()
    both = PerResource(("requests", SlidingWindowLog("4/s")), ("tokens", TokenBucket("10/s")))
    heavy, light = amounts({"requests": 1, "tokens": 6}), 1.0
    answer = await store.reserve("key", both, [heavy, heavy, light])
    assert len(answer.instants) == 1, answer
    assert answer.remaining == Amounts({"requests": 3.0, "tokens": 4.0}), answer
    about(answer, retry_after=0.2, reset_after=1.0)
    answer = await store.reserve("key", both, [heavy, light], horizon=0.5)
    assert close(answer.delays, (0.2, 0.2)), answer
    assert answer.remaining == Amounts({"requests": 0.0, "tokens": 0.0}), answer
    clock.advance(0.2)
    about(await make().peek("key", both, amounts({"tokens": 1})), retry_after=0.1)
    about(await make().peek("key", both), retry_after=0.0)
    await store.refund("key", both, amounts({"tokens": 6}), answer.instants[0])
    about(await store.peek("key", both, amounts({"tokens": 6})), retry_after=0.0)
    await store.record("key", both, amounts({"requests": 5}))
    about(await store.peek("key", both, amounts({"requests": 1})), retry_after=1.0)
    await raises(ValueError, store.record("key", both, amounts({"tokens": math.nan})))
    other = PerResource(("requests", SlidingWindowLog("4/s")), ("bytes", TokenBucket("10/s")))
    await raises(ValueError, store.peek("key", other))
    # A record that was cleared begins anew, also of a resource that the next request needs not.
    await store.clear("key")
    windows = PerResource(("requests", SlidingWindowLog("4/s")), ("tokens", SlidingWindowLog(9)))
    await store.record("key", windows, heavy)
    await store.clear("key")
    for remaining in (3.0, 2.0):
        answer = await store.record("key", windows, light)
        assert answer.remaining == Amounts({"requests": remaining, "tokens": 9.0}), answer


@listed_in(DECISIONS)
async def it_decides_as_the_algorithm_in_memory_does(make: Make, clock: ManualClock) -> None:
    """For every algorithm, over random requests in random order."""
    dice = random.Random(6)
    for algorithm in ALGORITHMS:
        store, state, last = make(), algorithm.start(), -math.inf
        for _ in range(40):
            clock.advance(dice.choice([0.0, 0.0, 0.05, 0.3, 1.1]))
            now, cost = max(clock(), last), dice.choice([1.0, 1.0, 1.0, 0.5, 2.0])
            wait = now + algorithm.delay(state, now, cost) - clock()
            horizon = dice.choice([0.0, 0.0, 1.0])
            answer = await store.reserve(repr(algorithm), algorithm, [cost], horizon=horizon)
            if not answer.instants:
                assert wait > horizon, (algorithm, wait, answer)
                about(answer, retry_after=wait)
            else:
                assert wait <= horizon + 1e-6, (algorithm, wait, answer)
                assert close(answer.delays, (wait,)), (algorithm, wait, answer)
                last = clock() + wait
                algorithm.take(state, last, cost)
            about(answer, reset_after=max(algorithm.reset_after(state, clock()), last - clock()))


@listed_in(DECISIONS)
async def rejected_requests_accumulate(make: Make, clock: ManualClock) -> None:  # noqa: ARG001
    """Of ten requests at once on `WaitUntil` one starts, five wait, four are rejected."""
    store, algorithm = make(), WaitUntil(1, 5, 10)
    waits: list[float] = []
    for _ in range(12):
        answer = await store.reserve("key", algorithm, [1], horizon=algorithm.max_wait)
        waits.append(answer.delays[0] if answer.instants else answer.retry_after)
    assert close(waits, (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10)), waits
    await store.clear("key")
    answer = await store.reserve("key", algorithm, [1] * 8, horizon=algorithm.max_wait)
    assert close(answer.delays, (0, 1, 2, 3, 4, 5)), answer
    about(answer, retry_after=6.0)
    about(await store.peek("key", algorithm), retry_after=8.0)
    # A request that does not want to wait does not count.
    await store.clear("key")
    await store.reserve("key", algorithm, [1])
    answer = await store.reserve("key", algorithm, [1])
    about(answer, retry_after=1.0)
    about(await store.peek("key", algorithm), retry_after=1.0)


@listed_in(DECISIONS)
async def a_long_queue_is_one_call(make: Make, clock: ManualClock) -> None:  # noqa: ARG001
    """Ten thousand costs, a hundred of them per second."""
    answer = await make().reserve("key", SlidingWindowLog("100/s"), [1] * 10_000, horizon=98.5)
    assert len(answer.instants) == 9900, len(answer.instants)
    assert close(answer.delays[-1:], (98.0,)), answer.delays[-1]
    about(answer, retry_after=99.0)

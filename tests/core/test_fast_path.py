"""The fast path decides exactly as the algorithm would, request by request."""

import asyncio
from dataclasses import dataclass
from typing import Any, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiothrottle import Decision, KeyedRateLimiter, LimiterClosed, Permit, RateLimiter, Statistics
from aiothrottle.algorithms import (
    Algorithm,
    FixedWindow,
    LeakyBucket,
    SlidingWindowLog,
    TokenBucket,
)
from aiothrottle.testing import VirtualTimeLoop
from tests.virtually import now, turns, virtual


class AskedWindow(SlidingWindowLog):
    """Grants no credit, so each request asks the algorithm."""

    __slots__ = ()

    def allowance(self, state: object, now: float, most: int) -> int:  # noqa: ARG002
        return 0


class AskedBucket(TokenBucket):
    """Grants no credit, so each request asks the algorithm."""

    __slots__ = ()

    def allowance(self, state: object, now: float, most: int) -> int:  # noqa: ARG002
        return 0


class AskedLeaky(LeakyBucket):
    """Grants no credit, so each request asks the algorithm."""

    __slots__ = ()

    def allowance(self, state: object, now: float, most: int) -> int:  # noqa: ARG002
        return 0


class AskedFixed(FixedWindow):
    """Grants no credit, so each request asks the algorithm."""

    __slots__ = ()

    def allowance(self, state: object, now: float, most: int) -> int:  # noqa: ARG002
        return 0


Outcome: TypeAlias = tuple[object, Statistics, Decision]


@dataclass
class Desk:
    """A limiter, and the steps that are run on it one after the other."""

    limiter: RateLimiter
    held: list[Permit]

    def enter(self, cost: float) -> bool:
        """Enter if that needs no wait."""
        permit = self.limiter.throttle(cost)
        entering = permit.__aenter__()
        try:
            entering.send(None)
        except StopIteration:
            self.held.append(permit)
            return True
        entering.close()
        return False

    async def do(self, method: str, number: float) -> Outcome:
        result: object = None
        match method:
            case "enter":
                result = self.enter(1.0)
            case "enter many":
                result = [self.enter(1.0) for _ in range(int(number))]
            case "enter heavily":
                result = self.enter(number)
            case "leave" if self.held:
                self.held.pop(0).release()
            case "settle" if self.held:
                self.held[-1].settle(number)
            case "settle early" if self.held:
                self.held[0].settle(number)
            case "record":
                await self.limiter.record(number)
            case "try":
                decision = await self.limiter.try_acquire()
                self.held += [decision.permit] if decision.permit else []
            case "pause":
                self.limiter.pause(number)
            case "rate":
                self.limiter.update(rate_limit=3 + number)
            case "slots":
                self.limiter.update(concurrency_limit=max(1, int(number)))
            case _:
                pass
        await turns(4)
        return result, self.limiter.statistics(), await self.limiter.peek()


# Steps that take the fast path come twice as often, with nothing asked in between.
METHODS = [
    "enter many",
    "enter",
    "enter",
    "enter heavily",
    "leave",
    "leave",
    "settle",
    "settle early",
]
STEPS = st.lists(
    st.tuples(
        st.sampled_from([*METHODS, "record", "try", "pause", "rate", "slots"]),
        st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.0]),
        st.sampled_from([0.0, 0.0, 0.125, 0.5, 1.0, 5.0]),
    ),
    max_size=40,
)


@pytest.mark.parametrize(
    ("algorithm", "asked"),
    [
        (SlidingWindowLog, AskedWindow),
        (TokenBucket, AskedBucket),
        (LeakyBucket, AskedLeaky),
        (FixedWindow, AskedFixed),
    ],
)
@settings(max_examples=200)
@given(steps=STEPS)
def test_fast_path_decides_like_asking_each_time(
    algorithm: type[Algorithm[Any]],
    asked: type[Algorithm[Any]],
    steps: list[tuple[str, float, float]],
) -> None:
    instant = 100.0

    async def compare() -> None:
        nonlocal instant
        desks = [
            Desk(RateLimiter(4, concurrency_limit=6, algorithm=which, clock=lambda: instant), [])
            for which in (algorithm, asked)
        ]
        for method, number, wait in steps:
            instant += wait
            one, other = [await desk.do(method, number) for desk in desks]
            assert one[0] == other[0]
            assert counts(one[1]) == pytest.approx(counts(other[1]))
            assert answer(one[2]) == pytest.approx(answer(other[2]))

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(compare())


@pytest.mark.parametrize("algorithm", [SlidingWindowLog, TokenBucket])
@settings(max_examples=200)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from([0.0, 0.125, 0.5, 1.0, 5.0, -0.125, -0.5, -3.0]), st.integers(0, 5)
        )
    )
)
def test_clock_that_steps_back_mints_nothing(
    algorithm: type[Algorithm[Any]], steps: list[tuple[float, int]]
) -> None:
    """As if it had stood still until it has caught up."""
    instant = 100.0
    grants: list[float] = []

    async def enter() -> None:
        nonlocal instant
        limiter = RateLimiter(4, algorithm=algorithm, clock=lambda: instant)
        for wait, times in steps:
            instant += wait
            seen = max([instant, *grants])
            grants.extend([seen] * granted_at_once(limiter, times))
            await turns(4)

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(enter())
    for first, begin in enumerate(grants):
        for last, end in enumerate(grants[first:], 1):
            at_most = (
                4 if algorithm is SlidingWindowLog and end - begin < 1 else 4 + 4 * (end - begin)
            )
            assert last <= at_most + 1e-6


def counts(statistics: Statistics) -> list[float]:
    of = statistics
    return [of.granted, of.rejected, of.waiting, of.in_flight, of.utilisation, of.paused_for]


def answer(decision: Decision) -> list[float]:
    return [decision.allowed, decision.remaining, decision.retry_after, decision.reset_after]


def granted_at_once(limiter: RateLimiter, most: int = 1000) -> int:
    desk = Desk(limiter, [])
    count = 0
    while count < most and desk.enter(1.0):
        count += 1
        desk.held[0].release()
        desk.held.clear()
    return count


@pytest.mark.parametrize("algorithm", [SlidingWindowLog, TokenBucket])
@virtual
async def test_batches_of_credit_add_up_to_the_limit(
    algorithm: type[Algorithm[Any]],
) -> None:
    limiter = RateLimiter(600, algorithm=algorithm)
    assert granted_at_once(limiter) == 600
    assert limiter.statistics().granted == 600
    await asyncio.sleep(0.5)
    assert granted_at_once(limiter) == (0 if algorithm is SlidingWindowLog else 300)


@virtual
async def test_request_on_credit_is_refunded_to_its_instant() -> None:
    limiter = RateLimiter(3)
    early = await limiter.acquire()
    await asyncio.sleep(0.25)
    second = await limiter.acquire()
    await asyncio.sleep(0.25)
    await limiter.acquire()
    second.settle(0)
    assert (await limiter.peek()).remaining == 1
    await asyncio.sleep(0.5)
    assert (await limiter.peek()).remaining == 2
    early.settle(0)
    assert (await limiter.peek()).remaining == 2
    assert now() == 1.0


@virtual
async def test_pause_close_and_queue_end_the_credit() -> None:
    limiter = RateLimiter(10, concurrency_limit=5)
    assert granted_at_once(limiter, 2) == 2
    limiter.pause(1)
    assert granted_at_once(limiter) == 0
    await asyncio.sleep(1)
    assert granted_at_once(limiter, 2) == 2
    heavy = asyncio.create_task(limiter.acquire(9))
    await turns()
    assert granted_at_once(limiter) == 0
    heavy.cancel()
    await turns()
    assert granted_at_once(limiter, 1) == 1
    await limiter.aclose()
    with pytest.raises(LimiterClosed):
        granted_at_once(limiter, 1)


@virtual
async def test_permit_on_credit_is_good_for_one_block() -> None:
    limiter = RateLimiter(10, concurrency_limit=5)
    assert granted_at_once(limiter, 1) == 1
    permit = limiter.throttle()
    async with permit:
        pass
    with pytest.raises(RuntimeError, match="was used before"):
        await permit.__aenter__()
    permit.release()
    assert limiter.statistics().in_flight == 0
    assert limiter.statistics().granted == 2


def test_requests_on_credit_count_on_the_next_loop() -> None:
    limiter = RateLimiter(10, concurrency_limit=5)
    for _ in range(2):
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            runner.run(spend_three(limiter))
    assert limiter.statistics().granted == 6


async def spend_three(limiter: RateLimiter) -> None:
    assert granted_at_once(limiter, 3) == 3


@virtual
async def test_key_used_on_credit_is_kept_until_reset() -> None:
    limiter = KeyedRateLimiter("3/min")
    for _ in range(3):
        async with limiter.throttle("a"):
            pass
    await asyncio.sleep(59)
    assert (await limiter.peek("a")).remaining == 0
    await asyncio.sleep(2)
    assert (await limiter.peek("a")).remaining == 3


@virtual
async def test_few_timestamps_stay_unflushed() -> None:
    limiter = RateLimiter(1e6, algorithm=TokenBucket)
    granted_at_once(limiter, 5000)
    assert len(limiter._engine.bucket.timestamps) <= 256

"""The fast path decides exactly as the algorithm would, request by request."""

from dataclasses import dataclass
from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiothrottle import (
    Decision,
    FixedWindow,
    LeakyBucket,
    Permit,
    RateLimiter,
    SlidingWindowLog,
    Statistics,
    TokenBucket,
)
from aiothrottle.algorithms import Algorithm
from tests.support.effort import examples
from tests.support.virtually import turns, virtual


def asked(algorithm: type[Algorithm[Any]]) -> type[Algorithm[Any]]:
    """Return the algorithm without credit, so that each request asks it."""

    def allowance(self: object, state: object, now: float, most: int) -> int:  # noqa: ARG001
        return 0

    return type(algorithm.__name__, (algorithm,), {"__slots__": (), "allowance": allowance})


Outcome: TypeAlias = tuple[object, Statistics, Decision]


@dataclass
class Desk:
    limiter: RateLimiter
    held: list[Permit]

    def enter(self, cost: float) -> bool:
        permit = self.limiter.throttle(cost) if cost != 1.0 else self.limiter.throttle()
        entering = permit.__aenter__()
        try:
            entering.send(None)
        except StopIteration:
            self.held.append(permit)
            return True
        except RuntimeError:  # this task has taken the last slot
            return False
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


def counts(of: Statistics) -> list[float]:
    return [of.granted, of.rejected, of.waiting, of.in_flight, of.utilisation, of.paused_for]


def answer(decision: Decision) -> list[float]:
    return [decision.allowed, decision.remaining, decision.retry_after, decision.reset_after]


# Steps that take the fast path come twice as often, with nothing asked in between.
METHODS = [*2 * ["enter", "leave"], "enter many", "enter heavily", "settle", "settle early"]
STEPS = st.lists(
    st.tuples(
        st.sampled_from([*METHODS, "record", "try", "pause", "rate", "slots"]),
        st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.0]),
        st.sampled_from([0.0, 0.0, 0.125, 0.5, 1.0, 5.0]),
    ),
    max_size=40,
)


@pytest.mark.parametrize("algorithm", [SlidingWindowLog, TokenBucket, LeakyBucket, FixedWindow])
@examples(60)
@given(steps=STEPS)
@virtual
async def test_fast_path_decides_like_asking_each_time(
    algorithm: type[Algorithm[Any]], steps: list[tuple[str, float, float]]
) -> None:
    instant = 100.0
    desks = [
        Desk(RateLimiter(4, concurrency_limit=6, algorithm=which, clock=lambda: instant), [])
        for which in (algorithm, asked(algorithm))
    ]
    for method, number, wait in steps:
        instant += wait
        one, other = [await desk.do(method, number) for desk in desks]
        assert one[0] == other[0]
        assert counts(one[1]) == pytest.approx(counts(other[1]))
        assert answer(one[2]) == pytest.approx(answer(other[2]))


def granted_at_once(limiter: RateLimiter, most: int = 1000) -> int:
    desk = Desk(limiter, [])
    count = 0
    while count < most and desk.enter(1.0):
        count += 1
        desk.held.pop().release()
    return count


@pytest.mark.parametrize("algorithm", [SlidingWindowLog, TokenBucket])
@examples(60)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from([0.0, 0.125, 0.5, 1.0, 5.0, -0.125, -0.5, -3.0]), st.integers(0, 5)
        )
    )
)
@virtual
async def test_clock_that_steps_back_mints_nothing(
    algorithm: type[Algorithm[Any]], steps: list[tuple[float, int]]
) -> None:
    """As if it had stood still until it has caught up."""
    instant = 100.0
    grants: list[float] = []
    limiter = RateLimiter(4, algorithm=algorithm, clock=lambda: instant)
    for wait, times in steps:
        instant += wait
        seen = max([instant, *grants])
        grants.extend([seen] * granted_at_once(limiter, times))
        await turns(4)
    for first, begin in enumerate(grants):
        for last, end in enumerate(grants[first:], 1):
            full = algorithm is SlidingWindowLog and end - begin < 1
            assert last <= (4 if full else 4 + 4 * (end - begin)) + 1e-6

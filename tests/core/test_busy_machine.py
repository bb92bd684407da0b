"""How late a request starts when the machine is busy between the store's answer and the request.

The store counts a request at an instant of its own clock; the request starts at that instant or
later. The delay is bounded: the way of the answer, how late a reservation may be used, and how long
the event loop is blocked. A server that counts for itself sees the request then; `guard=` absorbs
that delay.
"""

import asyncio
import random

import pytest

from aiothrottle import RateLimiter
from tests.support.effort import seeds
from tests.support.interleaving import InterleavingLoop, Pass
from tests.support.virtually import visit
from tests.support.watching import Watched

LIMIT, PERIOD = 4, 1.0
# Seconds: the way of the store's answers in each direction; how late a reservation may be used;
# how long the machine is busy at a time; and the sum.
WAY, PATIENCE, BUSY = 0.01, 0.02, 0.15
LATE = WAY + PATIENCE + BUSY
ROUNDING = 1e-9


async def crawl(store: Watched, guard: float, chance: random.Random) -> list[float]:
    # Few slots: while none is free, reservations grow old.
    limiter = RateLimiter(f"{LIMIT}/s", concurrency_limit=2, store=store, key="k", guard=guard)
    tasks: list[asyncio.Task[float]] = []
    for _ in range(20):
        stay = chance.choice([0.0, 0.1, 0.7])
        tasks.append(asyncio.create_task(visit(limiter, stay=stay)))
        if chance.random() < 0.3:
            await asyncio.sleep(chance.choice([0.0, 0.1, 0.5, 1.2]))
    starts = await asyncio.gather(*tasks)
    await limiter.aclose()
    return sorted(starts)


def run(seed: int, guard: float) -> tuple[list[float], list[float]]:
    """Return when requests started on a busy machine, and when the store has counted them."""
    chance = random.Random(seed)
    # Far enough apart that no request meets two interruptions.
    schedule = {at + chance.randrange(60): Pass(BUSY) for at in range(0, 600, 120)}
    loop = InterleavingLoop(schedule)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        store = Watched(latency=WAY, way=WAY)
        starts = runner.run(crawl(store, guard, chance))
    assert loop.busy > 0.0
    return starts, store.taken()


@pytest.mark.parametrize("seed", seeds(15))
def test_request_starts_at_its_instant_or_boundedly_later(seed: int) -> None:
    starts, counted = run(seed, guard=0.0)
    assert len(starts) == len(counted) == 20
    late = [at - instant for at, instant in zip(starts, counted, strict=True)]
    assert min(late) >= -ROUNDING
    assert max(late) <= LATE + ROUNDING, late


@pytest.mark.parametrize("seed", seeds(15))
def test_guard_of_that_delay_keeps_every_server_window(seed: int) -> None:
    starts, _ = run(seed, guard=LATE)
    in_between = zip(starts, starts[LIMIT:], strict=False)
    assert min(after - before for before, after in in_between) >= PERIOD - ROUNDING

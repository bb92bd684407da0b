"""The machine is busy between the answer of the store and the request: how late may that be?

The store counts a request at an instant of its own clock, and the request goes at that instant or
later: after the answer's way, the patience with which a slot may be used late, and as long as the
loop is kept from running. A server that counts for itself sees it then. That much `guard=` absorbs.
"""

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest

from aiothrottle import RateLimiter
from aiothrottle.algorithms import Algorithm
from aiothrottle.stores import Answer, Key
from tests.failing import Client, Server
from tests.interleaving import InterleavingLoop, Pass
from tests.virtually import now

LIMIT, PERIOD = 4, 1.0
# Seconds: of the store's answers each way; that a slot may be used late, as `aiothrottle.sharing`
# has it; that the machine is busy at one time; and all together.
WAY, PATIENCE, BUSY = 0.01, 0.02, 0.15
LATE = WAY + PATIENCE + BUSY
ROUNDING = 1e-9


class Noting(Client):
    """Notes at which instants the store has counted what."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self.instants: list[float] = []

    async def reserve(
        self, key: Key, algorithm: Algorithm[Any], costs: Sequence[float], *, horizon: float = 0.0
    ) -> Answer:
        answer = await super().reserve(key, algorithm, costs, horizon=horizon)
        self.instants += answer.instants
        return answer

    async def refund(
        self, key: Key, algorithm: Algorithm[Any], cost: float, instant: float
    ) -> None:
        for _ in range(round(cost)):
            self.instants.remove(instant)
        await super().refund(key, algorithm, cost, instant)


async def crawl(client: Noting, guard: float, chance: random.Random) -> list[float]:
    """Tell when the requests went."""
    # Few slots: while none is free, what was reserved grows old.
    limiter, went = (
        RateLimiter(f"{LIMIT}/s", concurrency_limit=2, store=client, key="k", guard=guard),
        list[float](),
    )

    async def request() -> None:
        async with limiter.throttle():
            went.append(now())
            await asyncio.sleep(chance.choice([0.0, 0.1, 0.7]))

    tasks: list[asyncio.Task[None]] = []
    for _ in range(20):
        tasks.append(asyncio.create_task(request()))
        if chance.random() < 0.3:
            await asyncio.sleep(chance.choice([0.0, 0.1, 0.5, 1.2]))
    await asyncio.gather(*tasks)
    await limiter.aclose()
    return went


def run(seed: int, guard: float) -> tuple[list[float], list[float]]:
    """Tell when requests went, and when the store has counted them, on a busy machine."""
    chance = random.Random(seed)
    # Far enough apart that no request meets two of them.
    schedule = {at + chance.randrange(60): Pass(BUSY) for at in range(0, 600, 120)}
    loop = InterleavingLoop(schedule)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        server = Server()
        server.latency = 2 * WAY
        client = Noting(server)
        went = runner.run(crawl(client, guard, chance))
    assert loop.busy > 0.0
    return went, sorted(client.instants)


@pytest.mark.parametrize("seed", range(40))
def test_a_request_goes_at_its_instant_or_later_by_a_bound(seed: int) -> None:
    went, counted = run(seed, guard=0.0)
    assert len(went) == len(counted) == 20
    late = [at - instant for at, instant in zip(went, counted, strict=True)]
    assert min(late) >= -ROUNDING
    assert max(late) <= LATE + ROUNDING, late


@pytest.mark.parametrize("seed", range(40))
def test_a_guard_of_as_much_keeps_every_window_of_the_server(seed: int) -> None:
    went, _ = run(seed, guard=LATE)
    in_between = zip(went, went[LIMIT:], strict=False)
    assert min(after - before for before, after in in_between) >= PERIOD - ROUNDING

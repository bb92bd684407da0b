"""Endurance: a limiter of ten thousand hosts under faults, for a long time, and what is left of it.

    python benchmarks/endurance.py --requests 1000000     on virtual time, as fast as it goes
    python benchmarks/endurance.py --minutes 10           in real time, against a loopback server

Requests to random hosts succeed, fail, are refused, cancelled, settled to another cost, recorded;
keys are paused. It fails if memory grows, if more was granted than the limits promise, or if a
task, a timer or a key is left.
"""

import argparse
import asyncio
import gc
import random
import sys
import time
import tracemalloc
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from aiothrottle import KeyedRateLimiter, Permit, ThrottleTimeout
from aiothrottle.aiohttp import Retry, ThrottledSession
from aiothrottle.testing import RateLimitedServer, VirtualTimeLoop

HOSTS, WORKERS = 10_000, 200
# That a request takes: a million of them take an hour.
SECONDS = 0.7
# Of one host.
LIMIT, PERIOD = 10, 60.0
LOOKS = 20
# Bytes. So much more than in the second third of the run may be in use in the last.
FLAT = 2_000_000
# Keys that nobody uses may stay until others come.
FEW = 256


class Watch:
    """Holds what was granted to the promise, and memory to what it was."""

    def __init__(self) -> None:
        self.went: dict[str, deque[float]] = {}
        self.outcomes: dict[str, int] = {}
        self.memory: list[int] = []
        self.most_keys = 0

    def granted(self, host: str, now: float) -> None:
        """Hold to the rolling window; costs of 1 only, none of them refunded."""
        log = self.went.setdefault(host, deque(maxlen=LIMIT))
        if len(log) == LIMIT and log[0] + PERIOD > now:  # as the law has it, to the last bit
            sys.exit(f"{host}: {LIMIT + 1} went within {now - log[0]:.6f} s")
        log.append(now)

    def count(self, outcome: str) -> None:
        """Count how one ended."""
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1

    def look(self, keyed: KeyedRateLimiter | None, now: float) -> None:
        """Note what is in use, without what this watch itself keeps."""
        self.went = {host: log for host, log in self.went.items() if now - log[-1] < PERIOD}
        gc.collect()
        self.memory.append(tracemalloc.get_traced_memory()[0])
        if keyed is not None:
            self.most_keys = max(self.most_keys, len(keyed))
            print(f"{now:10.0f} s  {self.memory[-1] / 1e6:6.1f} MB  {len(keyed):6} keys")

    def verdict(self, *, keys: int, tasks: int, timers: int) -> bool:
        """Tell how it went, and whether well."""
        third = len(self.memory) // 3
        middle, late = max(self.memory[third : 2 * third]), max(self.memory[2 * third :])
        print("ended as:", ", ".join(f"{n:,} {what}" for what, n in sorted(self.outcomes.items())))
        print(
            f"memory, at most: {middle / 1e6:.1f} MB in the second third, then {late / 1e6:.1f} MB"
        )
        print(f"left behind: {keys} keys, {tasks} tasks, {timers} timers")
        return late - middle <= FLAT and not (keys or tasks or timers)


async def one(
    keyed: KeyedRateLimiter, lots: random.Random, watch: Watch, now: Callable[[], float]
) -> None:
    """Send one request, whatever becomes of it."""
    host = f"host-{int(HOSTS * lots.random() ** 1.2)}.example"  # some are asked more than they take
    fate = lots.random()
    try:
        async with keyed.throttle(host, timeout=30.0 if fate < 0.3 else None) as permit:
            watch.granted(host, now())
            await asyncio.sleep(lots.expovariate(1 / SECONDS))
            _end(permit, fate, keyed, host)
    except ThrottleTimeout:
        watch.count("not in time")
    except ConnectionError:
        watch.count("failed")
    else:
        watch.count("done")


def _end(permit: Permit, fate: float, keyed: KeyedRateLimiter, host: str) -> None:
    if fate < 0.02:
        permit.refused(retry_after=5.0)
    elif fate < 0.04:
        permit.refused()
    elif fate < 0.05:
        keyed.pause(host, 2.0)
    elif fate < 0.10:
        permit.settle(3)  # more than was thought
    elif fate < 0.20:
        raise ConnectionError
    else:
        permit.succeeded()


async def virtual(requests: int, seed: int) -> bool:
    """Have workers send until so many requests are done; then wait until nothing matters."""
    loop = asyncio.get_running_loop()
    lots, watch = random.Random(seed), Watch()
    keyed = KeyedRateLimiter(f"{LIMIT}/min", 5)
    left = requests
    every = max(1, requests // LOOKS)

    async def worker() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            if left % every == 0:
                watch.look(keyed, loop.time())
            task = asyncio.ensure_future(one(keyed, lots, watch, loop.time))
            if lots.random() < 0.05:
                loop.call_later(lots.expovariate(20), task.cancel)
            try:
                await task
            except asyncio.CancelledError:
                watch.count("cancelled")

    await asyncio.gather(*(worker() for _ in range(WORKERS)))
    print(f"virtual hours: {loop.time() / 3600:.1f}; at most {watch.most_keys} keys")
    await asyncio.sleep(10 * PERIOD)
    # Keys are forgotten as others come.
    for number in range(HOSTS):
        await keyed.record(f"late-{number}")
        await asyncio.sleep(PERIOD)
    keys = len(keyed)
    await keyed.aclose()
    await asyncio.sleep(0)
    tasks, timers = len(asyncio.all_tasks()) - 1, _timers(loop)
    watch.look(None, loop.time())
    return watch.verdict(keys=max(0, keys - FEW), tasks=tasks, timers=timers)


def _timers(loop: asyncio.AbstractEventLoop) -> int:
    """Count those that would still go off."""
    scheduled: list[asyncio.TimerHandle] = getattr(loop, "_scheduled", [])
    return sum(not timer.cancelled() for timer in scheduled)


async def real(minutes: float, seed: int) -> bool:
    """Send to a server on the loopback that counts for itself, with faults of our own making."""
    loop = asyncio.get_running_loop()
    lots, watch = random.Random(seed), Watch()
    limit = 500
    ends = loop.time() + 60 * minutes
    async with (
        RateLimitedServer(limit) as server,
        ThrottledSession(
            KeyedRateLimiter(limit * 0.95, 50, guard=0.02), retry=Retry(backoff=0.01)
        ) as session,
    ):

        async def worker() -> None:
            while loop.time() < ends:
                request = asyncio.ensure_future(_get(session, str(server.url)))
                if lots.random() < 0.02:
                    loop.call_later(lots.expovariate(50), request.cancel)
                try:
                    await request
                    watch.count("done")
                except asyncio.CancelledError:
                    watch.count("cancelled")
                except Exception as error:  # noqa: BLE001 - counted
                    watch.count(type(error).__name__)

        sent: list[int] = []

        async def look() -> None:
            while loop.time() < ends:
                await asyncio.sleep(60 * minutes / LOOKS)
                watch.look(None, loop.time())
                sent.append(server.audit.sent)
                server.audit.clear()  # it keeps every request

        await asyncio.gather(look(), *(worker() for _ in range(WORKERS // 4)))
        print(f"the server has seen {sum(sent):,} requests")
    await asyncio.sleep(0.5)
    return watch.verdict(keys=0, tasks=len(asyncio.all_tasks()) - 1, timers=0)


async def _get(session: ThrottledSession, url: str) -> None:
    async with session.get(url) as response:
        with suppress(ConnectionError):
            await response.read()


def main() -> int:
    """Run one of the two."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--minutes", type=float, help="in real time, for so long")
    parser.add_argument("--seed", type=int, default=8)
    options = parser.parse_args()
    tracemalloc.start()
    began_at = time.monotonic()
    with asyncio.Runner(loop_factory=None if options.minutes else VirtualTimeLoop) as runner:
        if options.minutes:
            well = runner.run(real(options.minutes, options.seed))
        else:
            well = runner.run(virtual(options.requests, options.seed))
    print(f"{'well' if well else 'NOT WELL'}, in {time.monotonic() - began_at:.0f} s")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())

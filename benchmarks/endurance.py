"""Endurance: a limiter of ten thousand hosts under faults, and nothing left over afterwards.

    python benchmarks/endurance.py                   on virtual time, a million requests
    python benchmarks/endurance.py --minutes 10      in real time, at least a million requests

Requests to random hosts succeed, fail, are throttled and cancelled. On virtual time their outcomes
are random, costs are settled and recorded, and keys are paused. In real time a `ThrottledSession`
sends them to `faulty_server.py`, a process of its own on the loopback. The run fails if memory
grows, if more was granted than the limits promise, if a host's limit differs afterwards, or if a
task, a timer, a key, a slot or a socket is left over.
"""

import argparse
import asyncio
import gc
import random
import resource
import socket
import sys
import time
import tracemalloc
from collections import deque
from collections.abc import Callable
from pathlib import Path

from aiohttp import ClientError, ClientResponse, ClientTimeout, TCPConnector
from aiohttp.abc import AbstractResolver, ResolveResult
from faulty_server import FaultyServer

from aiothrottle import KeyedRateLimiter, Permit, RateLimiter, ThrottleTimeout
from aiothrottle.aiohttp import Retry, ThrottledSession
from aiothrottle.events import Event, Granted
from aiothrottle.testing import VirtualTimeLoop

HOSTS, WORKERS = 10_000, 200
# Duration of a request: a million of them take an hour.
SECONDS = 0.7
# The limit of a host, and its slots.
LIMIT, PERIOD, SLOTS = 10, 60.0, 5
# In real time a million take ten minutes, not an hour.
REAL_PERIOD = 30.0
CHECKS = 20
# Bytes by which the last third of the run may exceed the second.
FLAT = 2_000_000
# Keys may stay unused until others come.
FEW = 256
# Of Python's memory: late imports and caches, such as header names.
FEW_BLOCKS = 100_000


class Watch:
    """Checks grants against the promise, and memory against its earlier use."""

    def __init__(self, period: float, memory: Callable[[], int]) -> None:
        self._period, self._memory = period, memory
        self.grants: dict[str, deque[float]] = {}
        self.outcomes: dict[str, int] = {}
        self.memory: list[int] = []
        self.most_keys = 0

    def granted(self, host: str, now: float) -> None:
        """Check the rolling window; costs of 1 only, none of them refunded."""
        log = self.grants.setdefault(host, deque(maxlen=LIMIT))
        # The algorithm's own comparison, to the last bit.
        if len(log) == LIMIT and log[0] + self._period > now:
            sys.exit(f"{host}: {LIMIT + 1} granted within {now - log[0]:.6f} s")
        log.append(now)

    def count(self, outcome: str) -> None:
        """Count the outcome of a request."""
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1

    def check(self, keyed: KeyedRateLimiter, now: float, more: str = "") -> None:
        """Record the memory in use, without that of this watch."""
        self.grants = {
            host: log for host, log in self.grants.items() if now - log[-1] < self._period
        }
        gc.collect()
        self.memory.append(self._memory())
        self.most_keys = max(self.most_keys, len(keyed))
        print(
            f"{now:10.0f} s  {self.memory[-1] / 1e6:6.1f} MB  {len(keyed):6} keys{more}", flush=True
        )

    def is_flat(self) -> bool:
        """Return whether the last third used no more memory than the second."""
        third = len(self.memory) // 3
        middle, late = max(self.memory[third : 2 * third]), max(self.memory[2 * third :])
        print(
            f"memory, at most: {middle / 1e6:.1f} MB in the second third, then {late / 1e6:.1f} MB"
        )
        return late - middle <= FLAT

    def nothing_left(self, **left: int) -> bool:
        """Print all outcomes, and return whether nothing is left over."""
        print("ended as:", ", ".join(f"{n:,} {what}" for what, n in sorted(self.outcomes.items())))
        print("left behind:", ", ".join(f"{n:,} {what}" for what, n in left.items()))
        return not any(left.values())


# ---- on virtual time -----------------------------------------------------------------------------


async def one(
    keyed: KeyedRateLimiter, lots: random.Random, watch: Watch, now: Callable[[], float]
) -> None:
    """Send one request with a random outcome."""
    host = _host(lots)
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


def _host(lots: random.Random) -> str:
    # Some hosts get more requests than their limit.
    return f"host-{int(HOSTS * lots.random() ** 1.2)}.example"


def _end(permit: Permit, fate: float, keyed: KeyedRateLimiter, host: str) -> None:
    if fate < 0.02:
        permit.report_throttled(retry_after=5.0)
    elif fate < 0.04:
        permit.report_throttled()
    elif fate < 0.05:
        keyed.pause(host, 2.0)
    elif fate < 0.10:
        permit.settle(3)  # more than expected
    elif fate < 0.20:
        raise ConnectionError
    else:
        permit.report_success()


async def virtual(requests: int, seed: int) -> bool:
    """Have workers send so many requests; then wait until all state has expired."""
    loop = asyncio.get_running_loop()
    lots = random.Random(seed)
    tracemalloc.start()
    watch = Watch(PERIOD, lambda: tracemalloc.get_traced_memory()[0])
    keyed = KeyedRateLimiter(f"{LIMIT}/min", concurrency_limit=SLOTS)
    left = requests
    every = max(1, requests // CHECKS)

    async def worker() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            if left % every == 0:
                watch.check(keyed, loop.time())
            task = asyncio.ensure_future(one(keyed, lots, watch, loop.time))
            if lots.random() < 0.05:
                loop.call_later(lots.expovariate(20), task.cancel)
            await asyncio.wait([task])  # a cancellation here is meant for this task
            if task.cancelled():
                watch.count("cancelled")
            else:
                task.result()

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
    empty = watch.nothing_left(keys=max(0, keys - FEW), tasks=tasks, timers=timers)
    return watch.is_flat() and empty


def _timers(loop: asyncio.AbstractEventLoop) -> int:
    """Count the timers that would still fire."""
    scheduled: list[asyncio.TimerHandle] = getattr(loop, "_scheduled", [])
    return sum(not timer.cancelled() for timer in scheduled)


# ---- in real time --------------------------------------------------------------------------------


class Clock:
    """The clock of the limiters. Its latest reading is the time of a grant."""

    def __init__(self) -> None:
        self.last = 0.0

    def __call__(self) -> float:
        """Return the time."""
        self.last = time.monotonic()
        return self.last


class Loopback(AbstractResolver):
    """Finds every host on the loopback."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Return the loopback address."""
        found = ResolveResult(
            hostname=host, host="127.0.0.1", port=port, family=family, proto=0, flags=0
        )
        return [found]

    async def close(self) -> None:
        """Do nothing: nothing was opened."""


def _resident() -> int:
    """Return the resident bytes of the process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def _blocks() -> int:
    """Count Python's allocated blocks: unlike the size of the process, the number shrinks again."""
    gc.collect()
    return sys.getallocatedblocks()


class Traffic:
    """Requests to all hosts, of which some are cancelled, left unread or dropped."""

    def __init__(self, session: ThrottledSession, port: int, watch: Watch, seed: int) -> None:
        self._session, self._port, self._watch = session, port, watch
        self._lots = random.Random(seed)
        self.over = False

    async def work(self) -> None:
        """Send one request after the other until it is over."""
        loop = asyncio.get_running_loop()
        while not self.over:
            task = asyncio.ensure_future(self._one())
            if self._lots.random() < 0.02:
                loop.call_later(self._lots.expovariate(50), task.cancel)
            await asyncio.wait([task])  # a cancellation here is meant for this task
            self._watch.count("cancelled" if task.cancelled() else task.result())

    async def _one(self) -> str:
        """Send one request, and return its outcome."""
        try:
            url = f"http://{_host(self._lots)}:{self._port}/"
            return await self._use(await self._session.get(url))
        except (ClientError, TimeoutError, ThrottleTimeout) as error:
            return type(error).__name__

    async def _use(self, response: ClientResponse) -> str:
        """Use the response as programs do."""
        way = self._lots.random()
        if way < 0.02:
            return "dropped"
        if way < 0.04:
            response.close()
            return "closed"
        async with response:
            if way < 0.06:
                return "left unread"
            await response.read()
        return "read" if response.ok else f"{response.status}"


async def real(minutes: float, requests: int, seed: int) -> bool:
    """Send until both minutes and requests are over; then wait until all state has expired."""
    loop = asyncio.get_running_loop()
    clock, watch = Clock(), Watch(REAL_PERIOD, _resident)
    keyed = KeyedRateLimiter(f"{LIMIT}/{REAL_PERIOD:g}s", concurrency_limit=SLOTS, clock=clock)
    granted = 0

    def count(event: Event) -> None:
        nonlocal granted
        if isinstance(event, Granted):
            granted += 1
            watch.granted(str(event.key), clock.last)

    files, blocks = _open_files(), _blocks()
    stop = keyed.observe(count)
    async with FaultyServer.running(seed) as server:
        session = ThrottledSession(
            keyed,
            retry=Retry(attempts=3, backoff=0.05, max_backoff=0.5),
            queue_timeout=5.0,
            max_hold=2.0,
            timeout=ClientTimeout(total=1.0),
            connector=TCPConnector(resolver=Loopback(), use_dns_cache=False, limit=0),
        )
        traffic = Traffic(session, server.port, watch, seed)
        workers = [asyncio.ensure_future(traffic.work()) for _ in range(WORKERS)]
        began_at = loop.time()
        while granted < requests or loop.time() < began_at + 60 * minutes:
            await asyncio.sleep(60 * minutes / CHECKS)
            tasks = len(asyncio.all_tasks())
            watch.check(
                keyed, clock(), f"  {granted:9,} granted  {_open_files():5} files  {tasks} tasks"
            )
        traffic.over = True
        await asyncio.gather(*workers)
        took = loop.time() - began_at
        await session.close()
    stop()
    print(
        f"{granted:,} granted in {took:.0f} s; at most {watch.most_keys} keys; the server has seen"
    )
    print(", ".join(f"{number:,} {what}" for what, number in server.seen.items()))
    limiters = [keyed[host] for host in keyed]
    await asyncio.sleep(REAL_PERIOD + 5.0)  # the pauses are over by then
    wrong = sum([await _free_tokens(limiter) != LIMIT for limiter in limiters])
    print(f"the limits of {len(limiters)} hosts were tried")
    held = sum(limiter.statistics().in_flight for limiter in limiters)
    del limiters
    await asyncio.sleep(2 * REAL_PERIOD + 60.0)  # keys are forgotten by themselves
    watch.grants.clear()
    blocks = _blocks() - blocks
    print(f"{blocks:,} blocks of memory more than before")
    return blocks <= FEW_BLOCKS and watch.nothing_left(
        keys=len(keyed),
        tasks=len(asyncio.all_tasks()) - 1,
        timers=_timers(loop),
        slots=held,
        sockets=_open_files() - files,
        **{"wrong limits": wrong},
    )


async def _free_tokens(limiter: RateLimiter) -> int:
    """Return how many requests are granted at once; a success ends the doubling of pauses."""
    granted = 0
    while permit := (await limiter.try_acquire()).permit:
        permit.report_success()
        permit.release()
        granted += 1
    return granted


def main() -> int:
    """Run one of the two."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--minutes", type=float, help="in real time, at least for so long")
    parser.add_argument("--seed", type=int, default=8)
    options = parser.parse_args()
    began_at = time.monotonic()
    with asyncio.Runner(loop_factory=None if options.minutes else VirtualTimeLoop) as runner:
        if options.minutes:
            well = runner.run(real(options.minutes, options.requests, options.seed))
        else:
            well = runner.run(virtual(options.requests, options.seed))
    print(f"{'well' if well else 'NOT WELL'}, in {time.monotonic() - began_at:.0f} s")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())

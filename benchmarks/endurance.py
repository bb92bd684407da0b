"""Endurance: a limiter of ten thousand hosts under faults, for a long time, and what is left of it.

    python benchmarks/endurance.py                   on virtual time, a million requests
    python benchmarks/endurance.py --minutes 10      in real time: so long, and until a million went

Requests to random hosts succeed, fail, are refused and cancelled. On virtual time they are made
up, settled to another cost, recorded, and keys are paused. In real time a `ThrottledSession` sends
them to `faulty_server.py`, a process of its own on the loopback. It fails if memory grows, if more
was granted than the limits promise, if a host's budget is another one afterwards, or if a task, a
timer, a key, a slot or a socket is left.
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
# That a request takes: a million of them take an hour.
SECONDS = 0.7
# Of one host, and how many may be in flight there.
LIMIT, PERIOD, SLOTS = 10, 60.0, 5
# In real time a million take ten minutes, not an hour.
REAL_PERIOD = 30.0
LOOKS = 20
# Bytes. So much more than in the second third of the run may be in use in the last.
FLAT = 2_000_000
# Keys that nobody uses may stay until others come.
FEW = 256
# Of Python's memory: what is imported late and remembered on purpose, such as names of headers.
FEW_BLOCKS = 100_000


class Watch:
    """Holds what was granted to the promise, and memory to what it was."""

    def __init__(self, period: float, memory: Callable[[], int]) -> None:
        self._period, self._memory = period, memory
        self.went: dict[str, deque[float]] = {}
        self.outcomes: dict[str, int] = {}
        self.memory: list[int] = []
        self.most_keys = 0

    def granted(self, host: str, now: float) -> None:
        """Hold to the rolling window; costs of 1 only, none of them refunded."""
        log = self.went.setdefault(host, deque(maxlen=LIMIT))
        # As the algorithm has it, to the last bit.
        if len(log) == LIMIT and log[0] + self._period > now:
            sys.exit(f"{host}: {LIMIT + 1} went within {now - log[0]:.6f} s")
        log.append(now)

    def count(self, outcome: str) -> None:
        """Count how one ended."""
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1

    def look(self, keyed: KeyedRateLimiter, now: float, more: str = "") -> None:
        """Note what is in use, without what this watch itself keeps."""
        self.went = {host: log for host, log in self.went.items() if now - log[-1] < self._period}
        gc.collect()
        self.memory.append(self._memory())
        self.most_keys = max(self.most_keys, len(keyed))
        print(
            f"{now:10.0f} s  {self.memory[-1] / 1e6:6.1f} MB  {len(keyed):6} keys{more}", flush=True
        )

    def is_flat(self) -> bool:
        """Tell whether no more memory is in use late than in the midst."""
        third = len(self.memory) // 3
        middle, late = max(self.memory[third : 2 * third]), max(self.memory[2 * third :])
        print(
            f"memory, at most: {middle / 1e6:.1f} MB in the second third, then {late / 1e6:.1f} MB"
        )
        return late - middle <= FLAT

    def nothing_left(self, **left: int) -> bool:
        """Tell how all ended, and whether nothing of it is left."""
        print("ended as:", ", ".join(f"{n:,} {what}" for what, n in sorted(self.outcomes.items())))
        print("left behind:", ", ".join(f"{n:,} {what}" for what, n in left.items()))
        return not any(left.values())


# ---- on virtual time -----------------------------------------------------------------------------


async def one(
    keyed: KeyedRateLimiter, lots: random.Random, watch: Watch, now: Callable[[], float]
) -> None:
    """Send one request, whatever becomes of it."""
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
    return f"host-{int(HOSTS * lots.random() ** 1.2)}.example"  # some are asked more than they take


def _end(permit: Permit, fate: float, keyed: KeyedRateLimiter, host: str) -> None:
    if fate < 0.02:
        permit.report_throttled(retry_after=5.0)
    elif fate < 0.04:
        permit.report_throttled()
    elif fate < 0.05:
        keyed.pause(host, 2.0)
    elif fate < 0.10:
        permit.settle(3)  # more than was thought
    elif fate < 0.20:
        raise ConnectionError
    else:
        permit.report_success()


async def virtual(requests: int, seed: int) -> bool:
    """Have workers send until so many requests are done; then wait until nothing matters."""
    loop = asyncio.get_running_loop()
    lots = random.Random(seed)
    tracemalloc.start()
    watch = Watch(PERIOD, lambda: tracemalloc.get_traced_memory()[0])
    keyed = KeyedRateLimiter(f"{LIMIT}/min", concurrency_limit=SLOTS)
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
            await asyncio.wait([task])  # whoever cancels this one means this one
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
    """Count those that would still go off."""
    scheduled: list[asyncio.TimerHandle] = getattr(loop, "_scheduled", [])
    return sum(not timer.cancelled() for timer in scheduled)


# ---- in real time --------------------------------------------------------------------------------


class Clock:
    """The clock of the limiters. What it said last is when a request was granted."""

    def __init__(self) -> None:
        self.last = 0.0

    def __call__(self) -> float:
        """Give the time."""
        self.last = time.monotonic()
        return self.last


class Loopback(AbstractResolver):
    """Finds every host on the loopback."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Give the one address there is."""
        found = ResolveResult(
            hostname=host, host="127.0.0.1", port=port, family=family, proto=0, flags=0
        )
        return [found]

    async def close(self) -> None:
        """Do nothing: nothing was opened."""


def _resident() -> int:
    """Give the bytes that the process has in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def _blocks() -> int:
    """Count what Python has allocated: unlike the size of the process it shrinks again."""
    gc.collect()
    return sys.getallocatedblocks()


class Traffic:
    """Requests to all hosts, of which some are cancelled, left unread or dropped."""

    def __init__(self, session: ThrottledSession, port: int, watch: Watch, seed: int) -> None:
        self._session, self._port, self._watch = session, port, watch
        self._lots = random.Random(seed)
        self.over = False

    async def work(self) -> None:
        """Send one after the other until it is over."""
        loop = asyncio.get_running_loop()
        while not self.over:
            task = asyncio.ensure_future(self._one())
            if self._lots.random() < 0.02:
                loop.call_later(self._lots.expovariate(50), task.cancel)
            await asyncio.wait([task])  # whoever cancels this one means this one
            self._watch.count("cancelled" if task.cancelled() else task.result())

    async def _one(self) -> str:
        """Send one, and tell how it ended."""
        try:
            url = f"http://{_host(self._lots)}:{self._port}/"
            return await self._use(await self._session.get(url))
        except (ClientError, TimeoutError, ThrottleTimeout) as error:
            return type(error).__name__

    async def _use(self, response: ClientResponse) -> str:
        """Do with the response what people do."""
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
    """Send for so long, and until so many were sent; then wait until nothing matters."""
    loop = asyncio.get_running_loop()
    clock, watch = Clock(), Watch(REAL_PERIOD, _resident)
    keyed = KeyedRateLimiter(f"{LIMIT}/{REAL_PERIOD:g}s", concurrency_limit=SLOTS, clock=clock)
    granted = 0

    def hear(event: Event) -> None:
        nonlocal granted
        if isinstance(event, Granted):
            granted += 1
            watch.granted(str(event.key), clock.last)

    files, blocks = _open_files(), _blocks()
    stop = keyed.observe(hear)
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
            await asyncio.sleep(60 * minutes / LOOKS)
            tasks = len(asyncio.all_tasks())
            watch.look(
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
    wrong = sum([await _budget(limiter) != LIMIT for limiter in limiters])
    print(f"the budgets of {len(limiters)} hosts were tried")
    held = sum(limiter.statistics().in_flight for limiter in limiters)
    del limiters
    await asyncio.sleep(2 * REAL_PERIOD + 60.0)  # keys are forgotten by themselves
    watch.went.clear()
    blocks = _blocks() - blocks
    print(f"{blocks:,} blocks of memory more than before")
    return blocks <= FEW_BLOCKS and watch.nothing_left(
        keys=len(keyed),
        tasks=len(asyncio.all_tasks()) - 1,
        timers=_timers(loop),
        slots=held,
        sockets=_open_files() - files,
        **{"wrong budgets": wrong},
    )


async def _budget(limiter: RateLimiter) -> int:
    """Give how many may go at once, one after the other; what was refused last is forgotten so."""
    went = 0
    while permit := (await limiter.try_acquire()).permit:
        permit.report_success()
        permit.release()
        went += 1
    return went


def main() -> int:
    """Run one of the two."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--minutes", type=float, help="in real time, for so long at the least")
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

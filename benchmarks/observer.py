"""What an observer sees of a limit that processes share: `uv run benchmarks/observer.py`.

Eight processes share a `SlidingWindowLog` through Valkey. The answers of Valkey are up to 20 ms
late, each by another delay, and about once a second a process stands still for 20 ms. Each grant
sends a byte to an observer, another process. A window of the observer begins with each arrival.

With `guard=0.0` the store counts exactly, but delays change what the observer counts. The default
guard makes up for them.
"""

import asyncio
import multiprocessing
import random
import time
from bisect import bisect_left
from collections.abc import Generator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

from delay import delayed
from measure import Report, arguments, show
from redis.asyncio import Redis
from server import valkey

from aiothrottle import RateLimiter
from aiothrottle.stores.redis import RedisStore
from aiothrottle.testing import greatest_count

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

__all__ = ["report"]

PROCESSES = 8
RATES = (10, 100, 2000)
# Seconds: how late an answer is, at the most; how long a process stands still, and how often.
LATE, STILL, EVERY = 0.02, 0.02, 1.0
# Seconds before and after those that are counted.
_MARGIN = 1.5


# ---- the observer --------------------------------------------------------------------------------


class _Arrivals(asyncio.Protocol):
    """Notes when each byte arrives."""

    def __init__(self, arrivals: list[float]) -> None:
        self._arrivals = arrivals

    def data_received(self, data: bytes) -> None:
        self._arrivals += [time.monotonic()] * len(data)


async def _observe(pipe: "Connection[Any, Any]") -> None:
    arrivals: list[float] = []
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Arrivals(arrivals), "127.0.0.1", 0)
    pipe.send(server.sockets[0].getsockname()[1])
    ended = asyncio.Event()
    loop.add_reader(pipe.fileno(), ended.set)
    await ended.wait()
    loop.remove_reader(pipe.fileno())
    pipe.send(arrivals)


def _run_observer(pipe: "Connection[Any, Any]") -> None:
    asyncio.run(_observe(pipe))


class Observer:
    """The process that counts."""

    def __init__(self, pipe: "Connection[Any, Any]") -> None:
        self._pipe = pipe
        self.port = int(pipe.recv())

    def arrivals(self) -> list[float]:
        """End the process, and return when the bytes arrived."""
        self._pipe.send(None)
        return list(self._pipe.recv())


@contextmanager
def observer() -> Generator[Observer]:
    """Start the observer."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_run_observer, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    try:
        yield Observer(ours)
    finally:
        process.kill()
        process.join()


# ---- the members ---------------------------------------------------------------------------------


async def _stand_still() -> None:
    while True:
        await asyncio.sleep(random.uniform(0.5, 1.5) * EVERY)
        time.sleep(STILL)  # noqa: ASYNC251 - the process is to stand still


async def _member(
    port: int, watcher: int, rate: int, guard: float | None, *, seconds: float, workers: int
) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", watcher)
    async with Redis(port=port) as client:
        store = RedisStore(client, timeout=10)
        limiter = RateLimiter(f"{rate}/s", guard=guard, store=store, key=f"{rate} {guard}")
        await client.incr(f"ready {rate} {guard}")
        while int(await client.get(f"ready {rate} {guard}") or 0) < PROCESSES:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        still = asyncio.create_task(_stand_still())
        end = time.monotonic() + seconds
        async with limiter:

            async def work() -> None:
                while time.monotonic() < end:
                    async with limiter.throttle():
                        writer.write(b".")

            await asyncio.gather(*(work() for _ in range(workers)))
        still.cancel()
        writer.close()
        await writer.wait_closed()


def member(port: int, watcher: int, rate: int, guard: float | None, **options: Any) -> None:  # noqa: ANN401 - numbers
    """Run as one of the processes."""
    asyncio.run(_member(port, watcher, rate, guard, **options))


# ---- the result ----------------------------------------------------------------------------------


def exceeded(arrivals: Sequence[float], limit: int) -> float:
    """Return the share of the windows of a second that hold more than the limit."""
    pairs = zip(arrivals, arrivals[limit:], strict=False)
    count = sum(after < before + 1.0 for before, after in pairs)
    return count / max(1, len(arrivals))


def pace(arrivals: Sequence[float], limit: int, seconds: float) -> float:
    """Return the arrivals per second as a part of the limit: of whole limits, as they may burst."""
    first = bisect_left(arrivals, arrivals[0] + _MARGIN)
    periods = int(seconds * 0.9)
    return periods / (arrivals[first + periods * limit] - arrivals[first])


def watch(port: int, rate: int, guard: float | None, seconds: float) -> list[float]:
    """Return when the grants of all processes arrived at the observer."""
    with observer() as watcher:
        context = get_context("spawn")
        workers = max(5, 2 * rate // PROCESSES)
        load: dict[str, Any] = {"seconds": seconds + 2 * _MARGIN, "workers": workers}
        with ProcessPoolExecutor(PROCESSES, mp_context=context) as pool:
            running = [
                pool.submit(member, port, watcher.port, rate, guard, **load)
                for _ in range(PROCESSES)
            ]
            for each in running:
                each.result()
        return sorted(watcher.arrivals())


def report(*, seconds: float = 10.0, rates: Sequence[int] = RATES) -> Report:
    """Measure everything."""
    found = Report("What an observer sees")
    rows = [["limit", "guard", "windows above the limit", "most in any second", "used"]]
    for rate in rates:
        for name, guard in (("0", 0.0), ("default", None)):
            with valkey() as near, delayed(near, 0.0, late=LATE) as port:
                arrivals = watch(port, rate, guard, seconds)
            used = pace(arrivals, rate, seconds)
            above, most = exceeded(arrivals, rate), greatest_count(arrivals, 1.0)
            rows.append([f"{rate:,}/s", name, f"{above:.2%}", f"{most:,}", f"{used:.1%}"])
            if guard is None:
                found.want(f"{rate:,}/s: windows above the limit", 100 * above, 0.1, " %")
                found.want_share(f"{rate:,}/s: used of the limit", used, 0.95)
    found.add(f"{PROCESSES} processes, for {seconds:g} s.", rows)
    return found


if __name__ == "__main__":
    options = arguments(__doc__, seconds=(10.0, "seconds that are counted"))
    show(report(seconds=options.seconds))

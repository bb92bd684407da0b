"""The table of README.md that compares the package with its peers, and the limiters of the peers.

A test finds out what is true, by running the package of the column, and compares it with the cell.
Each limiter is used as its own documentation says, on an event loop whose time jumps.
"""

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import pytest

from aiothrottle import RateLimiter
from aiothrottle.testing import VirtualTimeLoop

README = Path(__file__).parents[2] / "README.md"
YES, NO = "\N{CHECK MARK}", "\N{EN DASH}"
OURS = "aiothrottle"
# The package to import for each column.
COLUMNS = {
    OURS: "aiothrottle",
    "aiolimiter": "aiolimiter",
    "asyncio-throttle": "asyncio_throttle",
    "pyrate-limiter": "pyrate_limiter",
    "limits": "limits",
    "aiohttp-retry": "aiohttp_retry",
    "token-throttle": "token_throttle",
}
NOTE = re.compile(r"<sup>.*?</sup>")
LINE = re.compile(r"(?m)^\|(.*)\|$")


def compared() -> Iterator[list[str]]:
    """Yield the lines of the table as lists of cells, without their notes."""
    section = README.read_text(encoding="utf-8").partition("## Compared")[2].partition("\n## ")[0]
    for line in LINE.findall(section):
        yield [NOTE.sub("", text).replace("`", "").strip() for text in line.split("|")]


HEAD, _, *LINES = compared()
ROWS = [line[0] for line in LINES]


def cell(row: str, column: str) -> str:
    [line] = [line for line in LINES if line[0] == row]
    return line[HEAD.index(column)]


def columns(*names: str) -> Callable[[Callable[..., object]], Any]:
    """Parametrize a test with `column`: those named, or else all."""
    return pytest.mark.parametrize("column", names or tuple(COLUMNS))


def the_package(column: str) -> Any:
    """Import the package of a column; the test is skipped where it is not installed."""
    return pytest.importorskip(COLUMNS[column])


def source_of(column: str) -> list[str]:
    folder = Path(the_package(column).__file__).parent
    return [path.read_text(encoding="utf-8") for path in folder.rglob("*.py")]


# ---- limiters ------------------------------------------------------------------------------------

# Waits until a request of this cost may start.
Acquire = Callable[[int], Awaitable[object]]
Result = TypeVar("Result")

# The columns that wait for their limit. `limits` answers yes or no, and aiohttp-retry has none.
WAITING = (OURS, "aiolimiter", "asyncio-throttle", "pyrate-limiter", "token-throttle")


class TickingLoop(VirtualTimeLoop):
    """Its time goes on by a microsecond with each look, as real time does."""

    def time(self) -> float:
        self._set_time(self._now + 1e-6)
        return self._now


def acquirer(column: str, limit: int) -> Acquire:
    package = the_package(column)
    if column == OURS:
        limiter = RateLimiter(limit)
        return limiter.acquire
    if column == "aiolimiter":
        acquire: Acquire = package.AsyncLimiter(limit, 1).acquire
        return acquire
    if column == "asyncio-throttle":
        throttler = package.Throttler(rate_limit=limit, period=1)
        return lambda _: throttler.acquire()  # it has no costs
    if column == "pyrate-limiter":
        limiter_of_pyrate = pyrate(limit)
        return lambda cost: limiter_of_pyrate.try_acquire_async("key", cost)
    tokens = token_throttle(1, requests=limit)
    return lambda cost: tokens.acquire_capacity({"requests": cost}, model="model")


def pyrate(limit: int) -> Any:
    package = the_package("pyrate-limiter")
    bucket = package.InMemoryBucket([package.Rate(limit, package.Duration.SECOND)])
    return package.Limiter(package.BucketAsyncWrapper(bucket))


def window_of_limits() -> Any:
    package = the_package("limits")
    return package.strategies.MovingWindowRateLimiter(package.storage.MemoryStorage())


def token_throttle(
    seconds: int, kind: str = "RateLimiter", backend: Any = None, **limits: int
) -> Any:
    package = the_package("token-throttle")
    if backend is None:
        backend = package.MemoryBackendBuilder()
    quotas = [
        package.Quota(metric=metric, limit=limit, per_seconds=seconds)
        for metric, limit in limits.items()
    ]
    config = package.PerModelConfig(quotas=package.UsageQuotas(quotas))
    return getattr(package, kind)(config, backend=backend)


def in_virtual_time(
    column: str, limit: int, scenario: Callable[[Acquire, int], Awaitable[Result]]
) -> Result:
    """Run a scenario with a limit per second; it may take 1000 seconds of virtual time."""
    the_package(column)
    loop = TickingLoop(1e6)

    async def main() -> Result:
        # Made on the loop: some start a task.
        async with asyncio.timeout(1000):
            return await scenario(acquirer(column, limit), limit)

    with contextlib.ExitStack() as stack:
        if column != OURS:  # which takes its time from such a loop by itself
            for name in ("time.monotonic", "time.time"):
                stack.enter_context(patch(name, loop.time))
        if column == "pyrate-limiter":
            clocks: Any = import_module("pyrate_limiter.clocks")
            stack.enter_context(
                patch.object(clocks, "monotonic_ns", lambda: int(loop.time() * 1e9))
            )
        runner = stack.enter_context(asyncio.Runner(loop_factory=lambda: loop))
        return runner.run(main())

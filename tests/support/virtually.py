"""Helpers for tests in virtual time."""

import asyncio
import functools
import re
from collections.abc import Callable, Container, Coroutine, Iterable, Mapping
from types import SimpleNamespace
from typing import Any, ParamSpec, TypeAlias, TypeVar

import pytest

from aiothrottle import RateLimiter, ThrottleTimeout
from aiothrottle.testing import VirtualTimeLoop

P = ParamSpec("P")
T = TypeVar("T")
Cost: TypeAlias = float | Mapping[str, float]


class Coarse(VirtualTimeLoop):
    """A loop like uvloop's: timers are due at whole milliseconds, and those at once are plain."""

    def call_later(self, *args: Any, **options: Any) -> Any:  # type: ignore[override]
        delay = round(args[0], 3)
        timer = super().call_later(delay or 1e-4, *args[1:], **options)
        return timer if delay else SimpleNamespace(cancel=timer.cancel)


def virtual(
    test: Callable[P, Coroutine[Any, Any, None]],
    loop_factory: Callable[[], VirtualTimeLoop] = VirtualTimeLoop,
) -> Callable[P, None]:
    """Run the test on a loop of its own, on which time jumps."""

    @functools.wraps(test)
    def on_virtual_time(*args: P.args, **kwargs: P.kwargs) -> None:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(test(*args, **kwargs))

    return on_virtual_time


def on_virtual_loop(main: Coroutine[Any, Any, T], start: float = 0.0) -> T:
    """Run it on a loop of its own, on which time jumps."""
    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(start)) as runner:
        return runner.run(main)


def loops_of(
    item: pytest.Item, in_virtual_time: Container[str]
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]] | None:
    """Return the loop of a test for pytest-asyncio: time jumps on it in the files named."""
    is_virtual = item.path.stem.removeprefix("test_") in in_virtual_time
    return {"virtual": VirtualTimeLoop} if is_virtual else None


def now() -> float:
    return asyncio.get_running_loop().time()


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def cancel(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def work_for(seconds: float, workers: Iterable[Coroutine[Any, Any, object]]) -> None:
    """Run workers for so long, and cancel those that have not ended."""
    tasks = [asyncio.create_task(worker) for worker in workers]
    await asyncio.sleep(seconds)
    await cancel(*tasks)


async def visit(
    limiter: RateLimiter, cost: Cost | None = None, *, stay: float = 0.0, **options: Any
) -> float:
    """Enter the limiter once, and return the time of the grant."""
    # A default cost may take the fast path.
    given: tuple[Any, ...] = () if cost is None else (cost,)
    async with limiter.throttle(*given, **options):
        began = now()
        if stay:
            await asyncio.sleep(stay)
        return began


def visits(
    limiter: RateLimiter, count: int, cost: Cost | None = None, **options: Any
) -> list[asyncio.Task[float]]:
    return [asyncio.create_task(visit(limiter, cost, **options)) for _ in range(count)]


async def outcomes(tasks: Iterable[asyncio.Task[float]]) -> list[object]:
    """Return when each visit was granted, or as text the wait for which it was rejected."""
    found = await asyncio.gather(*tasks, return_exceptions=True)
    return [f"{it.retry_after:g}" if isinstance(it, ThrottleTimeout) else it for it in found]


def counts(limiter: RateLimiter) -> tuple[int, int]:
    """Return (in flight, waiting), without a change to the limiter, unlike `statistics`."""
    found = re.search(r"(-?\d+)(?: of \d+)? in flight, (\d+) waiting", repr(limiter))
    assert found is not None
    return int(found[1]), int(found[2])

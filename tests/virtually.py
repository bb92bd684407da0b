"""What tests in virtual time share."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

from aiothrottle.testing import VirtualTimeLoop

P = ParamSpec("P")


def virtual(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run the test on a loop of its own, on which time jumps."""

    @functools.wraps(test)
    def on_virtual_time(*args: P.args, **kwargs: P.kwargs) -> None:
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            runner.run(test(*args, **kwargs))

    return on_virtual_time


def now() -> float:
    return asyncio.get_running_loop().time()


async def turns(count: int = 10) -> None:
    """Let the loop turn so often."""
    for _ in range(count):
        await asyncio.sleep(0)

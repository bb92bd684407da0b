"""Conditions of every recipe: calls beyond the limit wait, and nothing is left at the end."""

import asyncio
import gc
from collections.abc import Awaitable, Callable

from aiothrottle import RateLimiter
from tests.serving import until
from tests.virtually import counts

__all__ = ["check_limit"]

_LIMIT = 3


async def check_limit(
    limiter: RateLimiter, call: Callable[[int], Awaitable[object]], arrived: Callable[[], int]
) -> None:
    """Check that the calls beyond a limit wait until it is lifted, and leave no permit.

    Args:
        limiter: That of the recipe. Afterwards it has no rate limit.
        call: Makes one call of the client; the argument differs in each.
        arrived: Returns how many requests the server has seen.
    """
    await limiter.reset()
    limiter.update(rate_limit=f"{_LIMIT}/h")
    before = arrived()
    calls = [asyncio.ensure_future(call(number)) for number in range(_LIMIT + 3)]
    await until(lambda: sum(call.done() for call in calls) + counts(limiter)[1] == len(calls))
    # A new session sends evenly at first, so fewer than the limit may be sent at once.
    assert 1 <= arrived() - before <= _LIMIT
    cancelled = calls.pop()
    cancelled.cancel()
    await asyncio.wait([cancelled])
    assert cancelled.cancelled()
    limiter.update(rate_limit=None)
    await asyncio.gather(*calls)
    assert arrived() - before == len(calls)
    assert counts(limiter) == (0, 0)
    gc.collect()  # an unclosed response warns

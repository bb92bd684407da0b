"""Checks of every recipe: calls beyond the limit wait, and nothing is left at the end."""

import asyncio
import gc
from collections.abc import Awaitable, Callable

from aiothrottle import RateLimiter
from aiothrottle.testing import RateLimitedServer
from tests.serving import until
from tests.virtually import counts

__all__ = ["check_limit"]

_RATE, _SLOTS = 3, 2


async def check_limit(
    limiter: RateLimiter, call: Callable[[int], Awaitable[object]], server: RateLimitedServer
) -> None:
    """Check that calls beyond the limits wait until they are lifted, and leave no permit.

    Args:
        limiter: That of the recipe. Afterwards it has no rate limit.
        call: Makes one call of the client, of one request; the argument differs in each.
        server: The fake of the API.
    """
    await limiter.reset()
    slots = None if limiter.statistics().concurrency_limit is None else _SLOTS
    limiter.update(rate_limit=f"{_RATE}/h", concurrency_limit=slots)
    server.audit.clear()
    calls = [asyncio.ensure_future(call(number)) for number in range(_RATE + 5)]
    await until(lambda: sum(call.done() for call in calls) + counts(limiter)[1] == len(calls))
    # A new session sends evenly at first, so fewer than the limit may be sent at once.
    assert 1 <= server.audit.sent <= _RATE
    cancelled = next(call for call in calls if not call.done())
    calls.remove(cancelled)
    cancelled.cancel()
    await asyncio.wait([cancelled])
    assert cancelled.cancelled()
    limiter.update(rate_limit=None)
    await asyncio.gather(*calls)
    assert server.audit.sent == len(calls)
    assert slots is None or server.audit.greatest_concurrency <= slots
    assert counts(limiter) == (0, 0)
    gc.collect()  # an unclosed response warns

"""How much of a shared limit all processes use together: the store knows, this process does not."""

import asyncio
import math

from aiothrottle.errors import ThrottleError
from aiothrottle.keyed import engines_of
from aiothrottle.limiter import RateLimiter
from aiothrottle.metrics.gauges import AnyLimiter


async def shared_use(limiter: AnyLimiter) -> float | None:
    """Ask the store which part of the limit is in use, from 0 to 1.

    None: the limiter has no store, limits each key, is not used in this event loop, or its store
    does not answer.
    """
    if not isinstance(limiter, RateLimiter) or limiter.statistics().store_up is None:
        return None
    if engines_of(limiter)[0].loop is not asyncio.get_running_loop():
        return None
    try:
        decision = await limiter.peek()
    except ThrottleError:
        return None
    limit = decision.limit
    return max(0.0, 1 - decision.remaining / limit) if 0 < limit < math.inf else None

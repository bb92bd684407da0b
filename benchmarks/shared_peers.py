"""Limits shared through Redis: ours, the peers by their own documentation, and a bare call.

All have a limit that is never reached: a million per second. Each peer waits by itself, as its
page on asyncio says, or is called in a loop where it has no waiting.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias, cast

from redis.asyncio import BlockingConnectionPool, Redis

from aiothrottle import RateLimiter, SlidingWindowLog, TokenBucket
from aiothrottle.algorithms import Algorithm
from aiothrottle.stores.redis import RedisStore

__all__ = ["CONTESTANTS", "Take", "Taker"]

# Imports inside functions: only the contestant that is measured is loaded.

Take: TypeAlias = Callable[[], Awaitable[object]]
Taker: TypeAlias = Callable[[int], AbstractAsyncContextManager[Take]]

PLENTY = 1_000_000


def connect(port: int) -> Redis:
    """Return a client for any number of tasks: redis-py's default is 100 at most.

    All have the same, also ours, which needs one connection: the pool takes a fifth of a call.
    """
    pool = BlockingConnectionPool(host="127.0.0.1", port=port, max_connections=100, timeout=60)
    return Redis.from_pool(pool)


# The least that keeps a limit: one call, without costs, queue or deduplication.
BUCKET = """
local time = redis.call('TIME')
local now = time[1] + time[2] / 1e6
local interval, ahead = tonumber(ARGV[1]), tonumber(ARGV[2])
local empty_at = math.max(now, tonumber(redis.call('GET', KEYS[1]) or now))
local wait = empty_at + interval - ahead - now
if wait > 0 then return tostring(wait) end
empty_at = empty_at + interval
local milliseconds = math.ceil((empty_at - now) * 1000) + 1
redis.call('SET', KEYS[1], string.format('%.6f', empty_at), 'PX', milliseconds)
return '0'
"""
WINDOW = """
local time = redis.call('TIME')
local now = time[1] + time[2] / 1e6
local limit, period = tonumber(ARGV[1]), tonumber(ARGV[2])
if redis.call('LLEN', KEYS[1]) >= limit then
  local wait = redis.call('LINDEX', KEYS[1], 0) + period - now
  if wait > 0 then return tostring(wait) end
  redis.call('LPOP', KEYS[1])
end
redis.call('RPUSH', KEYS[1], string.format('%.6f', now))
redis.call('PEXPIRE', KEYS[1], period * 1000 + 1)
return '0'
"""


@asynccontextmanager
async def bare(port: int) -> AsyncGenerator[Take]:
    """Increment a number by a script."""
    async with connect(port) as client:
        script = await client.script_load("return redis.call('INCR', KEYS[1])")
        yield lambda: cast("Awaitable[object]", client.evalsha(script, 1, "bare"))


def by_hand(key: str, text: str, *numbers: float) -> Taker:
    """Return a taker that keeps a limit by a bare script call, as written by hand."""

    @asynccontextmanager
    async def taker(port: int) -> AsyncGenerator[Take]:
        async with connect(port) as client:
            call: Any = client.evalsha
            script = await client.script_load(text)

            async def take() -> None:
                while wait := float(await call(script, 1, key, *numbers)):  # noqa: ASYNC110
                    await asyncio.sleep(wait)

            yield take

    return taker


def ours(algorithm: type[Algorithm[Any]], **options: Any) -> Taker:  # noqa: ANN401 - a limiter's
    """Return a taker of ours."""

    @asynccontextmanager
    async def taker(port: int) -> AsyncGenerator[Take]:
        async with connect(port) as client:
            store = RedisStore(client, timeout=5)
            rate, key = f"{PLENTY}/s", f"{algorithm.__name__}{options}"
            async with RateLimiter(
                rate, algorithm=algorithm, store=store, key=key, **options
            ) as limiter:

                async def take() -> None:
                    async with limiter.throttle():
                        pass

                yield take

    return taker


def limits(strategy: str) -> Taker:
    """Return a taker of limits. Its page says to sleep until `reset_time` and to ask again."""

    @asynccontextmanager
    async def taker(port: int) -> AsyncGenerator[Take]:
        from limits import RateLimitItemPerSecond
        from limits.aio import strategies
        from limits.aio.storage import RedisStorage

        storage: Any = RedisStorage(
            f"async+redis://127.0.0.1:{port}",
            implementation="redispy",
            key_prefix=strategy,
            connection_pool=cast("Any", connect(port).connection_pool),
        )
        limiter = getattr(strategies, strategy)(storage)
        item = RateLimitItemPerSecond(PLENTY)

        async def take() -> None:
            while not await limiter.hit(item):
                stats = await limiter.get_window_stats(item)
                await asyncio.sleep(max(0.0, stats.reset_time - time.time()))

        yield take

    return taker


@asynccontextmanager
async def pyrate_window(port: int) -> AsyncGenerator[Take]:
    """Its default: a sliding window log, a sorted set."""
    from pyrate_limiter import Limiter, Rate, RedisBucket

    async with connect(port) as client:
        bucket: Any = await cast("Any", RedisBucket.init([Rate(PLENTY, 1000)], client, "pyrate"))
        limiter = Limiter(bucket)
        yield lambda: limiter.try_acquire_async("pyrate")
        limiter.close()


@asynccontextmanager
async def pyrate_gcra(port: int) -> AsyncGenerator[Take]:
    """Constant state, a hash."""
    from pyrate_limiter import GCRA, Limiter, Rate, RedisStateStore, StateBucket

    async with connect(port) as client:
        store = RedisStateStore(client, "pyrate-gcra")
        bucket = StateBucket([Rate(PLENTY, 1000, burst=PLENTY)], algorithm=GCRA(), store=store)
        limiter = Limiter(bucket)
        yield lambda: limiter.try_acquire_async("pyrate")
        limiter.close()


def throttled(algorithm: str) -> Taker:
    """Return a taker of throttled-py."""

    @asynccontextmanager
    async def taker(port: int) -> AsyncGenerator[Take]:
        from throttled.asyncio import RedisStore as Store
        from throttled.asyncio import Throttled

        throttle = Throttled(
            key=algorithm,
            using=algorithm,
            quota=f"{PLENTY}/s burst {PLENTY}",
            store=Store(
                server=f"redis://127.0.0.1:{port}/0",
                options={
                    "CONNECTION_POOL_CLASS": "redis.asyncio.BlockingConnectionPool",
                    "CONNECTION_POOL_KWARGS": {"max_connections": 100, "timeout": 60},
                },
            ),
            timeout=60,
        )
        yield throttle.limit

    return taker


CONTESTANTS: dict[str, Taker] = {
    "bare EVALSHA": bare,
    "window by hand": by_hand("a window", WINDOW, PLENTY, 1),
    "bucket by hand": by_hand("a bucket", BUCKET, 1 / PLENTY, 1),
    "SlidingWindowLog": ours(SlidingWindowLog),
    "TokenBucket": ours(TokenBucket),
    "SlidingWindowLog, prefetch": ours(SlidingWindowLog, prefetch="1000/100ms"),
    "limits, moving window": limits("MovingWindowRateLimiter"),
    "limits, fixed window": limits("FixedWindowRateLimiter"),
    "pyrate-limiter, window": pyrate_window,
    "pyrate-limiter, GCRA": pyrate_gcra,
    "throttled-py, token bucket": throttled("token_bucket"),
    "throttled-py, GCRA": throttled("gcra"),
}

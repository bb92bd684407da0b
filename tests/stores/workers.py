"""What processes do with a store that they share, "redis:PORT" or "sqlite:FILE"."""

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiothrottle import LeakyBucket, RateLimiter, SharedConcurrency
from aiothrottle.stores import SQLiteStore, Store


class Noting(Store):
    """Notes the instants of the store for which tokens were taken and not refunded."""

    instants: list[float]

    async def reserve(self, key: Any, algorithm: Any, costs: Any, **options: Any) -> Any:
        answer = await super().reserve(key, algorithm, costs, **options)
        self.instants += answer.instants
        return answer

    async def refund(self, key: Any, algorithm: Any, cost: float, instant: float) -> None:
        await super().refund(key, algorithm, cost, instant)
        for _ in range(round(cost)):
            self.instants.remove(instant)

    async def record(self, key: Any, algorithm: Any, cost: float = 1.0) -> Any:  # noqa: ARG002
        raise AssertionError("granted without a reservation")


@asynccontextmanager
async def open_store(address: str, *bases: type) -> AsyncGenerator[Any]:
    """Open a store, of a class with the bases before that of the store."""
    kind, _, place = address.partition(":")
    if kind == "redis":
        # Here, as a process with a file need not wait for it.
        from redis.asyncio import Redis

        from aiothrottle.stores.redis import RedisStore

        made: Any = type("Made", (*bases, RedisStore), {})
        async with Redis(port=int(place)) as client:
            yield made(client, "workers", timeout=10)
    else:
        made = type("Made", (*bases, SQLiteStore), {})
        store = made(place, timeout=10)
        yield store
        await store.aclose()


def tell(*words: object) -> None:
    sys.stdout.write(" ".join(map(repr, words)) + "\n")
    sys.stdout.flush()


def wait_for_go() -> None:
    tell("ready")
    sys.stdin.readline()


async def use_tokens(
    address: str, seconds: float, wait: Callable[[], None] = wait_for_go
) -> list[float]:
    """Use as many tokens as it gets; return the instants of the store for which it got them."""
    async with open_store(address, Noting) as store:
        instants: list[float] = []
        store.instants = instants
        async with RateLimiter("100/200ms", store=store, key="k") as limiter:
            await limiter.peek()
            wait()

            async def work() -> None:
                while True:
                    async with limiter.throttle():
                        pass

            workers = [asyncio.create_task(work()) for _ in range(100)]
            await asyncio.sleep(seconds)
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
    return instants


async def reserve_tokens(address: str, max_reservation: float) -> None:
    """Reserve a token for each second, for many waiters."""
    async with open_store(address) as store:
        limits: dict[str, Any] = {"algorithm": LeakyBucket, "max_reservation": max_reservation}
        limiter = RateLimiter("60/min", store=store, key="k", **limits)
        waiting = [asyncio.create_task(limiter.acquire()) for _ in range(100)]
        await waiting[0]
        tell("granted")
        await asyncio.gather(*waiting)


async def use_slots(
    address: str, port: float, limit: float, count: float, lease: float, seconds: float
) -> None:
    """Print how many are inside, by a counter in a server, beside the limiter."""
    from redis.asyncio import Redis

    slots = SharedConcurrency(int(limit), lease)
    client: Any = Redis(port=int(port))
    async with (
        client,
        open_store(address) as store,
        RateLimiter(concurrency_limit=slots, store=store, key="x") as limiter,
    ):

        async def work() -> None:
            async with limiter.throttle():
                tell(await client.incr("inside"))
                await asyncio.sleep(seconds)
                await client.decr("inside")

        await asyncio.gather(*(work() for _ in range(int(count))))


if __name__ == "__main__":
    _, name, place, *numbers = sys.argv
    if instants := asyncio.run(globals()[name](place, *map(float, numbers))):
        tell(*instants)

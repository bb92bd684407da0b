"""What an outage of the store costs: `uv run benchmarks/outage.py`.

5,000 keys wait for their second token when Valkey is killed. The processor time of the process is
counted from five seconds after that on, when all waiters know of the outage. The connections to the
dead server are refused at once, which is the outage with the most to do.
"""

import asyncio
import time
from contextlib import ExitStack
from typing import Any

from measure import Report, arguments, show
from redis.asyncio import Redis
from server import valkey

from aiothrottle import KeyedRateLimiter
from aiothrottle.stores.redis import RedisStore

__all__ = ["report"]

KEYS = 5000
# Seconds from the outage to the measurement.
SETTLED = 5.0
CHOICES: dict[str, dict[str, Any]] = {
    "closed": {"on_store_error": "closed"},
    "local": {"on_store_error": "local", "local_share": 0.5},
}


async def share_of_core(keys: int, seconds: float, options: dict[str, Any]) -> float:
    """Return the part of a core that the waiting keys take."""
    with ExitStack() as server:
        port = server.enter_context(valkey())
        async with Redis(port=port) as client:
            store = RedisStore(client, timeout=5)
            limiter = KeyedRateLimiter("1/h", store=store, key="k", **options)

            async def ask(key: int) -> None:
                for _ in range(2):
                    async with limiter.throttle(key):
                        granted.add(key)

            granted = set[int]()
            tasks = [asyncio.create_task(ask(key)) for key in range(keys)]
            while len(granted) < keys:  # noqa: ASYNC110 - of many tasks
                await asyncio.sleep(0.1)
            server.close()
            await asyncio.sleep(SETTLED)
            cpu = time.process_time()
            await asyncio.sleep(seconds)
            cpu = time.process_time() - cpu
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await limiter.aclose()
    return cpu / seconds


def report(*, seconds: float = 20.0, keys: int = KEYS) -> Report:
    """Measure everything."""
    found = Report("An outage of the store")
    rows = [["on_store_error", "waiting keys", "of a core"]]
    for name, options in CHOICES.items():
        share = asyncio.run(share_of_core(keys, seconds, options))
        rows.append([name, f"{keys:,}", f"{share:.1%}"])
        found.want(f"{name}: processor time, of a core", 100 * share, 5.0, " %")
    found.add(f"Waiting keys while the store is dead, for {seconds:g} s.", rows)
    return found


if __name__ == "__main__":
    options = arguments(
        __doc__, seconds=(20.0, "seconds that are counted"), keys=(KEYS, "waiting keys")
    )
    show(report(seconds=options.seconds, keys=options.keys))

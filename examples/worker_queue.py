"""A taskiq queue whose tasks call one API, under one limit for all worker processes.

    python examples/worker_queue.py                       # in this process, with a fake API

With a queue in Redis or Valkey there may be any number of workers. In two terminals:

    export REDIS_URL=redis://localhost:6379
    taskiq worker --app-dir examples --workers 4 --max-async-tasks 5 worker_queue:broker
    python examples/worker_queue.py https://api.github.com/zen

A worker has five tasks at a time: without a bound the first one takes all tasks of the queue.

Needs ``pip install taskiq``, and with REDIS_URL ``taskiq-redis redis``.
"""

import argparse
import asyncio
import os
import sys
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

from taskiq import AsyncBroker, InMemoryBroker, TaskiqEvents, TaskiqResultTimeoutError, TaskiqState

from aiothrottle import RateLimiter
from aiothrottle.aiohttp import ThrottledSession
from aiothrottle.testing import RateLimitedServer

RATE = "20/s"
REDIS_URL = os.environ.get("REDIS_URL")

broker: AsyncBroker
if REDIS_URL is None:
    broker = InMemoryBroker()
else:
    from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

    result_backend: RedisAsyncResultBackend[Any] = RedisAsyncResultBackend(
        REDIS_URL, result_ex_time=3600
    )
    # A worker takes one task at a time from the queue, not a hundred.
    broker = RedisStreamBroker(REDIS_URL, xread_count=1).with_result_backend(result_backend)


@broker.on_event(TaskiqEvents.WORKER_STARTUP)
async def start(state: TaskiqState) -> None:
    """Make one session for each worker. The store and the key join their limits."""
    state.stack = AsyncExitStack()
    if REDIS_URL is None:
        limiter = RateLimiter(RATE)
    else:
        from redis.asyncio import Redis  # only with REDIS_URL

        from aiothrottle.stores.redis import RedisStore

        client = await state.stack.enter_async_context(Redis.from_url(REDIS_URL))
        limiter = RateLimiter(RATE, store=RedisStore(client), key="api")
    await state.stack.enter_async_context(limiter)
    state.session = await state.stack.enter_async_context(ThrottledSession(limiter))


@broker.on_event(TaskiqEvents.WORKER_SHUTDOWN)
async def stop(state: TaskiqState) -> None:
    """Close the session, the limiter and the client of the store."""
    await state.stack.aclose()


@broker.task("call")  # a name, as this module is `__main__` in one process and not in the others
async def call(url: str) -> int:
    """Call the API and return the status. The session waits for the limit, and retries."""
    async with broker.state.session.get(url) as response:
        await response.read()
        status: int = response.status
        return status


async def enqueue(url: str) -> None:
    """Queue 40 tasks, and wait for their results."""
    await broker.startup()
    try:
        tasks = [await call.kiq(url) for _ in range(40)]
        results = await asyncio.gather(*(task.wait_result(timeout=60) for task in tasks))
    finally:
        await broker.shutdown()
    statuses = Counter(result.return_value for result in results)
    for status, number in statuses.items():
        print(f"{number} tasks ended with status {status}")


async def run_offline() -> None:
    """Run the tasks against a fake API with the same limit."""
    async with RateLimitedServer(RATE) as server:
        await enqueue(str(server.url))
    print(f"{server.audit.sent} requests, {server.audit.throttled} throttled")


def main() -> None:
    """Queue tasks for the API of the command line, or for a fake one."""
    parser = argparse.ArgumentParser(description="Queue tasks that call an API.")
    parser.add_argument("url", nargs="?", help="the URL of the real API")
    options = parser.parse_args()
    try:
        asyncio.run(enqueue(options.url) if options.url else run_offline())
    except TaskiqResultTimeoutError:
        sys.exit("no results within a minute: does a taskiq worker run?")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)

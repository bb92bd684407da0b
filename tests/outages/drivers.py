"""Stores on each driver, for tests that harm their connections."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from aiothrottle.stores import SlotStore
from tests.stores.servers import stores

#: Without retries of the driver, "redis once" is as docs/guides/production.md advises.
DRIVERS = ["redis once", "redis", "valkey-py", "mongodb", "memcached"]

#: Drivers leave a socket to the collector when its connection fails.
leaks_sockets = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


@asynccontextmanager
async def store_on(
    driver: str, port: int, timeout: float = 1.0, **options: Any
) -> AsyncGenerator[SlotStore]:
    if driver == "redis once":
        options["retry"] = Retry(NoBackoff(), 0)
    if driver == "mongodb":  # the defaults are 20 and 10 seconds
        options |= {"connectTimeoutMS": 300, "heartbeatFrequencyMS": 500}
    kind = driver.removesuffix(" once")
    async with stores(kind, None, "outages", port=port, timeout=timeout, **options) as make:
        yield make()

"""Virtual time, and the servers that the tests of outages share: no test may stop them."""

import asyncio
import gc
from collections.abc import Callable, Iterator

import pytest

from aiothrottle.testing import VirtualTimeLoop
from tests.support.servers import SlowServers

# All others need a real server.
IN_VIRTUAL_TIME = {"choices", "recovery", "shares", "slots", "wait_until"}


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]] | None:
    is_virtual = item.path.stem.removeprefix("test_") in IN_VIRTUAL_TIME
    return {"virtual": VirtualTimeLoop} if is_virtual else None


@pytest.fixture(scope="session", autouse=True)
def _starting(slow_servers: SlowServers) -> None:
    """Start the slow servers before the first test."""


@pytest.fixture
def served(request: pytest.FixtureRequest) -> Iterator[tuple[str, int]]:
    """A driver, the parameter of the test, and the port of its server."""
    names = {"mongodb": "mongodb", "memcached": "memcached_server"}
    server = request.getfixturevalue(names.get(request.param, "valkey"))
    yield request.param, server.port
    gc.collect()  # what the driver has left, and not in a later test

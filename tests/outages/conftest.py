"""Virtual time, and servers that the tests of outages share: no test may stop them."""

import asyncio
import gc
from collections.abc import Callable, Iterator

import pytest

from aiothrottle.testing import VirtualTimeLoop
from tests.support.servers import Cluster, Process, memcached, mongodb

# All others need a real server.
IN_VIRTUAL_TIME = {"choices", "costs", "patient", "recovery", "shares", "slots", "wait_until"}


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]] | None:
    is_virtual = item.path.stem.removeprefix("test_") in IN_VIRTUAL_TIME
    return {"virtual": VirtualTimeLoop} if is_virtual else None


@pytest.fixture(scope="session")
def mongo() -> Iterator[Process]:
    server = mongodb()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def cache() -> Iterator[Process]:
    server = memcached()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Three masters; if a test stops one, it starts it again."""
    cluster = Cluster(full_coverage=False)
    yield cluster
    cluster.stop()


@pytest.fixture
def served(request: pytest.FixtureRequest) -> Iterator[tuple[str, int]]:
    """A driver, the parameter of the test, and the port of its server."""
    names = {"mongodb": "mongo", "memcached": "cache"}
    server = request.getfixturevalue(names.get(request.param, "valkey"))
    yield request.param, server.port
    gc.collect()  # what the driver has left, and not in a later test

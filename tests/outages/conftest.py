"""Virtual time, and the servers that the tests of outages share: no test may stop them."""

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.virtually import loops_of

# All others need a real server.
IN_VIRTUAL_TIME = {"choices", "recovery", "shares", "slots", "wait_until"}


def pytest_asyncio_loop_factories(item: pytest.Item) -> Any:
    return loops_of(item, IN_VIRTUAL_TIME)


@pytest.fixture(scope="module", autouse=True)
def _starting(starting_servers: None) -> None:
    """Start the slow servers of a file before its first test."""


@pytest.fixture
def served(request: pytest.FixtureRequest) -> Iterator[tuple[str, int]]:
    """A driver, the parameter of the test, and the port of its server."""
    names = {"mongodb": "mongodb", "memcached": "memcached_server"}
    server = request.getfixturevalue(names.get(request.param, "valkey"))
    yield request.param, server.port
    gc.collect()  # what the driver has left, and not in a later test

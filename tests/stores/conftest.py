"""Virtual time, and clients of the stores, with records of their own for each test."""

import itertools
import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from tests.stores.servers import SERVERS, Make, stores
from tests.support.virtually import loops_of

_NUMBERS = itertools.count()
# All others need a real server, or a file. Here time jumps, and is exact.
IN_VIRTUAL_TIME = {
    *("calls", "fairness", "far_store", "prefetch", "shared", "shared_resources"),
    *("shared_wait_until", "slots", "wakes"),
}


def pytest_asyncio_loop_factories(item: pytest.Item) -> Any:
    return loops_of(item, IN_VIRTUAL_TIME)


@pytest.fixture(scope="module", autouse=True)
def _starting(starting_servers: None) -> None:
    """Start the slow servers of a file before its first test."""


@pytest.fixture(scope="session")
def mongodb_uri(request: pytest.FixtureRequest) -> str:
    """The address of a substitute for MongoDB, or the one of AIOTHROTTLE_TEST_MONGODB_URI."""
    if uri := os.environ.get("AIOTHROTTLE_TEST_MONGODB_URI"):
        return uri
    return f"mongodb://127.0.0.1:{request.getfixturevalue('mongodb').port}/?directConnection=true"


Open = Callable[..., AbstractAsyncContextManager[Make]]


@pytest.fixture
def open_stores(request: pytest.FixtureRequest) -> Open:
    """Connect to a server by its kind; all stores of a test share records of their own."""
    prefix = f"test{next(_NUMBERS)}"

    def connect(kind: str, **options: Any) -> AbstractAsyncContextManager[Make]:
        return stores(kind, request.getfixturevalue(SERVERS[kind]), prefix, **options)

    return connect

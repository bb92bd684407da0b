"""Servers of stores: one of each for a worker."""

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from tests.stores.servers import SERVERS, Make, stores
from tests.support.servers import Cluster, Process, Sentinels, memcached, mongodb

_NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    servers = Cluster()
    yield servers
    servers.stop()


@pytest.fixture(scope="session")
def sentinels() -> Iterator[Sentinels]:
    servers = Sentinels()
    yield servers
    servers.stop()


@pytest.fixture(scope="session")
def memcached_server() -> Iterator[Process]:
    server = memcached()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def mongodb_uri() -> Iterator[str]:
    """The address of a substitute for MongoDB, or the one of AIOTHROTTLE_TEST_MONGODB_URI."""
    if given := os.environ.get("AIOTHROTTLE_TEST_MONGODB_URI"):
        yield given
        return
    server = mongodb()
    yield f"mongodb://127.0.0.1:{server.port}/?directConnection=true"
    server.stop()


Open = Callable[..., AbstractAsyncContextManager[Make]]


@pytest.fixture
def open_stores(request: pytest.FixtureRequest) -> Open:
    """Connect to a server by its kind; all stores of a test share records of their own."""
    prefix = f"test{next(_NUMBERS)}"

    def connect(kind: str, **options: Any) -> AbstractAsyncContextManager[Make]:
        return stores(kind, request.getfixturevalue(SERVERS[kind]), prefix, **options)

    return connect

"""Clients of the stores, with records of their own for each test."""

import itertools
import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from tests.stores.servers import SERVERS, Make, stores
from tests.support.servers import SlowServers

_NUMBERS = itertools.count()


@pytest.fixture(scope="session", autouse=True)
def _starting(slow_servers: SlowServers) -> None:
    """Start the slow servers before the first test."""


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

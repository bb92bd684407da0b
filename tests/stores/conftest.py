"""Servers of stores: one of each for a worker."""

import itertools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from threading import Thread
from typing import Any, TypeAlias

import pytest

from tests.stores.servers import SERVERS, Make, stores
from tests.support.servers import Cluster, Process, Sentinels, memcached, mongodb

_NUMBERS = itertools.count()
_MONGODB_URI = os.environ.get("AIOTHROTTLE_TEST_MONGODB_URI")

# Those that take two seconds to come up, most of which they wait.
_SLOW: dict[str, Callable[[], Any]] = {
    "cluster": Cluster,
    "sentinel": Sentinels,
    "mongodb": mongodb,
}
Starting: TypeAlias = Callable[[str], Future[Any]]


@pytest.fixture(scope="session", autouse=True)
def _starting(request: pytest.FixtureRequest) -> Iterator[Starting]:
    """Start the slow servers of this run at its begin, all at once, while other tests run."""
    started = dict[str, Future[Any]]()

    def run(kind: str) -> None:
        try:
            started[kind].set_result(_SLOW[kind]())
        except BaseException as error:  # noqa: BLE001 - it may be that the test is skipped
            started[kind].set_exception(error)

    def start(kind: str) -> Future[Any]:
        if kind not in started:
            started[kind] = Future()
            Thread(target=run, args=(kind,)).start()
        return started[kind]

    calls = (getattr(item, "callspec", None) for item in request.session.items)
    kinds = {call.params.get("kind") for call in calls if call is not None}
    for kind in _SLOW.keys() & kinds:
        if not (kind == "mongodb" and _MONGODB_URI):
            start(kind)
    yield start
    for server in started.values():
        if server.exception() is None:
            server.result().stop()


@pytest.fixture(scope="session")
def cluster(_starting: Starting) -> Cluster:
    servers: Cluster = _starting("cluster").result()
    return servers


@pytest.fixture(scope="session")
def sentinels(_starting: Starting) -> Sentinels:
    servers: Sentinels = _starting("sentinel").result()
    return servers


@pytest.fixture(scope="session")
def memcached_server() -> Iterator[Process]:
    server = memcached()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def mongodb_uri(_starting: Starting) -> str:
    """The address of a substitute for MongoDB, or the one of AIOTHROTTLE_TEST_MONGODB_URI."""
    if _MONGODB_URI:
        return _MONGODB_URI
    port = _starting("mongodb").result().port
    return f"mongodb://127.0.0.1:{port}/?directConnection=true"


Open = Callable[..., AbstractAsyncContextManager[Make]]


@pytest.fixture
def open_stores(request: pytest.FixtureRequest) -> Open:
    """Connect to a server by its kind; all stores of a test share records of their own."""
    prefix = f"test{next(_NUMBERS)}"

    def connect(kind: str, **options: Any) -> AbstractAsyncContextManager[Make]:
        return stores(kind, request.getfixturevalue(SERVERS[kind]), prefix, **options)

    return connect

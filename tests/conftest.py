"""Settings of the whole suite."""

import asyncio
import gc
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

from tests.support.effort import examples
from tests.support.skips import summary

if TYPE_CHECKING:  # the drivers of servers take a second to import
    from tests.support.servers import Process, SlowServers, Valkey

if "AIOTHROTTLE_REAL_SERVERS" not in os.environ:  # these are downloaded
    # No test leaves this machine, and to read the authorities of the system takes a fifth of the
    # time in which a process imports aiohttp, and nearly all of a new client of httpx.
    os.environ["SSL_CERT_FILE"] = str(Path(__file__).parent / "support" / "authority.pem")

examples(50).register_profile("default", examples(50))
examples(50).load_profile("default")

# Files or tests that may take longer than `--longest` says, with the reason.
LONG = {
    "tests/clients/": "imports and starts large packages",
    "tests/integrations/test_real_servers.py": "installs servers, and sends for seconds",
    "tests/metrics/test_dashboard.py::test_browser": "starts a browser",
    "tests/outages/test_servers.py": "kills servers, and starts them again",
    "tests/project/test_docs.py::test_docstring_examples_give_their_output": "imports all modules",
    "tests/project/test_examples.py": "runs programs, several of them at once",
}

NewLoop = Callable[[], asyncio.AbstractEventLoop]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--longest", type=float, metavar="SECONDS", help="fail the tests that take longer"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "uvloop: runs on uvloop as well")
    if worker := getattr(config, "workerinput", None):
        if "tests" in config.args:
            part = int(worker["workerid"][2:]) / worker["workercount"]
            folders = _folders_from(part, config.getoption("ignore") or [])
            config.args = [*folders, *set(config.args) - {"tests"}]
    else:
        config.pluginmanager.register(_Summary())


def _folders_from(part: float, ignored: Sequence[str]) -> list[str]:
    """Return the folders of tests, from that part of them on: no two workers compile the same."""
    found = sorted(str(it) for it in Path("tests").glob("*/") if any(it.glob("test_*.py")))
    folders = [it for it in found if it not in ignored]
    first = int(part * len(folders))
    return folders[first:] + folders[:first]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path)  # workers begin at different ones


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    longest: float | None = item.config.getoption("longest")
    is_measured = call.when == "call" and not item.nodeid.startswith(tuple(LONG))
    if longest and is_measured and report.passed and call.duration > longest:
        report.outcome = "failed"
        report.longrepr = f"took {call.duration:.1f} s, more than {longest:g} s"
    return report


class _Summary:
    """Says at the end what was skipped."""

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if skipped := terminalreporter.getreports("skipped"):
            terminalreporter.section("skipped tests, and how to run them")
            for line in summary(str(report.longrepr) for report in skipped):
                terminalreporter.line(line)


@pytest.hookimpl(optionalhook=True)  # without xdist there is no such hook
def pytest_xdist_auto_num_workers() -> int:
    # One more than there are cores: tests of servers and processes wait for a part of their time.
    return (os.cpu_count() or 1) + 1


def pytest_collection_finish() -> None:
    # Collections skip the imported modules, and are quick: limiters run slow ones seldom.
    gc.collect()
    gc.freeze()


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, NewLoop]:
    loops: dict[str, NewLoop] = {"asyncio": asyncio.new_event_loop}
    if item.get_closest_marker("uvloop") and "AIOTHROTTLE_TEST_NO_UVLOOP" not in os.environ:
        loops["uvloop"] = uvloop.new_event_loop
    return loops


@pytest.fixture(scope="session")
def _valkey() -> "Iterator[Valkey]":
    from tests.support.servers import Valkey

    server = Valkey()
    yield server
    server.stop()


@pytest.fixture
def valkey(_valkey: "Valkey") -> "Valkey":
    """The server of this worker, emptied. Do not stop it, nor change its settings."""
    _valkey.command("FLUSHALL")
    _valkey.command("SCRIPT", "FLUSH")
    return _valkey


@pytest.fixture
def own_valkey() -> "Iterator[Valkey]":
    """A server for one test, which may stop it."""
    from tests.support.servers import Valkey

    server = Valkey()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def memcached_server() -> "Iterator[Process]":
    from tests.support.servers import memcached

    server = memcached()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def slow_servers() -> "Iterator[SlowServers]":
    from tests.support.servers import SlowServers

    servers = SlowServers()
    yield servers
    servers.stop()


@pytest.fixture(scope="module")
def starting_servers(request: pytest.FixtureRequest, slow_servers: "SlowServers") -> None:
    """Start the slow servers of this file at its begin, all at once, while other tests run."""
    items = [item for item in request.session.items if item.path == request.path]
    wanted = {name for item in items for name in getattr(item, "fixturenames", ())}
    for item in items:
        if call := getattr(item, "callspec", None):
            wanted.update(it for it in call.params.values() if isinstance(it, str))
    for kind in slow_servers.KINDS.keys() & wanted:
        slow_servers.start(kind)


def _slow(kind: str) -> Any:
    """Return the fixture of a slow server, which all tests of a worker share."""

    def started(slow_servers: "SlowServers") -> Any:
        return slow_servers.start(kind).result()

    return pytest.fixture(started, scope="session", name=kind)


cluster = _slow("cluster")  # if a test stops one of the three masters, it starts it again
sentinel = _slow("sentinel")
own_sentinel = _slow("own_sentinel")  # for one test, which may kill their master
mongodb = _slow("mongodb")


@pytest.fixture
def no_automatic_collection() -> Iterator[None]:
    """Switch Python's automatic garbage collection off, as in a program that only waits."""
    thresholds = gc.get_threshold()
    gc.collect()
    gc.set_threshold(0)
    yield
    gc.set_threshold(*thresholds)

"""Settings of the whole suite."""

import asyncio
import gc
import os
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import uvloop
from hypothesis import HealthCheck, settings

from aiothrottle._core import stall
from tests.servers import Valkey

# A slow machine must not fail a property, and every run must try the same examples:
# a test that fails for a colleague has to fail here too.
settings.register_profile(
    "steady",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("steady")

NewLoop = Callable[[], asyncio.AbstractEventLoop]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "uvloop: runs on uvloop as well")
    config.addinivalue_line("markers", "slow: takes seconds; `-m 'not slow'` leaves it out")


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, NewLoop]:
    loops: dict[str, NewLoop] = {"asyncio": asyncio.new_event_loop}
    if item.get_closest_marker("uvloop") and "AIOTHROTTLE_TEST_NO_UVLOOP" not in os.environ:
        loops["uvloop"] = uvloop.new_event_loop
    return loops


@pytest.fixture
def valkey() -> Iterator[Valkey]:
    """A server of its own for each test, which may stop it."""
    server = Valkey()
    yield server
    server.stop()


@pytest.fixture
def no_automatic_collection(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Switch Python's automatic garbage collection off, as in a program that only waits.

    Collections that limiters made in earlier tests do not count.
    """
    monkeypatch.setattr(stall, "_collector", stall.Collector())
    thresholds = gc.get_threshold()
    gc.collect()
    gc.set_threshold(0)
    yield
    gc.set_threshold(*thresholds)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Count the tests skipped for lack of a server: see `need` in servers.py."""
    missing = Counter[str]()
    for report in terminalreporter.getreports("skipped"):
        reason = str(report.longrepr)
        if "no server: " in reason:
            missing[reason.partition("no server: ")[2].partition(":")[0]] += 1
    if missing:
        terminalreporter.section("missing servers", red=True, bold=True)
        for server, count in missing.items():
            terminalreporter.line(f"{server}: {count} tests skipped")

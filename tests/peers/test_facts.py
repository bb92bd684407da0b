"""The other rows: resources, adaptive limits, threads, size; and the versions below the table."""

import inspect
import re
import threading
from collections.abc import Callable
from importlib.metadata import requires, version
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from aiothrottle import AdaptiveConcurrency, AdaptiveRate, RateLimiter
from tests.peers.table import COLUMNS, NO, OURS, README, ROWS, YES, cell, columns, the_package
from tests.virtually import virtual

SETTLED = "Requests and tokens, settled after the call"
ADAPTIVE = "Finds unknown limits"
THREADS = "Synchronous code and threads"
PACKAGES = "Required packages"
LINES = "Lines of Python"


def public_names(package: Any) -> set[str]:  # noqa: ANN401 - a module
    """Return the names of a package, and of the classes that it offers."""
    names: set[str] = set()
    for name in dir(package):
        if not name.startswith("_"):
            names |= {name, *dir(getattr(package, name))}
    return {name for name in names if not name.startswith("_")}


def test_every_row_has_a_test() -> None:
    texts = [path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py")]
    assert [row for row in ROWS if not any(f'= "{row}"\n' in text for text in texts)] == []
    assert len(ROWS) > 10


@virtual
async def test_settled_tokens_are_free_again_here() -> None:
    limiter = RateLimiter({"requests": "60/min", "tokens": "1000/min"})
    async with limiter.throttle({"tokens": 1000}) as permit:
        permit.settle({"tokens": 400})
    assert (await limiter.peek({"tokens": 600})).allowed
    assert not (await limiter.peek({"tokens": 601})).allowed
    assert cell(SETTLED, OURS) == YES


async def test_settled_tokens_are_free_again_in_token_throttle() -> None:
    package = the_package("token-throttle")
    quotas = [
        package.Quota(metric="requests", limit=60, per_seconds=60),
        package.Quota(metric="tokens", limit=1000, per_seconds=60),
    ]
    config = package.PerModelConfig(quotas=package.UsageQuotas(quotas))
    limiter = package.RateLimiter(config, backend=package.MemoryBackendBuilder())
    async with limiter.reserve({"requests": 1, "tokens": 1000}, model="model") as handle:
        handle.set_actual_usage({"requests": 1, "tokens": 400})
    await limiter.acquire_capacity({"requests": 1, "tokens": 600}, model="model", timeout=0)
    with pytest.raises(TimeoutError):
        await limiter.acquire_capacity({"requests": 1, "tokens": 600}, model="model", timeout=0)
    assert cell(SETTLED, "token-throttle") == YES


@pytest.mark.parametrize("column", sorted(COLUMNS.keys() - {OURS, "token-throttle"}))
def test_nothing_can_be_settled(column: str) -> None:
    giving_back = re.compile("settle|refund|give_back|return_|actual|record_usage")
    assert [name for name in public_names(the_package(column)) if giving_back.search(name)] == []
    assert cell(SETTLED, column) == NO


@columns()
def test_adaptive_limits_have_a_name(column: str) -> None:
    names = {name for name in public_names(the_package(column)) if "adaptive" in name.lower()}
    assert cell(ADAPTIVE, column) == (YES if names else NO)
    assert column != OURS or {AdaptiveRate.__name__, AdaptiveConcurrency.__name__} <= names


def synchronous(column: str) -> Callable[[], object]:
    """Return a call that takes a token of a hundred per minute, or raises or returns False."""
    package = the_package(column)
    if column == "pyrate-limiter":
        limiter = package.Limiter(package.Rate(100, package.Duration.MINUTE))
        return lambda: limiter.try_acquire("key", blocking=False)
    if column == "limits":
        window = package.strategies.MovingWindowRateLimiter(package.storage.MemoryStorage())
        hundred = package.parse("100/minute")
        return lambda: window.hit(hundred)
    quota = package.Quota(metric="requests", limit=100, per_seconds=60)
    config = package.PerModelConfig(quotas=package.UsageQuotas([quota]))
    backend = package.SyncMemoryBackendBuilder()
    tokens = package.SyncRateLimiter(config, backend=backend)

    def take() -> bool:
        try:
            tokens.acquire_capacity({"requests": 1}, model="model", timeout=0)
        except TimeoutError:
            return False
        return True

    return take


@columns("pyrate-limiter", "limits", "token-throttle")
def test_threads_share_one_limiter(column: str) -> None:
    take = synchronous(column)
    granted: list[bool] = []

    def work() -> None:
        granted.extend(bool(take()) for _ in range(50))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # token-throttle earns a token in 0.6 s, which a busy machine may take.
    assert len(granted) == 200
    assert 100 <= sum(granted) < 120
    assert cell(THREADS, column) == YES


async def test_another_thread_is_rejected_here() -> None:
    limiter = RateLimiter(10, concurrency_limit=1)
    errors: list[BaseException] = []

    def work() -> None:
        try:
            limiter.pause(1)
        except RuntimeError as error:
            errors.append(error)

    async with limiter.throttle():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert len(errors) == 1
    assert cell(THREADS, OURS) == NO


@columns("aiolimiter", "asyncio-throttle", "aiohttp-retry")
def test_every_wait_is_awaited(column: str) -> None:
    package = the_package(column)
    waits = {
        "aiolimiter": ["AsyncLimiter.acquire", "AsyncLimiter.__aenter__"],
        "asyncio-throttle": ["Throttler.acquire", "Throttler.__aenter__"],
        "aiohttp-retry": ["RetryClient.__aenter__", "RetryClient.close"],
    }
    for wait in waits[column]:
        assert inspect.iscoroutinefunction(attrgetter(wait)(package))
    kind = attrgetter(waits[column][0].partition(".")[0])(package)
    assert not hasattr(kind, "__enter__")
    assert cell(THREADS, column) == NO


@columns()
def test_required_packages_are_counted(column: str) -> None:
    distribution = "aiothrottle-client" if column == OURS else column
    the_package(column)
    required = [line for line in requires(distribution) or [] if "extra ==" not in line]
    assert cell(PACKAGES, column) == str(len(required))


@columns()
def test_lines_are_counted(column: str) -> None:
    folder = Path(the_package(column).__file__).parent
    files = [path.read_text(encoding="utf-8") for path in folder.rglob("*.py")]
    lines = sum(len(text.splitlines()) for text in files)
    said = float(cell(LINES, column).replace(",", ""))
    assert said == pytest.approx(lines, rel=0.15), f"{column} has {lines} lines"


@pytest.mark.parametrize("column", sorted(COLUMNS.keys() - {OURS}))
def test_versions_below_the_table_are_those_tested(column: str) -> None:
    the_package(column)
    text = " ".join(README.read_text(encoding="utf-8").split())
    assert f"{column} {version(column)}" in text

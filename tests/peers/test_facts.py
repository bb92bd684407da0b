"""The other rows: resources, adaptive limits, threads, size; and the versions below the table."""

import re
import threading
from collections.abc import Callable
from importlib.metadata import requires, version
from pathlib import Path
from typing import Any

import pytest

from aiothrottle import RateLimiter
from tests.peers.limiters import token_throttle, window_of_limits
from tests.peers.table import (
    COLUMNS,
    NO,
    OURS,
    README,
    ROWS,
    YES,
    cell,
    columns,
    source_of,
    the_package,
)
from tests.peers.test_shared import SHARED
from tests.peers.test_waiting import CANCELLED, IN_ORDER, NEVER_OVER, VIRTUAL
from tests.support.virtually import virtual

SETTLED = "Requests and tokens, settled after the call"
ADAPTIVE = "Finds unknown limits"
THREADS = "Synchronous code and threads"
PACKAGES = "Required packages"
LINES = "Lines of Python"


def public_names(package: Any) -> set[str]:
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
    limiter = token_throttle(60, requests=60, tokens=1000)
    async with limiter.reserve({"requests": 1, "tokens": 1000}, model="model") as handle:
        handle.set_actual_usage({"requests": 1, "tokens": 400})
    await limiter.acquire_capacity({"requests": 1, "tokens": 600}, model="model", timeout=0)
    with pytest.raises(TimeoutError):
        await limiter.acquire_capacity({"requests": 1, "tokens": 600}, model="model", timeout=0)
    assert cell(SETTLED, "token-throttle") == YES


@columns()
def test_adaptive_limits_have_a_name(column: str) -> None:
    names = {name for name in public_names(the_package(column)) if "adaptive" in name.lower()}
    assert cell(ADAPTIVE, column) == (YES if names else NO)
    assert column != OURS or {"AdaptiveRate", "AdaptiveConcurrency"} <= names


def synchronous(column: str) -> Callable[[], object]:
    """Return a call that takes a token of a hundred per minute, or raises or returns False."""
    package = the_package(column)
    if column == "pyrate-limiter":
        limiter = package.Limiter(package.Rate(100, package.Duration.MINUTE))
        return lambda: limiter.try_acquire("key", blocking=False)
    if column == "limits":
        window = window_of_limits()
        hundred = package.parse("100/minute")
        return lambda: window.hit(hundred)
    tokens = token_throttle(60, "SyncRateLimiter", package.SyncMemoryBackendBuilder(), requests=100)

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


WITHOUT_STORE = ["aiolimiter", "asyncio-throttle", "aiohttp-retry"]
# token-throttle, whose limits are in real time too, reads the time of the loop for its timeouts.
REAL_TIME = ["asyncio-throttle", "limits"]
NEVER_SETTLED = [column for column in COLUMNS if column not in {OURS, "token-throttle"}]
# Words that would be in the source, or in the public names, of packages that could do it.
WORDS = [
    (SHARED, WITHOUT_STORE, "redis|sqlite|socket|storage"),
    (THREADS, WITHOUT_STORE, "threading|__enter__"),
    (VIRTUAL, REAL_TIME, r"loop(\(\))?\.time"),
]
NAMES = [
    (SETTLED, NEVER_SETTLED, "settle|refund|give_back|return_|actual|record_usage"),
    (NEVER_OVER, ["aiohttp-retry"], "limiter|throttl"),
]


@columns()
def test_cell_says_no_if_no_code_could_do_it(column: str) -> None:
    names = public_names(the_package(column))
    for texts, rows in ((source_of(column), WORDS), (names, NAMES)):
        for row, columns_without, words in rows:
            if column in columns_without:
                found = [text for text in texts if re.search(words, text, re.IGNORECASE)]
                assert (found, cell(row, column)) == ([], NO), row
    # What does not limit has no order of waiters, either.
    for row in (IN_ORDER, CANCELLED, VIRTUAL):
        assert cell(row, "aiohttp-retry") == NO


@columns()
def test_packages_and_lines_are_counted(column: str) -> None:
    the_package(column)
    distribution = "aiothrottle-client" if column == OURS else column
    required = [line for line in requires(distribution) or [] if "extra ==" not in line]
    assert cell(PACKAGES, column) == str(len(required))
    lines = sum(len(text.splitlines()) for text in source_of(column))
    said = float(cell(LINES, column).replace(",", ""))
    assert said == pytest.approx(lines, rel=0.15), f"{column} has {lines} lines"
    text = " ".join(README.read_text(encoding="utf-8").split())
    assert column == OURS or f"{column} {version(column)}" in text, "the version that is tested"

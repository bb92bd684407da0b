"""Each row of the table: what the packages do, and what it says of them.

What the cells say of our package is tested in the other folders too.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from importlib.metadata import requires, version
from pathlib import Path
from typing import Any, TypeAlias
from unittest.mock import patch

import aiohttp
import httpx
import pytest
from aiohttp import web
from redis.asyncio import Redis
from yarl import URL

from aiothrottle import RateLimiter
from aiothrottle.aiohttp import ThrottledSession
from aiothrottle.httpx import ThrottledTransport
from aiothrottle.stores.redis import RedisStore
from aiothrottle.testing import RateLimitedServer, greatest_count
from tests.peers.peers import (
    COLUMNS,
    NO,
    OURS,
    README,
    ROWS,
    WAITING,
    YES,
    Acquire,
    TickingLoop,
    acquirer,
    cell,
    columns,
    in_virtual_time,
    pyrate,
    source_of,
    the_package,
    token_throttle,
    window_of_limits,
)
from tests.support.servers import Valkey
from tests.support.serving import Handler, answer, serving, until
from tests.support.virtually import cancel

# ---- limits and waiters: how many are granted, in what order, after a cancellation ---------------

NEVER_OVER = "Never over the limit in any period"
IN_ORDER = "Requests start in the order of arrival"
CANCELLED = "A cancelled waiter takes no tokens"
VIRTUAL = "Tests in virtual time"
NO_WAITING = "does not wait"


async def saturate(acquire: Acquire, limit: int) -> list[float]:
    loop = asyncio.get_running_loop()
    granted: list[float] = []

    async def request() -> None:
        await acquire(1)
        granted.append(loop.time())

    await asyncio.gather(*(request() for _ in range(4 * limit)))
    return granted


async def start_in_order(acquire: Acquire, costs: list[int], limit: int) -> list[int]:
    """Return the order in which waiters were granted that came one after the other."""
    await asyncio.gather(*(acquire(1) for _ in range(limit)))
    granted: list[int] = []

    async def request(place: int, cost: int) -> None:
        await acquire(cost)
        granted.append(place)

    waiters: list[asyncio.Task[None]] = []
    for place, cost in enumerate(costs):
        waiters.append(asyncio.create_task(request(place, cost)))
        await asyncio.sleep(0.0037)
    await asyncio.gather(*waiters)
    return granted


@columns(*WAITING)
def test_count_in_any_period(column: str) -> None:
    # A tick of the clock is all that two grants may be too near.
    count = greatest_count(in_virtual_time(column, 10, saturate), 1 - 1e-3)
    assert cell(NEVER_OVER, column) == (YES if count <= 10 else NO), count


def test_count_in_any_period_of_limits() -> None:
    limiter = window_of_limits()
    ten, granted = the_package("limits").parse("10/second"), list[float]()
    with patch("time.time") as clock:
        for tick in range(400):
            clock.return_value = 1e9 + tick / 100
            granted += [clock.return_value for _ in range(2) if limiter.hit(ten)]
    assert len(granted) == 40
    assert greatest_count(granted, 1 - 1e-3) == 10
    assert cell(NEVER_OVER, "limits") == YES


@columns(*WAITING)
def test_order_of_waiters(column: str) -> None:
    equal = in_virtual_time(column, 10, lambda a, n: start_in_order(a, [1] * 6, n))
    # asyncio-throttle has no costs, but loses its order without them too.
    mixed = in_virtual_time(column, 10, lambda a, n: start_in_order(a, [5, 1, 1], n))
    expected = NO
    if equal == sorted(equal):
        expected = YES if mixed == sorted(mixed) else "of equal cost"
    assert cell(IN_ORDER, column) == expected, (equal, mixed)


def test_limits_rejects_in_place_of_waiting() -> None:
    limiter = window_of_limits()
    hour = the_package("limits").parse("1/hour")
    assert limiter.hit(hour)
    assert not limiter.hit(hour)
    methods = {name for name in dir(limiter) if not name.startswith("_")}
    assert methods == {"clear", "get_window_stats", "hit", "storage", "test"}
    assert cell(IN_ORDER, "limits") == cell(CANCELLED, "limits") == NO_WAITING


async def cancel_and_wait(acquire: Acquire, limit: int) -> tuple[float, float]:
    """Return the waits of a request behind no other waiter, and behind ten that are cancelled."""
    loop = asyncio.get_running_loop()
    waits: list[float] = []
    for victims in (0, 10):
        await asyncio.sleep(100)
        await asyncio.gather(*(acquire(1) for _ in range(limit)))
        began = loop.time()
        cancelled = [asyncio.ensure_future(acquire(1)) for _ in range(victims)]
        await asyncio.sleep(0.01)
        waiter = asyncio.ensure_future(acquire(1))
        await asyncio.sleep(0.01)
        for task in cancelled:
            task.cancel()
        await waiter
        waits.append(loop.time() - began)
    return waits[0], waits[1]


@columns(*WAITING)
def test_cancelled_waiters_take_no_tokens(column: str) -> None:
    alone, behind = in_virtual_time(column, 10, cancel_and_wait)
    assert cell(CANCELLED, column) == (YES if behind == pytest.approx(alone, abs=0.05) else NO)


@columns(OURS, "aiolimiter", "pyrate-limiter")
def test_limit_of_an_hour_is_tested_in_no_time(column: str) -> None:
    package = the_package(column)

    async def wait_for_three() -> float:
        loop = asyncio.get_running_loop()
        if column == OURS:
            acquire = RateLimiter("2/h").acquire
        elif column == "aiolimiter":
            acquire = package.AsyncLimiter(2, 3600).acquire
        else:

            def now(_: object) -> int:
                return int(loop.time() * 1000)

            # As its page says: a bucket of one's own has the clock.
            kind: Any = type("Bucket", (package.InMemoryBucket,), {"now": now})
            bucket = kind([package.Rate(2, package.Duration.HOUR)])
            acquire = package.Limiter(package.BucketAsyncWrapper(bucket)).try_acquire_async
        for _ in range(3):
            await acquire()
        return loop.time()

    with asyncio.Runner(loop_factory=TickingLoop) as runner:
        assert runner.run(wait_for_three()) >= 1800
    assert cell(VIRTUAL, column) == YES


# ---- requests: slots, `Retry-After`, retries, and the clients that are supported -----------------

CONCURRENCY = "Concurrency limit"
RETRY_AFTER = "Retry-After pauses all requests"
RETRIES = "Retries with backoff"
CLIENTS = "For aiohttp and httpx"

Get: TypeAlias = Callable[[URL], Coroutine[Any, Any, int]]


@contextlib.asynccontextmanager
async def getter(column: str) -> AsyncGenerator[Get]:
    """Yield a GET under a limit that is never reached, which returns the status."""
    package = the_package(column)
    async with contextlib.AsyncExitStack() as stack:
        client: Any
        if column == OURS:
            limiter = RateLimiter(1000, concurrency_limit=3)
            client = await stack.enter_async_context(ThrottledSession(limiter))
        elif column == "aiohttp-retry":
            options = package.ExponentialRetry(attempts=3, start_timeout=0.01, statuses={429})
            client = await stack.enter_async_context(package.RetryClient(retry_options=options))
        elif column == "pyrate-limiter":
            extra: Any = import_module("pyrate_limiter.extras.aiohttp_limiter")
            client = await stack.enter_async_context(extra.RateLimitedSession(pyrate(1000)))
        else:
            client = await stack.enter_async_context(aiohttp.ClientSession())
        by_itself = {OURS, "pyrate-limiter", "aiohttp-retry"}
        wait = acquirer(column, 1000) if column in {*WAITING} - by_itself else None

        async def get(url: URL) -> int:
            if wait is not None:
                await wait(1)
            response = await client.get(url)
            async with response:
                await response.read()
                return int(response.status)

        yield get


async def answer_slowly(_: web.Request) -> web.Response:
    await asyncio.sleep(0.05)
    return web.Response()


def throttled_once(retry_after: int) -> tuple[Handler, Handler]:
    """Throttle the first request, and ask it to wait so many seconds."""
    return answer(429, Retry_After=str(retry_after)), answer()


@columns()
async def test_requests_in_flight_and_repeated(column: str) -> None:
    async with RateLimitedServer(handler=answer_slowly) as server, getter(column) as get:
        await asyncio.gather(*(get(server.url) for _ in range(20)))
        greatest = server.audit.greatest_concurrency
    assert cell(CONCURRENCY, column) == (YES if greatest <= 3 else NO), greatest
    async with serving(*throttled_once(0)) as (url, seen), getter(column) as get:
        status = await get(url)
    assert cell(RETRIES, column) == (YES if (status, len(seen)) == (200, 2) else NO)


@columns()
async def test_pause_after_a_throttled_request(column: str) -> None:
    """The server asks for 30 s: an answer within half a second shows that nobody waits for them."""
    async with serving(*throttled_once(30)) as (url, seen), getter(column) as get:
        first = asyncio.create_task(get(url))
        await until(lambda: seen)
        await asyncio.sleep(0.2)  # the response arrives
        second = asyncio.create_task(get(url))
        await asyncio.wait([second], timeout=0.5)
        paused = not second.done()
        await cancel(first, second)
    assert (len(seen) == 1) is paused
    assert cell(RETRY_AFTER, column) == (YES if paused else NO)


@columns(OURS, "pyrate-limiter")
async def test_httpx_is_supported_as_aiohttp_is(column: str) -> None:
    the_package(column)
    transport: httpx.AsyncBaseTransport
    if column == OURS:
        transport = ThrottledTransport(RateLimiter(1000))
    else:
        extra: Any = import_module("pyrate_limiter.extras.httpx_limiter")
        transport = extra.AsyncRateLimiterTransport(limiter=pyrate(1000))
    async with RateLimitedServer() as server, httpx.AsyncClient(transport=transport) as client:
        assert (await client.get(str(server.url))).status_code == 200
    assert cell(CLIENTS, column) == "both"


@pytest.mark.parametrize("column", sorted(COLUMNS.keys() - {OURS, "pyrate-limiter"}))
def test_other_clients_are_imported_nowhere(column: str) -> None:
    texts = "".join(source_of(column))
    found = [it for it in ("aiohttp", "httpx") if re.search(f"import {it}|from {it} ", texts)]
    assert cell(CLIENTS, column) == (", ".join(found) or NO)


# ---- processes: two limiters that have nothing but a server or a file in common ------------------

SHARED = "Shared between processes"

# Returns whether a request may start now, under 3 per hour.
Ask: TypeAlias = Callable[[], Awaitable[bool]]


async def has_capacity(limiter: Any) -> bool:
    try:
        await limiter.acquire_capacity({"requests": 1}, model="model", timeout=0)
    except TimeoutError:
        return False
    return True


@contextlib.asynccontextmanager
async def through_redis(column: str, valkey: Valkey) -> AsyncGenerator[Ask]:
    package = the_package(column)
    async with Redis(port=valkey.port) as client:
        if column == OURS:
            async with RateLimiter("3/h", store=RedisStore(client), key="key") as limiter:

                async def ask() -> bool:
                    return (await limiter.try_acquire()).allowed

                yield ask
        elif column == "pyrate-limiter":
            rates = [package.Rate(3, package.Duration.HOUR)]
            pyrate = package.Limiter(await package.RedisBucket.init(rates, client, "pyrate"))
            yield lambda: pyrate.try_acquire_async("key", blocking=False)
            pyrate.close()
        elif column == "limits":
            aio: Any = import_module("limits.aio")
            storage = aio.storage.RedisStorage(
                f"async+redis://127.0.0.1:{valkey.port}",
                implementation="redispy",
                connection_pool=client.connection_pool,
            )
            window = aio.strategies.MovingWindowRateLimiter(storage)
            yield lambda: window.hit(package.parse("3/hour"))
        else:
            backend = package.RedisBackendBuilder(client, key_prefix="prefix")
            async with token_throttle(3600, backend=backend, requests=3) as tokens:
                yield lambda: has_capacity(tokens)


@columns(OURS, "pyrate-limiter", "limits", "token-throttle")
async def test_limit_is_shared_through_redis(column: str, valkey: Valkey) -> None:
    async with through_redis(column, valkey) as one, through_redis(column, valkey) as other:
        assert [await one(), await other(), await one()] == [True] * 3
        assert [await other(), await one()] == [False] * 2
    assert "Redis" in cell(SHARED, column)


@columns("pyrate-limiter", "token-throttle")
async def test_limit_is_shared_through_a_file(column: str, tmp_path: Path) -> None:
    package = the_package(column)
    path, answers = str(tmp_path / "limits.sqlite"), list[bool]()
    for _ in range(4):
        if column == "pyrate-limiter":
            rates = [package.Rate(3, package.Duration.HOUR)]
            bucket = package.SQLiteBucket.init_from_file(rates, db_path=path)
            with package.Limiter(bucket) as limiter:
                answers.append(limiter.try_acquire("key", blocking=False))
        else:
            backend = package.SqliteBackendBuilder(path, key_prefix="prefix")
            async with token_throttle(3600, backend=backend, requests=3) as tokens:
                answers.append(await has_capacity(tokens))
    assert answers == [True] * 3 + [False]
    assert "SQLite" in cell(SHARED, column)


def test_other_stores_exist() -> None:
    """Our MongoDB and memcached are tested in tests/stores; those of the peers only exist here."""
    assert cell(SHARED, OURS) == "SQLite, Redis, MongoDB, memcached"
    storage: Any = the_package("limits") and import_module("limits.aio.storage")
    assert storage.MongoDBStorage
    assert storage.MemcachedStorage
    assert cell(SHARED, "limits") == "Redis, MongoDB, memcached"
    assert the_package("pyrate-limiter").PostgresBucket
    assert cell(SHARED, "pyrate-limiter") == "Redis, Postgres, SQLite"
    assert cell(SHARED, "token-throttle") == "Redis, SQLite"


# ---- the other rows, and the versions below the table --------------------------------------------

SETTLED = "Requests and tokens, settled after the call"
ADAPTIVE = "Finds unknown limits"
THREADS = "Synchronous code and threads"
PACKAGES = "Required packages"
LINES = "Lines of Python"


def public_names(package: Any) -> set[str]:
    names: set[str] = set()
    for name in dir(package):
        if not name.startswith("_"):
            names |= {name, *dir(getattr(package, name))}
    return {name for name in names if not name.startswith("_")}


def test_every_row_has_a_test() -> None:
    texts = [path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py")]
    assert [row for row in ROWS if not any(f'= "{row}"\n' in text for text in texts)] == []
    assert len(ROWS) > 10


async def test_settled_tokens_are_free_again_in_token_throttle() -> None:
    limiter = token_throttle(60, requests=60, tokens=1000)
    async with limiter.reserve({"requests": 1, "tokens": 1000}, model="model") as handle:
        handle.set_actual_usage({"requests": 1, "tokens": 400})
    await limiter.acquire_capacity({"requests": 1, "tokens": 600}, model="model", timeout=0)
    with pytest.raises(TimeoutError):
        await limiter.acquire_capacity({"requests": 1, "tokens": 600}, model="model", timeout=0)
    assert cell(SETTLED, "token-throttle") == cell(SETTLED, OURS) == YES


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
    with ThreadPoolExecutor(4) as pool:
        granted = sum(bool(call.result()) for call in [pool.submit(take) for _ in range(200)])
    # pyrate-limiter rejects while another thread is in it, however much is left.
    granted += sum(bool(take()) for _ in range(100))
    # token-throttle earns a token in 0.6 s, which a busy machine may take.
    assert 100 <= granted < 120
    assert (cell(THREADS, column), cell(THREADS, OURS)) == (YES, NO)


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

"""`SQLiteStore`: one file of a machine; locks, a full disk, forks and wrong files."""

import asyncio
import gc
import math
import multiprocessing
import os
import sqlite3
import sys
import threading
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Generator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from aiothrottle import SlidingWindowLog, StoreUnavailable, TokenBucket
from aiothrottle.stores import SQLiteStore
from aiothrottle.testing.store_contract import ManualClock
from tests.support.background import ENVIRONMENT

HOURLY = SlidingWindowLog("1000/h")
TIMEOUT = 0.3


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "limits.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SQLiteStore]:
    store = SQLiteStore(path, timeout=TIMEOUT)
    yield store
    await store.aclose()


@contextmanager
def locked(path: Path) -> Generator[None]:
    """Lock the file against changes, as another program."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield


def files(path: Path) -> list[str]:
    return [each.name for each in path.parent.iterdir()]


def remove(path: Path) -> None:
    path.unlink()


def allow(path: Path, mode: int) -> None:
    path.chmod(mode)


def rows(path: Path) -> list[Any]:
    with closing(sqlite3.connect(path)) as other:
        return other.execute("SELECT * FROM aiothrottle").fetchall()


async def spent(store: SQLiteStore, key: str = "key") -> float:
    return 1000 - (await store.peek(key, HOURLY)).remaining


# ---- the file ------------------------------------------------------------------------------------


async def test_expired_records_give_way_to_others(path: Path) -> None:
    clock = ManualClock()
    store = SQLiteStore(path, clock=clock)
    for number in range(200):
        await store.record(str(number), SlidingWindowLog("10/s"))
        clock.advance(0.1)  # ten keys in a second
    clock.advance(1.5)
    assert (await store.reserve("199", TokenBucket("10/s"), [1])).instants
    await store.aclose()
    assert len(rows(path)) <= 20


async def test_record_without_spent_tokens_is_deleted(store: SQLiteStore, path: Path) -> None:
    (instant,) = (await store.reserve("key", TokenBucket("1/s"), [1])).instants
    await store.refund("key", TokenBucket("1/s"), 1, instant)
    assert rows(path) == []


async def test_log_of_changes_shrinks_after_a_long_read(store: SQLiteStore, path: Path) -> None:
    many, log = SlidingWindowLog("20000/h"), Path(f"{path}-wal")
    await store.reserve("key", many, [1] * 10_000)
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM aiothrottle").fetchall()
        while log.stat().st_size < 5_000_000:  # noqa: ASYNC240 - it is short
            await store.record("key", many)
    for _ in range(20):
        await store.record("key", many)
    assert log.stat().st_size <= 4_000_000  # noqa: ASYNC240


async def test_relative_path_is_that_of_the_first_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = SQLiteStore("limits.db")
    monkeypatch.chdir("/")
    await store.record("key", HOURLY)
    await store.aclose()
    assert (tmp_path / "limits.db").is_file()


async def test_closed_file_is_opened_again(store: SQLiteStore, path: Path) -> None:
    await store.aclose()
    assert not files(path)
    await store.record("key", HOURLY)
    await store.aclose()
    await store.aclose()
    assert files(path) == ["limits.db"]
    assert await spent(store) == 1


async def test_dropped_store_ends_its_thread(path: Path) -> None:
    def threads() -> set[threading.Thread]:
        return {each for each in threading.enumerate() if each.name == "SQLite"}

    before = threads()
    store = SQLiteStore(path)
    await store.record("key", HOURLY)
    (thread,) = threads() - before
    del store
    gc.collect()
    while thread.is_alive():  # noqa: ASYNC110 - ended by the timeout of the test
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("replace", [True, False])
async def test_removed_file_is_forgotten_by_all(
    store: SQLiteStore, path: Path, *, replace: bool
) -> None:
    other = SQLiteStore(path)
    for each in (store, other):
        await each.record("key", HOURLY)
    remove(path)
    if replace:
        new = SQLiteStore(path)
        await new.record("key", HOURLY, 5)
        await new.aclose()
    for each in (store, other, store):
        await each.record("key", HOURLY)
    assert await spent(store) == await spent(other) == 3 + 5 * replace
    await other.aclose()
    assert await spent(store) == 3 + 5 * replace


async def test_removed_file_of_an_idle_process_blocks_no_other(
    store: SQLiteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiothrottle.stores.sqlite._IDLE", 0.2)
    await store.record("key", HOURLY)
    remove(path)
    assert await output_of(RECORD, path) == "1000 1\n"


async def test_removed_table_is_made_again(store: SQLiteStore, path: Path) -> None:
    await store.record("key", HOURLY)
    with closing(sqlite3.connect(path)) as other:
        other.execute("DROP TABLE aiothrottle")
    with pytest.raises(StoreUnavailable, match="no such table"):
        await store.record("key", HOURLY)
    await store.record("key", HOURLY)
    assert await spent(store) == 1


async def test_value_of_another_program_counts_as_spent(store: SQLiteStore, path: Path) -> None:
    for wrong in ("data = 'text'", "data = x'00'", "data = 7", "until = 'text'"):
        await store.record("key", HOURLY)
        with closing(sqlite3.connect(path)) as other, other:
            other.execute(f"UPDATE aiothrottle SET {wrong}")
        assert not (await store.reserve("key", HOURLY, [1])).instants
        assert await spent(store) == 1000
        await store.clear("key")


# ---- wrong files ---------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", ["", ":memory:"])
def test_path_of_no_file_is_rejected(wrong: str) -> None:
    with pytest.raises(ValueError, match=f"path must be that of a file, got '{wrong}'"):
        SQLiteStore(wrong)
    make: Any = SQLiteStore
    with pytest.raises(TypeError):
        make()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("folder", "it is a folder, not a file"),
        ("no/limits.db", "{folder}/no is no folder in which this process may write"),
        ("text", "file is not a database"),
    ],
)
async def test_wrong_file_is_an_outage_with_its_reason(
    tmp_path: Path, name: str, reason: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "text").write_text("This is a text, and not the file of a database.\n" * 99)
    store = SQLiteStore(tmp_path / name)
    for key in ("ann", "bob"):
        with pytest.raises(StoreUnavailable) as caught:
            await store.record(key, HOURLY)
        why = reason.format(folder=tmp_path)
        assert str(caught.value) == f"SQLite {tmp_path / name}: {why} (key {key!r})"
        assert caught.value.__cause__ is not None
    await store.aclose()


READ_ONLY = """
import asyncio, os, sys
import urllib.parse  # for `Path.as_uri`: later the standard library may not be readable
from aiothrottle import SlidingWindowLog
from aiothrottle.stores import SQLiteStore

async def main(path):
    store = SQLiteStore(path)
    if os.geteuid() == 0:  # root may write anything
        os.setgid(65534)
        os.setuid(65534)
    try:
        await store.record("key", SlidingWindowLog(1))
    except Exception as error:
        print(type(error).__name__, error)
"""

BEGIN = """
import asyncio, resource, sys
from aiothrottle import SlidingWindowLog, StoreUnavailable
from aiothrottle.stores import SQLiteStore

async def main(path):
    store, hourly = SQLiteStore(path), SlidingWindowLog("1000/h")
"""

RECORD = """
    before = None
    while before is None:
        try:
            before = await store.peek("key", hourly)
        except StoreUnavailable:
            await asyncio.sleep(0.1)
    await store.record("key", hourly)
    print(f"{before.remaining:g} {1000 - (await store.peek('key', hourly)).remaining:g}")
"""

FULL = """
    await store.record("first", hourly)
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, most))
    taken = 0
    try:
        while True:
            taken += len((await store.reserve("key", hourly, [1])).instants)
    except StoreUnavailable as error:
        print(error)
    assert (await store.peek("key", hourly)).remaining == 1000 - taken
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    await store.record("key", hourly)
    assert (await store.peek("key", hourly)).remaining == 1000 - taken - 1
    assert (await store.peek("first", hourly)).remaining == 999
    print("as before")
"""


async def output_of(program: str, path: Path) -> str:
    """Run a program on the file, and return what it prints."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", f"{BEGIN}{program}\nasyncio.run(main(sys.argv[1]))", str(path)),
        env=ENVIRONMENT,
        stdout=PIPE,
    )
    return (await process.communicate())[0].decode()


async def test_file_without_write_permission_is_an_outage() -> None:
    """Outside of the folders of the tests, which are only for their user."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "limits.db")
        sqlite3.connect(path).close()
        allow(path, 0o444)
        allow(path.parent, 0o777)
        file = await output_of(READ_ONLY, path)
        allow(path.parent, 0o555)
        both = await output_of(READ_ONLY, path)
        allow(path.parent, 0o755)
    of_store = f"StoreUnavailable SQLite {path}: "
    assert file == f"{of_store}attempt to write a readonly database (key 'key')\n"
    assert both == f"{of_store}{folder} is no folder in which this process may write (key 'key')\n"


async def test_full_disk_is_an_outage_that_spends_nothing(path: Path) -> None:
    first, *rest = (await output_of(FULL, path)).splitlines()
    assert first.startswith(f"SQLite {path}: ")
    assert first.endswith("(key 'key')")
    assert "full" in first or "disk I/O error" in first
    assert rest == ["as before"]


# ---- locks ---------------------------------------------------------------------------------------


async def test_locked_file_is_an_outage_within_the_timeout(store: SQLiteStore, path: Path) -> None:
    await store.record("key", HOURLY)
    loop, begun, late = asyncio.get_running_loop(), time.monotonic(), list[float]()

    async def tick() -> None:
        while True:
            due = loop.time() + 0.01
            await asyncio.sleep(0.01)
            late.append(loop.time() - due)

    ticking = asyncio.create_task(tick())
    with locked(path):
        failing = [store.record(f"{n}", HOURLY) for n in range(100)]
        errors = await asyncio.gather(*failing, return_exceptions=True)
        assert time.monotonic() - begun < 4 * TIMEOUT
        assert await spent(store) == 1  # reading needs no lock
    ticking.cancel()
    assert str(errors[0]) == f"SQLite {path}: database is locked (key '0')"
    assert {type(error) for error in errors} == {StoreUnavailable}
    assert max(late) < TIMEOUT / 2
    await store.record("key", HOURLY)
    assert await spent(store) == 2


async def test_statement_that_fails_ends_its_batch_and_spoils_none_before(
    store: SQLiteStore,
) -> None:
    await store.swap("b", None, b"old", 60.0)
    _, *batch = await asyncio.gather(
        *(store.load("b"), store.load("b"), store.load("b")),
        store.swap("b", b"old", b"new", math.nan),  # NaN is NULL, which the table forbids
        store.swap("a", None, b"new", 60.0),  # the last change is the first of the batch
        return_exceptions=True,
    )
    *others, first = batch
    assert first is True
    assert [type(each) for each in others] == [StoreUnavailable] * 3
    assert (await store.load("b"))[0] == b"old"


@pytest.mark.parametrize("is_open", [True, False])
async def test_short_lock_is_waited_for(path: Path, *, is_open: bool) -> None:
    store, impatient = SQLiteStore(path, timeout=5.0), SQLiteStore(path, timeout=0.1)
    if is_open:
        await store.record("key", HOURLY)
    with locked(path):
        with pytest.raises(StoreUnavailable, match="database is locked"):
            await impatient.record("key", HOURLY)
        waiting = asyncio.create_task(store.record("key", HOURLY))
        await asyncio.sleep(0.1)
        assert not waiting.done()
    await waiting
    assert await spent(store) == 1 + is_open
    await store.aclose()
    await impatient.aclose()


# ---- several threads, and forks ------------------------------------------------------------------


async def many(store: SQLiteStore, count: int = 20) -> None:
    await asyncio.gather(*(store.record("key", HOURLY) for _ in range(count)))


async def test_loops_of_several_threads_share_a_store(store: SQLiteStore) -> None:
    threads = [threading.Thread(target=lambda: asyncio.run(many(store))) for _ in range(4)]
    for thread in threads:
        thread.start()
    await many(store)
    for thread in threads:
        await asyncio.to_thread(thread.join)
    assert await spent(store) == 100


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_forked_processes_share_the_file_when_their_parent_has_closed_it(path: Path) -> None:
    store = SQLiteStore(path)
    asyncio.run(many(store))
    fork: Any = multiprocessing.get_context("fork")
    opened, go = fork.Barrier(3), fork.Event()

    def child() -> None:
        asyncio.run(many(store))
        opened.wait()
        go.wait()
        asyncio.run(many(store))

    children = [fork.Process(target=child) for _ in range(2)]
    for each in children:
        each.start()
    asyncio.run(many(store))
    opened.wait()
    asyncio.run(store.aclose())
    before_and_after = asyncio.run(output_of(RECORD, path))
    go.set()
    for each in children:
        each.join()
        assert each.exitcode == 0
    assert before_and_after == "920 81\n"
    assert asyncio.run(spent(store)) == 121
    asyncio.run(store.aclose())


# ---- cancellation --------------------------------------------------------------------------------


async def test_cancelled_calls_harm_no_others(store: SQLiteStore) -> None:
    tasks = [asyncio.create_task(store.record(f"{n}", HOURLY, n)) for n in range(1, 100)]
    for task in tasks[::3]:
        await asyncio.sleep(0)
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for n in range(1, 100):
        assert await spent(store, f"{n}") in ({0, n} if n % 3 == 1 else {n})


async def test_cancelled_wait_for_a_lock_ends_at_once(store: SQLiteStore, path: Path) -> None:
    await store.record("key", HOURLY)
    with locked(path):
        waiting = asyncio.create_task(store.record("key", HOURLY))
        await asyncio.sleep(0.05)
        begun = time.monotonic()
        waiting.cancel()
        closing_down = asyncio.create_task(store.aclose())
        await asyncio.wait([waiting])
        assert time.monotonic() - begun < TIMEOUT / 2
        assert waiting.cancelled()
        closing_down.cancel()
    await many(store, 3)
    assert await spent(store) in {4, 5}  # it is not known whether the call was executed


async def test_file_that_was_away_is_used_again(tmp_path: Path) -> None:
    folder, away = tmp_path / "disk", tmp_path / "away"
    folder.mkdir()
    store = SQLiteStore(folder / "limits.db")
    await store.record("key", HOURLY)
    folder.rename(away)
    with pytest.raises(StoreUnavailable):
        await store.record("key", HOURLY)
    away.rename(folder)
    assert await spent(store) == 1
    await store.aclose()

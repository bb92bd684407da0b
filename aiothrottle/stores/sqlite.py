"""Limits in a file, for the processes of one machine: SQLite by compare and swap, without a server.

Strategy. A store has one thread, which has the connection and executes statements in batches, so
the event loop never waits for the disk or for a lock. Each change is a single statement, and so a
transaction: SQLite takes and releases its lock while this process does not hold the interpreter's.
A transaction of several statements would keep all other processes waiting while Python code runs.

Invariant: the connection is a local variable of the thread. So nothing else uses or closes it, and
a forked process, which has no such thread, opens its own. It is closed before the fork: the child
would believe that it has the locks of its parent, and both would change the file at once.
"""

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias
from weakref import WeakSet

from aiothrottle._checks import check_number
from aiothrottle.stores.calls import Calls
from aiothrottle.stores.record import machine_time
from aiothrottle.stores.store import Key, name_of
from aiothrottle.stores.swap import Loaded, SwapStore

# A statement and its parameters; the rows that it yields, and how many it changed.
_Statement: TypeAlias = tuple[str, dict[str, Any]]
_Result: TypeAlias = tuple[list[tuple[Any, ...]], int]
_Batch: TypeAlias = tuple[list[_Statement] | None, Future[list[Any]]]

# Of the timeout. SQLite waits so long for a lock: its error is there before the timeout.
_PATIENCE = 0.8
_PAUSE = 0.005  # seconds
# Seconds without a call after which the file is closed. If it was removed while it was open here,
# other processes cannot use the new one until then: SQLite finds its shared memory by the path.
_IDLE = 2.0
# The most statements for which the event loop and the thread wake each other once.
_BATCH = 16
# After a power failure the file lacks the latest changes, but is sound. The log of changes grows
# while processes read it all the time; after that SQLite would keep its size.
_SCHEMA = """
PRAGMA journal_mode = WAL;
PRAGMA journal_size_limit = 4000000;
PRAGMA synchronous = NORMAL;
CREATE TABLE IF NOT EXISTS aiothrottle
    (name TEXT PRIMARY KEY, data BLOB NOT NULL, until REAL NOT NULL);
CREATE INDEX IF NOT EXISTS aiothrottle_until ON aiothrottle (until);
"""
_LOAD = "SELECT data, until FROM aiothrottle WHERE name = :name"
_INSERT = "INSERT OR IGNORE INTO aiothrottle VALUES (:name, :data, :until)"
_UPDATE = "UPDATE aiothrottle SET data = :data, until = :until WHERE name = :name AND data = :mark"
_DELETE = "DELETE FROM aiothrottle WHERE name = :name AND data = :mark"
_CLEAR = "DELETE FROM aiothrottle WHERE name = :name"
# After each new record: two, so that the expired ones become fewer.
_PURGE = """DELETE FROM aiothrottle WHERE rowid IN
    (SELECT rowid FROM aiothrottle WHERE until <= :now ORDER BY until LIMIT 2)"""


class SQLiteStore(SwapStore):
    """Keeps the records in a file, which the processes of one machine share. It needs no server.

    The clock of the machine counts. A network file system does not do: SQLite cannot share a file
    between machines. A killed process leaves the file sound. New records take the place of expired
    ones, so the file grows no larger than the most records at a time.

    The file is opened by the first call, and made if it is missing, by any number of processes at
    once. SQLite keeps two more files beside it, with ``-wal`` and ``-shm`` behind its name. The
    file is closed after two seconds without a call, and before a fork; `aclose` does it at once.

    Args:
        path: The file, in a folder that exists. Give it to nothing else.
        timeout: Seconds after which a call is given up, such as while another program has locked
            the file. They begin when the call is executed; others queue.
        clock: For tests: returns the time in seconds.

    Raises:
        TypeError: The path is no path, or the timeout no number.
        ValueError: The path is empty or ":memory:", or the timeout is not above zero.

    >>> store = SQLiteStore("limits.db")
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        timeout: float = 1.0,
        clock: Callable[[], float] | None = None,
    ) -> None:
        #: The batches for the thread of each process: a fork has those of its parent, too.
        self._threads: dict[int, SimpleQueue[_Batch]] = {}
        check_number("timeout", timeout, "seconds", above=0)
        if os.fspath(path) in {"", ":memory:"}:
            raise ValueError(f"path must be that of a file, got {path!r}; see also MemoryStore")
        self._path = Path(path).absolute()  # the process may change its folder
        self._patience = _PATIENCE * timeout
        self._clock = clock or machine_time
        server = f"SQLite {self._path}"
        self._calls = Calls[_Statement](server, self._send, limit=1, batch=_BATCH, timeout=timeout)
        _stores.add(self)

    async def aclose(self) -> None:
        """Close the file. A later call opens it again."""
        if ended := self._end():
            await asyncio.shield(asyncio.wrap_future(ended))

    def __del__(self) -> None:
        if hasattr(self, "_threads"):  # not after a wrong call
            self._end()

    def _end(self) -> "Future[Any] | None":
        """End the thread of this process, if there is one, after its batches so far."""
        if (batches := self._threads.pop(os.getpid(), None)) is None:
            return None
        batches.put((None, ended := Future[Any]()))
        return ended

    async def clear(self, key: Key) -> None:
        """Forget the record of the key."""
        await self._ask(key, _CLEAR)

    async def load(self, key: Key) -> Loaded:
        """Return the bytes of the record, the same as their mark, and the time of this machine."""
        rows, _ = await self._ask(key, _LOAD)
        now = self._clock()
        for data, until in rows:
            # Anything else is of another program: a damaged record, which is replaced.
            if not (isinstance(data, bytes) and isinstance(until, float)):
                return b"", data, now
            return data if until > now else None, data, now
        return None, None, now

    async def swap(self, key: Key, mark: Any, data: bytes | None, seconds: float) -> bool:  # noqa: ANN401 - of another program
        """Replace the bytes of the record by `data` if they still are what the mark is."""
        now = self._clock()
        statement = _DELETE if data is None else _INSERT if mark is None else _UPDATE
        _, changed = await self._ask(key, statement, mark=mark, data=data, until=now + seconds)
        if changed and statement is _INSERT:
            await self._ask(key, _PURGE, now=now)
        return bool(changed)

    async def _ask(self, key: Key, statement: str, **parameters: object) -> _Result:
        """Execute the statement; `:name` in it is that of the key."""
        parameters["name"] = name_of(key)
        # A change is first: what was loaded is soon out of date.
        first = statement is not _LOAD
        result: _Result = await self._calls.ask((statement, parameters), first=first)
        return result

    async def _send(self, statements: list[_Statement]) -> list[Any]:
        # In one step: another loop, in a thread of its own, may call at the same time.
        batches = self._threads.setdefault(os.getpid(), new := SimpleQueue[_Batch]())
        if batches is new:
            # A daemon: the process may end at any time, and the file is sound.
            arguments = (self._path, self._patience, batches)
            threading.Thread(target=_run, args=arguments, name="SQLite", daemon=True).start()
        future = Future[list[Any]]()
        batches.put((statements, future))
        return await asyncio.wrap_future(future)


_stores = WeakSet[SQLiteStore]()


def _close_all() -> None:
    wait([ended for store in list(_stores) if (ended := store._end())])


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_close_all)


def _run(path: Path, patience: float, batches: "SimpleQueue[_Batch]") -> None:
    """Open the file, and execute the batches, until one has None in place of its statements."""
    connection, opened = None, 0
    while True:
        try:
            statements, future = batches.get(timeout=_IDLE if connection else None)
        except Empty:
            assert connection is not None
            connection.close()
            connection = None
            continue
        if statements is None:
            break
        if future.set_running_or_notify_cancel():
            try:
                # If it was removed or replaced, other processes have the new file.
                if connection is None or not opened or opened != _inode(path):
                    if connection is not None:
                        connection.close()
                    connection, opened = None, 0  # also if the file cannot be opened now
                    connection = _connect(path, patience)
                    _prepare(connection, patience)
                    opened = _inode(path)
                future.set_result(_execute(connection, statements))
            except Exception as error:  # noqa: BLE001 - the caller gets it
                opened = 0  # so that the next call makes the table anew, if it is missing
                future.set_exception(error)
        del statements, future  # while it waits it keeps nothing alive
    if connection is not None:
        connection.close()
    future.set_result([])


def _inode(path: Path) -> int:
    return path.stat().st_ino if path.exists() else 0


def _connect(path: Path, patience: float) -> sqlite3.Connection:
    if path.is_dir():
        raise OSError("it is a folder, not a file")
    if not os.access(path.parent, os.W_OK):
        raise OSError(f"{path.parent} is no folder in which this process may write")
    return sqlite3.connect(path, timeout=patience, isolation_level=None)


def _prepare(connection: sqlite3.Connection, patience: float) -> None:
    """Make the table. SQLite itself does not wait while another process changes the mode."""
    end = time.monotonic() + patience
    while True:
        try:
            connection.executescript(_SCHEMA)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > end:
                raise
            time.sleep(_PAUSE)
        else:
            return


def _execute(connection: sqlite3.Connection, statements: list[_Statement]) -> list[Any]:
    """Execute the statements. Those after one that fails are not: each would wait as long."""
    results: list[_Result | sqlite3.Error] = []
    try:
        for statement in statements:
            cursor = connection.execute(*statement)
            results.append((cursor.fetchall(), cursor.rowcount))
    except sqlite3.Error as error:
        if not results:
            raise
        results += [error] * (len(statements) - len(results))
    return results

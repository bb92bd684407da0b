"""Limits in MongoDB, on the server's clock: by compare and swap, and `WaitUntil` in one call."""

import math
import secrets
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple, TypeAlias, cast

try:
    from pymongo import AsyncMongoClient, ReturnDocument
except ModuleNotFoundError as _error:
    raise ModuleNotFoundError(
        "pymongo is not there: pip install 'aiothrottle-client[mongodb]'", name="pymongo"
    ) from _error
from pymongo.errors import DuplicateKeyError

from aiothrottle._checks import check_number, shown
from aiothrottle.algorithms import Algorithm, WaitUntil
from aiothrottle.stores.calls import Calls, send_alone
from aiothrottle.stores.mongo_wait_until import (
    SEAL,
    SOUND,
    answer_of,
    bytes_of,
    fields_of,
    fresh,
    move,
)
from aiothrottle.stores.record import EPOCH
from aiothrottle.stores.slots import slots_key
from aiothrottle.stores.store import Answer, Key, Step, name_of
from aiothrottle.stores.swap import Loaded, SwapStore

__all__ = ["MongoStore"]

_Document: TypeAlias = dict[str, Any]

_SINCE = datetime.fromtimestamp(EPOCH, UTC)
_LONGEST = 3e9  # seconds: a hundred years
# The most calls under way at a time.
_CALLS = 16


class MongoStore(SwapStore):
    """Keeps the records in a collection of MongoDB 4.4 or later, each in a document of its own.

    The key is the document's ``_id``, which is unique, so any number of processes may begin with
    the same key at once. The server removes expired records about once a minute, by an index that
    the first call makes; `purge` removes them at once.

    A reservation of one cost with `WaitUntil` is one call: an update that the server computes.
    Everything else is done by compare and swap.

    Args:
        client: An `AsyncMongoClient`. With ``retryWrites=False`` it sends nothing twice.
        database: The name of the database.
        collection: The name of the collection.
        timeout: Seconds after which a call is given up, whatever the timeouts of the client. They
            begin when the call is sent: at most sixteen are under way at a time, others queue.
        clock: For tests: returns the time in seconds in place of the server. Nothing expires then.

    Raises:
        TypeError: The client is not an `AsyncMongoClient`, or the timeout is not a number.
        ValueError: The timeout is not above zero.

    >>> from pymongo import AsyncMongoClient
    >>> async def make():
    ...     return MongoStore(AsyncMongoClient(retryWrites=False), database="crawler")
    """

    __slots__ = ("_calls", "_client", "_clock", "_records")

    def __init__(
        self,
        client: AsyncMongoClient[Any],
        database: str = "aiothrottle",
        *,
        collection: str = "limits",
        timeout: float = 1.0,
        clock: Callable[[], float] | None = None,
    ) -> None:
        if not isinstance(client, AsyncMongoClient):
            raise TypeError(f"client is a pymongo.AsyncMongoClient, not {shown(client)}")
        check_number("timeout", timeout, "seconds", above=0)
        self._client = client
        self._records = client[database][collection]
        self._clock = clock
        most = client.options.pool_options.max_pool_size or math.inf
        self._calls = Calls[Callable[[], Awaitable[Any]]](
            "MongoDB",
            send_alone,
            limit=int(min(_CALLS, most)),
            timeout=timeout,
            prepare=self._make_index,
            hint=self._trouble,
        )

    async def _execute(self, key: Key, algorithm: Algorithm[Any], step: Step) -> Answer:
        if type(algorithm) is WaitUntil and step.method == "reserve" and len(step.costs) == 1:
            (cost,) = step.costs
            if 0 < cost <= algorithm.capacity:
                answer = await self._move(key, algorithm, cost, step.seconds)
                if answer is not None:
                    return answer
        return await super()._execute(key, algorithm, step)

    async def _move(
        self, key: Key, algorithm: WaitUntil, cost: float, horizon: float
    ) -> Answer | None:
        """Reserve in one call; None if the record is of another algorithm, or damaged."""
        name, mark = name_of(key), secrets.token_bytes(8)
        this = {"_id": name, **SOUND}
        for _ in range(2):
            clock = None if self._clock is None else self._clock()
            steps = move(algorithm, cost, horizon, mark=mark, clock=clock)
            update = partial(
                self._records.find_one_and_update,
                *(this, steps),
                return_document=ReturnDocument.AFTER,
            )
            found: _Document | None = await self._calls.ask(update)
            if found is not None:
                return answer_of(algorithm, found)
            # No upsert: of several first calls all but one could fail.
            await self._insert(fresh(name, mark))
        return None

    async def clear(self, key: Key) -> None:
        """Forget the record of the key, and its slots."""
        both = {"$in": [name_of(key), name_of(slots_key(key))]}
        await self._calls.ask(partial(self._records.delete_many, {"_id": both}))

    async def purge(self) -> int:
        """Delete the expired records. Return how many there were."""
        expired: _Document = {"expires": {"$lt": await self._time()}}
        deleted = await self._calls.ask(partial(self._records.delete_many, expired))
        return int(deleted.deleted_count)

    async def load(self, key: Key) -> Loaded:
        """Return the bytes of the record, its mark, and the server's time."""
        found: list[_Document] = await self._calls.ask(partial(self._find, name_of(key)))
        if not found:
            time = await self._time()
            return None, _Mark(None, time, exists=False), self._seconds(time)
        (record,) = found
        time = record["now"]
        data = bytes_of(record) if "level" in record else record.get("data")
        if not isinstance(data, bytes):
            data = b""  # no record has no bytes: it is replaced, whatever its mark
        return data, _Mark(record.get("mark"), time, exists=True), self._seconds(time)

    async def swap(self, key: Key, mark: "_Mark", data: bytes | None, seconds: float) -> bool:
        """Replace the bytes of the record by `data` if it still has the mark."""
        name = name_of(key)
        this = {"_id": name, "mark": mark.written}
        if data is None:
            delete = partial(self._records.delete_one, this)
            return bool((await self._calls.ask(delete, first=True)).deleted_count)
        fields = fields_of(data) if data.startswith(SEAL) else {"data": data}
        record: _Document = {**fields, "mark": secrets.token_bytes(8)}
        if self._clock is None:
            record["expires"] = mark.time + timedelta(seconds=min(seconds, _LONGEST))
        if mark.exists:
            # All of it: a field that no store has written must not stay.
            replace = partial(self._records.replace_one, this, record)
            # What was loaded is soon out of date: no other call is sent before.
            return bool((await self._calls.ask(replace, first=True)).matched_count)
        return await self._insert({"_id": name, **record})

    async def _make_index(self) -> None:
        """Make the index, once, before the first call."""
        await self._records.create_index("expires", expireAfterSeconds=0)

    async def _insert(self, record: _Document) -> bool:
        """Insert the first record of a key; return False if another process was faster."""

        async def insert() -> bool:
            try:
                await self._records.insert_one(record)
            except DuplicateKeyError:
                return False
            return True

        return bool(await self._calls.ask(insert, first=True))

    async def _find(self, name: str) -> list[_Document]:
        """Find the record, and the time with it, which a plain `find` does not return."""
        cursor = await self._records.aggregate(
            [{"$match": {"_id": name}}, {"$set": {"now": "$$NOW"}}]
        )
        return await cursor.to_list()

    async def _time(self) -> datetime:
        """Ask the server for the time."""
        hello = await self._calls.ask(partial(self._records.database.command, "hello"))
        return cast("datetime", hello["localTime"])

    def _seconds(self, time: datetime) -> float:
        if self._clock is not None:
            return self._clock()
        return (time.replace(tzinfo=UTC) - _SINCE).total_seconds()

    def _trouble(self) -> str:
        """Return why the client finds no server: it raises that only after its own timeout."""
        servers = self._client.topology_description.server_descriptions().values()
        return "; ".join({str(server.error) for server in servers if server.error})


class _Mark(NamedTuple):
    """The mark that was written last, None if there is none; and the server's time of it."""

    written: Any
    time: datetime
    #: Whether there is a document; a damaged one may have any mark, or none.
    exists: bool

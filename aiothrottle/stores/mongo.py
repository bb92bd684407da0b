"""Limits in MongoDB, on the server's clock: by compare and swap, and `WaitUntil` in one call.

For `WaitUntil` the server does what `Record` does to such a record, as a pipeline of an update: one
call, atomic, on its clock. All other algorithms and methods use the record as bytes.

Invariant: the document and the bytes of a record have the same numbers.
"""

import math
import secrets
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple, TypeAlias, cast

from aiothrottle._lazy import needs

with needs("pymongo", extra="mongodb"):
    from pymongo import AsyncMongoClient, ReadPreference, ReturnDocument
from bson.codec_options import CodecOptions
from pymongo.errors import DuplicateKeyError
from pymongo.write_concern import WriteConcern

from aiothrottle._checks import check_number, shown
from aiothrottle.algorithms import Algorithm, WaitUntil
from aiothrottle.algorithms.level import ROUNDING, Level
from aiothrottle.algorithms.protocol import LATEST, until
from aiothrottle.stores.calls import Calls, send_alone
from aiothrottle.stores.record import EPOCH, HEAD, Record, seal
from aiothrottle.stores.store import Answer, Key, Step, name_of
from aiothrottle.stores.swap import Loaded, SwapStore

__all__ = ["MongoStore"]

_Document: TypeAlias = dict[str, Any]

_SINCE = datetime.fromtimestamp(EPOCH, UTC)
_LONGEST = 3e9  # seconds: a hundred years
# The most calls under way at a time.
_CALLS = 16

_ANY = WaitUntil(1, 1, 1)  # the numbers are not in the bytes
# The `seal` of such a document.
_SEAL = seal(_ANY)
# The filter of documents that the server may update. The others are loaded, and replaced.
_TIME: _Document = {"$gte": -LATEST, "$lte": LATEST}
_SOUND: _Document = {"seal": _SEAL, "level_at": _TIME, "last": _TIME, "seen": _TIME}
_SOUND["level"] = {"$gte": 0.0, "$lt": 2.0**53}
_SOUND["ahead"] = {"$gte": 0.0, "$lte": LATEST}


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
        # The client may read times in another zone, and from a replica, which is late; and its
        # writes may return before it is known whether they found the record.
        options: CodecOptions[_Document] = CodecOptions()
        concern = client.write_concern
        self._records = client[database].get_collection(
            collection,
            options,
            read_preference=ReadPreference.PRIMARY,
            write_concern=concern if concern.acknowledged else WriteConcern(),
        )
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
                answer = await self._reserve_in_one_call(key, algorithm, cost, step.seconds)
                if answer is not None:
                    return answer
        return await super()._execute(key, algorithm, step)

    async def _reserve_in_one_call(
        self, key: Key, algorithm: WaitUntil, cost: float, max_reservation: float
    ) -> Answer | None:
        """Reserve in one call; None if the record is of another algorithm, or damaged."""
        name, mark = name_of(key), secrets.token_bytes(8)
        this = {"_id": name, **_SOUND}
        for _ in range(2):
            clock = None if self._clock is None else self._clock()
            steps = _reservation(algorithm, cost, max_reservation, mark=mark, clock=clock)
            update = partial(
                self._records.find_one_and_update,
                *(this, steps),
                return_document=ReturnDocument.AFTER,
            )
            found: _Document | None = await self._calls.ask(update)
            if found is not None:
                return _answer_of(algorithm, key, found)
            # No upsert: of several first calls all but one could fail.
            await self._insert(_fresh(name, mark))
        return None

    async def clear(self, key: Key) -> None:
        """Forget the record of the key."""
        await self._calls.ask(partial(self._records.delete_one, {"_id": name_of(key)}))

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
        data = _bytes_of(record) if "level" in record else record.get("data")
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
        fields = _fields_of(data) if data.startswith(_SEAL) else {"data": data}
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


# ---- the record of a `WaitUntil` -----------------------------------------------------------------


_NUMBERS = ("seen", "ahead", "last", "level", "level_at")


def _fields_of(data: bytes) -> _Document:
    """Return the fields with the numbers of the bytes of a record."""
    _, *times = HEAD.unpack_from(data)
    state = _ANY.load(data[HEAD.size :])
    return {"seal": _SEAL, **dict(zip(_NUMBERS, (*times, state.tokens, state.at), strict=True))}


def _bytes_of(document: _Document) -> bytes:
    """Return the bytes of the record with these fields; none if one is missing, or no number."""
    numbers = [document.get(name) for name in _NUMBERS]
    if not all(type(each) in {float, int} for each in numbers):
        return b""
    *times, level, at = cast("list[float]", numbers)
    return HEAD.pack(_SEAL, *times) + _ANY.dump(Level(level, at, since=at))


def _answer_of(algorithm: WaitUntil, key: Key, document: _Document) -> Answer:
    """Return the answer to a reservation, from the updated document, which was sound before."""
    record = Record.load(algorithm, key, _bytes_of(document))
    now, at, granted = document["now"], document["ready_at"], document["granted"]
    wait = 0.0 if granted else until(at, now)
    return record.answer(algorithm, now, (at,) if granted else (), wait)


def _reservation(
    algorithm: WaitUntil, cost: float, max_reservation: float, *, mark: bytes, clock: float | None
) -> list[_Document]:
    """Return the update that reserves the cost if it can be taken within the longest reservation.

    Args:
        algorithm: The algorithm.
        cost: Tokens.
        max_reservation: Seconds.
        mark: The new mark of the document.
        clock: The time in seconds in place of the server's; nothing expires then.
    """
    seconds: Any = clock
    if clock is None:
        seconds = {"$divide": [{"$subtract": [{"$toLong": "$$NOW"}, 1000 * EPOCH]}, 1000.0]}
    interval, counts = algorithm.interval, algorithm.max_wait <= max_reservation

    def level_at(instant: str) -> _Document:
        passed = {"$divide": [{"$subtract": [instant, "$level_at"]}, interval]}
        return {"$max": [0.0, {"$subtract": ["$level", passed]}]}

    def set_if(condition: Any, **fields: Any) -> _Document:  # noqa: ANN401 - expressions of MongoDB
        cond = {name: {"$cond": [condition, new, f"${name}"]} for name, new in fields.items()}
        return {"$set": cond}

    # A wait of a rounding error is none, as in the algorithm; and a wait is rounded up.
    waits = {"$gt": [level_at("$ready_at"), ROUNDING]}
    drained_at = {"$add": ["$ready_at", {"$multiply": [level_at("$ready_at"), interval]}]}
    later = {"$add": ["$ready_at", {"$multiply": [{"$abs": "$ready_at"}, 2**-52]}]}
    wait = {"$subtract": ["$ready_at", "$now"]}
    stepped_back = {"$lt": [{"$add": ["$clock", "$ahead"]}, "$seen"]}
    moved = {"$max": [0.0, {"$min": [cost, {"$subtract": [algorithm.capacity, "$used"]}]}]}
    level = {"$add": [{"$cond": [{"$gt": ["$at", "$level_at"]}, "$used", "$level"]}, "$moved"]}

    # Each step computes all of its fields from the document before it.
    steps: list[_Document] = [
        {"$set": {"mark": {"$literal": mark}, "clock": seconds}},
        {"$set": {"now": {"$max": [{"$add": ["$clock", "$ahead"]}, "$seen"]}}},
        {"$set": {"ready_at": {"$max": ["$now", "$last"]}}},
        set_if(waits, ready_at=drained_at),
        set_if(waits, ready_at=later),
        {"$set": {"granted": {"$lte": [wait, max_reservation]}}},
        {"$set": {"counts": {"$or": ["$granted", counts]}}},
        # What `Record.take` does with the cost, at once if it is rejected.
        {"$set": {"at": {"$cond": ["$granted", "$ready_at", "$now"]}}},
        {"$set": {"used": level_at("$at")}},
        {"$set": {"moved": {"$cond": ["$counts", moved, 0.0]}}},
        set_if({"$gt": ["$moved", 0.0]}, level=level, level_at={"$max": ["$level_at", "$at"]}),
        set_if("$counts", last={"$max": ["$last", "$at"]}),
        set_if(
            {"$or": ["$counts", stepped_back]},
            ahead={"$max": ["$ahead", {"$subtract": ["$now", "$clock"]}]},
            seen="$now",
        ),
    ]
    if clock is None:
        empty_at = {"$add": ["$level_at", {"$multiply": ["$level", interval]}]}
        reset_after = {"$subtract": [{"$max": [empty_at, "$last"]}, "$now"]}
        milliseconds = {"$toLong": {"$multiply": [1000.0, {"$max": [reset_after, 0.0]}]}}
        steps.append({"$set": {"expires": {"$add": ["$$NOW", milliseconds]}}})
    return steps


def _fresh(name: str, mark: bytes) -> _Document:
    """Return the document of a key that has no record."""
    fields = _fields_of(Record(_ANY.start()).dump(_ANY))
    # Long ago, in place of never: only numbers are sound here.
    fields |= dict.fromkeys(("seen", "last", "level_at"), -LATEST)
    return {"_id": name, "mark": mark, **fields}

"""The record of a `WaitUntil` as a document of MongoDB, which the server itself updates.

What `Record` does to such a record, once more, as a pipeline of an update: one call, atomic, on the
server's clock. All other algorithms and methods use the record as bytes.

Invariant: the document and the bytes of a record have the same numbers.
"""

from typing import Any, TypeAlias, cast

from aiothrottle.algorithms import WaitUntil
from aiothrottle.algorithms.level import ROUNDING, Level
from aiothrottle.algorithms.protocol import LATEST, check_dumped, until
from aiothrottle.stores.record import EPOCH, HEAD, DamagedRecordError, Record, seal
from aiothrottle.stores.store import Answer

__all__ = ["SEAL", "SOUND", "answer_of", "bytes_of", "fields_of", "fresh", "move"]

Document: TypeAlias = dict[str, Any]

_ANY = WaitUntil(1, 1, 1)  # the numbers are not in the bytes
SEAL = seal(_ANY)
"""The `seal` of such a document."""

_TIME: Document = {"$gte": -LATEST, "$lte": LATEST}
SOUND: Document = {"seal": SEAL, "level_at": _TIME, "last": _TIME, "seen": _TIME}
SOUND["level"] = {"$gte": 0.0, "$lt": 2.0**53}
SOUND["ahead"] = {"$gte": 0.0, "$lte": LATEST}
"""The filter of documents that the server may update. The others are loaded, and replaced."""


def fields_of(data: bytes) -> Document:
    """Return the fields with the numbers of the bytes of a record."""
    _, seen, ahead, last = HEAD.unpack_from(data)
    state = _ANY.load(data[HEAD.size :])
    level = {"level": state.tokens, "level_at": state.at}
    return {"seal": SEAL, "seen": seen, "ahead": ahead, "last": last, **level}


def bytes_of(document: Document) -> bytes:
    """Return the bytes of the record that the fields are of; none if they are damaged."""
    try:
        return _record(document).dump(_ANY)
    except DamagedRecordError:
        return b""


def _record(document: Document) -> Record:
    names = ("level", "level_at", "seen", "ahead", "last")
    numbers = [document.get(name) for name in names]
    if not all(type(each) in {float, int} for each in numbers):
        raise DamagedRecordError("a field is missing, or no number")
    level, at, *times = cast("list[float]", numbers)

    def state() -> Level:
        check_dumped(level, "record", least=0.0)
        check_dumped(at, "record", fresh=True)
        return Level(level, at, since=at)

    return Record.restored(_ANY, state, *times)


def answer_of(algorithm: WaitUntil, document: Document) -> Answer:
    """Return the answer to a reservation, from the updated document, which was sound before."""
    record = _record(document)
    now, at, granted = document["now"], document["ready_at"], document["granted"]
    wait = 0.0 if granted else until(at, now)
    return record.answer(algorithm, now, (at,) if granted else (), wait)


def move(
    algorithm: WaitUntil, cost: float, horizon: float, *, mark: bytes, clock: float | None
) -> list[Document]:
    """Return the update that reserves the cost if it can be taken within the horizon.

    Args:
        algorithm: The algorithm.
        cost: Tokens.
        horizon: Seconds.
        mark: The new mark of the document.
        clock: The time in seconds in place of the server's; nothing expires then.
    """
    seconds: Any = clock
    if clock is None:
        seconds = {"$divide": [{"$subtract": [{"$toLong": "$$NOW"}, 1000 * EPOCH]}, 1000.0]}
    interval, counts = algorithm.interval, algorithm.max_wait <= horizon
    ahead = {"$subtract": ["$ready_at", "$now"]}
    passed = {"$divide": [{"$subtract": ["$ready_at", "$level_at"]}, algorithm.interval]}
    level = {"$max": [0.0, {"$subtract": ["$level", passed]}]}
    # A wait of a rounding error is none, as in the algorithm; and a wait is rounded up.
    waits = {"$gt": [level, ROUNDING]}
    drained_at = {"$add": ["$ready_at", {"$multiply": [level, algorithm.interval]}]}
    later = {"$add": ["$ready_at", {"$multiply": [{"$abs": "$ready_at"}, 2**-52]}]}
    moved = {"$max": [level, {"$min": [{"$add": [level, cost]}, algorithm.capacity]}]}

    # What `Record.take` does at once with a cost that is rejected.
    rest = {"$subtract": ["$level", {"$divide": [{"$subtract": ["$now", "$level_at"]}, interval]}]}
    drained = {"$max": [0.0, rest]}
    taken = {"$max": [0.0, {"$min": [cost, {"$subtract": [algorithm.capacity, drained]}]}]}
    later_level = {"$cond": [{"$gt": ["$now", "$level_at"]}, drained, "$level"]}
    raised = {"$add": [later_level, taken]}
    raised_at = {"$cond": [{"$gt": [taken, 0.0]}, {"$max": ["$level_at", "$now"]}, "$level_at"]}

    stepped_back = {"$lt": [{"$add": ["$clock", "$ahead"]}, "$seen"]}

    def set_if(condition: str, **fields: Any) -> Document:  # noqa: ANN401 - expressions of MongoDB
        cond = {name: {"$cond": [condition, new, f"${name}"]} for name, new in fields.items()}
        return {"$set": cond}

    steps: list[Document] = [
        {"$set": {"clock": seconds}},
        {"$set": {"now": {"$max": [{"$add": ["$clock", "$ahead"]}, "$seen"]}}},
        {"$set": {"ready_at": {"$max": ["$now", "$last"]}}},
        {"$set": {"ready_at": {"$cond": [waits, drained_at, "$ready_at"]}}},
        {"$set": {"ready_at": {"$cond": [waits, later, "$ready_at"]}}},
        {"$set": {"granted": {"$lte": [ahead, horizon]}}},
        {"$set": {"rejected": {"$and": [counts, {"$not": ["$granted"]}]}}},
        {"$set": {"seeing": {"$or": ["$granted", "$rejected", stepped_back]}}},
        {"$set": {"mark": {"$literal": mark}}},
        # Each step computes all of its fields from the document before it.
        set_if("$rejected", level=raised, level_at=raised_at, last={"$max": ["$last", "$now"]}),
        set_if(
            "$granted", level=moved, level_at="$ready_at", last={"$max": ["$last", "$ready_at"]}
        ),
        set_if(
            "$seeing", ahead={"$max": ["$ahead", {"$subtract": ["$now", "$clock"]}]}, seen="$now"
        ),
    ]
    if clock is None:
        empty_at = {"$add": ["$level_at", {"$multiply": ["$level", algorithm.interval]}]}
        reset_after = {"$subtract": [{"$max": [empty_at, "$last"]}, "$now"]}
        milliseconds = {"$toLong": {"$multiply": [1000.0, {"$max": [reset_after, 0.0]}]}}
        steps.append({"$set": {"expires": {"$add": ["$$NOW", milliseconds]}}})
    return steps


def fresh(name: str, mark: bytes) -> Document:
    """Return the document of a key that has no record."""
    fields = fields_of(Record(_ANY.start()).dump(_ANY))
    # Long ago, in place of never: only numbers are sound here.
    fields |= dict.fromkeys(("seen", "last", "level_at"), -LATEST)
    return {"_id": name, "mark": mark, **fields}

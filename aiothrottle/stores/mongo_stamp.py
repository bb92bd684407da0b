"""The stamp of `WaitUntil` as a document of MongoDB, which the server itself moves.

What `Record` does to such a record, once more, as a pipeline of an update: one call, atomic, on the
server's clock. All other algorithms, and all other methods, see it as bytes.
"""

import math
from typing import Any, TypeAlias, cast

from aiothrottle.algorithms import WaitUntil
from aiothrottle.algorithms.dumps import check_dumped
from aiothrottle.algorithms.level import ROUNDING, Level
from aiothrottle.algorithms.timestamps import until
from aiothrottle.stores.ledger import EPOCH, HEAD, LATEST, Record, seal
from aiothrottle.stores.store import Answer

__all__ = ["SEAL", "SOUND", "answer_of", "bytes_of", "fields_of", "fresh", "move"]

Document: TypeAlias = dict[str, Any]

_ANY = WaitUntil(1, 1, 1)  # the numbers are not in the bytes
SEAL = seal(_ANY)
"""What such a document has as its `seal`."""

_NUMBER = {"$gte": -math.inf, "$lt": math.inf}
SOUND: Document = {"seal": SEAL, "level_at": _NUMBER, "last": _NUMBER}
SOUND["level"] = {"$gte": 0.0, "$lt": math.inf}
SOUND["seen"] = {"$gte": -math.inf, "$lte": LATEST}
SOUND["ahead"] = {"$gte": 0.0, "$lte": LATEST}
"""What a document matches that the server may move. Others are told of when they are loaded."""


def fields_of(data: bytes) -> Document:
    """Give the fields that stand for the bytes of a record."""
    _, seen, ahead, last = HEAD.unpack_from(data)
    state = _ANY.load(data[HEAD.size :])
    level = {"level": state.tokens, "level_at": state.at}
    return {"seal": SEAL, "seen": seen, "ahead": ahead, "last": last, **level}


def bytes_of(key: object, document: Document) -> bytes:
    """Give the bytes of the record for which the fields stand. Raises what `Record.load` does."""
    return _record(key, document).dump(_ANY)


def _record(key: object, document: Document) -> Record:
    names = ("level", "level_at", "seen", "ahead", "last")
    level, at, *times = (cast("float", document.get(name)) for name in names)

    def state() -> Level:
        check_dumped(level, "record", least=0.0)
        check_dumped(at, "record", fresh=True)
        return Level(level, at, since=at)

    return Record.restored(key, state, *times)


def answer_of(key: object, algorithm: WaitUntil, document: Document) -> Answer:
    """Give the answer to a reservation, from what the update has left.

    Raises:
        ValueError: What was there before is damaged.
    """
    record = _record(key, document)  # which are numbers: so are those that were made of them
    now, at, went = document["now"], document["goes"], document["went"]
    wait = 0.0 if went else until(at, now)
    return record.answer(algorithm, now, (at,) if went else (), wait)


def move(
    algorithm: WaitUntil, cost: float, horizon: float, *, mark: bytes, clock: float | None
) -> list[Document]:
    """Make the update that reserves the cost, if it may go within the horizon.

    ``clock`` stands for that of the server; nothing expires then.
    """
    seconds: Any = clock
    if clock is None:
        seconds = {"$divide": [{"$subtract": [{"$toLong": "$$NOW"}, 1000 * EPOCH]}, 1000.0]}
    interval, counts = algorithm.interval, algorithm.max_wait <= horizon
    ahead = {"$subtract": ["$goes", "$now"]}
    passed = {"$divide": [{"$subtract": ["$goes", "$level_at"]}, algorithm.interval]}
    level = {"$max": [0.0, {"$subtract": ["$level", passed]}]}
    # A wait that is but a rounding is none, as in the algorithm; and it is rounded up.
    waits = {"$gt": [level, ROUNDING]}
    stamp = {"$add": ["$goes", {"$multiply": [level, algorithm.interval]}]}
    later = {"$add": ["$goes", {"$multiply": [{"$abs": "$goes"}, 2**-52]}]}
    moved = {"$max": [level, {"$min": [{"$add": [level, cost]}, algorithm.capacity]}]}

    # What `Record.take` does at once with a cost that is rejected.
    left = {"$subtract": ["$level", {"$divide": [{"$subtract": ["$now", "$level_at"]}, interval]}]}
    drained = {"$max": [0.0, left]}
    charge = {"$max": [0.0, {"$min": [cost, {"$subtract": [algorithm.capacity, drained]}]}]}
    later_level = {"$cond": [{"$gt": ["$now", "$level_at"]}, drained, "$level"]}
    charged = {"$add": [later_level, charge]}
    charged_at = {"$cond": [{"$gt": [charge, 0.0]}, {"$max": ["$level_at", "$now"]}, "$level_at"]}

    stepped_back = {"$lt": [{"$add": ["$clock", "$ahead"]}, "$seen"]}

    def set_if(condition: str, **fields: Any) -> Document:  # noqa: ANN401 - expressions of the server's
        cond = {name: {"$cond": [condition, new, f"${name}"]} for name, new in fields.items()}
        return {"$set": cond}

    steps: list[Document] = [
        {"$set": {"clock": seconds}},
        {"$set": {"now": {"$max": [{"$add": ["$clock", "$ahead"]}, "$seen"]}}},
        {"$set": {"goes": {"$max": ["$now", "$last"]}}},
        {"$set": {"goes": {"$cond": [waits, stamp, "$goes"]}}},
        {"$set": {"goes": {"$cond": [waits, later, "$goes"]}}},
        {"$set": {"went": {"$lte": [ahead, horizon]}}},
        {"$set": {"rejected": {"$and": [counts, {"$not": ["$went"]}]}}},
        {"$set": {"seeing": {"$or": ["$went", "$rejected", stepped_back]}}},
        {"$set": {"mark": {"$literal": mark}}},
        # Both at once: each is reckoned from what was there before.
        set_if("$rejected", level=charged, level_at=charged_at, last={"$max": ["$last", "$now"]}),
        set_if("$went", level=moved, level_at="$goes", last={"$max": ["$last", "$goes"]}),
        set_if(
            "$seeing", ahead={"$max": ["$ahead", {"$subtract": ["$now", "$clock"]}]}, seen="$now"
        ),
    ]
    if clock is None:
        stamp = {"$add": ["$level_at", {"$multiply": ["$level", algorithm.interval]}]}
        over = {"$subtract": [{"$max": [stamp, "$last"]}, "$now"]}
        milliseconds = {"$toLong": {"$multiply": [1000.0, {"$max": [over, 0.0]}]}}
        steps.append({"$set": {"expires": {"$add": ["$$NOW", milliseconds]}}})
    return steps


def fresh(name: str, mark: bytes) -> Document:
    """Make the document of a key that nothing is known of."""
    return {"_id": name, "mark": mark, **fields_of(Record(_ANY.start()).dump(_ANY))}

"""The stamp of `WaitUntil` as a document of MongoDB, which the server itself moves.

What `Record` does to such a record, once more, as a pipeline of an update: one call, atomic, on the
server's clock. All other laws, and all other verbs, see it as bytes.
"""

import math
from typing import Any, TypeAlias, cast

from aiothrottle.algorithms import WaitUntil
from aiothrottle.algorithms.algorithm import check_dumped, until
from aiothrottle.algorithms.wait_until import WaitUntilState
from aiothrottle.stores.ledger import EPOCH, HEAD, LATEST, Record, seal
from aiothrottle.stores.store import Answer

__all__ = ["SEAL", "SOUND", "answer_of", "bytes_of", "fields_of", "fresh", "move"]

Document: TypeAlias = dict[str, Any]

_ANY = WaitUntil(1, 1, 1)  # the numbers are not in the bytes
SEAL = seal(_ANY)
"""What such a document has as its `seal`."""

_NUMBER = {"$gte": -math.inf, "$lt": math.inf}
SOUND: Document = {"seal": SEAL, "stamp": _NUMBER, "last": _NUMBER}
SOUND["seen"] = {"$gte": -math.inf, "$lte": LATEST}
SOUND["ahead"] = {"$gte": 0.0, "$lte": LATEST}
"""What a document matches that the server may move. Others are told of when they are loaded."""


def fields_of(data: bytes) -> Document:
    """Give the fields that stand for the bytes of a record."""
    _, seen, ahead, last = HEAD.unpack_from(data)
    stamp = _ANY.load(data[HEAD.size :]).stamp
    return {"seal": SEAL, "seen": seen, "ahead": ahead, "last": last, "stamp": stamp}


def bytes_of(key: object, document: Document) -> bytes:
    """Give the bytes of the record for which the fields stand. Raises what `Record.load` does."""
    return _record(key, document).dump(_ANY)


def _record(key: object, document: Document) -> Record:
    stamp, *times = (document.get(name) for name in ("stamp", "seen", "ahead", "last"))

    def state() -> WaitUntilState:
        check_dumped(cast("float", stamp), "record", fresh=True)
        return WaitUntilState(cast("float", stamp))

    return Record.restored(key, state, *cast("list[float]", times))


def answer_of(key: object, law: WaitUntil, document: Document) -> Answer:
    """Give the answer to a reservation, from what the update has left.

    Raises:
        ValueError: What was there before is damaged.
    """
    record = _record(key, document)  # which are numbers: so are those that were made of them
    now, at, went = document["now"], document["at"], document["went"]
    wait = 0.0 if went else until(at, now)
    return record.answer(law, now, (at,) if went else (), wait)


def move(
    law: WaitUntil, cost: float, horizon: float, *, mark: bytes, clock: float | None
) -> list[Document]:
    """Make the update that reserves the cost, if it may go within the horizon.

    ``clock`` stands for that of the server; nothing expires then.
    """
    seconds: Any = clock
    if clock is None:
        seconds = {"$divide": [{"$subtract": [{"$toLong": "$$NOW"}, 1000 * EPOCH]}, 1000.0]}
    first = {"$max": ["$now", "$last"]}
    # A wait that is but a rounding is none, as in the law.
    ready = {"$lte": [{"$subtract": ["$stamp", first]}, law._most]}
    behind = {"$add": [{"$max": ["$stamp", "$at"]}, cost * law.interval]}
    moved = {"$max": ["$stamp", {"$min": [behind, {"$add": ["$at", law.limit]}]}]}

    stepped_back = {"$lt": [{"$add": ["$clock", "$ahead"]}, "$seen"]}

    def set_if(condition: str, **fields: Any) -> Document:  # noqa: ANN401 - expressions of the server's
        cond = {name: {"$cond": [condition, new, f"${name}"]} for name, new in fields.items()}
        return {"$set": cond}

    steps: list[Document] = [
        {"$set": {"clock": seconds}},
        {"$set": {"now": {"$max": [{"$add": ["$clock", "$ahead"]}, "$seen"]}}},
        {"$set": {"at": {"$cond": [ready, first, "$stamp"]}}},
        {"$set": {"went": {"$lte": [{"$subtract": ["$at", "$now"]}, horizon]}}},
        {"$set": {"seeing": {"$or": ["$went", stepped_back]}, "mark": {"$literal": mark}}},
        set_if("$went", stamp=moved, last={"$max": ["$last", "$at"]}),
        set_if(
            "$seeing", ahead={"$max": ["$ahead", {"$subtract": ["$now", "$clock"]}]}, seen="$now"
        ),
    ]
    if clock is None:
        over = {"$subtract": [{"$max": ["$stamp", "$last"]}, "$now"]}
        later = {"$toLong": {"$multiply": [1000.0, {"$max": [over, 0.0]}]}}
        steps.append({"$set": {"expires": {"$add": ["$$NOW", later]}}})
    return steps


def fresh(name: str, mark: bytes) -> Document:
    """Make the document of a key that nothing is known of."""
    return {"_id": name, "mark": mark, **fields_of(Record(_ANY.start()).dump(_ANY))}

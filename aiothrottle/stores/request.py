"""What is sent to the scripts of `RedisStore`, and what their replies mean. Does no I/O."""

import os
import pkgutil
import secrets
import struct
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha1
from itertools import count
from typing import Any, NamedTuple

from aiothrottle.algorithms import AllOf, SlidingWindowLog
from aiothrottle.algorithms.algorithm import Algorithm
from aiothrottle.errors import StoreUnavailable
from aiothrottle.stores.ledger import damaged, other_algorithm, seal
from aiothrottle.stores.port import numbers_of
from aiothrottle.stores.slots import Claim, Granted
from aiothrottle.stores.store import Answer, Key, name_of

__all__ = [
    "LOAD",
    "RECORD",
    "SLOTS",
    "SWAP",
    "Request",
    "Requests",
    "Script",
    "read_answer",
    "read_granted",
    "read_loaded",
    "read_text",
]

# Seconds for which an answer is kept, at the least, for a driver that asks again. It does so until
# the call is given up.
_KEEP_ANSWER = 5.0
# So many names and algorithms are remembered: a kilobyte each, of a key that takes seven.
_MANY = 16_384


class Script:
    """A script of this package, and the digest by which the server knows it."""

    __slots__ = ("digest", "text")

    def __init__(self, *files: str) -> None:
        parts = [pkgutil.get_data(__package__ or "", f"lua/{file}") or b"" for file in files]
        self.text: str = b"\n".join(parts).decode()
        self.digest: str = sha1(self.text.encode(), usedforsecurity=False).hexdigest()


RECORD = Script("arithmetic.lua", "algorithms.lua", "record.lua")
LOAD = Script("load.lua")
SWAP = Script("swap.lua")
SLOTS = Script("slots.lua")


@dataclass(frozen=True, slots=True)
class _Frame:
    """What all requests about a record have in common, and how the server reads that."""

    algorithm: Algorithm[Any]
    #: Names of the record and of its logs, with the count of all keys before them.
    name: str
    logs: tuple[str, ...]
    #: The seal of the algorithm and its numbers.
    sealed: bytes
    head: bytes
    tail: bytes

    @classmethod
    def of(cls, name: str, verb: str, algorithm: Algorithm[Any], more: int) -> "_Frame | None":
        """Make one; None if the script does not know the algorithm."""
        numbers = numbers_of(algorithm)
        if numbers is None:
            return None
        sealed = seal(algorithm) + _packed(numbers)
        logs = tuple(f"{name}:{place}" for place in range(_windows(algorithm)))
        head = ["EVALSHA", RECORD.digest, str(2 + len(logs)), name]
        tail = [*map(str.encode, [*logs, verb]), sealed]
        count = len(head) + 1 + len(tail) + 1 + more
        return cls(
            algorithm,
            name,
            logs,
            sealed,
            b"*%d\r\n%b" % (count, b"".join([_argument(part.encode()) for part in head])),
            b"".join(map(_argument, tail)),
        )


class Request(NamedTuple):
    """A call of `record.lua`, with an id of its own."""

    verb: str
    frame: _Frame
    id: str
    #: The numbers of the verb, and what else there is to say.
    rest: list[bytes]

    @property
    def arguments(self) -> list[str | bytes | int]:
        """The count of the keys, the keys and the arguments, as a driver wants them."""
        frame = self.frame
        keys = [frame.name, self.id, *frame.logs]
        return [len(keys), *keys, self.verb, frame.sealed, *self.rest]

    @property
    def command(self) -> bytes:
        """All of it, as the server reads it: redis-py takes ten times as long for that."""
        frame = self.frame
        parts = (frame.head, _argument(self.id.encode()), frame.tail, *map(_argument, self.rest))
        return b"".join(parts)


class Requests:
    """Makes the keys and arguments of `record.lua`, each time with an id of its own."""

    __slots__ = ("_clock", "_frames", "_ids", "_names", "_prefix", "_sender", "keep")

    def __init__(
        self, prefix: str, timeout: float, clock: Callable[[], float] | None = None
    ) -> None:
        self._prefix = prefix
        #: Milliseconds for which it is known what was done.
        self.keep: int = int(1000 * max(_KEEP_ANSWER, 2 * timeout))
        self._clock = clock
        self._sender = secrets.token_hex(8)
        self._ids = count()
        self._names: dict[Key, str] = {}
        # By identity: a limiter asks with the same algorithm for all its life.
        self._frames: dict[tuple[str, Key, int], _Frame] = {}

    def name(self, key: Key) -> str:
        """Give the name of the record. All names that begin so are in one slot of a cluster."""
        name = self._names.get(key)
        if name is None:
            name = f"{{{name_of(key, self._prefix)}}}"
            if len(self._names) >= _MANY:
                self._names.clear()
            if "#" not in name:  # a key so long that only a digest is left is not kept
                self._names[key] = name
        return name

    def make(
        self,
        verb: str,
        key: Key,
        algorithm: Algorithm[Any],
        *numbers: float,
        as_text: bool = False,
    ) -> Request | None:
        """Give a request; None for an algorithm of one's own."""
        frame = self._frames.get((verb, key, id(algorithm)))
        if frame is None:
            frame = self._frame(verb, key, algorithm)
            if frame is None:
                return None
        # Few arguments: each is more work for the driver than for the server.
        rest: list[bytes] = [_packed((self.keep, *numbers))]
        if self._clock is not None or as_text:
            rest.append(b"" if self._clock is None else _packed((self._clock(),)))
        if as_text:
            rest.append(b"text")
        return Request(verb, frame, self.id(frame.name), rest)

    def _frame(self, verb: str, key: Key, algorithm: Algorithm[Any]) -> _Frame | None:
        name = self.name(key)
        frame = _Frame.of(name, verb, algorithm, self._clock is not None)
        if frame is not None and "#" not in name:
            if len(self._frames) >= _MANY:
                self._frames.clear()
            self._frames[verb, key, id(algorithm)] = frame
        return frame

    def id(self, name: str) -> str:
        """Give a key for what was answered to one request on the record of that name."""
        # The process is part of the id: a child that was forked has the same count.
        return f"{name}#{os.getpid():x}-{self._sender}-{next(self._ids):x}"

    def claim(self, key: Key, claim: Claim, channel: str) -> list[str | bytes | int]:
        """Give the same for `slots.lua`."""
        name = self.name(key)
        keys = [f"{name}:{part}" for part in ("leases", "slots", "queue")]
        time = b"" if self._clock is None else repr(self._clock())
        said = (claim.limit, claim.held, claim.wanted, repr(claim.lease), claim.number)
        return [len(keys), *keys, time, channel, claim.owner, *said]


def read_answer(reply: bytes, key: Key, algorithm: Algorithm[Any]) -> Answer:
    """Read what the script says.

    Raises:
        ValueError: The record is of another algorithm, or damaged.
        StoreUnavailable: It is no reply of the script.
    """
    _raise_if_told(reply, key, algorithm)
    try:
        return _answer(*struct.unpack(f"<{len(reply) // 8}d", reply))
    except (TypeError, struct.error) as error:
        raise _no_reply(reply) from error


def read_granted(reply: Any) -> Granted:  # noqa: ANN401 - of whatever server
    """Read what the script of the slots says.

    Raises:
        StoreUnavailable: It is no reply of the script.
    """
    try:
        granted, lost, retry_after = reply
        return Granted(int(granted), int(lost), float(retry_after))
    except (TypeError, ValueError) as error:
        raise _no_reply(reply) from error


def read_loaded(reply: Any) -> tuple[bytes | None, float]:  # noqa: ANN401
    """Read a record of bytes, and the server's time in seconds since 1970.

    Raises:
        StoreUnavailable: It is no reply of the script.
    """
    try:
        data, (seconds, microseconds) = reply
        return data, int(seconds) + int(microseconds) / 1e6
    except (TypeError, ValueError) as error:
        raise _no_reply(reply) from error


def _no_reply(reply: object) -> StoreUnavailable:
    return StoreUnavailable(f"this is no reply of the script: {reply!r:.200}")


def read_text(reply: str | bytes, key: Key, algorithm: Algorithm[Any]) -> Answer:
    """Read what the script says if it is asked for text. Raises what `read_answer` does."""
    _raise_if_told(reply, key, algorithm)
    return _answer(*map(float, reply.split()))


def _raise_if_told(reply: str | bytes, key: Key, algorithm: Algorithm[Any]) -> None:
    if reply in (
        b"other algorithm",
        "other algorithm",
    ):  # no set: whatever a server says may have no hash
        raise other_algorithm(key, algorithm)
    if reply in (b"damaged", "damaged"):
        raise damaged(key, "it is no dump, or has a number in it that cannot be")


def _answer(
    now: float, retry_after: float, remaining: float, reset_after: float, *instants: float
) -> Answer:
    return Answer(now, instants, retry_after, remaining, reset_after)


def _argument(data: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(data), data)


def _packed(numbers: "tuple[float, ...] | list[float]") -> bytes:
    return struct.pack(f"<{len(numbers)}d", *numbers)


def _windows(algorithm: Algorithm[Any]) -> int:
    if isinstance(algorithm, AllOf):
        return sum(isinstance(algorithm, SlidingWindowLog) for algorithm in algorithm.algorithms)
    return int(isinstance(algorithm, SlidingWindowLog))

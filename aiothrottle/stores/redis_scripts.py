"""The scripts of `RedisStore`: their keys, arguments and replies. Does no I/O.

Invariant: only the algorithms of this package have numbers here, by which `algorithms.lua` decides.
A class that is derived from one may decide otherwise than the script.

Every reply is text: it reads the same from a client that decodes replies and from one that does
not.
"""

import os
import pkgutil
import secrets
import struct
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Final, NamedTuple, TypeAlias, cast

from aiothrottle.algorithms import (
    AllOf,
    Cooldown,
    FixedWindow,
    LeakyBucket,
    PerResource,
    SlidingWindowCounter,
    SlidingWindowLog,
    TokenBucket,
    Unlimited,
    WaitUntil,
)
from aiothrottle.algorithms.protocol import Algorithm, max_wait
from aiothrottle.amounts import Amounts, as_costs
from aiothrottle.errors import StoreUnavailable
from aiothrottle.stores.record import other_algorithm, report_damage, seal
from aiothrottle.stores.slots import Claim, Granted
from aiothrottle.stores.store import Answer, Key, Step, name_of

# Of any server.
_Reply: TypeAlias = Any

# Seconds for which an answer is kept, at the least, for a driver that retries a request. It does so
# until the call is given up.
_KEEP_ANSWER = 5.0
_DAMAGE = "a key is of another type, or a value is none that a store writes"
# The most records whose arguments are cached: a kilobyte each.
_MANY = 16_384
# Which algorithm of the script decides; the constants follow.
_LEVEL, _ROLLING, _SECTIONS = 1, 2, 3
_KINDS: Final[dict[type[Any], int]] = {
    TokenBucket: _LEVEL,
    LeakyBucket: _LEVEL,
    WaitUntil: _LEVEL,
    Cooldown: _LEVEL,
    SlidingWindowLog: _ROLLING,
    FixedWindow: _SECTIONS,
    SlidingWindowCounter: _SECTIONS,
}


def _script(*files: str) -> str:
    """Return the text of a script of this package."""
    parts = [pkgutil.get_data(__package__ or "", f"lua/{file}") or b"" for file in files]
    return b"\n".join(parts).decode()


RECORD = _script("arithmetic.lua", "algorithms.lua", "record.lua")
LOAD = _script("load.lua")
SWAP = _script("swap.lua")
SLOTS = _script("slots.lua")


class Request(NamedTuple):
    """The keys and arguments of a script."""

    keys: list[str]
    args: list[str | bytes | int]


class _Record(NamedTuple):
    """The parts that all requests about one record have in common."""

    #: Held, so that no other algorithm gets its `id`.
    algorithm: Algorithm[Any]
    name: str
    logs: list[str]
    #: The seal of the algorithm and its numbers.
    sealed: bytes
    #: The longest wait that the algorithm does not reject.
    longest: float


class Requests:
    """Makes the keys and arguments of the scripts; each request that changes a record has an id.

    Args:
        prefix: The beginning of every name.
        timeout: Seconds after which a call is given up.
        clock: For tests: returns the time in seconds in place of the server.
    """

    __slots__ = ("_clock", "_ids", "_prefix", "_records", "_sender", "keep")

    def __init__(
        self, prefix: str, timeout: float, clock: Callable[[], float] | None = None
    ) -> None:
        self._prefix = prefix
        #: Milliseconds for which the server keeps an answer.
        self.keep: int = int(1000 * max(_KEEP_ANSWER, 2 * timeout))
        self._clock = clock
        self._sender = secrets.token_hex(8)
        self._ids = count()
        # By identity: a limiter uses the same algorithm for all its life.
        self._records: dict[tuple[Key, int], _Record] = {}

    def name(self, key: Key) -> str:
        """Return the name of the record. A cluster keeps all names with this beginning together."""
        return f"{{{name_of(key, self._prefix)}}}"

    def make(self, key: Key, algorithm: Algorithm[Any], step: Step) -> Request | None:
        """Return a request to `record.lua`; None if the script does not know the algorithm."""
        record = self._records.get((key, id(algorithm))) or self._remember(key, algorithm)
        if record is None:
            return None
        numbers: tuple[float, ...] = ()
        if step.method == "reserve":
            numbers = step.seconds, record.longest
        elif step.method == "refund":
            numbers = (step.seconds,)
        packed = _packed(self.keep, *numbers, *_numbers_of_costs(algorithm, step.costs))
        time = b"" if self._clock is None else _packed(self._clock())
        return Request(
            [record.name, self.id(record.name), *record.logs],
            [step.method, record.sealed, packed, time],
        )

    def _remember(self, key: Key, algorithm: Algorithm[Any]) -> _Record | None:
        numbers = _numbers_of(algorithm)
        if numbers is None:
            return None
        name = self.name(key)
        parts = algorithm.algorithms if isinstance(algorithm, AllOf | PerResource) else (algorithm,)
        windows = sum(isinstance(part, SlidingWindowLog) for part in parts)
        logs = [f"{name}:{place}" for place in range(windows)]
        sealed = seal(algorithm) + _packed(*numbers)
        record = _Record(algorithm, name, logs, sealed, max_wait(algorithm))
        if "#" not in name:  # not of keys so long that their names end in a digest
            if len(self._records) >= _MANY:
                self._records.clear()
            self._records[key, id(algorithm)] = record
        return record

    def id(self, name: str) -> str:
        """Return a key for the answer to one request about the record of that name."""
        # The process is part of the id: a forked child has the same count.
        return f"{name}#{os.getpid():x}-{self._sender}-{next(self._ids):x}"

    def claim(self, key: Key, claim: Claim, channel: str) -> Request:
        """Return a request to `slots.lua`."""
        name = self.name(key)
        time = b"" if self._clock is None else repr(self._clock())
        numbers = (claim.limit, claim.held, claim.wanted, repr(claim.lease), claim.number)
        return Request(
            [f"{name}:leases", f"{name}:slots", f"{name}:queue"],
            [time, channel, claim.owner, *numbers],
        )


# ---- arguments -----------------------------------------------------------------------------------


def _numbers_of(algorithm: Algorithm[Any]) -> list[float] | None:
    """Return the numbers of an algorithm; None if the script does not know it.

    The first is 0 of one algorithm, 1 of an `AllOf`, and of a `PerResource` 1 more than it has
    resources. There each algorithm begins with the place of its resource, from 1 on.
    """
    numbers: list[float] = [float(type(algorithm) is AllOf)]
    parts: Sequence[Algorithm[Any]] = (algorithm,)
    places: Sequence[tuple[float, ...]] = ((),)
    if type(algorithm) is AllOf:
        parts = algorithm.algorithms
        places = [()] * len(parts)
    elif type(algorithm) is PerResource:
        parts, resources = algorithm.algorithms, algorithm.resources
        numbers = [1.0 + len(resources)]
        places = [(1.0 + resources.index(name),) for name in algorithm.names]
    for place, part in zip(places, parts, strict=True):
        kind = _KINDS.get(type(part))
        if kind is not None:
            numbers += (*place, kind, *cast("Any", part).constants())
        elif type(part) is not Unlimited:
            return None
    return numbers


def _numbers_of_costs(algorithm: Algorithm[Any], costs: Sequence[float]) -> Sequence[float]:
    """Return the costs as the script reads them: of a `PerResource`, those of each resource."""
    if type(algorithm) is not PerResource:
        return costs
    resources = algorithm.resources
    return [each for cost in costs for each in as_costs(cost, resources).values()]


def _packed(*numbers: float) -> bytes:
    return struct.pack(f"<{len(numbers)}d", *numbers)


# ---- replies -------------------------------------------------------------------------------------


def read_answer(reply: _Reply, key: Key, algorithm: Algorithm[Any], most: int = 0) -> Answer:
    """Read a reply of `record.lua`; log if the record was damaged.

    Args:
        reply: The reply of the server.
        key: The key of the record.
        algorithm: The algorithm of the record.
        most: The most instants that there may be.

    Raises:
        ValueError: The record is of another algorithm.
        StoreUnavailable: The reply is not one of the script.
    """
    if reply in ("other algorithm", b"other algorithm"):
        raise other_algorithm(key, algorithm)
    try:
        words = reply.split()
        if was_damaged := words[:1] in (["damaged"], [b"damaged"]):
            del words[0]
        now, retry_after, *numbers = map(float, words)
        remaining, (reset_after, *runs) = _read_remaining(algorithm, numbers)
        instants = _instants(runs, most)
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        raise _no_reply(reply) from error
    if was_damaged:
        report_damage("Redis", key, _DAMAGE)
    return Answer(now, instants, retry_after, remaining, reset_after)


def _read_remaining(algorithm: Algorithm[Any], numbers: list[float]) -> tuple[float, list[float]]:
    """Return what the script reports as remaining, and the numbers behind it."""
    if type(algorithm) is not PerResource:
        return numbers[0], numbers[1:]
    resources = algorithm.resources
    count = len(resources)
    return Amounts(dict(zip(resources, numbers[:count], strict=True))), numbers[count:]


def _instants(runs: list[float], most: int) -> tuple[float, ...]:
    """Read instants, each with the count of costs in a row that are taken for it."""
    instants: list[float] = []
    for instant, times in zip(runs[::2], runs[1::2], strict=True):
        if not 0 < times <= most - len(instants):  # before a wrong count can fill the memory
            raise ValueError(f"{times!r} instants after {len(instants)} of at most {most}")
        instants += [instant] * int(times)
    return tuple(instants)


def read_granted(reply: _Reply, key: Key) -> Granted:
    """Read a reply of `slots.lua`; log if the record of the key was damaged.

    Raises:
        StoreUnavailable: The reply is not one of the script.
    """
    try:
        granted, lost, retry_after, share, was_damaged = reply
        answer = Granted(int(granted), int(lost), float(retry_after), int(share))
    except (TypeError, ValueError) as error:
        raise _no_reply(reply) from error
    if was_damaged:
        report_damage("Redis", key, _DAMAGE)
    return answer


def read_loaded(reply: _Reply) -> tuple[bytes | None, float]:
    """Read a reply of `load.lua`: the bytes of a record, and the server's time since 1970.

    Raises:
        StoreUnavailable: The reply is not one of the script.
    """
    try:
        data, (seconds, microseconds) = reply
        if isinstance(data, bytes):
            data = data.decode()
        time = int(seconds) + int(microseconds) / 1e6
        return None if data is None else bytes.fromhex(data), time
    except (TypeError, ValueError) as error:
        raise _no_reply(reply) from error


def _no_reply(reply: object) -> StoreUnavailable:
    return StoreUnavailable(f"Redis: this is no reply of the script: {reply!r:.200}")

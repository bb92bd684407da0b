"""Limits in Redis or Valkey: one script call, on the server's clock, for everybody who waits.

The built-in algorithms, several at once too, are decided by a script (`lua/algorithms.lua`,
`lua/record.lua`). An algorithm of one's own lives there as well, by compare and swap.
"""

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, NamedTuple, TypeAlias, cast

try:
    from redis.asyncio import Redis, RedisCluster
except ModuleNotFoundError as _error:
    raise ModuleNotFoundError(
        "redis is not there: pip install 'aiothrottle-client[redis]'", name="redis"
    ) from _error
from redis.asyncio.client import Pipeline
from redis.asyncio.cluster import ClusterPipeline

from aiothrottle.algorithms import Algorithm
from aiothrottle.checks import check_number
from aiothrottle.errors import StoreUnavailable
from aiothrottle.redact import shown
from aiothrottle.stores.calls import Calls
from aiothrottle.stores.kept import KeptConnection
from aiothrottle.stores.ledger import EPOCH
from aiothrottle.stores.request import (
    LOAD,
    RECORD,
    SLOTS,
    SWAP,
    Request,
    Requests,
    Script,
    read_answer,
    read_granted,
    read_loaded,
    read_text,
)
from aiothrottle.stores.slots import Claim, Granted
from aiothrottle.stores.store import (
    Answer,
    Key,
    check_costs,
    check_horizon,
    check_instant,
)
from aiothrottle.stores.swap import Loaded, SwapStore
from aiothrottle.stores.wakes import Wakes

__all__ = ["Queued", "RedisPipeline", "RedisStore"]

Client: TypeAlias = Redis | RedisCluster

_OLDEST = (6, 2)
_LONGEST = 10**13  # milliseconds: three hundred years

# So many round trips are under way at a time, and so many calls in each. A cluster spreads the keys
# over its nodes, so there each call is a round trip of its own.
_ROUND_TRIPS, _BATCH = 4, 128
_CALLS_OF_A_CLUSTER = 16


class RedisStore(SwapStore):
    """Keeps the records in Redis 6.2 or later, or Valkey: single, behind Sentinel, or a cluster.

    Each verb is one call of a script that decides on the server's clock, and a record expires when
    it may be forgotten. Whatever the driver sends twice counts once: the server keeps each answer
    for a while, five seconds or two time-outs, by the id of the request. A script that the server
    has lost is sent again. A key may be any text; the prefix, the parts of the key and a few
    letters of the store's own make the names, and those of one record have a hash tag in common.

    An algorithm of one's own needs `dump` and `load`; it costs two calls per attempt, and an
    attempt fails when another process was faster.

    At most four round trips are under way at a time, on as many connections of the client's pool;
    calls of many keys queue, and share them. Shared slots use one connection more, to listen.

    Args:
        client: A client of the `asyncio` part of redis-py, or of valkey-py, its twin. With or
            without `decode_responses`.
        prefix: The beginning of the name of every record.
        timeout: Seconds after which a call is given up, whatever the client's own patience. They
            begin when the call is sent.
        clock: For tests: gives the time in seconds in place of the server. Nothing expires then.

    Raises:
        TypeError: The client is none of them, or the time-out is no number.
        ValueError: The time-out is not above zero.

    >>> from redis.asyncio import Redis
    >>> store = RedisStore(Redis(), prefix="crawler")
    """

    __slots__ = (
        "_calls",
        "_clock",
        "_driver",
        "_errors",
        "_kept",
        "_requests",
        "_wakes",
    )

    def __init__(
        self,
        client: Client,
        prefix: str = "aiothrottle",
        *,
        timeout: float = 1.0,
        clock: Callable[[], float] | None = None,
    ) -> None:
        check_number("timeout", timeout, "seconds", above=0)
        self._errors = _errors_of(client)
        self._driver: Any = client  # its own types are half unknown
        self._clock = clock
        self._requests = Requests(prefix, timeout, clock)
        self._wakes = Wakes(client, prefix)
        self._kept = KeptConnection(client)
        limit, batch = _bounds_of(client)
        self._calls = Calls[_Command](
            "Redis", self._send, limit=limit, batch=batch, timeout=timeout, prepare=self._check
        )

    def keep(self) -> AbstractAsyncContextManager[None]:
        """Keep a connection of the client's, while one call follows another."""
        return self._kept

    async def reserve(
        self,
        key: Key,
        algorithm: Algorithm[Any],
        costs: Sequence[float],
        *,
        horizon: float = 0.0,
    ) -> Answer:
        """Take, in order, as many of the costs as may go within `horizon` seconds from now."""
        check_costs(*costs)
        check_horizon(horizon)
        answer = await self._decide("reserve", key, algorithm, horizon, *costs)
        return answer or await super().reserve(key, algorithm, costs, horizon=horizon)

    async def refund(
        self, key: Key, algorithm: Algorithm[Any], cost: float, instant: float
    ) -> None:
        """Give back `cost` tokens of what was taken for `instant`, as the answer told it."""
        check_costs(cost)
        check_instant(instant)
        if await self._decide("refund", key, algorithm, cost, instant) is None:
            await super().refund(key, algorithm, cost, instant)

    async def peek(self, key: Key, algorithm: Algorithm[Any], cost: float = 1.0) -> Answer:
        """Tell what `reserve` would say of the cost, and spend nothing."""
        check_costs(cost)
        answer = await self._decide("peek", key, algorithm, cost)
        return answer or await super().peek(key, algorithm, cost)

    async def record(self, key: Key, algorithm: Algorithm[Any], cost: float = 1.0) -> Answer:
        """Count what has happened already, without asking: there may be a debt afterwards."""
        check_costs(cost)
        answer = await self._decide("record", key, algorithm, cost)
        return answer or await super().record(key, algorithm, cost)

    async def clear(self, key: Key) -> None:
        """Forget the record of the key."""
        await self._calls.ask(_Command("UNLINK", None, [self._requests.name(key)]))

    def pipeline(self, pipe: Pipeline | ClusterPipeline) -> "RedisPipeline":
        """Give the same verbs, for a pipeline or transaction of yours that they are to join.

        >>> async def send(client, store, window):
        ...     async with client.pipeline() as pipe:
        ...         taken = store.pipeline(pipe).reserve(("mail", "ann"), window, [1])
        ...         pipe.incr("mails")
        ...         replies = await pipe.execute()
        ...     return taken.answer(replies).instants
        """
        return RedisPipeline(self._requests, pipe)

    async def _decide(
        self, verb: str, key: Key, algorithm: Algorithm[Any], *numbers: float
    ) -> Answer | None:
        """Have the script decide; None if it does not know the algorithm."""
        request = self._requests.make(verb, key, algorithm, *numbers)
        if request is None:
            return None
        reply = await self._calls.ask(_Command("", RECORD, (), request))
        return read_answer(reply, key, algorithm)

    # ---- slots -----------------------------------------------------------------------------------

    async def claim(self, key: Key, claim: Claim) -> Granted:
        """Take, keep and give back slots, in one call."""
        wakes = self._wakes
        claim = replace(claim, owner=f"{wakes.id}.{claim.owner}")
        arguments = self._requests.claim(key, claim, wakes.channels)
        return read_granted(await self._calls.ask(_Command("", SLOTS, arguments)))

    def listen(self, owner: str, wake: Callable[[], None]) -> bool:
        """Have `wake` called when the owner should claim again, on one connection for all."""
        return self._wakes.listen(owner, wake)

    def unlisten(self, owner: str) -> None:
        """Have it not called any more."""
        self._wakes.unlisten(owner)

    # ---- an algorithm that the script does not know
    # -----------------------------------------------------

    async def load(self, key: Key) -> Loaded:
        """Give what is there, which is the mark too, and the server's time."""
        command = _Command("", LOAD, [1, self._requests.name(key)])
        data, time = read_loaded(await self._calls.ask(command))
        return data, data, time - EPOCH if self._clock is None else self._clock()

    async def swap(self, key: Key, mark: bytes | None, data: bytes | None, seconds: float) -> bool:
        """Put `data` there if what is there is still the mark."""
        milliseconds = int(min(seconds * 1000 + 1, _LONGEST))
        if self._clock is not None:
            milliseconds = _LONGEST
        name = self._requests.name(key)
        request, keep = self._requests.id(name), self._requests.keep
        arguments = (2, name, request, mark or b"", data or b"", milliseconds, keep)
        # What was loaded is soon out of date: nobody else goes first.
        return bool(await self._calls.ask(_Command("", SWAP, arguments), first=True))

    # ---- the server ------------------------------------------------------------------------------

    async def _send(self, commands: "list[_Command]") -> list[Any]:
        """Send them in one round trip; once more what needs a script that the server has lost."""
        replies = await self._round_trip(commands, in_full=False)
        lost = [place for place, it in enumerate(replies) if isinstance(it, self._errors.no_script)]
        if lost:
            again = await self._round_trip([commands[place] for place in lost], in_full=True)
            for place, reply in zip(lost, again, strict=True):
                replies[place] = reply
        return replies

    async def _round_trip(self, commands: "list[_Command]", *, in_full: bool) -> list[Any]:
        """Give the replies, errors of the server among them."""
        first = commands[0]
        if len(commands) > 1:
            await self._kept.let_go()
            pipe = self._driver.pipeline(transaction=False)
            # The server knows a script when it was sent once.
            unknown = {command.script for command in commands} if in_full else set[Script | None]()
            for command in commands:
                pipe.execute_command(
                    *command.words(in_full=command.script in unknown), NEVER_DECODE=True
                )
                unknown.discard(command.script)
            replies: list[Any] = await pipe.execute(raise_on_error=False)
            return replies
        if first.request is not None and not in_full and self._kept.is_free:
            reply = await self._kept.ask(first.request.command)
            if reply is not None:
                return [reply]
        try:
            # Untouched by `decode_responses`: a state is no text.
            words = first.words(in_full=in_full)
            return [await self._driver.execute_command(*words, NEVER_DECODE=True)]
        except self._errors.response as error:
            return [error]

    async def _check(self) -> None:
        """Look once, before the first call, whether the server can keep its promises."""
        try:
            info = cast("dict[str, Any]", await self._driver.info())
        except self._errors.response:
            info = {}  # it may not be asked
        version = str(info.get("redis_version", "6.2"))
        if tuple(map(int, version.split(".")[:2])) < _OLDEST:
            raise StoreUnavailable(f"Redis {version} is too old: 6.2 is what RedisStore needs")
        if info.get("maxmemory") and info.get("maxmemory_policy") != "noeviction":
            warnings.warn(
                f"maxmemory-policy is {info['maxmemory_policy']!r}: when the memory is full the "
                "server drops records, and with them what was spent; limits hold with noeviction",
                RuntimeWarning,
                stacklevel=2,
            )


class _Command(NamedTuple):
    """A command, or a call of a script."""

    name: str
    script: Script | None
    arguments: Sequence[str | bytes | int]
    #: What has the arguments, and can be sent by a kept connection.
    request: Request | None = None

    def words(self, *, in_full: bool) -> list[str | bytes | int]:
        """Give it as a driver wants it; in full it has the text of the script."""
        arguments = self.arguments if self.request is None else self.request.arguments
        if self.script is None:
            return [self.name, *arguments]
        head = ("EVAL", self.script.text) if in_full else ("EVALSHA", self.script.digest)
        return [*head, *arguments]


def _bounds_of(client: Client) -> tuple[int, int]:
    """Give how many round trips may be under way at a time, and how many calls in each."""
    one_connection = getattr(client, "single_connection_client", None)
    if one_connection is None:
        return _CALLS_OF_A_CLUSTER, 1
    if one_connection:
        return 1, 1
    # One is left to whoever listens for slots.
    connections: int = cast("Any", client).connection_pool.max_connections
    return max(1, min(_ROUND_TRIPS, connections - 1)), _BATCH


@dataclass(frozen=True, slots=True)
class _Errors:
    """What a driver raises as the server's refusal, and for a script that is not there."""

    response: type[Exception]
    no_script: type[Exception]


def _errors_of(client: object) -> _Errors:
    """Find them for the package that the client is of: they are named alike."""
    for kind in type(client).__mro__:
        package, *parts = kind.__module__.split(".")
        if package in {"redis", "valkey"} and "asyncio" in parts:
            module = import_module(f"{package}.exceptions")
            return _Errors(module.ResponseError, module.NoScriptError)
    raise TypeError(f"client is a Redis or RedisCluster of redis.asyncio, not {shown(client)}")


class RedisPipeline:
    """The verbs of `RedisStore`, queued on a pipeline or a transaction of the caller's.

    Each gives a `Queued`, whose answer is in what ``execute()`` gives. The script is sent in full,
    since nobody can send it again in the midst of a transaction. Only for the built-in algorithms.
    """

    __slots__ = ("_pipe", "_requests")

    def __init__(self, requests: Requests, pipe: Pipeline | ClusterPipeline) -> None:
        self._requests = requests
        self._pipe: Any = pipe

    def reserve(
        self,
        key: Key,
        algorithm: Algorithm[Any],
        costs: Sequence[float],
        *,
        horizon: float = 0.0,
    ) -> "Queued":
        """Queue `Store.reserve`."""
        check_costs(*costs)
        check_horizon(horizon)
        return self._queue("reserve", key, algorithm, horizon, *costs)

    def refund(self, key: Key, algorithm: Algorithm[Any], cost: float, instant: float) -> "Queued":
        """Queue `Store.refund`."""
        check_costs(cost)
        check_instant(instant)
        return self._queue("refund", key, algorithm, cost, instant)

    def peek(self, key: Key, algorithm: Algorithm[Any], cost: float = 1.0) -> "Queued":
        """Queue `Store.peek`."""
        check_costs(cost)
        return self._queue("peek", key, algorithm, cost)

    def record(self, key: Key, algorithm: Algorithm[Any], cost: float = 1.0) -> "Queued":
        """Queue `Store.record`."""
        check_costs(cost)
        return self._queue("record", key, algorithm, cost)

    def clear(self, key: Key) -> None:
        """Queue `Store.clear`."""
        self._pipe.execute_command("UNLINK", self._requests.name(key))

    def _queue(self, verb: str, key: Key, algorithm: Algorithm[Any], *numbers: float) -> "Queued":
        # The client may be one that decodes what it gets.
        request = self._requests.make(verb, key, algorithm, *numbers, as_text=True)
        if request is None:
            raise TypeError(f"a pipeline can only take algorithms of this package: {algorithm!r}")
        queued = Queued(len(self._pipe), key, algorithm)
        self._pipe.execute_command("EVAL", RECORD.text, *request.arguments)
        return queued


@dataclass(frozen=True, slots=True)
class Queued:
    """A verb that waits in a pipeline."""

    #: The place of its reply among the replies of the pipeline.
    place: int
    key: Key
    algorithm: Algorithm[Any]

    def answer(self, replies: Sequence[Any]) -> Answer:
        """Give the answer, from what ``execute()`` gave.

        Raises:
            ValueError: The record of the key is of another algorithm.
        """
        return read_text(replies[self.place], self.key, self.algorithm)

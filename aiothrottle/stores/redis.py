"""Limits in Redis or Valkey: one script call, on the server's clock, for all waiters.

Strategy. A script (`lua/algorithms.lua`, `lua/record.lua`) decides for the built-in algorithms,
several at once too; an algorithm of your own lives in the server by compare and swap. The driver
registers the scripts, packs the commands, lends connections from its pool and retries; `Calls`
bounds how many round trips are under way. As the driver may send a request twice, each has an id,
by which the server recognises it.
"""

import asyncio
import contextlib
import math
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any, TypeAlias, cast

from aiothrottle._lazy import needs

with needs("redis", extra="redis"):
    from redis.asyncio import Redis, RedisCluster
from redis.asyncio.client import Pipeline
from redis.asyncio.cluster import ClusterPipeline

from aiothrottle._checks import check_number, shown
from aiothrottle.algorithms import Algorithm
from aiothrottle.errors import StoreUnavailable
from aiothrottle.stores.calls import Calls
from aiothrottle.stores.record import EPOCH
from aiothrottle.stores.redis_scripts import (
    LOAD,
    RECORD,
    SLOTS,
    SWAP,
    Request,
    Requests,
    read_answer,
    read_granted,
    read_loaded,
)
from aiothrottle.stores.redis_wakes import OfDriver, Wakes
from aiothrottle.stores.slots import Claim, Granted
from aiothrottle.stores.store import Answer, Key, Step
from aiothrottle.stores.swap import Loaded, SwapStore

__all__ = ["Queued", "RedisPipeline", "RedisStore"]

Client: TypeAlias = Redis | RedisCluster

# Sends itself by a client, or queues itself on a pipeline.
_Call: TypeAlias = Callable[[OfDriver], Awaitable[Any]]

_OLDEST = (6, 2)
_LONGEST = 10**13  # milliseconds: three hundred years

# The most round trips under way at a time, and the most calls in each. A cluster spreads the keys
# over its nodes, so there each call is a round trip of its own.
_ROUND_TRIPS, _BATCH = 4, 128
_CALLS_OF_A_CLUSTER = 16
# A call whose connection was closed is sent again so often.
_REPEATS = 2


class RedisStore(SwapStore):
    """Keeps the records in Redis 6.2 or later, or Valkey: single, behind Sentinel, or a cluster.

    Each method is one call of a script that decides on the server's clock, and a record expires
    when it may be forgotten. A request that the driver sends twice counts once: the server keeps
    each answer for five seconds or two timeouts, by the id of the request. A script that the
    server has lost is sent again. A key may be any text; the prefix and the parts of the key make
    the names, and the names of one record have a hash tag in common.

    An algorithm of your own needs `dump` and `load`; it costs two calls per attempt, and an
    attempt fails when another process was faster.

    At most four round trips are under way at a time, on as many connections of the client's pool;
    the calls of many keys queue, and share them. Shared slots use one connection more, to listen.

    Args:
        client: A client of the `asyncio` part of redis-py, or of valkey-py, its twin. With or
            without `decode_responses`.
        prefix: The beginning of the name of every record.
        timeout: Seconds after which a call is given up, the driver's own retries included. They
            begin when the call is sent.
        clock: For tests: returns the time in seconds in place of the server. Nothing expires then.

    Raises:
        TypeError: The client is of another kind, or the timeout is not a number.
        ValueError: The timeout is not above zero.

    >>> from redis.asyncio import Redis
    >>> store = RedisStore(Redis(), prefix="crawler")
    """

    def __init__(
        self,
        client: Client,
        prefix: str = "aiothrottle",
        *,
        timeout: float = 1.0,
        clock: Callable[[], float] | None = None,
    ) -> None:
        check_number("timeout", timeout, "seconds", above=0)
        self._exceptions: Any = _exceptions_of(client)
        self._client: OfDriver = client
        self._record, self._load, self._swap, self._slots = map(
            self._client.register_script, (RECORD, LOAD, SWAP, SLOTS)
        )
        self._clock = clock
        self._timeout = timeout
        self._requests = Requests(prefix, timeout, clock)
        self._wakes = Wakes(client, prefix, self._try_to_publish)
        # Of a cluster, whose nodes fail one by one: so each has a queue of calls.
        self._nodes: _Nodes | None = None
        if hasattr(client, "nodes_manager"):
            self._nodes = _Nodes(client, self._exceptions)
        self._calls: dict[str, Calls[_Call]] = {}

    def node_of(self, key: Key) -> str:
        """Return the name of the node of a cluster that has the record of the key."""
        return "" if self._nodes is None else self._nodes.name_of(self._requests.name(key))

    async def clear(self, key: Key) -> None:
        """Forget the record of the key."""
        name = self._requests.name(key)
        await self._ask(lambda client: client.execute_command("UNLINK", name), name)

    def pipeline(self, pipe: Pipeline | ClusterPipeline) -> "RedisPipeline":
        """Return the same methods, to be queued on a pipeline or transaction of yours.

        Args:
            pipe: The pipeline or transaction of redis-py or valkey-py.

        >>> async def send(client, store, window):
        ...     async with client.pipeline() as pipe:
        ...         taken = store.pipeline(pipe).reserve(("mail", "ann"), window, [1])
        ...         pipe.incr("mails")
        ...         replies = await pipe.execute()
        ...     return taken.answer(replies).instants
        """
        return RedisPipeline(self._requests, pipe)

    async def _execute(self, key: Key, algorithm: Algorithm[Any], step: Step) -> Answer:
        request = self._requests.make(key, algorithm, step)
        if request is None:  # the script does not know the algorithm
            return await super()._execute(key, algorithm, step)
        reply = await self._run(self._record, request)
        return read_answer(reply, key, algorithm, len(step.costs))

    # ---- slots -----------------------------------------------------------------------------------

    async def claim(self, key: Key, claim: Claim) -> Granted:
        """Take, keep and return slots, in one call."""
        wakes = self._wakes
        claim = replace(claim, owner=f"{wakes.id}.{claim.owner}")
        request = self._requests.claim(key, claim, wakes.channels)
        return read_granted(await self._run(self._slots, request), key)

    def listen(self, owner: str, wake: Callable[[], None]) -> bool:
        """Call `wake` when the owner should claim again; one connection serves all owners."""
        pool = getattr(self._client, "connection_pool", None)
        if pool is not None and pool.max_connections < 2:  # for the calls
            return False
        return self._wakes.listen(owner, wake)

    def unlisten(self, owner: str) -> None:
        """Stop calling it."""
        self._wakes.unlisten(owner)

    async def _try_to_publish(self, channel: str) -> None:
        """Publish an empty message. Raises if the server rejects that, not if it fails."""
        try:
            await self._ask(lambda client: client.execute_command("PUBLISH", channel, ""), channel)
        except StoreUnavailable as error:
            if isinstance(error.__cause__, self._exceptions.ResponseError):
                raise

    # ---- an algorithm that the script does not know ----------------------------------------------

    async def load(self, key: Key) -> Loaded:
        """Return the bytes of the record, which are the mark too, and the server's time."""
        request = Request([self._requests.name(key)], [])
        data, time = read_loaded(await self._run(self._load, request))
        return data, data, time - EPOCH if self._clock is None else self._clock()

    async def swap(self, key: Key, mark: bytes | None, data: bytes | None, seconds: float) -> bool:
        """Replace the bytes of the record by `data` if they are still the mark."""
        milliseconds = int(min(seconds * 1000 + 1, _LONGEST))
        if self._clock is not None:
            milliseconds = _LONGEST
        name = self._requests.name(key)
        request = Request(
            [name, self._requests.id(name)],
            [mark or b"", data or b"", milliseconds, self._requests.keep],
        )
        # What was loaded is soon out of date: no other call is sent before.
        return bool(await self._run(self._swap, request, first=True))

    # ---- the server ------------------------------------------------------------------------------

    def _run(self, script: OfDriver, request: Request, *, first: bool = False) -> Awaitable[Any]:
        """Call a script and return its reply."""
        return self._ask(partial(script, *request), request.keys[0], first=first)

    def _ask(self, call: _Call, name: str, *, first: bool = False) -> Awaitable[Any]:
        """Send a call about the record of that name, in its turn, and return the reply."""
        if self._nodes is None:
            calls = self._calls.get("") or self._calls_to("", partial(self._check, self._client))
            return calls.ask(call, first=first)
        return self._ask_node(self._nodes, call, name, first=first)

    async def _ask_node(self, nodes: "_Nodes", call: _Call, name: str, *, first: bool) -> OfDriver:
        node = nodes.name_of(name)
        check = partial(nodes.send, self._check, name)
        calls = self._calls.get(node) or self._calls_to(node, check)
        try:
            return await calls.ask(lambda _: nodes.send(call, name), first=first)
        except StoreUnavailable:
            nodes.suspect(node)
            raise

    def _calls_to(self, node: str, check: Callable[[], Coroutine[Any, Any, None]]) -> Calls[_Call]:
        limit, batch = _bounds_of(self._client)
        calls = self._calls[node] = Calls[_Call](
            f"Redis {node}".rstrip(),
            self._send,
            limit=limit,
            batch=batch,
            timeout=self._timeout,
            patient=_shortest_timeout_of(self._client) <= 2 * self._timeout,
            prepare=check,
        )
        return calls

    async def _send(self, calls: Sequence[_Call]) -> list[Any]:
        """Send the calls in one round trip; return the replies, the server's errors among them."""
        if len(calls) == 1:
            try:
                return [await calls[0](self._client)]
            except self._exceptions.ResponseError as error:
                return [error]
        replies = await self._send_batch(calls, has_scripts=True)
        no_script = self._exceptions.NoScriptError
        if lost := [place for place, reply in enumerate(replies) if isinstance(reply, no_script)]:
            again = await self._send_batch([calls[place] for place in lost], has_scripts=False)
            for place, reply in zip(lost, again, strict=True):
                replies[place] = reply
        return replies

    async def _send_batch(self, calls: Sequence[_Call], *, has_scripts: bool) -> list[Any]:
        async with self._client.pipeline(transaction=False) as pipe:
            for call in calls:
                await call(pipe)
            if has_scripts:  # else the driver loads them, at the cost of a round trip
                pipe.scripts.clear()
            replies: list[Any] = await pipe.execute(raise_on_error=False)
            return replies

    async def _check(self, client: OfDriver) -> None:
        """Drop connections of a closed loop, and check the version and settings of a server."""
        if (pool := getattr(client, "connection_pool", None)) is not None:
            with contextlib.suppress(RuntimeError):  # raised for each that was dropped
                await pool.disconnect(inuse_connections=False)
        try:
            info: dict[str, Any] = await client.info()
        except self._exceptions.ResponseError:
            info = {}  # the user of the server may lack the permission
        version = str(info.get("redis_version", "6.2"))
        if tuple(map(int, version.split(".")[:2])) < _OLDEST:
            raise StoreUnavailable(f"Redis {version} is too old: RedisStore needs 6.2 or later")
        if info.get("maxmemory") and info.get("maxmemory_policy") != "noeviction":
            warnings.warn(
                f"maxmemory-policy is {info['maxmemory_policy']!r}: when the memory is full the "
                "server drops records, and with them what was spent; limits hold with noeviction",
                RuntimeWarning,
                stacklevel=2,
            )


def _bounds_of(client: Client) -> tuple[int, int]:
    """Return the most round trips that are under way at a time, and the most calls in each."""
    one_connection = getattr(client, "single_connection_client", None)
    if one_connection is None:
        return _CALLS_OF_A_CLUSTER, 1
    if one_connection:
        return 1, 1
    # One connection is kept for listening, see `Wakes`.
    connections: int = cast("Any", client).connection_pool.max_connections
    return max(1, min(_ROUND_TRIPS, connections - 1)), _BATCH


def _shortest_timeout_of(client: Client) -> float:
    """Return the seconds after which the client gives up a reply or a connection."""
    options: dict[str, Any] = cast(
        "Any", getattr(client, "connection_pool", client)
    ).connection_kwargs
    seconds = (options.get(name) for name in ("socket_timeout", "socket_connect_timeout"))
    return min((each for each in seconds if each is not None), default=math.inf)


def _exceptions_of(client: object) -> ModuleType:
    """Find the exceptions of the package that the client is of: redis-py or valkey-py."""
    for kind in type(client).__mro__:
        package, *parts = kind.__module__.split(".")
        if package in {"redis", "valkey"} and "asyncio" in parts:
            return import_module(f"{package}.exceptions")
    raise TypeError(f"client is a Redis or RedisCluster of redis.asyncio, not {shown(client)}")


# ---- a cluster -----------------------------------------------------------------------------------


class _Nodes:
    """Finds the node of a record, and sends calls there, so that a dead node harms no other.

    The driver's own routing makes every call wait, and closes every connection, while it looks for
    the nodes anew after a failure. So a call goes to its node directly, and to the driver only if
    the node redirects it or is not known. After a failed call to a node, the next one to it looks
    first who has its keys now.

    Args:
        client: A client of a cluster.
        exceptions: The exceptions of its package.
    """

    def __init__(self, client: OfDriver, exceptions: ModuleType) -> None:
        self._client = client
        self._exceptions = exceptions
        # Whether the driver knows the nodes. If not, its `aclose` closes nothing, not even the
        # connections that calls to a node have opened.
        self._is_initialized = False
        # The names of nodes whose last call failed.
        self._suspects: set[str] = set()

    def name_of(self, record: str) -> str:
        """Return the name of the node that has the record; "" while that is not known."""
        node = self._find(record)
        return "" if node is None else str(node.name)

    def suspect(self, name: str) -> None:
        """Look before the next call to that node who has its keys: a replica may have, by now."""
        self._suspects.add(name)

    async def send(self, call: _Call, record: str) -> OfDriver:
        """Send a call about a record; it may be sent twice. Raises what the driver raises."""
        if not self._is_initialized:
            # Not with each call: it may connect to any node, also to a dead one.
            await self._client.initialize()
            self._is_initialized = True
        node = self._find(record)
        if node is not None and node.name in self._suspects:
            await self._client.nodes_manager.initialize()
            self._suspects.discard(node.name)
            node = self._find(record)
        if node is None:
            return await self._follow(call)
        try:
            return await self._send_to(node, call, record)
        except (self._exceptions.AskError, self._exceptions.TryAgainError):  # or a `MovedError`
            return await self._follow(call)

    async def _follow(self, call: _Call) -> OfDriver:
        """Send a call through the driver, which follows redirections, and may forget the nodes."""
        try:
            return await call(self._client)
        finally:
            self._is_initialized = False

    async def _send_to(self, node: OfDriver, call: _Call, record: str) -> OfDriver:
        loop = asyncio.get_running_loop()
        for _ in range(_REPEATS):
            try:
                return await call(_Node(node))
            except (self._exceptions.ResponseError, self._exceptions.MaxConnectionsError):
                raise
            except Exception as error:
                if loop.is_closed():
                    raise  # the call was left behind, and fails as it is collected
                # When redis-py before 6 looks for the nodes anew, it closes the connections of all
                # of them, also amid a call, which may then raise anything.
                known = self._find(record)
                if known is node:
                    if not isinstance(error, (self._exceptions.ConnectionError, RuntimeError)):
                        raise
                    # Networks cut idle connections, and more than one; so does the end of a loop.
                    with contextlib.suppress(RuntimeError):
                        await node.disconnect()
                node = known or node
        return await call(_Node(node))

    def _find(self, record: str) -> OfDriver:
        nodes = self._client.nodes_manager.slots_cache.get(self._client.keyslot(record))
        return nodes[0] if nodes else None


class _Node:
    """One node, with the methods of a client that calls and scripts use."""

    __slots__ = ("execute_command",)

    def __init__(self, node: OfDriver) -> None:
        self.execute_command: Callable[..., Awaitable[Any]] = node.execute_command

    async def evalsha(self, *arguments: OfDriver) -> OfDriver:
        return await self.execute_command("EVALSHA", *arguments)

    async def info(self) -> OfDriver:
        return await self.execute_command("INFO")

    async def script_load(self, script: str) -> OfDriver:
        digest = await self.execute_command("SCRIPT LOAD", script)
        return digest if isinstance(digest, str) else digest.decode()


# ---- pipelines -----------------------------------------------------------------------------------


class RedisPipeline:
    """The methods of `RedisStore`, queued on a pipeline or a transaction of the caller's.

    Each returns a `Queued`, which finds its answer among the replies of ``execute()``. The script
    is sent in full, since it cannot be sent again in the midst of a transaction. Only for the
    built-in algorithms.

    `RedisStore.pipeline` makes it.

    Args:
        requests: Makes the calls of the script.
        pipe: The pipeline or transaction of redis-py or valkey-py.
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
        max_reservation: float = 0.0,
    ) -> "Queued":
        """Queue `Store.reserve`, and return the call."""
        return self._queue(key, algorithm, Step("reserve", costs, max_reservation))

    def refund(self, key: Key, algorithm: Algorithm[Any], cost: float, instant: float) -> "Queued":
        """Queue `Store.refund`, and return the call."""
        return self._queue(key, algorithm, Step("refund", (cost,), instant))

    def peek(self, key: Key, algorithm: Algorithm[Any], cost: float = 1.0) -> "Queued":
        """Queue `Store.peek`, and return the call."""
        return self._queue(key, algorithm, Step("peek", (cost,)))

    def record(self, key: Key, algorithm: Algorithm[Any], cost: float = 1.0) -> "Queued":
        """Queue `Store.record`, and return the call."""
        return self._queue(key, algorithm, Step("record", (cost,)))

    def clear(self, key: Key) -> None:
        """Queue `Store.clear`."""
        # The pipeline of a cluster does not queue what its `unlink` is given.
        self._pipe.execute_command("UNLINK", self._requests.name(key))

    def _queue(self, key: Key, algorithm: Algorithm[Any], step: Step) -> "Queued":
        step.check()
        request = self._requests.make(key, algorithm, step)
        if request is None:
            raise TypeError(f"a pipeline can only take algorithms of this package: {algorithm!r}")
        queued = Queued(len(self._pipe), key, algorithm, len(step.costs))
        keys, args = request
        self._pipe.execute_command("EVAL", RECORD, len(keys), *keys, *args)
        return queued


@dataclass(frozen=True, slots=True)
class Queued:
    """A call that is queued on a pipeline."""

    #: The place of its reply among the replies of the pipeline.
    place: int
    #: The key of the record.
    key: Key
    #: The algorithm that decides.
    algorithm: Algorithm[Any]
    #: The most instants that there may be in the answer.
    most: int

    def answer(self, replies: Sequence[Any]) -> Answer:
        """Return the answer, which is among the replies of ``execute()``.

        Args:
            replies: All replies of the pipeline.

        Raises:
            ValueError: The record of the key is of another algorithm.
        """
        return read_answer(replies[self.place], self.key, self.algorithm, self.most)

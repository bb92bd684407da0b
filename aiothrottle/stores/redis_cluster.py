"""Calls to a cluster, each sent to the node that has the key, so that a dead node harms no other.

The driver's own routing makes every call wait, and closes every connection, while it looks for the
nodes anew after a failure. So a call goes to its node directly, and to the driver only if the node
redirects it or is not known.

Invariant: after a failed call to a node, the next one to it looks first who has its keys now.
"""

from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import Any

# A call whose connection was closed is sent again so often.
_REPEATS = 2


class Nodes:
    """Finds the node of a record, and sends calls there.

    Args:
        client: A client of a cluster.
        exceptions: The exceptions of its package.
    """

    def __init__(self, client: Any, exceptions: ModuleType) -> None:  # noqa: ANN401 - the driver's own
        self._client = client
        self._exceptions = exceptions
        self._redirections: Any = (
            *(exceptions.MovedError, exceptions.AskError, exceptions.TryAgainError),
        )
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

    async def send(self, call: Callable[[Any], Awaitable[Any]], record: str) -> Any:  # noqa: ANN401
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
        except self._redirections:
            return await self._follow(call)

    async def _follow(self, call: Callable[[Any], Awaitable[Any]]) -> Any:  # noqa: ANN401
        """Send a call through the driver, which follows redirections, and may forget the nodes."""
        try:
            return await call(self._client)
        finally:
            self._is_initialized = False

    async def _send_to(
        self,
        node: Any,  # noqa: ANN401 - the driver's
        call: Callable[[Any], Awaitable[Any]],
        record: str,
    ) -> Any:  # noqa: ANN401
        for _ in range(_REPEATS):
            try:
                return await call(_Node(node))
            except (self._exceptions.ResponseError, self._exceptions.MaxConnectionsError):
                raise
            except Exception as error:
                # When redis-py before 6 looks for the nodes anew, it closes the connections of all
                # of them, also amid a call, which may then raise anything.
                known = self._find(record)
                if known is node:
                    if not isinstance(error, self._exceptions.ConnectionError):
                        raise
                    await node.disconnect()  # networks cut idle connections, and more than one
                node = known or node
        return await call(_Node(node))

    def _find(self, record: str) -> Any:  # noqa: ANN401
        nodes = self._client.nodes_manager.slots_cache.get(self._client.keyslot(record))
        return nodes[0] if nodes else None


class _Node:
    """One node, with the methods of a client that calls use."""

    __slots__ = ("_node",)

    def __init__(self, node: Any) -> None:  # noqa: ANN401
        self._node = node

    async def evalsha(self, *arguments: Any) -> Any:  # noqa: ANN401
        return await self._node.execute_command("EVALSHA", *arguments)

    async def script_load(self, script: str) -> Any:  # noqa: ANN401
        digest = await self._node.execute_command("SCRIPT LOAD", script)
        return digest if isinstance(digest, str) else digest.decode()

    async def info(self) -> dict[str, Any]:
        answer: dict[str, Any] = await self._node.execute_command("INFO")
        return answer

    async def unlink(self, *names: str) -> Any:  # noqa: ANN401
        return await self._node.execute_command("UNLINK", *names)

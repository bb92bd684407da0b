"""A connection of the client's that is kept while calls follow each other closely.

redis-py takes a connection from its pool for each command, and puts it back; that, and what it does
so that it may ask again, takes longer than the server does. Here the command is sent as it is, and
what goes wrong is left to the driver: it is asked the same, by its own ways, of another connection.
"""

import asyncio
from contextlib import suppress
from inspect import Parameter, signature
from types import TracebackType
from typing import Any

__all__ = ["KeptConnection"]

# So many calls in a row: then those may go on who wait for a connection of a small pool.
_MOST = 32


class KeptConnection:
    """Borrows one connection at a time. Entered, it keeps it until all who have entered have left.

    Args:
        client: Whose connection it is. A cluster, and a client with one connection for all, has
            none to lend.
    """

    __slots__ = (
        "_asking",
        "_calls",
        "_connection",
        "_keepers",
        "_loop",
        "_names",
        "_pool",
    )

    def __init__(
        self,
        client: Any,  # noqa: ANN401 - its own types are half unknown
    ) -> None:
        self._pool: Any = None
        if not getattr(client, "single_connection_client", True):
            self._pool = client.connection_pool
            wanted = signature(self._pool.get_connection).parameters.get("command_name")
            # valkey-py, and redis-py before 5.3, want to be told what it is for.
            named = wanted is not None and wanted.default is Parameter.empty
            self._names: tuple[str, ...] = ("EVALSHA",) if named else ()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._keepers = 0
        self._connection: Any = None
        self._asking = False
        self._calls = 0

    async def __aenter__(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # what an earlier one has left open is lost
            self._loop, self._keepers, self._connection, self._asking = loop, 0, None, False
        self._keepers += 1

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # One that a closed loop has left behind may leave late, and counts no more.
        self._keepers = max(0, self._keepers - 1)
        if not (self._keepers or self._asking):
            await self._give_back()

    @property
    def is_free(self) -> bool:
        """Whether it may be asked now: one asks at a time, and only while it is entered."""
        return (
            self._keepers > 0
            and not self._asking
            and self._pool is not None
            and self._loop is asyncio.get_running_loop()
        )

    async def ask(self, command: bytes) -> Any:  # noqa: ANN401 - as the driver has it
        """Send the packed command and give the reply; None: the driver has to ask by its own ways.

        The server may have done what it was asked also then. Cancelled, it gives the connection
        back, closed.
        """
        self._asking, reply = True, None
        try:
            connection = self._connection
            if connection is None:
                connection = self._connection = await self._pool.get_connection(*self._names)
            await connection.send_packed_command(command)
            reply = await connection.read_response(disable_decoding=True)
        except Exception:  # noqa: BLE001, S110 - the driver is asked again, and says what is wrong
            pass
        finally:
            self._asking = False
            self._calls += 1
            if reply is None or not self._keepers or self._calls >= _MOST:
                await self._give_back(sound=reply is not None)
        return reply

    async def let_go(self) -> None:
        """Give the connection back, now or after the call under way: others need one."""
        self._calls = _MOST
        if not self._asking:
            await self._give_back()

    async def _give_back(self, *, sound: bool = True) -> None:
        """Give the connection back; a reply that is under way is nobody's."""
        connection, self._connection, self._calls = self._connection, None, 0
        if connection is not None:
            # A connection that cannot be closed is as good as closed; the reply has come, or not.
            with suppress(Exception):
                try:
                    if not sound:
                        await connection.disconnect(nowait=True)
                finally:
                    await self._pool.release(connection)

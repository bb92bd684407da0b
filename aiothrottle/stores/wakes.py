"""Wakes the waiters for shared slots in Redis when it is their turn: publish and subscribe."""

import asyncio
import random
import secrets
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from typing import Any

from aiothrottle.stores.store import name_of

__all__ = ["Wakes"]

# Seconds before the next attempt to listen; they double up to the longest.
_PAUSE, _LONGEST_PAUSE = 0.05, 2.0


class Wakes:
    """One subscription for all owners of one store, while any of them listens.

    Messages are lost while there is no connection: so a new subscription wakes all owners.
    """

    __slots__ = ("_client", "_reader", "_wakes", "channels", "id")

    def __init__(
        self,
        client: Any,  # noqa: ANN401 - the driver's own
        prefix: str,
    ) -> None:
        self._client = client
        #: The beginning of an owner's name in the server, before a full stop.
        self.id: str = secrets.token_hex(8)
        #: The beginning of the channels of all stores; the `id` follows.
        self.channels: str = f"{name_of(prefix)}:wake:"
        self._wakes: dict[str, Callable[[], None]] = {}
        self._reader: asyncio.Task[None] | None = None

    def listen(self, owner: str, wake: Callable[[], None]) -> bool:
        """Call `wake` for each message to the owner; False if the driver cannot listen."""
        if not hasattr(self._client, "pubsub"):  # an old driver, for a cluster
            return False
        self._wakes[owner] = wake
        loop = asyncio.get_running_loop()
        reader = self._reader
        if reader is None or reader.done() or reader.get_loop() is not loop:
            self._reader = asyncio.Task(
                self._read(), loop=loop, name="aiothrottle wakes", context=Context()
            )
        return True

    def unlisten(self, owner: str) -> None:
        """Stop calling it."""
        self._wakes.pop(owner, None)
        if not self._wakes and self._reader is not None:
            if not self._reader.get_loop().is_closed():
                self._reader.cancel()
            self._reader = None

    async def _read(self) -> None:
        pause = _PAUSE
        while True:
            # Whatever the driver raises, subscribe anew; meanwhile the owners ask at intervals.
            with suppress(Exception):
                pubsub: Any = self._client.pubsub()
                try:
                    await pubsub.subscribe(self.channels + self.id)
                    while True:
                        message = await pubsub.get_message(timeout=None)
                        pause = _PAUSE
                        if message is not None:
                            self._deliver(message)
                finally:
                    await pubsub.aclose()
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _deliver(self, message: dict[str, Any]) -> None:
        if message["type"] != "message":
            for wake in list(self._wakes.values()):
                wake()
            return
        data: str | bytes = message["data"]
        name = data if isinstance(data, str) else data.decode()
        if wake_owner := self._wakes.get(name.partition(".")[2]):
            wake_owner()

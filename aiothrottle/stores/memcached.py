"""Limits in memcached: every algorithm by compare and swap, on the clocks of the processes."""

import math
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from aiothrottle._lazy import needs

with needs("emcache", extra="memcached"):
    from emcache import (
        Client,
        Item,
        MemcachedHostAddress,
        NotFoundCommandError,
        NotStoredStorageCommandError,
        StorageCommandError,
    )

from aiothrottle._checks import shown
from aiothrottle.stores.calls import Calls, send_alone
from aiothrottle.stores.record import machine_time
from aiothrottle.stores.store import Key, name_of
from aiothrottle.stores.swap import Loaded, SwapStore

__all__ = ["MemcachedStore"]

# More seconds than this memcached takes for a time since 1970.
_MONTH = 30 * 86400
# The last such time that it can keep: it takes later ones for the past.
_LATEST = 2**31 - 1
# The most calls under way at a time: by default a client has as many connections to a node, and of
# the calls that wait for one it serves the last first.
_CALLS = 2


class MemcachedStore(SwapStore):
    """Keeps the records in memcached, by compare and swap, with `emcache` as the driver.

    The clock of memcached has whole seconds only, so the clocks of the machines count, and have to
    agree: the fastest of them rules. memcached drops records when its memory is full, and all of
    them when it is restarted; dropped tokens may be spent once more. A `SlidingWindowLog` needs
    eight bytes for each token of its limit, and a megabyte at the most; the others are small.

    Args:
        client: The client that ``await emcache.create_client(...)`` returns. Its `timeout` is that
            of a call; at most two are under way at a time, others queue.
        prefix: The beginning of the name of every record.
        clock: For tests: returns the time in seconds.

    Raises:
        TypeError: The client is of another kind.

    >>> import emcache
    >>> async def make():
    ...     client = await emcache.create_client([emcache.MemcachedHostAddress("localhost", 11211)])
    ...     return MemcachedStore(client, prefix="crawler")
    """

    one_clock = False

    def __init__(
        self,
        client: Client,
        prefix: str = "aiothrottle",
        *,
        clock: Callable[[], float] | None = None,
    ) -> None:
        if not isinstance(client, Client):
            raise TypeError(f"client is a client of emcache.create_client(), not {shown(client)}")
        self._client = client
        self._prefix = prefix
        self._clock = clock or machine_time
        self._calls = Calls[Callable[[], Awaitable[Any]]](
            "memcached", send_alone, limit=_CALLS, timeout=None, patient=True, hint=self._trouble
        )

    async def clear(self, key: Key) -> None:
        """Forget the record of the key."""
        delete = partial(self._client.delete, self._name(key))
        await self._calls.ask(partial(_was_done, delete))

    async def load(self, key: Key) -> Loaded:
        """Return the bytes of the record, their number, and the time of this machine."""
        name = self._name(key)
        item: Item | None = await self._calls.ask(partial(self._client.gets, name))
        if item is None:
            return None, None, self._clock()
        return item.value or None, item.cas, self._clock()

    async def swap(self, key: Key, mark: int | None, data: bytes | None, seconds: float) -> bool:
        """Replace the bytes of the record by `data` if they still have the number."""
        expires = math.ceil(seconds) + 1
        if expires > _MONTH:
            expires += int(time.time())
        if expires > _LATEST:
            expires = 0  # never
        name = self._name(key)
        if mark is None:
            put = partial(self._client.add, name, data or b"", exptime=expires)
        else:  # no command deletes by the number; an empty value expires soon
            put = partial(self._client.cas, name, data or b"", mark, exptime=expires)
        # What was loaded is soon out of date: no other call is sent before.
        return bool(await self._calls.ask(partial(_was_done, put), first=True))

    def _trouble(self) -> str:
        """Return which nodes cannot be reached; the driver only logs the reason."""
        nodes = self._client.cluster_managment().connection_pool_metrics()
        lost = ", ".join(
            f"{node.address}:{node.port}" if isinstance(node, MemcachedHostAddress) else node.path
            for node, pool in nodes.items()
            if not pool.cur_connections
        )
        return lost and f"no connection to {lost}; the logger 'emcache' has the reason"

    def _name(self, key: Key) -> bytes:
        return name_of(key, self._prefix).encode()


async def _was_done(call: Callable[[], Awaitable[None]]) -> bool:
    """Make the call; return False if the record is missing, or has changed."""
    try:
        await call()
    except (NotStoredStorageCommandError, NotFoundCommandError):
        return False
    except StorageCommandError as error:
        if "NOT_FOUND" not in str(error):  # the driver has no other sign of it for `cas`
            raise
        return False
    return True

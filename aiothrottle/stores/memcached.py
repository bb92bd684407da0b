"""Limits in memcached: every law by compare and swap, on the clocks of those who ask."""

import math
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

try:
    from emcache import (
        Client,
        ClusterNoAvailableNodes,
        CommandError,
        NotFoundCommandError,
        NotStoredStorageCommandError,
    )
except ModuleNotFoundError as _error:
    raise ModuleNotFoundError(
        "emcache is not there: pip install 'aiothrottle-client[memcached]'", name="emcache"
    ) from _error

from aiothrottle.errors import StoreUnavailable, said_by
from aiothrottle.stores.ledger import EPOCH
from aiothrottle.stores.store import Key, name_of
from aiothrottle.stores.swap import Loaded, SwapStore

__all__ = ["MemcachedStore"]

# Of more seconds memcached thinks that they count from 1970.
_MONTH = 30 * 86400

_Result = TypeVar("_Result")


class MemcachedStore(SwapStore):
    """Keeps the records in memcached, with `emcache` as the driver. Every law by compare and swap.

    memcached tells whole seconds only, so the clocks of the machines count, and have to agree:
    time is what the fastest of them says. It forgets what it has no memory for, and all of it when
    it is restarted; what is forgotten may be spent again. A `RollingWindow` is eight bytes for
    each token of its limit, of a megabyte at the most; others are small.

    Args:
        client: What ``await emcache.create_client(...)`` gives. Its `timeout` is that of a call.
        prefix: The beginning of the name of every record.
        clock: For tests: gives the time in seconds.

    >>> import emcache
    >>> async def make():
    ...     client = await emcache.create_client([emcache.MemcachedHostAddress("localhost", 11211)])
    ...     return MemcachedStore(client, prefix="crawler")
    """

    __slots__ = ("_client", "_clock", "_prefix")

    one_clock = False

    def __init__(
        self,
        client: Client,
        prefix: str = "aiothrottle",
        *,
        clock: Callable[[], float] | None = None,
    ) -> None:
        if not isinstance(client, Client):
            raise TypeError(f"client is what emcache.create_client() gives, not {client!r}")
        self._client = client
        self._prefix = prefix
        self._clock = clock or _since_2026

    async def clear(self, key: Key) -> None:
        """Forget the record of the key."""
        with suppress(NotFoundCommandError):
            await _told(self._client.delete(self._name(key)))

    async def load(self, key: Key) -> Loaded:
        """Give what is there, its number, and the time of this machine."""
        item = await _told(self._client.gets(self._name(key)))
        if item is None:
            return None, None, self._clock()
        return item.value or None, item.cas, self._clock()

    async def swap(self, key: Key, mark: int | None, data: bytes | None, seconds: float) -> bool:
        """Put `data` there if what is there has the number still."""
        expires = math.ceil(seconds) + 1
        if expires > _MONTH:
            expires += int(time.time())
        name = self._name(key)
        try:
            if mark is None:
                await _told(self._client.add(name, data or b"", exptime=expires))
            else:  # there is no way to delete what has that number; nothing is soon forgotten
                await _told(self._client.cas(name, data or b"", mark, exptime=expires))
        except (NotStoredStorageCommandError, NotFoundCommandError):
            return False
        return True

    def _name(self, key: Key) -> bytes:
        return name_of(key, self._prefix).encode()


def _since_2026() -> float:
    return time.time() - EPOCH


async def _told(call: Awaitable[_Result]) -> _Result:
    """Wait for the call; tell of what is no answer."""
    try:
        return await call
    except (NotStoredStorageCommandError, NotFoundCommandError):
        raise
    except (CommandError, ClusterNoAvailableNodes, OSError, EOFError) as error:
        raise StoreUnavailable(f"memcached: {said_by(error)}") from error

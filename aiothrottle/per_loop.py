"""One limiter for each event loop of a program, such as those of several threads.

Invariant: a limiter is only ever returned on the loop that it was made for.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import Generic, NoReturn, TypeVar

from aiothrottle._checks import shown
from aiothrottle.errors import no_copy
from aiothrottle.keyed import AnyLimiter

_Limiter = TypeVar("_Limiter", bound=AnyLimiter)


class PerLoop(Generic[_Limiter]):
    """Gives each event loop a limiter of its own, made when the loop first asks for it.

    A new loop takes over the limiter of one that was closed, with the tokens that are spent.

    A limiter belongs to one loop. A program with several, such as a synchronous client that runs a
    loop in a thread, keeps one `PerLoop` where it would keep a limiter. Sessions and transports
    take it in place of a limiter.

    Each limiter has the whole limit, unless the function that makes them gives all of them the same
    `store` and `key`: then they share it. A `MemoryStore` is enough within one process.

    Args:
        make: Makes a limiter. It is called on the loop, once for each.

    Raises:
        TypeError: `make` is not a function.

    >>> from aiothrottle import RateLimiter
    >>> from aiothrottle.stores import MemoryStore
    >>> store = MemoryStore()
    >>> limiters = PerLoop(lambda: RateLimiter("10/s", store=store, key="api"))
    >>> async def fetch():
    ...     async with limiters.get().throttle():
    ...         print("sent")
    >>> asyncio.run(fetch())
    sent
    """

    __slots__ = ("__weakref__", "_limiters", "_lock", "_make")

    def __init__(self, make: Callable[[], _Limiter]) -> None:
        if isinstance(make, AnyLimiter) or not callable(make):
            raise TypeError(
                "make must be a function that makes a limiter, such as "
                f"lambda: RateLimiter('10/s'), got {shown(make)}"
            )
        self._make = make
        # Two threads may look for limiters of two loops at once.
        self._lock = threading.Lock()
        self._limiters: dict[asyncio.AbstractEventLoop, _Limiter] = {}

    def get(self) -> _Limiter:
        """Return the limiter of the running loop.

        Raises:
            RuntimeError: No loop is running.
            TypeError: `make` returned something else than a limiter.
        """
        loop = asyncio.get_running_loop()
        with self._lock:
            if loop not in self._limiters:
                closed = next((other for other in self._limiters if other.is_closed()), None)
                if closed is not None:  # its limiter, with the tokens that are spent
                    self._limiters[loop] = self._limiters.pop(closed)
            limiter = self._limiters.get(loop)
        if limiter is None:
            limiter = self._make()
            if not isinstance(limiter, AnyLimiter):
                raise TypeError(f"make must return a limiter, got {shown(limiter)}")
            with self._lock:
                self._limiters[loop] = limiter
        return limiter

    def __reduce__(self) -> NoReturn:
        """Reject pickling and copying."""
        raise no_copy("PerLoop")

    def __repr__(self) -> str:
        with self._lock:
            return f"<PerLoop of {len(self._limiters)} limiters>"

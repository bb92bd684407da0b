"""Permits that were dropped with their slot, and are released when they are collected as garbage.

Garbage is collected by any thread, and at any point of any code. Invariant: only a count changes
there; who gets the slot is decided on the event loop.
"""

from asyncio import AbstractEventLoop
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["LostPermits"]


class LostPermits:
    """What releases the lost permits, to be called on the loop."""

    __slots__ = ("_releases",)

    def __init__(self) -> None:
        self._releases: list[Callable[[], None]] = []

    def add(self, release: "Callable[[], None]", loop: AbstractEventLoop | None) -> None:
        """Have one released on the loop; at once if the loop is closed."""
        self._releases.append(release)
        try:
            if loop is not None:
                loop.call_soon_threadsafe(self.release)
        except RuntimeError:  # it is closed, so there is nobody to be disturbed
            self.release()

    def release(self) -> None:
        """Release all."""
        while self._releases:
            self._releases.pop()()

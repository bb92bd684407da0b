"""Permits that were dropped without release, and are released when they are garbage-collected.

The collector runs in any thread, at any point of any code. Invariant: there only a count changes;
the next grant is decided on the event loop.
"""

from asyncio import AbstractEventLoop
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["LostPermits"]


class LostPermits:
    """The release functions of lost permits, to be called on the event loop."""

    __slots__ = ("_releases",)

    def __init__(self) -> None:
        self._releases: list[Callable[[], None]] = []

    def add(self, release: "Callable[[], None]", loop: AbstractEventLoop | None) -> None:
        """Schedule `release` on the loop; call it at once if the loop is closed."""
        self._releases.append(release)
        try:
            if loop is not None:
                loop.call_soon_threadsafe(self.release)
        except RuntimeError:  # the loop is closed, so no code of it can be interrupted
            self.release()

    def release(self) -> None:
        """Release all lost permits."""
        while self._releases:
            self._releases.pop()()

"""A limiter is used in the thread of its event loop only: no other thread could wake waiters."""

from asyncio import get_running_loop
from threading import get_ident
from typing import TYPE_CHECKING

from aiothrottle.errors import in_another_thread

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

__all__ = ["check_loop", "check_thread"]


def check_thread(loop: "AbstractEventLoop | None", thread: int | None) -> int | None:
    """Raise if the loop is open and this is not its thread.

    Args:
        loop: The loop of the limiter; None: it has none yet.
        thread: The last known thread of the loop.

    Returns:
        The present thread of the loop.

    Raises:
        RuntimeError: The loop runs in another thread, or may run there.
    """
    here = get_ident()
    if loop is None or thread == here or loop.is_closed():
        return thread
    try:
        running = get_running_loop()
    except RuntimeError:
        running = None
    if running is not loop:
        raise in_another_thread(loop)
    return here


def check_loop(own: "AbstractEventLoop | None", loop: "AbstractEventLoop") -> None:
    """Raise RuntimeError if a limiter belongs to another loop that is open."""
    if own is not loop and own is not None and not own.is_closed():
        raise RuntimeError(
            f"this limiter belongs to {own!r}, which is still open, and cannot serve {loop!r} as "
            "well: use one limiter for each loop, or close the first loop"
        )

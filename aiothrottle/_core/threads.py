"""One thread for one limiter: that of its event loop, as no other one would wake its waiters."""

from asyncio import get_running_loop
from threading import get_ident
from typing import TYPE_CHECKING

from aiothrottle.errors import in_another_thread

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

__all__ = ["check_thread"]


def check_thread(loop: "AbstractEventLoop | None", thread: int | None) -> int | None:
    """Raise if this is another thread than that of the loop, while the loop is open.

    Args:
        loop: The loop that something belongs to, if it does.
        thread: The thread in which the loop was seen to run.

    Returns:
        The thread of the loop, which may be another one by now.

    Raises:
        RuntimeError: The loop runs in another thread, or may.
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

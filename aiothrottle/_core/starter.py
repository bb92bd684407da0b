"""What decides about new requests and starts them: an engine, or a chain that begins with it."""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from aiothrottle._core.wait_queue import Waiter

__all__ = ["Starter"]


class Starter(Protocol):
    """Decides about new requests and starts them; `Engine` documents the methods."""

    def bind(self) -> None: ...
    def decide_at_once(self, waiter: "Waiter", now: float) -> float: ...
    def start(self, waiter: "Waiter", now: float) -> None: ...
    def estimate(self, now: float, waiter: "Waiter", ahead: float | None = None) -> float: ...

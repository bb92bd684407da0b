"""Options of a request that can be used only once, made ready for several attempts."""

from collections.abc import Iterator
from typing import Any

__all__ = ["SINGLE_USE", "SharedTracker", "keep_iterators"]

# aiohttp reads these through, and takes iterators for them. (A body is for `Body`.)
_READ_THROUGH = frozenset(
    {"cookies", "headers", "json", "protocols", "proxy_headers", "skip_auto_headers"}
)
#: The options that may be of use only once.
SINGLE_USE: frozenset[str] = _READ_THROUGH | {"data", "upload_tracker"}


def keep_iterators(options: dict[str, Any]) -> None:
    """Read iterators into lists, in place: a second attempt would find them empty."""
    for name in _READ_THROUGH.intersection(options):
        if isinstance(options[name], Iterator):
            options[name] = list(options[name])


class SharedTracker:
    """What aiohttp is given in place of an `aiohttp.UploadTracker`, for each attempt.

    A tracker counts attempts, but refuses to take part in a second call of aiohttp's. So it begins
    and ends here; all else is its own.

    Raises:
        RuntimeError: The tracker is of another request.
    """

    __slots__ = ("_tracker",)

    def __init__(self, tracker: Any) -> None:  # noqa: ANN401 - since aiohttp 3.14.4
        # There is no public way.
        tracker._bind()  # noqa: SLF001
        self._tracker = tracker

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the tracker has
        return getattr(self._tracker, name)

    def _bind(self) -> None:
        """Begin a call of aiohttp's."""

    def _finalize(self) -> None:
        """End a call of aiohttp's."""

    def end(self) -> None:
        """Have the tracker say how the last attempt ended."""
        self._tracker._finalize()  # noqa: SLF001

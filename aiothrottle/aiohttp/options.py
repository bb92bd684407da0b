"""Options of a request that could be used only once, made usable for several attempts."""

from collections.abc import Iterator
from typing import Any

__all__ = ["SINGLE_USE", "SharedTracker", "keep_iterators"]

# aiohttp accepts iterators for these, and consumes them. (`Body` is for bodies.)
_ITERABLE = frozenset(
    {"cookies", "headers", "json", "protocols", "proxy_headers", "skip_auto_headers"}
)
#: The options that could be used only once.
SINGLE_USE: frozenset[str] = _ITERABLE | {"data", "upload_tracker"}


def keep_iterators(options: dict[str, Any]) -> None:
    """Replace iterators by lists, in place: the second attempt would find an iterator empty."""
    for name in _ITERABLE.intersection(options):
        if isinstance(options[name], Iterator):
            options[name] = list(options[name])


class SharedTracker:
    """Stands for an `aiohttp.UploadTracker` in each attempt.

    A tracker counts attempts, but raises in a second call of aiohttp. So its beginning and its end
    are called here, once each; the other attributes are the tracker's.

    Raises:
        RuntimeError: The tracker belongs to another request.
    """

    __slots__ = ("_tracker",)

    def __init__(self, tracker: Any) -> None:  # noqa: ANN401 - since aiohttp 3.14.4
        # There is no public way.
        tracker._bind()
        self._tracker = tracker

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any attribute of the tracker
        return getattr(self._tracker, name)

    def _bind(self) -> None:
        """Do nothing at the beginning of a call of aiohttp."""

    def _finalize(self) -> None:
        """Do nothing at the end of a call of aiohttp."""

    def end(self) -> None:
        """End the tracker, with the outcome of the last attempt."""
        self._tracker._finalize()

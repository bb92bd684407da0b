"""A bounded cache of what a text means, as a rule the name of a header."""

from collections.abc import Callable, Sequence
from typing import TypeVar

__all__ = ["Memo"]

# Servers use few names repeatedly, but a hostile one may invent any number, of any length.
_MOST = 1024
_LONGEST = 64

Key = TypeVar("Key", bound=Sequence[str])
Meaning = TypeVar("Meaning")


class Memo(dict[Key, Meaning]):
    """A dict that computes a missing value by a function. A hit costs no more than in any dict.

    >>> lengths = Memo(len)
    >>> lengths["four"], list(lengths)
    (4, ['four'])
    """

    __slots__ = ("_function", "_longest", "_most")

    def __init__(
        self, function: Callable[[Key], Meaning], most: int = _MOST, longest: int = _LONGEST
    ) -> None:
        super().__init__()
        self._function = function
        self._most = most
        self._longest = longest

    def __missing__(self, key: Key) -> Meaning:
        """Compute the value, and keep it if the key is no longer than a real server's."""
        meaning = self._function(key)
        size = len(key) if isinstance(key, str) else sum(map(len, key))
        if size <= self._longest:
            if len(self) >= self._most:
                self.clear()
            self[key] = meaning
        return meaning

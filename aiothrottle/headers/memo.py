"""Remembers what a text means, the name of a header as a rule, within bounds."""

from collections.abc import Callable, Sequence
from typing import TypeVar

__all__ = ["Memo"]

# Servers use few names, and the same again; but one may make up as many, and as long, as it likes.
_MOST = 1024
_LONGEST = 64

Key = TypeVar("Key", bound=Sequence[str])
Meaning = TypeVar("Meaning")


class Memo(dict[Key, Meaning]):
    """A dict that asks the function for what it does not hold. Nothing is quicker to look into.

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
        """Find out; and remember, if it is no longer than what a server would use."""
        meaning = self._function(key)
        size = len(key) if isinstance(key, str) else sum(map(len, key))
        if size <= self._longest:
            if len(self) >= self._most:
                self.clear()
            self[key] = meaning
        return meaning

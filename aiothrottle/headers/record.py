"""What a profile read from a response: limits under construction, and waits."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from aiothrottle.headers.limits import Policy
from aiothrottle.headers.units import UNIT_BY_NAME

__all__ = ["Record", "Vendor", "fill_template", "pick"]

# More limits than any vendor has.
_MOST = 256
_BRACES = re.compile(r"\{([^{}]*)\}")


@dataclass(slots=True)
class Record:
    """A limit under construction, from several headers."""

    name: str | None = None
    limit: float | None = None
    remaining: float | None = None
    used: float | None = None
    reset_after: float | None = None
    window: float | None = None

    def merge(self, other: "Record") -> None:
        """Merge another header: the lower limit and remainder, the later reset."""
        self.limit = pick(min, self.limit, other.limit)
        self.remaining = pick(min, self.remaining, other.remaining)
        self.used = pick(max, self.used, other.used)
        self.reset_after = pick(max, self.reset_after, other.reset_after)
        self.window = pick(max, self.window, other.window)

    def policy(self) -> Policy:
        """Return the limit as an immutable value."""
        remaining = self.remaining
        if remaining is None and self.limit is not None and self.used is not None:
            remaining = max(0, self.limit - self.used)
        unit = UNIT_BY_NAME[self.name or ""]
        return Policy(self.name, self.limit, self.window, remaining, self.reset_after, unit)


class Vendor:
    """The limits with a name, one without, and the waits."""

    __slots__ = ("_named", "_unnamed", "wait", "wait_if_throttled")

    def __init__(self) -> None:
        self._named: dict[str | None, Record] = {}
        self._unnamed: Record | None = None
        self.wait: float | None = None
        self.wait_if_throttled: float | None = None

    @property
    def policies(self) -> list[Policy]:
        """The limits that have a name."""
        return [record.policy() for record in self._named.values()]

    @property
    def unnamed(self) -> Policy | None:
        """The limit that fills the fields if none of the others binds."""
        return self._unnamed.policy() if self._unnamed else None

    def add(self, record: Record, *, named: bool) -> None:
        """Add the limit of one header."""
        if not named:
            self._unnamed = self._unnamed or record
        elif record.name in self._named:
            self._named[record.name].merge(record)
        elif len(self._named) < _MOST:
            self._named[record.name] = record


def pick(
    choose: Callable[[float, float], float], one: float | None, other: float | None
) -> float | None:
    """Choose between two numbers, either of which may be missing."""
    if one is None or other is None:
        return other if one is None else one
    return choose(one, other)


def fill_template(template: str, label_of: Callable[[str], str | None]) -> str:
    """Fill in the braces of the name of a limit; return "" if a value is missing.

    Braces in a value are not expanded: a server could make each value name the next one twice.
    """
    pieces = _BRACES.split(template)  # texts and keys in turn
    for place in range(1, len(pieces), 2):
        word = label_of(pieces[place])
        if word is None:
            return ""
        pieces[place] = word
    return "".join(pieces)

"""What every store is: five verbs on records, each of them one atomic step.

Strategy: a store keeps, under a key, the state of an algorithm that many processes share. It has
a clock of its own, and that clock alone counts: what it answers are seconds from now, so the
clocks of two machines are never compared. A line asks once for everybody who waits in it.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, TypeAlias
from urllib.parse import quote

from aiothrottle.algorithms.algorithm import Algorithm, until

__all__ = [
    "Answer",
    "Key",
    "Store",
    "check_costs",
    "check_horizon",
    "check_instant",
    "check_key",
    "name_of",
]

Key: TypeAlias = str | tuple[str, ...]
"""What names a record: a text, or several, such as an action and an actor."""

# Longer names are told by their beginning and a digest.
_LONGEST_NAME = 200
_BEGINNING = 120


@dataclass(frozen=True, slots=True)
class Answer:
    """What a store says of a record: all in seconds from now, but for `instants`.

    >>> Answer(now=5.0, instants=(5.0, 5.25), retry_after=0.5, remaining=0, reset_after=1.5).delays
    (0.0, 0.25)
    """

    #: The instant of the answer by the store's own clock. Two of one store may be compared.
    now: float
    #: For each cost that was taken, in order, the instant from which on it may go, by the store's
    #: clock. `Store.refund` asks for it; for anything else there is `delays`.
    instants: tuple[float, ...]
    #: Seconds until the first cost that was not taken may go, if nothing else goes before:
    #: infinity if it never may, 0.0 if all were taken. `Store.peek` tells it of what it is asked.
    retry_after: float
    #: Tokens that may still go now.
    remaining: float
    #: Seconds until everything that was spent is forgotten, and the record with it.
    reset_after: float

    @property
    def delays(self) -> tuple[float, ...]:
        """Seconds until each of the costs that were taken may go, in order; 0.0 is now."""
        now = self.now
        return tuple([until(each, now) if each > now else 0.0 for each in self.instants])


class Store(ABC):
    """Where the states are that many limiters share. Each verb is atomic.

    One key is for one algorithm. Limiters that share a key should have equal limits: if they have
    not, each is held to its own limit when it asks, by what all of them have spent; but what the
    shorter period has forgotten is forgotten for the longer one too.

    Every verb raises `StoreUnavailable` if the store does not answer in time or at all,
    `ValueError` if a number is out of range, or if the record of the key is of another algorithm,
    or of windows of another period, and `TypeError` if a key is none.
    """

    # What the limiters of this process know of it together, once there are any: see `Health`.
    __slots__ = ("_health",)

    _health: object

    @abstractmethod
    async def reserve(
        self,
        key: Key,
        algorithm: Algorithm[Any],
        costs: Sequence[float],
        *,
        horizon: float = 0.0,
    ) -> Answer:
        """Take, in order, as many of the costs as may go within `horizon` seconds from now.

        Nobody who asks later goes before them. None is taken behind one that is not.

        Args:
            key: Of the record.
            algorithm: Whose algorithm decides.
            costs: Tokens of each, 0 or more. A cost of 0 may always go.
            horizon: Seconds. With 0.0 only what may go now is taken.
        """

    @abstractmethod
    async def refund(
        self, key: Key, algorithm: Algorithm[Any], cost: float, instant: float
    ) -> None:
        """Give back `cost` tokens of what was taken for `instant`, as the answer told it.

        As far as the algorithm can: see `Algorithm.refund`. Who asks later goes no earlier than
        that instant all the same. Where one goes at a time, an instant that is over gives nothing
        back while others are taken behind it, who stand an interval apart by it.
        """

    @abstractmethod
    async def peek(self, key: Key, algorithm: Algorithm[Any], cost: float = 1.0) -> Answer:
        """Tell what `reserve` would say of the cost, and spend nothing.

        A `SlidingWindowLog` of a lower limit or a shorter period may be asked about the record of
        another one.
        """

    @abstractmethod
    async def record(self, key: Key, algorithm: Algorithm[Any], cost: float = 1.0) -> Answer:
        """Count what has happened already, without asking: there may be a debt afterwards."""

    @abstractmethod
    async def clear(self, key: Key) -> None:
        """Forget the record of the key."""


def check_costs(*costs: float) -> None:
    """Refuse what is no cost: a store is the last that can."""
    for cost in costs:
        if not 0 <= cost < math.inf:
            raise ValueError(f"a cost is a finite number of tokens, 0 or more, not {cost!r}")


def check_horizon(horizon: float) -> None:
    """Refuse what is no number of seconds ahead."""
    if not horizon >= 0:
        raise ValueError(f"a horizon is a number of seconds, 0 or more, not {horizon!r}")


def check_instant(instant: float) -> None:
    """Refuse what no answer has ever told."""
    if not math.isfinite(instant):
        raise ValueError(f"an instant is one that an answer told, not {instant!r}")


def check_key(key: Key) -> None:
    """Refuse what names no record."""
    parts = (key,) if isinstance(key, str) else key
    if not (isinstance(parts, tuple) and all(isinstance(part, str) for part in parts)):
        raise TypeError(f"a key is a text, or a tuple of texts, not {key!r}")


def name_of(key: Key, prefix: str = "") -> str:
    """Make of a key a name that any store can keep: printable ASCII, without blanks or braces.

    Different keys have different names. Of a name of more than 200 characters there is the
    beginning and the SHA-256 of all of it.

    >>> name_of(("mail", "ann@example.org"), prefix="app"), name_of(("a:b", "c")), name_of("é")
    ('app:mail:ann@example.org', 'a%3Ab:c', '%C3%A9')
    """
    check_key(key)
    parts = (key,) if isinstance(key, str) else key
    if prefix:
        parts = (prefix, *parts)
    name = ":".join([quote(part, safe="/@", errors="surrogatepass") for part in parts])
    if len(name) <= _LONGEST_NAME:
        return name
    # What is quoted has no "#".
    return f"{name[:_BEGINNING]}#{sha256(name.encode()).hexdigest()}"

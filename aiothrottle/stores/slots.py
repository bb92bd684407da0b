"""Slots that many processes share: who holds how many, and who is next.

Strategy. Each limiter that shares them is an owner. It tells the whole of its own part each time,
how many it holds and how many more it wants, and is told how many of those it gets (`Claim`,
`Granted`). So nothing has to be said twice or taken back: an answer that was lost is put right by
the next claim, and so is a store that has forgotten all. A claim is good for `lease` seconds of the
store's clock; whoever claims nothing for so long has died, and what was his is free.

Those who want more have a ticket for each in one queue. Slots that are free belong to as many
tickets at its head, and stay free until their owners come for them: nobody is overtaken.

`SlotTable` is this in Python, for the stores that decide there; `lua/slots.lua` says the same, and
a test has both answer alike.
"""

import json
import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

from aiothrottle.stores.store import Key, Store, check_key

__all__ = ["Claim", "Granted", "SlotStore", "SlotTable", "slots_key"]

_SEAL = b"slots 1 "


@dataclass(frozen=True, slots=True)
class Claim:
    """What an owner says."""

    #: Whose it is: letters and digits, other than those of all other owners.
    owner: str
    #: How many may be held by all owners together, 1 or more.
    limit: int
    #: How many the owner holds; what it held above that is free again.
    held: int
    #: How many more it wants; less than before takes its last tickets back.
    wanted: int
    #: Seconds for which that holds, unless it is said again.
    lease: float
    #: Higher with each claim of the owner: one that arrives late changes nothing.
    number: int


@dataclass(frozen=True, slots=True)
class Granted:
    """What an owner is told."""

    #: So many of those that it wants are its own from now on. For the others it has tickets.
    granted: int
    #: So many of those that it holds the store had given up: the lease was over.
    lost: int
    #: Seconds after which a lease may be over, unless it is renewed: not before.
    retry_after: float


class SlotStore(Store):
    """A store in which slots can be shared as well."""

    __slots__ = ()

    @abstractmethod
    async def claim(self, key: Key, claim: Claim) -> Granted:
        """Take, keep and give back slots, in one atomic step. Raises as all methods do."""

    def listen(self, owner: str, wake: Callable[[], None]) -> bool:  # noqa: ARG002 - for those who can
        """Have `wake` called when the owner should claim again. False: it is to ask now and then.

        It may be called for no reason. What was to be heard before this call is not heard.
        """
        return False

    def unlisten(self, owner: str) -> None:
        """Have it not called any more."""


def slots_key(key: Key) -> Key:
    """Give the key under which a store of records keeps the table of a key."""
    check_key(key)
    return (*((key,) if isinstance(key, str) else key), "\0slots")


@dataclass(slots=True)
class _Part:
    """What belongs to one owner."""

    held: int
    expires: float


@dataclass(slots=True)
class SlotTable:
    """The slots of one key.

    Its instants are effective ones, as those of a `Record`: a clock that steps back makes no lease
    longer.
    """

    owners: dict[str, _Part] = field(default_factory=dict[str, _Part])
    #: The owner of each ticket, first come first.
    queue: list[str] = field(default_factory=list[str])
    seen: float = -math.inf
    ahead: float = 0.0

    def claim(self, clock: float, claim: Claim) -> Granted:
        """Do what `SlotStore.claim` promises."""
        now = self._now(clock)
        self._drop_expired(now)
        owner = claim.owner
        part = self.owners.get(owner)
        lost = max(0, claim.held - (part.held if part else 0))
        self._enqueue(owner, claim.wanted)
        others = sum(part.held for name, part in self.owners.items() if name != owner)
        free = max(0, claim.limit - others - claim.held)
        granted = self.queue[:free].count(owner)
        for _ in range(granted):
            self.queue.remove(owner)
        self.owners.pop(owner, None)
        if claim.held or claim.wanted:
            self.owners[owner] = _Part(claim.held + granted, now + claim.lease)
        first = min((part.expires for part in self.owners.values()), default=math.inf)
        return Granted(granted, lost, first - now)

    def seconds(self) -> float:
        """Tell after how many seconds all of it may be forgotten: 0.0 if there is nothing."""
        return max((part.expires - self.seen for part in self.owners.values()), default=0.0)

    def _now(self, clock: float) -> float:
        now = clock + self.ahead
        if now < self.seen:
            self.ahead, now = self.seen - clock, self.seen
        self.seen = now
        return now

    def _drop_expired(self, now: float) -> None:
        dead = {owner for owner, part in self.owners.items() if part.expires <= now}
        if dead:
            self.owners = {name: part for name, part in self.owners.items() if name not in dead}
            self.queue = [owner for owner in self.queue if owner not in dead]

    def _enqueue(self, owner: str, wanted: int) -> None:
        """Have as many tickets of the owner as it wants; those that came last go first."""
        more = wanted - self.queue.count(owner)
        self.queue += [owner] * more
        if more < 0:
            self.queue.reverse()
            for _ in range(-more):
                self.queue.remove(owner)
            self.queue.reverse()

    def dump(self) -> bytes:
        """Write the table as bytes."""
        parts = {owner: (part.held, part.expires) for owner, part in self.owners.items()}
        return _SEAL + json.dumps([parts, self.queue, self.seen, self.ahead]).encode()

    @classmethod
    def load(cls, data: bytes) -> "SlotTable":
        """Read what `dump` has written.

        Raises:
            ValueError: It is something else.
        """
        if not data.startswith(_SEAL):
            raise ValueError("what is there are no shared slots: something else has the same key")
        parts, queue, seen, ahead = json.loads(data[len(_SEAL) :])
        owners = {owner: _Part(held, expires) for owner, (held, expires) in parts.items()}
        return cls(owners, queue, seen, ahead)

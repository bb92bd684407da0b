"""Slots that many processes share: how many each holds, and the queue of those that want more.

Strategy. Each limiter that shares them is an owner. A claim has all of the owner's part, how many
slots it holds and how many more it wants, and the answer has how many of those it gets (`Claim`,
`Granted`). So no change is sent twice or taken back: the next claim corrects a lost answer, and a
store that has lost its memory. A claim holds for `lease` seconds of the store's clock; an owner
that claims nothing for so long has died, and its slots are free.

Owners that want more slots have a ticket for each in one queue. Free slots belong to as many
tickets at its head, and stay free until their owners claim. The share of an owner is an equal part
of the limit: up to that many of its slots and tickets go before those of others, so it may use a
slot again without a claim. Beyond its share each slot is claimed anew, in turn.

`SlotTable` is this in Python, for the stores that decide there; `lua/slots.lua` does the same, and
a test shows that both answer alike.
"""

import json
import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

from aiothrottle.algorithms.protocol import LATEST
from aiothrottle.stores.store import Key, Store, parts_of

_SEAL = b"slots 1 "
_UNKNOWN = ".unknown"  # no owner has such a name


@dataclass(frozen=True, slots=True)
class Claim:
    """The slots that one owner holds and wants."""

    #: The name of the owner: letters and digits, unlike that of any other owner.
    owner: str
    #: How many slots all owners together may hold, 1 or more.
    limit: int
    #: How many the owner holds; those that it held above that are free.
    held: int
    #: How many more it wants; fewer than before takes back its last tickets.
    wanted: int
    #: Seconds for which the claim holds, unless it is renewed.
    lease: float
    #: Higher with each claim of the owner: a claim that arrives late changes nothing.
    number: int


@dataclass(frozen=True, slots=True)
class Granted:
    """The answer to a claim."""

    #: How many of the wanted slots the owner has from now on. For the others it has tickets.
    granted: int
    #: How many of the held slots the store had given up, as the lease had expired.
    lost: int
    #: Seconds until the first lease expires, unless it is renewed.
    retry_after: float
    #: The limit divided by the owners that hold or want slots, rounded down; 0 while they hold
    #: more than the limit, so that each slot goes back.
    share: int


class SlotStore(Store):
    """A store that can share slots as well."""

    __slots__ = ()

    @abstractmethod
    async def claim(self, key: Key, claim: Claim) -> Granted:
        """Take, keep and give back slots, in one atomic step, and return what was granted.

        Args:
            key: Of the slots.
            claim: The owner, its slots, and the slots that it wants.

        Raises:
            StoreUnavailable: The store does not answer in time or at all.
            ValueError: A number is out of range.
            TypeError: The key is not a text or a tuple of texts.
        """

    def listen(self, owner: str, wake: Callable[[], None]) -> bool:  # noqa: ARG002 - not every store can
        """Call `wake` when the owner should claim again.

        It may be called without a reason. A wake-up before this call is lost.

        Args:
            owner: The owner of the claims.
            wake: Called in the thread of the event loop.

        Returns:
            False if the store cannot: then the owner has to claim at intervals.
        """
        return False

    def unlisten(self, owner: str) -> None:
        """Stop calling the function that `listen` was given.

        Args:
            owner: The owner of the claims.
        """


def slots_key(key: Key) -> Key:
    """Return the key under which a store of records keeps the slot table of a key."""
    return (*parts_of(key), "\0slots")


@dataclass(slots=True)
class _Part:
    """The slots of one owner."""

    held: int
    expires: float


@dataclass(slots=True)
class SlotTable:
    """The slots of one key.

    Its instants are effective ones, as those of a `Record`: a clock that steps back makes no lease
    longer.
    """

    owners: dict[str, _Part] = field(default_factory=dict[str, _Part])
    #: The owner of each ticket, the oldest first.
    queue: list[str] = field(default_factory=list[str])
    seen: float = -math.inf
    ahead: float = 0.0

    def claim(self, clock: float, claim: Claim) -> Granted:
        """Answer a claim, as `SlotStore.claim` does."""
        now = self._now(clock)
        self._drop_expired(now)
        owner = claim.owner
        part = self.owners.get(owner)
        share = claim.limit // len(self.owners.keys() | {owner})
        self._enqueue(owner, claim.wanted, share - claim.held)
        others = sum(part.held for name, part in self.owners.items() if name != owner)
        free = claim.limit - others - claim.held
        lost = 0
        if _UNKNOWN not in self.owners:
            lost = max(0, claim.held - (part.held if part else 0))
            share = share if free >= 0 else 0
        granted = self.queue[: max(0, free)].count(owner)
        for _ in range(granted):
            self.queue.remove(owner)
        self.owners.pop(owner, None)
        if claim.held or claim.wanted:
            self.owners[owner] = _Part(claim.held + granted, now + claim.lease)
        first = min((part.expires for part in self.owners.values()), default=math.inf)
        return Granted(granted, lost, first - now, share)

    @classmethod
    def exhausted(cls, clock: float, claim: Claim) -> "SlotTable":
        """Return the table that replaces a damaged one: all slots are taken for a lease.

        By then each living owner has claimed, and the table knows what it holds.
        """
        return cls({_UNKNOWN: _Part(claim.limit, clock + claim.lease)}, seen=clock)

    def seconds(self) -> float:
        """Seconds until all leases have expired: 0.0 if there are none."""
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

    def _enqueue(self, owner: str, wanted: int, first: int) -> None:
        """Keep as many tickets of the owner as it wants; the last are dropped first.

        Args:
            owner: The owner.
            wanted: How many it wants.
            first: How many of them belong to its share.
        """
        more = wanted - self.queue.count(owner)
        self.queue += [owner] * more
        if more < 0:
            self.queue.reverse()
            for _ in range(-more):
                self.queue.remove(owner)
            self.queue.reverse()
        leading = max(0, min(wanted, first))  # the share may have grown
        for _ in range(leading):
            self.queue.remove(owner)
        self.queue[:0] = [owner] * leading

    def dump(self) -> bytes:
        """Return the table as bytes."""
        parts = {owner: (part.held, part.expires) for owner, part in self.owners.items()}
        return _SEAL + json.dumps([parts, self.queue, self.seen, self.ahead]).encode()

    @classmethod
    def load(cls, data: bytes) -> "SlotTable":
        """Return the table that was dumped.

        Raises:
            ValueError: The bytes are no such dump.
        """
        if not data.startswith(_SEAL):
            raise ValueError("it is no table of shared slots")
        try:
            parts, queue, seen, ahead = json.loads(data[len(_SEAL) :])
            owners = {owner: _Part(held, expires) for owner, (held, expires) in parts.items()}
            table = cls(owners, queue, seen, ahead)
            sound = table._is_sound()
        except (AttributeError, TypeError, ValueError) as error:
            raise ValueError(
                f"it has other fields than a table of shared slots: {error}"
            ) from error
        if not sound:
            raise ValueError("a number in it is none of a table of shared slots")
        return table

    def _is_sound(self) -> bool:
        """Return whether a table can have these numbers; raises if they are something else."""
        times = [self.seen, self.ahead, *(part.expires for part in self.owners.values())]
        return (
            all(math.isfinite(time) and abs(time) <= LATEST for time in times)
            and self.ahead >= 0
            and all(part.expires > self.seen for part in self.owners.values())
            and all(type(part.held) is int and part.held >= 0 for part in self.owners.values())
            and all(owner in self.owners for owner in self.queue)
        )

"""What every store that shares slots has to keep, as checks that anybody's store can be put to.

They are used as those of `aiothrottle.testing.store_contract` are::

    @pytest.mark.parametrize("check", SLOT_CHECKS)
    async def test_my_store(check):
        clock = ManualClock()
        records = {}
        await check(lambda: MyStore(records, clock=clock), clock)

They raise `AssertionError` for what is wrong.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from aiothrottle.stores import Claim, Granted, Key, SlotStore
from aiothrottle.testing.manual_clock import ManualClock
from aiothrottle.testing.store_contract.check import listed_in

__all__ = ["SLOT_CHECKS", "Owner"]

Make: TypeAlias = Callable[[], SlotStore]
SlotCheck: TypeAlias = Callable[[Make, ManualClock], Awaitable[None]]

SLOT_CHECKS: list[SlotCheck] = []
"""The checks: async functions of a factory of stores, and of their clock."""

_LEASE = 30.0


class Owner:
    """A process that shares the slots, with a store of its own."""

    def __init__(self, make: Make, name: str, limit: int = 3, key: Key = "key") -> None:
        self.store: SlotStore = make()
        self.name: str = name
        self.limit: int = limit
        self.key: Key = key
        self.held: int = 0
        self.number: int = 0

    async def claim(self, wanted: int = 0, *, released: int = 0) -> Granted:
        """Return `released` slots, and ask for `wanted` more."""
        self.held -= released
        self.number += 1
        claim = Claim(self.name, self.limit, self.held, wanted, _LEASE, self.number)
        granted = await self.store.claim(self.key, claim)
        assert 0 <= granted.granted <= wanted
        self.held += granted.granted
        return granted

    async def gets(self, wanted: int = 0, *, released: int = 0) -> int:
        """Return how many slots a claim gets."""
        return (await self.claim(wanted, released=released)).granted


@listed_in(SLOT_CHECKS)
async def limit_is_never_exceeded(make: Make, clock: ManualClock) -> None:  # noqa: ARG001
    """What one gives back another gets."""
    ann, bob = Owner(make, "ann"), Owner(make, "bob")
    assert await ann.gets(2) == 2
    assert await bob.gets(2) == 1
    assert await ann.gets(released=1) == 0
    assert await bob.gets(1) == 1
    assert await bob.gets(released=2) == 0
    assert await ann.gets(2) == 2


@listed_in(SLOT_CHECKS)
async def first_waiter_is_served_first(make: Make, clock: ManualClock) -> None:  # noqa: ARG001
    """Free slots are kept for the head of the queue."""
    ann, bob, cid = (Owner(make, name, limit=2) for name in ("ann", "bob", "cid"))
    assert await ann.gets(2) == 2
    assert await bob.gets(1) == 0
    assert await cid.gets(1) == 0
    # Ann wants it again, but behind the others.
    assert await ann.gets(1, released=1) == 0
    assert await cid.gets(1) == 0
    assert await ann.gets(1) == 0
    assert await bob.gets(1) == 1
    assert await ann.gets(1, released=1) == 0
    assert await cid.gets(1) == 1
    assert await bob.gets(released=1) == 0
    assert await ann.gets(1) == 1


@listed_in(SLOT_CHECKS)
async def who_wants_less_leaves_the_end_of_the_queue(make: Make, clock: ManualClock) -> None:  # noqa: ARG001
    """Those that it still wants keep their places."""
    ann, bob, cid = (Owner(make, name, limit=2) for name in ("ann", "bob", "cid"))
    assert await ann.gets(2) == 2
    assert await bob.gets(1) == 0
    assert await cid.gets(1) == 0
    assert await bob.gets(3) == 0
    assert await bob.gets(1) == 0
    assert await ann.gets(released=1) == 0
    assert await cid.gets(1) == 0
    assert await bob.gets(1) == 1
    assert await bob.gets(1) == 0
    assert await bob.gets() == 0
    assert await ann.gets(released=1) == 0
    assert await cid.gets(1) == 1


@listed_in(SLOT_CHECKS)
async def who_says_nothing_for_a_lease_has_died(make: Make, clock: ManualClock) -> None:
    """Its slots are free, and its places in the queue are gone."""
    ann, bob, cid = (Owner(make, name) for name in ("ann", "bob", "cid"))
    assert await ann.gets(2) == 2
    assert await bob.gets(2) == 1  # and one ticket
    clock.advance(_LEASE - 1)
    assert await ann.gets() == 0
    waits = await cid.claim(1)
    assert waits.granted == 0
    assert 0 < waits.retry_after <= 1
    clock.advance(1.01)
    assert await cid.gets(2) == 1


@listed_in(SLOT_CHECKS)
async def owner_that_returns_keeps_what_it_holds(make: Make, clock: ManualClock) -> None:
    """It learns how many leases expired; no slot is granted until few enough are held."""
    ann, bob, cid = (Owner(make, name) for name in ("ann", "bob", "cid"))
    assert await ann.gets(3) == 3
    clock.advance(_LEASE + 1)
    assert await bob.gets(2) == 2
    back = await ann.claim()
    assert back.lost == 3
    assert (await ann.claim()).lost == 0
    assert await cid.gets(1) == 0
    assert await ann.gets(released=2) == 0
    assert await cid.gets(1) == 0
    assert await ann.gets(released=1) == 0
    assert await cid.gets(1) == 1


@listed_in(SLOT_CHECKS)
async def lost_answer_is_corrected_by_the_next_claim(make: Make, clock: ManualClock) -> None:  # noqa: ARG001
    """Slots of a lost answer are free with the next claim."""
    ann, bob = Owner(make, "ann"), Owner(make, "bob")
    assert await ann.gets(2) == 2
    ann.held = 0
    assert await ann.gets(1) == 1
    assert await bob.gets(3) == 2


@listed_in(SLOT_CHECKS)
async def lowered_limit_holds_for_all_owners(make: Make, clock: ManualClock) -> None:  # noqa: ARG001
    """Below a lowered limit no slot is granted until few enough are held."""
    ann, bob = Owner(make, "ann", limit=3), Owner(make, "bob", limit=1)
    assert await ann.gets(3) == 3
    assert await bob.gets(1) == 0
    assert await ann.gets(released=2) == 0
    assert await bob.gets(1) == 0
    assert await ann.gets(released=1) == 0
    assert await bob.gets(1) == 1


@listed_in(SLOT_CHECKS)
async def keys_are_apart(make: Make, clock: ManualClock) -> None:  # noqa: ARG001
    """Any text is a key, and is not the record of a rate of the same name."""
    for key in ("a", "b", ("a", "b"), "a b{c}\r\n\0é"):
        assert await Owner(make, "ann", key=key).gets(5) == 3


@listed_in(SLOT_CHECKS)
async def cleared_key_has_no_slots(make: Make, clock: ManualClock) -> None:  # noqa: ARG001
    """An owner that lives takes its own back with the next claim."""
    ann, bob = Owner(make, "ann"), Owner(make, "bob")
    assert await ann.gets(3) == 3
    await make().clear("key")
    assert await bob.gets(1) == 1
    await ann.claim()
    assert await bob.gets(1) == 0


@listed_in(SLOT_CHECKS)
async def a_clock_that_steps_back_makes_no_lease_longer(make: Make, clock: ManualClock) -> None:
    """Time continues from its latest value."""
    ann, bob = Owner(make, "ann"), Owner(make, "bob")
    assert await ann.gets(3) == 3
    clock.advance(-1000)
    assert await bob.gets(1) == 0
    clock.advance(_LEASE + 1)
    assert await bob.gets(1) == 1


@listed_in(SLOT_CHECKS)
async def all_at_once_get_so_many(make: Make, clock: ManualClock) -> None:  # noqa: ARG001
    """In any interleaving."""
    owners = [Owner(make, f"owner{number}", limit=7) for number in range(12)]
    await asyncio.gather(*(owner.claim(1) for owner in owners))
    assert sum(owner.held for owner in owners) == 7
    for _ in range(3):
        await asyncio.gather(*(owner.claim(1 - owner.held) for owner in owners))
        assert sum(owner.held for owner in owners) == 7

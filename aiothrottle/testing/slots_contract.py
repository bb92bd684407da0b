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
import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeAlias

from aiothrottle.stores import Claim, Granted, Key, SlotStore
from aiothrottle.testing.store_contract import named
from aiothrottle.testing.virtual_time import ManualClock

Make: TypeAlias = Callable[[], SlotStore]
SlotCheck: TypeAlias = Callable[[Make, ManualClock], Awaitable[None]]

_LEASE = 30.0
# An owner, the slots that it returns, and those that it wants.
_STEP = re.compile(r"([a-z]+)(?:-(\d))?(?:\+(\d))?")


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


# Each step is a claim, by an owner with a store of its own: `ann-1+2=0` returns one slot, wants two
# more and gets none; `ann=0,3` wants none, and learns that the store gave three to others. `clock`
# advances the clock, and `limit` is that of the owners who claim first behind it.
GRANTS = {
    # What one gives back another gets.
    "limit_is_never_exceeded": "ann+2=2 bob+2=1 ann-1=0 bob+1=1 bob-2=0 ann+2=2",
    # Free slots are kept for the head of the queue; a slot that is wanted again is behind it.
    "first_waiter_is_served_first": """limit=2 ann+2=2 bob+1=0 cid+1=0 ann-1+1=0 cid+1=0 ann+1=0
        bob+1=1 ann-1+1=0 cid+1=1 bob-1=0 ann+1=1""",
    "owner_that_wants_less_leaves_the_end_of_the_queue": """limit=2 ann+2=2 bob+1=0 cid+1=0 bob+3=0
        bob+1=0 ann-1=0 cid+1=0 bob+1=1 bob+1=0 bob=0 ann-1=0 cid+1=1""",
    # Without a claim for a lease its slots are free, and its places in the queue are gone.
    "silent_owner_has_died": "ann+2=2 bob+2=1 clock=29 ann=0 cid+1=0 clock=1.01 cid+2=1",
    # No slot is granted until few enough are held.
    "owner_that_returns_keeps_what_it_holds": """ann+3=3 clock=31 bob+2=2 ann=0,3 ann=0
        cid+1=0 ann-2=0 cid+1=0 ann-1=0 cid+1=1""",
    "lowered_limit_holds_for_all_owners": """ann+3=3 limit=1 bob+1=0 ann-2=0 bob+1=0 ann-1=0
        bob+1=1""",
    # An owner that lives takes its own back with the next claim.
    "cleared_key_has_no_slots": "ann+3=3 clear=1 bob+1=1 ann=0,3 bob+1=0",
    "a_clock_that_steps_back_makes_no_lease_longer": """ann+3=3 clock=-1000 bob+1=0 clock=31
        bob+1=1""",
}


async def _follow(steps: str, make: Make, clock: ManualClock) -> None:
    owners, limit = dict[str, Owner](), 3
    for step in steps.split():
        asked, _, wanted = step.partition("=")
        if asked == "clock":
            clock.advance(float(wanted))
        elif asked == "limit":
            limit = int(wanted)
        elif asked == "clear":
            await make().clear("key")
        else:
            (name, released, more) = _STEP.findall(asked)[0]
            owner = owners.setdefault(name, Owner(make, name, limit))
            granted = await owner.claim(int(more or 0), released=int(released or 0))
            slots, _, lost = wanted.partition(",")
            assert granted.granted == int(slots), (step, granted)
            assert granted.lost == int(lost or 0), (step, granted)


async def lost_answer_is_corrected_by_the_next_claim(make: Make, clock: ManualClock) -> None:  # noqa: ARG001
    """Slots of a lost answer are free with the next claim."""
    ann, bob = Owner(make, "ann"), Owner(make, "bob")
    assert await ann.gets(2) == 2
    ann.held = 0
    assert await ann.gets(1) == 1
    assert await bob.gets(3) == 2


async def keys_are_apart(make: Make, clock: ManualClock) -> None:  # noqa: ARG001
    """Any text is a key, and is not the record of a rate of the same name."""
    for key in ("a", "b", ("a", "b"), "a b{c}\r\n\0é"):
        assert await Owner(make, "ann", key=key).gets(5) == 3


async def first_lease_to_expire_is_known(make: Make, clock: ManualClock) -> None:
    """Owners that wait know when to ask again."""
    assert await Owner(make, "ann").gets(3) == 3
    clock.advance(_LEASE - 1)
    assert 0 < (await Owner(make, "bob").claim(1)).retry_after <= 1


async def all_at_once_get_so_many(make: Make, clock: ManualClock) -> None:  # noqa: ARG001
    """In any interleaving."""
    owners = [Owner(make, f"owner{number}", limit=7) for number in range(12)]
    await asyncio.gather(*(owner.claim(1) for owner in owners))
    assert sum(owner.held for owner in owners) == 7
    for _ in range(3):
        await asyncio.gather(*(owner.claim(1 - owner.held) for owner in owners))
        assert sum(owner.held for owner in owners) == 7


SLOT_CHECKS: list[SlotCheck] = [
    *(named(name, partial(_follow, steps)) for name, steps in GRANTS.items()),
    lost_answer_is_corrected_by_the_next_claim,
    keys_are_apart,
    first_lease_to_expire_is_known,
    all_at_once_get_so_many,
]
"""The checks: async functions of a factory of stores, and of their clock."""

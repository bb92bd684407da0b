"""The parts of the shared semaphore, each alone: claims, wake-ups, outages and tries."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from aiothrottle import SharedConcurrency, StoreUnavailable
from aiothrottle.events import StoreDown, StoreUp
from aiothrottle.stores import MemoryStore
from aiothrottle.stores.share_size import OnStoreError
from aiothrottle.stores.slot_claims import SlotClaims
from aiothrottle.stores.slot_outage import SlotOutage
from aiothrottle.stores.slot_tries import SlotTries, fail_tries, settle_tries
from aiothrottle.stores.slot_wakeups import SlotWakeups
from tests.virtually import now, virtual

AWAY = StoreUnavailable("away")


class Listening(MemoryStore):
    """A store that wakes owners, if `can_wake` is set."""

    def __init__(self, *, can_wake: bool) -> None:
        super().__init__(clock=now)
        self.can_wake = can_wake
        self.wakes: dict[str, Callable[[], None]] = {}

    def listen(self, owner: str, wake: Callable[[], None]) -> bool:
        if self.can_wake:
            self.wakes[owner] = wake
        return self.can_wake

    def unlisten(self, owner: str) -> None:
        del self.wakes[owner]


# ---- claims --------------------------------------------------------------------------------------


@virtual
async def test_claim_is_unknown_until_it_is_answered() -> None:
    claims = SlotClaims(MemoryStore(clock=now), "k")
    known = [claims.known]
    granted = await claims.send(SharedConcurrency(2), 0, 3)
    assert granted.granted == 2
    known.append(claims.known)
    claims.answered(now(), 2, 1)
    known.append(claims.known)
    claims.forget()
    known.append(claims.known)
    assert known == [(0, 0), None, (2, 1), (0, 0)]


def test_leases_are_over_a_lease_after_the_last_answer() -> None:
    claims = SlotClaims(MemoryStore(), "k")
    assert claims.are_over(0.0, 30.0)
    claims.answered(5.0, 1, 0)
    assert [claims.are_over(at, 30.0) for at in (34.0, 35.0)] == [False, True]
    claims.count_lease_from(10.0)
    assert [claims.are_over(at, 30.0) for at in (39.0, 40.0)] == [False, True]
    claims.count_lease_from(0.0)
    assert claims.are_over(40.0, 30.0)


# ---- wake-ups ------------------------------------------------------------------------------------


def test_store_that_wakes_needs_no_pauses() -> None:
    store, refreshed = Listening(can_wake=True), list[bool]()
    wakeups = SlotWakeups(store, lambda: refreshed.append(wakeups.is_woken))
    assert wakeups.patience("ann", 7.0) == pytest.approx(7.0, abs=0.01)
    assert wakeups.is_woken  # a wake-up before it listened was lost
    wakeups.is_woken = False
    assert wakeups.patience("ann", 7.0) == pytest.approx(7.0, abs=0.01)
    assert not wakeups.is_woken
    store.wakes["ann"]()
    assert refreshed == [True]
    wakeups.stop()
    wakeups.stop()
    assert not store.wakes


def test_pauses_grow_to_a_bound_and_begin_anew() -> None:
    wakeups = SlotWakeups(Listening(can_wake=False), lambda: None)
    pauses = [wakeups.patience("ann", 30.0) for _ in range(40)]
    assert 0.005 <= pauses[0] <= 0.01
    assert all(0.25 <= pause <= 0.5 for pause in pauses[20:])
    assert wakeups.patience("ann", 0.0) <= 0.001  # a lease expires before
    wakeups.reset_pause()
    assert wakeups.patience("ann", 30.0) <= 0.01
    wakeups.stop()


# ---- outages -------------------------------------------------------------------------------------


def outage_of(choice: OnStoreError, share: float | None = None) -> tuple[SlotOutage, list[Any]]:
    events: list[StoreDown | StoreUp] = []
    return SlotOutage(
        MemoryStore(),
        "k",
        choice=choice,
        local_share=share,
        report=events.append,
        retry=lambda: None,
    ), events


@pytest.mark.parametrize(
    ("choice", "local_share", "per_process", "slots"),
    [
        ("closed", None, None, 0),
        ("open", None, None, 1 << 29),
        ("local", None, None, 4),
        ("local", None, 6, 6),
        ("local", 0.25, None, 2),
        ("local", 0.25, 6, 2),
    ],
)
def test_fallback_serves_the_chosen_slots(
    choice: OnStoreError, local_share: float | None, per_process: int | None, slots: int
) -> None:
    outage, _ = outage_of(choice, local_share)
    assert outage.falls_back(AWAY)
    assert not outage.falls_back(ValueError("damaged"))
    outage.begin_fallback(SharedConcurrency(10, per_process=per_process), 4)
    assert outage.serves
    assert outage.slots == slots
    outage.end_fallback()
    assert not outage.serves


@virtual
async def test_outage_is_reported_once_and_ends_with_an_answer() -> None:
    outage, events = outage_of("closed")
    pauses = [outage.call_failed(float(at), AWAY, 30.0) for at in range(8)]
    assert 0.1 <= pauses[0] <= 0.2
    assert all(0.5 <= pause <= 1.0 for pause in pauses[4:])
    assert outage.call_failed(8.0, AWAY, 0.3) <= 0.1  # a third of the lease
    assert [type(event) for event in events] == [StoreDown]
    assert not outage.store_up
    outage.forget_failures()
    assert (outage.failures, outage.store_up) == (0, False)
    outage.call_answered(9.0)
    assert outage.store_up
    assert events[1] == StoreUp(None, 9.0)


def test_error_that_is_no_outage_is_not_reported() -> None:
    outage, events = outage_of("raise")
    outage.call_failed(0.0, ValueError("damaged"), 30.0)
    assert (outage.failures, outage.store_up, events) == (1, True, [])
    assert not outage.falls_back(AWAY)


# ---- tries ---------------------------------------------------------------------------------------


@virtual
async def test_taken_tries_are_settled_failed_or_put_back() -> None:
    tries, loop = SlotTries(), asyncio.get_running_loop()
    first, second, third = (tries.add(loop) for _ in range(3))
    third.cancel()
    taken = tries.take()
    assert not tries.need_call
    tries.put_back(taken)
    assert tries.take() == [first, second, third]
    settle_tries([first, third])
    fail_tries([first, second, third], AWAY, "k")
    assert first.result() is None
    error = second.exception()
    assert isinstance(error, StoreUnavailable)
    assert error is not AWAY
    assert error.key == "k"
    assert third.cancelled()

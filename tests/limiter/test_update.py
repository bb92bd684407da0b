"""Specifies update() and reset(): limits that change at run time, also for current waiters."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiothrottle import AdaptiveRate, RateLimiter, algorithms, errors
from aiothrottle.stores import Key, MemoryStore
from tests.limiter.common import Unchecked, queued, remaining, starts, throttle_one, together
from tests.support.effort import examples
from tests.support.virtually import counts, now, turns, virtual, visit, visits


@pytest.mark.parametrize(
    ("to", "expected"),
    [
        ("1/s", [0, 0, 1.0, 2.0, 3.0]),  # slower
        ("3/s", [0, 0, 0.25, 1.0, 1.0]),  # faster: one more fits at once
        (None, [0, 0, 0.25, 0.25, 0.25]),  # none at all
        ("2/min", [0, 0, 60.0, 60.0, 120.0]),  # a longer period remembers for longer
        (["10/s", "3/min"], [0, 0, 0.25, 60.0, 60.0]),  # the one log tells both
    ],
)
async def test_new_rate_applies_to_waiters_after_spent_tokens(
    to: Unchecked, expected: list[float]
) -> None:
    limiter = RateLimiter("2/s")
    waiting = visits(limiter, 5)
    await asyncio.sleep(0.25)
    limiter.update(rate_limit=to)
    assert await together(*waiting) == expected


async def test_update_of_several_rates_forgets_no_token() -> None:
    cases: list[tuple[Unchecked, float]] = [
        ("100/min", 60.0),  # the second of them continues
        ("200/2min", 9.0),  # a hundred of it are free
        ("10/s", 10.0),
        (["100/min", "10/s"], 60.0),  # in another order
        (["10/s", "100/min", "100/h"], 3600.0),
        (["10/s", "100/h"], 3600.0),
        ("40/30s", 36.0),  # between the two: the second has the instants
        ({"requests": "100/min"}, 60.0),
        ({"requests": ["100/min", "10/s"]}, 60.0),
    ]
    for to, expected in cases:
        rates: Unchecked = ["10/s", "100/min"]
        limiter = RateLimiter({"requests": rates} if "requests" in to else rates)
        began = now()
        assert max(await starts(limiter, 100)) == began + 9.0
        limiter.update(rate_limit=to)
        assert await visit(limiter) == began + expected, to


async def test_update_of_several_rates_counts_no_token_twice() -> None:
    limiter = RateLimiter(["5/s", "100/min"])
    for _ in range(60):
        await visit(limiter)
        await asyncio.sleep(1)
    limiter.update(rate_limit=["10/s", "100/min"])  # 59 of the last minute
    assert max(await starts(limiter, 41)) == 64.0


async def test_burst_and_algorithm_are_kept_and_a_rate_can_be_removed() -> None:
    limiter = RateLimiter("10/s", algorithm=algorithms.TokenBucket, burst=2)
    assert await starts(limiter, 3) == [0, 0, pytest.approx(0.1)]
    await asyncio.sleep(9.9)
    limiter.update(rate_limit="2/s")
    assert await starts(limiter, 4) == pytest.approx([10, 10, 10.5, 11])
    bounded = RateLimiter("10/s", burst=5)
    before = repr(bounded)
    with pytest.raises(ValueError, match="burst=5"):
        bounded.update(rate_limit="4/s")
    assert repr(bounded) == before
    bucket = RateLimiter("2/h", algorithm=algorithms.TokenBucket(burst=3))
    for each in (limiter, bounded, bucket, RateLimiter("2/h", guard=1)):
        each.update(rate_limit=None)
        assert await starts(each, 5) == [now()] * 5
    cooldown, began = RateLimiter(algorithm=algorithms.Cooldown(3, 60)), now()
    await cooldown.acquire(3)
    cooldown.update(rate_limit=None)  # the rate of the algorithm stays
    assert await visit(cooldown) == began + 20


@pytest.mark.parametrize("after_turns", range(6))
@pytest.mark.parametrize(
    ("change", "late"),
    [("settle", [2, 2]), ("update", [1, 2]), ("record", [1, 2]), ("quota", [10, 10])],
)
async def test_change_between_grant_and_start_counts(
    change: str, late: list[float], after_turns: int
) -> None:
    limiter = RateLimiter("2/s")
    permit = await limiter.acquire(2)
    waiting = visits(limiter, 2)
    await asyncio.sleep(1)
    await turns(after_turns)
    started = all(waiter.done() for waiter in waiting)
    match change:
        case "settle":
            permit.settle(4)
        case "update":
            limiter.update(rate_limit="1/s")
        case "record":
            await limiter.record(1)
        case _:
            permit.update_quota(2 * started, reset_after=9)  # for the resumed requests alone
    assert await together(*waiting) == ([1, 1] if started else late)


@pytest.mark.parametrize("slots", [None, 1])
async def test_waiter_that_no_longer_fits_fails_at_once(slots: int | None) -> None:
    limiter = RateLimiter("10/min", concurrency_limit=slots)
    early = limiter.throttle(8)
    inside = visits(limiter, 1, 10, stay=10)
    heavy, light = *visits(limiter, 1, 8), *visits(limiter, 1, 5)
    await turns()
    limiter.update(rate_limit="5/min")
    await turns()
    assert now() == 0
    with pytest.raises(errors.CostTooHigh) as error:
        await heavy
    assert (error.value.cost, error.value.limit) == (8, 5)
    assert await light == 60
    await together(*inside)
    for ask in (early.__aenter__, lambda: limiter.acquire(6)):
        with pytest.raises(errors.CostTooHigh):
            await ask()
    assert counts(limiter) == (0, 0)
    limiter.update(rate_limit="6/min")
    assert await visit(limiter, 6) == 120


async def test_permit_that_the_reported_rate_cannot_admit_fails() -> None:
    limiter = RateLimiter("server", concurrency_limit=1)
    early = limiter.throttle(8)
    limiter.follow("5/min")
    with pytest.raises(errors.CostTooHigh):
        await early.__aenter__()
    assert await visit(limiter) == 0


async def test_new_number_of_slots_applies_to_waiters() -> None:
    for to, expected in (
        (1, [0, 0, 5, 10, 15, 20]),
        (3, [0, 0, 1, 5, 5, 6]),
        (6, [0, 0, 1, 1, 1, 1]),
        (None, [0, 0, 1, 1, 1, 1]),
    ):
        limiter, began = RateLimiter(concurrency_limit=2), now()
        waiting = visits(limiter, 6, stay=5)
        await asyncio.sleep(1)
        limiter.update(concurrency_limit=to)
        assert [at - began for at in await together(*waiting)] == expected, to
        assert counts(limiter) == (0, 0)


async def test_wrong_update_raises_and_changes_nothing() -> None:
    limiter = RateLimiter("2/s", concurrency_limit=1)
    waiting = visits(limiter, 4, stay=0.25)
    await asyncio.sleep(0.125)
    before = repr(limiter)
    wrong: list[tuple[Unchecked, type[Exception], str]] = [
        ({"rate_limit": "fast"}, ValueError, "cannot read 'fast'"),
        ({"rate_limit": {"requests": "5/s"}}, ValueError, "has no resources"),
        ({"rate_limit": {1: "5/s"}}, TypeError, "a resource must have a name, a text, got 1"),
        ({"concurrency_limit": 1.5}, TypeError, "got 1.5"),
        ({"rate_limit": "100/s", "concurrency_limit": 0}, ValueError, "got 0"),
        ({"rate_limit": "fast", "concurrency_limit": 100}, ValueError, "cannot read 'fast'"),
    ]
    for options, error, message in wrong:
        with pytest.raises(error, match=message):
            limiter.update(**options)
        assert (repr(limiter), await remaining(limiter)) == (before, 1)
    assert await together(*waiting) == [0, 0.25, 1, 1.25]


# ---- a longer period ----------------------------------------------------------------------------


async def test_given_rate_ends_the_wait_for_that_of_the_server() -> None:
    limiter = RateLimiter("server", concurrency_limit=3)
    limiter.update(rate_limit="100/s")
    assert all([await limiter.try_acquire() for _ in range(3)])


async def test_known_quota_holds_for_a_faster_rate() -> None:
    """The slower one took no more than the server had left, so it was known only."""
    limiter = RateLimiter("1/s")
    permit = await limiter.acquire()
    permit.update_quota(5, reset_after=3.0)
    limiter.update(rate_limit="100/s")
    assert await starts(limiter, 8) == [0.0] * 5 + [3.0] * 3


async def test_longer_period_counts_what_was_sent_not_what_might_have_been() -> None:
    limiter = RateLimiter("10/s")
    for _ in range(2000):
        await visit(limiter)
        await asyncio.sleep(10)
    limiter.update(rate_limit="500/h")
    assert 100 < (await limiter.peek()).remaining <= 500 - 359
    limiter = RateLimiter("20/s")
    for tokens, wait in ((1, 0.5), (19, 0.7), (1, 0.0)):  # the first has left the window by then
        await starts(limiter, tokens)
        await asyncio.sleep(wait)
    limiter.update(rate_limit="100/h")
    assert (await limiter.peek()).remaining == 79


@given(
    limit=st.integers(1, 12),
    longer=st.integers(1, 30),
    between=st.sampled_from([None, "1/s", "1/2s"]),
    period=st.sampled_from([1.5, 3, 7.3, 60]),
    waits=st.lists(st.sampled_from([0.0, 0.05, 0.3, 0.9, 1.0, 1.7, 20]), min_size=1, max_size=60),
    costs=st.lists(st.sampled_from([1, 1, 1, 0.5, 2]), min_size=1, max_size=7),
)
@examples(40)
@virtual
async def test_no_longer_window_ever_has_more_than_its_limit(
    limit: int,
    longer: int,
    between: str | None,
    period: float,
    waits: list[float],
    costs: list[float],
) -> None:
    limiter, sent = RateLimiter(f"{limit}/s"), list[tuple[float, float]]()

    async def send(number: int) -> None:
        cost = min(costs[number % len(costs)], limit, longer)
        sent.append((await visit(limiter, cost), cost))

    for number, wait in enumerate(waits):
        await asyncio.sleep(wait)
        await send(number)
    for rate in filter(None, (between, f"{longer}/{period}s")):
        limiter.update(rate_limit=rate)
    before = len(sent)
    for number in range(2 * longer + 2):
        await send(number)
    for at, _ in sent[before:]:
        within = sum(cost for other, cost in sent if at - period < other - 1e-9 and other <= at)
        earlier = sum(cost for other, cost in sent[:before] if at - period < other - 1e-9)
        # What was sent before the update may alone be more than the new limit.
        assert within <= max(longer, earlier) + 1e-6


# ---- reset() forgets the tokens that were spent, and nothing else --------------------------------

ALGORITHMS: list[algorithms.Algorithm[Any]] = [
    *(algorithms.SlidingWindowLog("5/min"), algorithms.SlidingWindowCounter("5/min")),
    *(algorithms.FixedWindow("5/min"), algorithms.TokenBucket("5/min"), algorithms.Cooldown(5, 60)),
    *(algorithms.LeakyBucket("5/min"), algorithms.WaitUntil(12, limit=60, raise_after=30)),
]


async def spend(limiter: RateLimiter) -> int:
    """Take tokens until the limiter rejects a request. Returns how many."""
    decisions = [await limiter.try_acquire() for _ in range(10)]
    return sum(map(bool, decisions))


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("shared", [False, True], ids=["local", "store"])
async def test_reset_limiter_grants_as_a_new_one(
    algorithm: algorithms.Algorithm[Any], *, shared: bool
) -> None:
    store, key = (MemoryStore(clock=now), "k") if shared else (None, None)
    async with RateLimiter(algorithm=algorithm, store=store, key=key) as limiter:
        full, fresh = await remaining(limiter), await spend(limiter)
        assert fresh
        assert not await spend(limiter)
        await limiter.reset()
        assert await spend(limiter) == fresh
        await limiter.reset()
        if not shared and not isinstance(algorithm, algorithms.WaitUntil):
            permit = await limiter.acquire()
            await limiter.reset()
            permit.settle(0)  # a refund after the reset adds no token
            assert await remaining(limiter) == full
            assert await spend(limiter) == fresh


@pytest.mark.parametrize("updated", [False, True])
async def test_request_that_does_not_count_any_more_refunds_nothing(*, updated: bool) -> None:
    limiter = RateLimiter("10/min", algorithm=algorithms.FixedWindow)
    if updated:
        limiter.update(rate_limit=None)
    permit = await limiter.acquire(5)
    await asyncio.sleep(1)
    if updated:
        limiter.update(rate_limit="10/min")
    else:
        await limiter.reset()
    later = await limiter.acquire(10)
    permit.settle(1)
    assert await remaining(limiter) == 0
    later.settle(8)
    assert await remaining(limiter) == 2


async def test_waiters_and_requests_on_credit_are_reset_too() -> None:
    limiter = RateLimiter("2/h")
    await visit(limiter)
    async with limiter.throttle():  # on the fast path: its timestamp is pending
        await limiter.reset()
        assert await remaining(limiter) == 2
    await visit(limiter, 2)
    waiting = await queued(limiter, 3)
    await limiter.reset()
    await turns()
    assert [each.done() for each in waiting] == [True, True, False]
    waiting[2].cancel()
    assert now() == 0.0


async def test_slots_pause_quota_learned_rate_and_parent_stay() -> None:
    parent = RateLimiter("9/h")
    limiter = RateLimiter("2/h", concurrency_limit=2, parent=parent)
    permit = await limiter.acquire()
    permit.update_quota(1, reset_after=50.0)
    limiter.pause(5.0)
    await limiter.reset()
    statistics = limiter.statistics()
    assert (statistics.in_flight, statistics.paused_for) == (1, 5.0)
    assert statistics.quota_remaining == 1
    assert (await parent.peek()).remaining == 8
    permit.release()
    adaptive = RateLimiter(AdaptiveRate(10, minimum=1, maximum=100))
    await throttle_one(adaptive, 0.1)
    await adaptive.reset()
    assert adaptive.statistics().rate_limit == 5


async def test_failing_or_cancelled_reset_changes_nothing() -> None:
    class Store(MemoryStore):
        fails = True

        async def clear(self, key: Key) -> None:
            if self.fails:
                raise errors.StoreUnavailable(f"unreachable: {key}")
            await asyncio.Event().wait()

    store = Store(clock=now)
    async with RateLimiter("5/h", store=store, key="k", on_store_error="open") as limiter:
        permit = await limiter.acquire(2)
        with pytest.raises(errors.StoreUnavailable, match="unreachable: k"):
            await limiter.reset()
        store.fails = False
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(limiter.reset(), 0.1)
        permit.settle(1)  # can still be refunded
        await asyncio.sleep(0.1)
        assert await remaining(limiter) == 4
    bucket = algorithms.TokenBucket("5/h")
    async with RateLimiter(algorithm=bucket, store=MemoryStore(clock=now), key="k") as limiter:
        permit = await limiter.acquire(2)
        await asyncio.sleep(0.1)  # each token is refunded at its instant
        await limiter.reset()
        await visit(limiter, 3)
        permit.settle(0)  # of the old record: not refunded
        permit.release()
        await asyncio.sleep(0.1)
        assert await remaining(limiter) < 2.01


async def test_guard_of_a_store_in_the_process_stays_zero() -> None:
    store = MemoryStore()
    first, second = (RateLimiter(rate, store=store, key="k") for rate in ("5/s", "2/s"))
    first.update(rate_limit="2/s")
    await first.reset()
    for limiter in (first, second):  # with the same period, so in the same record
        await visit(limiter)
    assert first.statistics().guard == second.statistics().guard == 0.0


async def test_burst_above_a_given_rate_is_rejected_also_after_the_server() -> None:
    limiter = RateLimiter("server", burst=5, concurrency_limit=1)
    limiter.follow("3/s")
    assert limiter.statistics().burst == 3
    with pytest.raises(ValueError, match="burst=5"):
        limiter.update(rate_limit="2/s")


async def test_silent_server_is_given_up_after_an_update_of_the_slots() -> None:
    limiter = RateLimiter("server", concurrency_limit=5)
    limiter.update(concurrency_limit=4)
    for _ in range(20):
        async with limiter.throttle() as permit:
            permit.report_success()
    assert limiter.statistics().concurrency_limit == 4

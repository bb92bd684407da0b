"""Specifies how adaptive limits, the guard and the burst react to the outcomes of requests.

The pause after a throttled request is in test_pause.py.
"""

import asyncio

import pytest

from aiothrottle import AdaptiveConcurrency, AdaptiveRate, KeyedRateLimiter, RateLimiter, algorithms
from aiothrottle.events import Adapted
from aiothrottle.httpx import ThrottledTransport
from aiothrottle.stores import MemoryStore
from tests.limiter.common import Unchecked, queued, send, starts, throttle_one, together
from tests.support.observing import observed
from tests.support.virtually import counts, now, on_virtual_loop, visit, visits

COUNTER = algorithms.SlidingWindowCounter(buckets=4)


def limits_of(limiter: RateLimiter) -> tuple[float | None, int | None]:
    statistics = limiter.statistics()
    return statistics.rate_limit, statistics.concurrency_limit


async def send_many(limiter: RateLimiter, count: int) -> None:
    await asyncio.gather(*(send(limiter) for _ in range(count)))


async def test_adaptive_rate_grows_while_requests_wait() -> None:
    for levels in (0, 1, 2):
        limiter = adaptive = RateLimiter(AdaptiveRate(1, 1, 64))
        for _ in range(levels):
            limiter = RateLimiter(AdaptiveRate(1, 1, 64), parent=limiter)
        began = now()
        await send_many(limiter, 200)
        assert now() - began < 20 * (1 + levels)  # 200 s at the initial rate
        assert limits_of(limiter) == limits_of(adaptive) == (64, None)
        await throttle_one(limiter, 1.0)  # the others learn from it, without a pause
        assert 48 < (adaptive.statistics().rate_limit or 0) < 56
        assert (adaptive.statistics().paused_for > 0) is (levels == 0)


def test_adaptive_limits_restart_on_another_clock() -> None:
    limiter = RateLimiter(AdaptiveRate(10, 1, 100), concurrency_limit=AdaptiveConcurrency(8, 1, 16))

    async def halve(*, moved: bool) -> None:
        if moved:
            await limiter.peek()
        assert limits_of(limiter) == (10, 8)
        await throttle_one(limiter, 0.01, took=0.01)
        assert limits_of(limiter) == (5, 4)

    asyncio.run(halve(moved=False))
    on_virtual_loop(halve(moved=True))


async def test_update_switches_between_fixed_and_adaptive_limits() -> None:
    limiter = RateLimiter(AdaptiveRate(10, 1, 100), concurrency_limit=4, guard=0.0)
    limiter.update(rate_limit=5)
    assert limits_of(limiter) == (5, 4)
    slots = AdaptiveConcurrency(2, 1, 9)
    limiter.update(rate_limit=AdaptiveRate(20, 1, 100), concurrency_limit=slots)
    assert limits_of(limiter) == (20, 2)
    for _ in range(10):
        await send(limiter)
    limiter.update(rate_limit=3)
    assert limits_of(limiter) == (3, 3)
    limiter.update(concurrency_limit=7)
    await throttle_one(limiter, 1.0)
    assert limits_of(limiter) == (3, 7)


async def test_reported_rate_is_adopted_by_an_adaptive_one() -> None:
    limiter = RateLimiter(AdaptiveRate(100, 1, 1000))
    limiter.adopt("1000/2min")
    assert limits_of(limiter) == (100, None)
    limiter.adopt("1000/2min", "20/s", "600/min")
    assert limiter.statistics().rate_limit == pytest.approx(19.4)
    for _ in range(195):
        await send(limiter, took=0.0)
    assert now() == pytest.approx(10, rel=0.02)
    waiting, begun_at = RateLimiter(AdaptiveRate(0.1, 0.1, 100)), now()
    tasks = visits(waiting, 2)
    await asyncio.sleep(1.0)
    waiting.adopt("10/s")
    # 0.1 tokens are there already, and 9.7 come in a second; it makes up for 2 ms of lateness.
    expected = [begun_at, begun_at + 0.998 + 0.9 / 9.7]
    assert await together(*tasks) == pytest.approx(expected, abs=1e-4)
    fixed = RateLimiter("10/s")
    fixed.adopt("20/s")
    assert (await fixed.peek()).limit == 10


async def test_followed_rate_counts_requests_in_flight() -> None:
    limiter = RateLimiter("server", concurrency_limit=5)
    assert limiter.follows_server
    permit = await limiter.acquire()
    waiting = await queued(limiter, 5)
    assert counts(limiter) == (1, 5)  # one at a time
    limiter.follow("3/min")
    assert await together(*waiting[:2]) == [0, 0]
    assert ((await limiter.peek()).remaining, counts(limiter)) == (0, (1, 3))
    limiter.follow("6/min")
    assert await together(*waiting) == [0] * 5
    limiter.follow()  # the server reports no rate any more
    assert await visit(limiter) == 60
    permit.release()
    limiter.update(rate_limit=5)
    assert not limiter.follows_server
    with pytest.raises(ValueError, match="has a rate of its own: use update"):
        limiter.follow("3/min")
    small = RateLimiter("server", burst=5, concurrency_limit=1, guard=0.0)
    small.follow("2/min")  # less than the burst
    assert await starts(small, 3) == [60, 60, 120]
    unknown = RateLimiter("server", concurrency_limit=2)
    unknown.follow()  # without a rate the slots remain
    assert await together(*visits(unknown, 3, stay=1)) == [120, 120, 121]


@pytest.mark.parametrize(
    "options",
    [
        *({}, {"burst": 2}, {"guard": 0.1}, {"algorithm": algorithms.FixedWindow}),
        *({"algorithm": each} for each in (algorithms.TokenBucket(burst=2), COUNTER)),
    ],
)
async def test_refuted_rate_of_the_server_is_dropped(options: Unchecked) -> None:
    limiter, rates = RateLimiter("server", **options), list[float | None]()
    for left in (9, 3, 3, 3):  # the quota should be full again after each window of a minute
        async with limiter.throttle() as permit:
            reset = {"RateLimit-Limit": "10", "RateLimit-Reset": "60"}
            permit.report(200, {**reset, "RateLimit-Remaining": str(left)})
        rates.append(limits_of(limiter)[0])
        await asyncio.sleep(100)
    assert rates == [10 / 60, 10 / 60, None, None]


async def test_slots_grow_while_half_are_used() -> None:
    limiter = RateLimiter(concurrency_limit=AdaptiveConcurrency(2, 1, 16))
    await send_many(limiter, 300)
    assert limits_of(limiter) == (None, 16)
    for slots, used, then in ((2, 1, 3), (3, 1, 3), (3, 2, 4)):
        limiter = RateLimiter(concurrency_limit=AdaptiveConcurrency(slots, 1, 16))
        for _ in range(20 if used == 1 else 5):
            permits = [await limiter.acquire() for _ in range(used)]
            await asyncio.sleep(0.1)
            for permit in permits:  # a session may release a slot before it reports
                permit.release()
                permit.report_success()
        assert limits_of(limiter) == (None, then)


async def test_throttled_request_removes_slots() -> None:
    for rate_limit, retry_after, pause in ((None, None, 0), (None, 1.0, 1), (10, None, 0.5)):
        limiter = RateLimiter(rate_limit, concurrency_limit=AdaptiveConcurrency(10, 1, 16))
        # Fewer requests at once are the answer, unless the server asks for a pause.
        assert pause <= await throttle_one(limiter, retry_after) <= 1.1 * pause
        assert limiter.statistics().concurrency_limit == 5


class OfWholeMinutes(algorithms.FixedWindow):
    """A user's algorithm that accepts no other periods."""

    def __init__(self, rate: Unchecked) -> None:
        if rate.period % 60:
            raise ValueError("whole minutes")
        super().__init__(rate)


def guard_of(limiter: RateLimiter) -> float:
    guard = limiter.statistics().guard
    assert guard is not None
    return guard


async def send_two(limiter: RateLimiter, later: float = 0.15) -> None:
    for took in (0.1, later):
        await send(limiter, took=took)


async def test_429s_at_even_spacing_extend_the_guard() -> None:
    limiter = RateLimiter("10/s", guard="auto", burst=1)
    adapted = observed(limiter, Adapted)
    await send_two(limiter, 0.6)
    assert guard_of(limiter) == pytest.approx(1 / 14)
    for _ in range(8):
        await throttle_one(limiter, 1.0)
    assert guard_of(limiter) == pytest.approx(1 / 14 * 1.5**6)
    assert [event.what for event in adapted] == ["guard"] * 7
    assert [event.value for event in adapted] == pytest.approx([1.5**n / 14 for n in range(7)])


async def test_guard_tunes_itself_by_default() -> None:
    rates = ["10/s", "1000/min"]
    limiter = RateLimiter(rates, burst=5, algorithm=algorithms.TokenBucket)
    rates.clear()  # the list was copied
    limiter.update(rate_limit="10/s")
    await send_two(limiter)
    assert guard_of(limiter) > 0.03
    followed = RateLimiter("server")
    followed.follow("10/s")
    assert guard_of(followed) == 0.0
    keyed = KeyedRateLimiter("10/s", overrides={"b": {"guard": 0.25}})
    assert [keyed[key].statistics().guard for key in ("a", "b")] == [0.0, 0.25]
    await send_two(keyed["a"])
    assert "a" in keyed
    await asyncio.sleep(10)
    assert "a" not in keyed  # with its guard


async def test_no_guard_is_tuned_where_none_applies() -> None:
    for limiter in (
        RateLimiter("10/s", guard=0.0),
        RateLimiter(concurrency_limit=4),
        RateLimiter(algorithm=algorithms.TokenBucket("10/s")),
        RateLimiter("10/s", algorithm=algorithms.FixedWindow),
        RateLimiter("10/min", algorithm=OfWholeMinutes),
        RateLimiter(AdaptiveRate(10, 1, 100)),
        RateLimiter("server"),
        RateLimiter("10/s", store=MemoryStore(), key="k"),
        KeyedRateLimiter("10/s", store=MemoryStore(), key="k")["a"],
    ):
        async with limiter:
            await send_two(limiter)
            assert not limiter.statistics().guard, limiter
            limiter.update(concurrency_limit=9)
            assert not limiter.statistics().guard, limiter


@pytest.mark.parametrize("rate", ["server", "10/s"])
async def test_guard_follows_round_trips_and_keeps_its_value_at_another_rate(rate: str) -> None:
    limiter = RateLimiter(rate, guard="auto")
    for step, (rates, guard) in enumerate(
        # At most 4 % of the shortest period; at least a thousandth of the longest.
        ((["10/s"], 0.0), (["10/s", "1/100ms"], 0.1 / 25), (["1000/min"], 0.06))
    ):
        if rate == "server":
            limiter.follow(*rates)
        else:
            limiter.update(rate_limit=rates)
        assert guard_of(limiter) == pytest.approx(guard)
        for place in range(100 * (step == 0)):
            await send(limiter, took=0.1 + 0.02 * (place % 2))
        assert step > 0 or 0.02 <= guard_of(limiter) <= 0.025


async def test_parent_guard_uses_child_requests_only_if_asked() -> None:
    for asked in (True, False):
        parent = RateLimiter("10/s", guard="auto" if asked else None)
        hosts = KeyedRateLimiter("10/s", parent=parent)
        for host, took in (("a", 0.1), ("b", 0.15)) * 2:
            await send(hosts[host], took=took)
        assert [guard_of(hosts[host]) for host in ("a", "b")] == [0.0, 0.0]
        assert (guard_of(parent) > 0.03) is asked
        await send_two(parent)
        assert guard_of(parent) > 0.03


# ---- the learned burst --------------------------------------------------------------------------

RESOURCES: Unchecked = {"tokens": "1000/s", "requests": "10/s"}
ONE: Unchecked = {"tokens": 1}
both_kinds = pytest.mark.parametrize(
    ("rates", "cost"), [("10/s", 1.0), (RESOURCES, ONE)], ids=["plain", "resources"]
)


async def throttle_all(limiter: RateLimiter, requests: int, cost: Unchecked = 1.0) -> None:
    """Have the server throttle so many requests that are sent at once."""
    permits = [await limiter.acquire(cost) for _ in range(requests)]
    await asyncio.sleep(0.01)
    for permit in permits:
        permit.report_throttled(0.1)
        permit.release()
    await asyncio.sleep(0.2)


@both_kinds
async def test_throttled_burst_spaces_the_next_requests(rates: Unchecked, cost: Unchecked) -> None:
    limiter = RateLimiter(rates)
    assert limiter.statistics().burst == 10
    seen = observed(limiter)
    await throttle_all(limiter, 4, cost)
    assert limiter.statistics().burst == 2.0
    assert Adapted(None, "burst", 2.0, 10.0) in seen
    began_at = now()
    waits = [await visit(limiter, cost) - began_at for _ in range(6)]
    # Two at once, as the pause has drained the bucket; then a tenth of a second for each.
    assert waits == pytest.approx([0, 0, 0.1, 0.2, 0.3, 0.4])
    await asyncio.sleep(5)
    began_at = now()
    for _ in range(2):
        await limiter.record(cost)  # in one burst with the next request
    assert await visit(limiter, cost) - began_at == pytest.approx(0.1)
    faster = "20/s" if isinstance(rates, str) else {**rates, "requests": "20/s"}
    for rate_limit, burst in ((faster, 2.0), (None, None)):
        limiter.update(rate_limit=rate_limit)
        assert limiter.statistics().burst == burst


async def test_debt_of_requests_and_a_limit_of_tokens_alone_bound_what_is_learned() -> None:
    limiter = RateLimiter(RESOURCES)
    await limiter.record({"requests": 6, "tokens": 900})
    await throttle_all(limiter, 2, ONE)
    assert limiter.statistics().burst == 4  # half of the eight requests that counted
    limiter = RateLimiter({"tokens": "1000/s"})
    assert (guard_of(limiter), limiter.statistics().burst) == (0.0, None)
    await throttle_all(limiter, 4, ONE)
    assert guard_of(limiter) > 0.02
    end = now() + 70
    while now() < end:
        await send(limiter, ONE)
    assert guard_of(limiter) == pytest.approx(0.0, abs=0.02)
    assert limiter.statistics().burst is None


def test_limiter_of_a_session_begins_with_a_small_burst() -> None:
    for limiter, burst in (
        (RateLimiter("2/h"), 1.0),
        (RateLimiter("10/s", guard=0.0), None),
        (RateLimiter({"requests": "10/s", "tokens": "1/s"}), 1.0),
        (RateLimiter({"tokens": "9/s"}), None),
    ):
        ThrottledTransport(limiter)
        assert limiter.statistics().burst == burst, limiter
    keyed, followed = KeyedRateLimiter("10/s"), RateLimiter("server")
    early = keyed["early"]
    ThrottledTransport(keyed)
    ThrottledTransport(followed)
    followed.follow("10/s")
    for limiter in (early, keyed["late"], followed):
        assert limiter.statistics().burst == 1.0

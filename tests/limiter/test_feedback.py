"""Specifies how a limiter reacts to the reported outcomes of its requests."""

import asyncio
import gc
import math
import weakref
from functools import partial
from typing import Any

import httpx
import pytest

from aiothrottle import (
    AdaptiveConcurrency,
    AdaptiveRate,
    FixedWindow,
    KeyedRateLimiter,
    Rate,
    RateLimiter,
    TokenBucket,
    events,
)
from aiothrottle._core.feedback import Change, PauseRule
from aiothrottle._core.outcomes import apply
from aiothrottle._http.reports import report_pause
from aiothrottle.aiohttp import ThrottledSession, throttled_session
from aiothrottle.httpx import ThrottledTransport
from aiothrottle.retry import Retry
from aiothrottle.simulation import Outcome, Server, simulate
from aiothrottle.stores import MemoryStore
from aiothrottle.testing import RateLimitedServer, VirtualTimeLoop
from aiothrottle.testing.store_contract import OneByOne
from tests.virtually import now, virtual


async def send(limiter: RateLimiter, *, took: float = 0.1) -> None:
    async with limiter.throttle() as permit:
        await asyncio.sleep(took)
        permit.report_success()


def admitted(limiter: RateLimiter) -> float:
    """Return how many successes were reported to it."""
    feedback = limiter._engine.feedback
    assert feedback is not None
    assert feedback.rate is not None
    return feedback.rate.state.admitted


# --- Throttled requests ---


@virtual
async def test_throttled_request_pauses_the_limiter() -> None:
    limiter = RateLimiter(100)
    async with limiter.throttle() as permit:
        permit.report_throttled(2.0)
    assert 2.0 <= limiter.statistics().paused_for <= 2.2
    async with limiter.throttle():
        assert 2.0 <= now() <= 2.2


@virtual
async def test_outcome_after_the_release_counts_once() -> None:
    limiter = RateLimiter(100)
    permit = await limiter.acquire()
    permit.release()
    permit.report_throttled(2.0)
    permit.report_throttled(50.0)
    permit.report_success()
    assert limiter.statistics().paused_for <= 2.2


@virtual
async def test_concurrent_429s_extend_pause_only_with_retry_after() -> None:
    limiter = RateLimiter(100)
    permits = [await limiter.acquire() for _ in range(5)]
    await asyncio.sleep(0.1)
    permits[0].report_throttled(1.0)
    paused_for = limiter.statistics().paused_for
    permits[1].report_throttled()
    permits[2].report_throttled(0.5)
    assert limiter.statistics().paused_for == paused_for
    permits[3].report_throttled(3.0)
    assert limiter.statistics().paused_for == 3.0


@virtual
async def test_pause_without_retry_after_doubles_until_a_success() -> None:
    limiter = RateLimiter(1000, guard=0.0)
    pauses: list[float] = []
    for _ in range(3):
        async with limiter.throttle() as permit:
            await asyncio.sleep(0.01)
            permit.report_throttled()
        pauses.append(limiter.statistics().paused_for)
    for pause, least in zip(pauses, [0.5, 1.0, 2.0], strict=True):
        assert least <= pause <= 1.1 * least
    await send(limiter)
    async with limiter.throttle() as permit:
        await asyncio.sleep(0.01)
        permit.report_throttled()
    assert limiter.statistics().paused_for <= 0.55
    assert limiter._engine.feedback is not None
    await send(limiter)
    assert limiter._engine.feedback is None


RULE = PauseRule(jitter=0.0, longest=10.0)


@virtual
async def test_custom_policy_extends_pause_only_by_retry_after() -> None:
    limiter = RateLimiter(100)
    permits = [await limiter.acquire() for _ in range(3)]
    await asyncio.sleep(0.1)
    assert report_pause(permits[0], 1.0, RULE, from_server=False)
    assert not report_pause(permits[1], 5.0, RULE, from_server=False)
    assert limiter.statistics().paused_for == 1.0
    assert report_pause(permits[2], 50.0, RULE, from_server=True)
    assert limiter.statistics().paused_for == 10.0


@pytest.mark.parametrize("retry_after", [None, 0, -1.0, math.nan, -math.inf])
def test_meaningless_retry_after_counts_as_none(retry_after: float | None) -> None:
    async def main() -> None:
        limiter = RateLimiter(100)
        async with limiter.throttle() as permit:
            permit.report_throttled(retry_after)
        assert 0.4 <= limiter.statistics().paused_for <= 0.6

    asyncio.run(main())


@pytest.mark.parametrize("retry_after", [math.inf, 1e300, 10**400, 121])
@pytest.mark.parametrize("adaptive", [False, True])
def test_no_429_pauses_longer_than_two_minutes(retry_after: float, adaptive: bool) -> None:
    async def main() -> None:
        limiter = RateLimiter(AdaptiveRate(10, 1, 100) if adaptive else 10)
        async with limiter.throttle() as permit:
            permit.report_throttled(retry_after)
        assert 119 <= limiter.statistics().paused_for <= 120
        rate = limiter.statistics().rate_limit
        assert rate is None or 1 <= rate <= 10

    asyncio.run(main())


async def test_permit_never_held_takes_no_outcome() -> None:
    limiter = RateLimiter(AdaptiveRate(10, 1, 100))
    permit = limiter.throttle()
    with pytest.raises(RuntimeError, match="not held yet"):
        permit.report_throttled()
    with pytest.raises(RuntimeError, match="not held yet"):
        permit.report_success()
    async with permit:
        for wrong in ("2", True):
            with pytest.raises(TypeError):
                permit.report_throttled(wrong)  # type: ignore[arg-type]


# --- An adaptive rate ---


@virtual
async def test_adaptive_rate_sets_the_pace_and_is_reported() -> None:
    limiter = RateLimiter(AdaptiveRate(10, 1, 100))
    assert limiter.statistics().rate_limit == 10
    assert "at 10/s" in repr(limiter)
    for _ in range(6):
        async with limiter.throttle():
            pass
    assert now() == pytest.approx(0.5, abs=0.01)  # nothing is reported, so nothing changes
    async with limiter.throttle() as permit:
        await asyncio.sleep(0.1)
        permit.report_throttled(1.0)
    rate = limiter.statistics().rate_limit
    assert rate is not None
    assert rate < 10


@virtual
async def test_adaptive_rate_grows_while_requests_wait() -> None:
    limiter = RateLimiter(AdaptiveRate(1, 1, 64))
    async with asyncio.TaskGroup() as group:
        for _ in range(200):
            group.create_task(send(limiter))
    assert now() < 20  # 200 s at the initial rate
    assert limiter.statistics().rate_limit == 64


@virtual
async def test_waiters_are_granted_at_the_new_rate() -> None:
    limiter = RateLimiter(AdaptiveRate(0.1, 0.1, 100))
    feedback = limiter._engine.feedback
    assert feedback is not None
    assert feedback.rate is not None
    async with asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(send(limiter))
        await asyncio.sleep(1.0)
        feedback.rate.state.rate = 10.0
        apply(limiter._engine, (Change("rate", 10.0, 0.0),))
    assert now() == pytest.approx(1.0 + 0.09 + 0.1, abs=0.01)


@virtual
async def test_each_key_keeps_its_rate_for_a_while() -> None:
    limiter = KeyedRateLimiter(
        AdaptiveRate(10, 1, 100), concurrency_limit=AdaptiveConcurrency(10, 1, 16)
    )
    async with limiter.throttle("a") as permit:
        await asyncio.sleep(0.01)
        permit.report_throttled(1.0)
    assert limiter["a"].statistics().concurrency_limit == 5
    async with limiter.throttle("b") as permit:
        permit.report_success()
    assert limiter["a"].statistics().rate_limit == 5
    assert limiter["b"].statistics().rate_limit == 10
    await asyncio.sleep(300)
    assert len(limiter) == 2
    await asyncio.sleep(900)
    async with limiter.throttle("c"):
        pass
    await asyncio.sleep(120)
    assert "a" not in limiter._limiters


@virtual
async def test_parent_counts_childrens_outcomes_without_a_pause() -> None:
    parent = RateLimiter(AdaptiveRate(10, 1, 100))
    child = RateLimiter(1000, parent=parent)
    await send(child)
    assert admitted(parent) == 1
    async with child.throttle() as permit:
        await asyncio.sleep(0.01)
        permit.report_throttled(1.0)
    assert parent.statistics().rate_limit == 5
    assert parent.statistics().paused_for == 0
    assert child.statistics().paused_for >= 1


def test_adaptive_rate_restarts_on_another_clock() -> None:
    limiter = RateLimiter(AdaptiveRate(10, 1, 100))

    async def throttle_one() -> None:
        async with limiter.throttle() as permit:
            assert limiter.statistics().rate_limit == 10
            await asyncio.sleep(0.01)
            permit.report_throttled(0.01)
        assert limiter.statistics().rate_limit == 5

    asyncio.run(throttle_one())
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(throttle_one())


def test_adaptive_rate_has_an_algorithm_of_its_own() -> None:
    adaptive = AdaptiveRate(10, 1, 100)
    wrong: list[dict[str, Any]] = [
        {"burst": 1},
        {"guard": 0.1},
        {"guard": "auto"},
        {"algorithm": TokenBucket},
    ]
    for options in wrong:
        with pytest.raises(ValueError, match="algorithm of its own"):
            RateLimiter(adaptive, **options)


@virtual
async def test_update_switches_between_fixed_and_adaptive_rate() -> None:
    limiter = RateLimiter(AdaptiveRate(10, 1, 100), concurrency_limit=4, guard=0.0)
    limiter.update(rate_limit=5)
    assert limiter.statistics().rate_limit is None
    limiter.update(
        rate_limit=AdaptiveRate(20, 1, 100), concurrency_limit=AdaptiveConcurrency(2, 1, 9)
    )
    statistics = limiter.statistics()
    assert (statistics.rate_limit, statistics.concurrency_limit) == (20, 2)
    for _ in range(10):
        await send(limiter)
    limiter.update(rate_limit=3)
    assert limiter.statistics().concurrency_limit == 3
    limiter.update(concurrency_limit=7)
    assert limiter.statistics().concurrency_limit == 7
    assert limiter._engine.feedback is None


@virtual
async def test_reported_rate_is_adopted() -> None:
    limiter = RateLimiter(AdaptiveRate(100, 1, 1000))
    limiter.adopt("1000/h")
    assert limiter.statistics().rate_limit == 100
    limiter.adopt("1000/h", "20/s", "600/min")
    assert limiter.statistics().rate_limit == pytest.approx(19.4)
    begun_at = now()
    for _ in range(195):
        await send(limiter, took=0.0)
    assert now() - begun_at == pytest.approx(10, rel=0.02)


@virtual
async def test_limiter_of_a_known_rate_adopts_none() -> None:
    limiter = RateLimiter("10/s")
    limiter.adopt("20/s")
    for _ in range(21):
        await limiter.acquire()
    assert now() >= 2.0


@virtual
async def test_rate_below_one_still_grants_single_requests() -> None:
    limiter = RateLimiter(AdaptiveRate(0.5, 0.1, 0.9))
    await limiter.acquire()
    await limiter.acquire()
    assert now() == pytest.approx(2, abs=0.01)


# --- An adaptive number of slots ---


@virtual
async def test_slots_grow_while_they_are_used() -> None:
    limiter = RateLimiter(concurrency_limit=AdaptiveConcurrency(2, 1, 16))
    async with asyncio.TaskGroup() as group:
        for _ in range(300):
            group.create_task(send(limiter))
    assert limiter.statistics().concurrency_limit == 16


@pytest.mark.parametrize(("slots", "then"), [(2, 3), (3, 3)])
@virtual
async def test_success_after_the_release_counts_as_in_flight(slots: int, then: int) -> None:
    limiter = RateLimiter(concurrency_limit=AdaptiveConcurrency(slots, 1, 16))
    for _ in range(10):  # one at a time: half of two slots are used, and less of three
        permit = await limiter.acquire()
        await asyncio.sleep(0.1)
        permit.release()
        permit.report_success()
    assert limiter.statistics().concurrency_limit == then


@virtual
async def test_two_of_three_slots_are_used_after_release() -> None:
    limiter = RateLimiter(concurrency_limit=AdaptiveConcurrency(3, 1, 16))
    for _ in range(5):
        first, second = await limiter.acquire(), await limiter.acquire()
        await asyncio.sleep(0.1)
        for permit in (first, second):  # a session may release a slot before it reports
            permit.release()
            permit.report_success()
    assert limiter.statistics().concurrency_limit == 4


@virtual
async def test_throttled_request_removes_slots() -> None:
    limiter = RateLimiter(concurrency_limit=AdaptiveConcurrency(10, 1, 16))
    async with limiter.throttle() as permit:
        await asyncio.sleep(0.1)
        permit.report_throttled(1.0)
    assert limiter.statistics().concurrency_limit == 5


# --- The guard that tunes itself ---


class OfWholeMinutes(OneByOne):
    """A user's algorithm that accepts no other periods."""

    def __init__(self, rate: Rate) -> None:
        if rate.period % 60:
            raise ValueError("whole minutes")

    def __repr__(self) -> str:
        return "OfWholeMinutes()"


@virtual
async def test_guard_follows_the_round_trips() -> None:
    limiter = RateLimiter("10/s", guard="auto")
    assert limiter.statistics().guard == 0.0
    for i in range(100):
        await send(limiter, took=0.1 + 0.02 * (i % 2))
    guard = limiter.statistics().guard
    assert guard is not None
    assert 0.02 <= guard <= 0.025
    assert f"period={1 + guard!r}" in repr(limiter)


@virtual
async def test_429s_at_even_spacing_extend_the_guard() -> None:
    limiter = RateLimiter("10/s", guard="auto", burst=1)
    seen: list[events.Event] = []
    limiter.observe(seen.append)
    for took in (0.1, 0.6):
        await send(limiter, took=took)
    assert limiter.statistics().guard == pytest.approx(1 / 14)
    for _ in range(3):
        async with limiter.throttle() as permit:
            await asyncio.sleep(0.1)
            permit.report_throttled(1.0)
    guard = limiter.statistics().guard or 0.0
    assert guard == pytest.approx(1 / 14 * 1.5**2)
    assert f"period={1 + guard!r}" in repr(limiter)
    adapted = [event for event in seen if isinstance(event, events.Adapted)]
    assert [event.what for event in adapted] == ["guard", "guard", "guard"]
    assert [event.value for event in adapted] == pytest.approx([1 / 14, 1.5 / 14, 2.25 / 14])


@virtual
async def test_guard_tunes_itself_by_default() -> None:
    limiter = RateLimiter(["10/s", "1000/min"], burst=5, algorithm=TokenBucket)
    limiter.update(rate_limit="10/s")
    for took in (0.1, 0.15):
        await send(limiter, took=took)
    guard = limiter.statistics().guard
    assert guard is not None
    assert guard > 0.05
    followed = RateLimiter("server")
    followed.follow("10/s")
    assert followed.statistics().guard == 0.0
    keyed = KeyedRateLimiter("10/s", overrides={"b": {"guard": 0.25}})
    assert [keyed[key].statistics().guard for key in ("a", "b")] == [0.0, None]


@pytest.mark.parametrize(
    "limiter",
    [
        RateLimiter("10/s", guard=0.0),
        RateLimiter(concurrency_limit=4),
        RateLimiter(algorithm=TokenBucket("10/s")),
        RateLimiter("10/s", algorithm=FixedWindow),
        RateLimiter("10/min", algorithm=OfWholeMinutes),
        RateLimiter(AdaptiveRate(10, 1, 100)),
        RateLimiter("server"),
        RateLimiter("10/s", store=MemoryStore(), key="k"),
        KeyedRateLimiter("10/s", store=MemoryStore(), key="k")["a"],
    ],
    ids=str,
)
@virtual
async def test_no_guard_is_tuned_where_none_applies(limiter: RateLimiter) -> None:
    async with limiter:
        for took in (0.1, 0.15):
            await send(limiter, took=took)
        assert limiter.statistics().guard is None


@virtual
async def test_updated_limiter_with_a_store_tunes_no_guard() -> None:
    async with RateLimiter("10/s", store=MemoryStore(), key="k") as limiter:
        limiter.update(rate_limit="20/s")
        assert limiter.statistics().guard is None


@virtual
async def test_key_is_forgotten_with_its_guard() -> None:
    keyed = KeyedRateLimiter("10/s")
    for took in (0.1, 0.15):
        await send(keyed["a"], took=took)
    assert "a" in keyed
    await asyncio.sleep(10)
    assert "a" not in keyed


def test_calendar_windows_stay_aligned_with_the_server() -> None:
    server = Server("100/min", "fixed-window", phase=0.0)
    outcome = simulate(
        lambda: RateLimiter("100/min", algorithm=FixedWindow),
        server,
        latency=0.05,
        jitter=0.3,
        seconds=1200,
    )
    assert outcome.refused == 0


@pytest.mark.parametrize("follows", [False, True])
@virtual
async def test_guard_keeps_its_value_at_another_rate(*, follows: bool) -> None:
    limiter = RateLimiter("server" if follows else "10/s")
    if follows:
        limiter.follow("10/s")
    for i in range(100):
        await send(limiter, took=0.1 + 0.02 * (i % 2))
    before = limiter.statistics().guard
    assert before is not None
    if follows:
        limiter.follow("10/s", "1/100ms")
    else:
        limiter.update(rate_limit=["10/s", "1/100ms"])
    # But no longer than a ninth of the shortest period.
    assert limiter.statistics().guard == pytest.approx(0.1 / 9)
    assert f"period={1 + 0.1 / 9!r}" in repr(limiter)
    if follows:
        limiter.follow("1000/min")
    else:
        limiter.update(rate_limit="1000/min")
    assert before < 0.03
    assert limiter.statistics().guard == pytest.approx(0.06)  # a thousandth of the period
    assert f"period={60 + (limiter.statistics().guard or 0)!r}" in repr(limiter)


@virtual
async def test_rate_list_is_copied() -> None:
    rates = ["10/s", "100/min"]
    limiter = RateLimiter(rates)
    rates.clear()
    for took in (0.1, 0.15):
        await send(limiter, took=took)
    assert (limiter.statistics().guard or 0) > 0.05
    assert repr(limiter).count("SlidingWindowLog") == 2


@pytest.mark.parametrize("asked", [False, True])
@virtual
async def test_parent_guard_uses_child_requests_only_if_asked(*, asked: bool) -> None:
    parent = RateLimiter("10/s", guard="auto" if asked else None)
    hosts = KeyedRateLimiter("10/s", parent=parent)
    for host, took in (("a", 0.1), ("b", 0.15)) * 2:
        await send(hosts[host], took=took)
    assert [hosts[host].statistics().guard for host in ("a", "b")] == [0.0, 0.0]
    guard = parent.statistics().guard
    assert guard is not None
    assert (guard > 0.05) is asked
    for took in (0.1, 0.15):
        await send(parent, took=took)
    assert (parent.statistics().guard or 0.0) > 0.05


def test_a_guard_needs_a_rate() -> None:
    with pytest.raises(ValueError, match="guard"):
        RateLimiter(concurrency_limit=4, guard="auto")


def test_tuned_guard_prevents_429s() -> None:
    for jitter in (0.0, 0.02, 0.1):
        outcome = simulate(lambda: RateLimiter(20, guard="auto"), 20, jitter=jitter, seconds=60)
        right = simulate(partial(RateLimiter, 20, guard=jitter), 20, jitter=jitter, seconds=60)
        assert outcome.refused_share <= 0.001
        assert outcome.utilisation >= 0.9 * right.utilisation


# --- All together, against servers ---


def after(outcome: Outcome, since: float) -> tuple[float, float]:
    """Return the throttled share and the admitted requests per second since an instant."""
    arrivals = [arrival for arrival in outcome.arrivals if arrival.at >= since]
    admitted = sum(not arrival.refused for arrival in arrivals)
    return 1 - admitted / len(arrivals), admitted / (outcome.arrivals[-1].at - since)


@pytest.mark.parametrize("algorithm", ["sliding-window-log", "fixed-window", "token-bucket"])
@pytest.mark.parametrize("start", [40.0, 1.0])
def test_unknown_limit_is_found(algorithm: str, start: float) -> None:
    outcome = simulate(
        lambda: RateLimiter(AdaptiveRate(start, 0.1, 200)),
        Server("10/s", algorithm),  # type: ignore[arg-type]
        seconds=250,
    )
    throttled, used = after(outcome, 10)
    assert throttled <= 0.01
    assert used >= 0.93 * 10


def test_limit_that_halves_and_doubles_is_followed() -> None:
    outcome = simulate(
        lambda: RateLimiter(AdaptiveRate(10, 0.1, 200)),
        "10/s",
        workers=50,
        seconds=700,
        changes={150.0: Server("5/s"), 300.0: Server("10/s")},
    )
    assert after(outcome, 500)[1] >= 8.5  # a doubled limit is found in small steps
    halved = [arrival for arrival in outcome.arrivals if 190 <= arrival.at < 300]
    assert 0.85 * 5 * 110 <= sum(not arrival.refused for arrival in halved) <= 5 * 111
    assert sum(arrival.refused for arrival in halved) <= 0.02 * len(halved)


@virtual
async def test_child_and_parent_both_count_outcomes() -> None:
    parent = RateLimiter(AdaptiveRate(50, 1, 100))
    child = RateLimiter(AdaptiveRate(10, 1, 100), parent=parent)
    await send(child)
    assert (admitted(child), admitted(parent)) == (1, 1)


# --- Limiters without a controller ---


async def report(limiter: RateLimiter) -> None:
    async with limiter.throttle() as permit:
        permit.report_success()
        assert not hasattr(permit, "_reported")


def test_limiter_without_controller_keeps_no_outcomes() -> None:
    async def main() -> None:
        limiter = RateLimiter(1_000_000, guard=0.0)
        for _ in range(100):
            await report(limiter)
        assert limiter._engine.feedback is None
        reference = weakref.ref(limiter)
        del limiter
        gc.collect()
        assert reference() is None

    asyncio.run(main())


# --- Outcomes from sessions and transports ---


async def test_sessions_report_outcomes() -> None:
    async with RateLimitedServer() as server:
        for make in (ThrottledSession, throttled_session):
            limiter = RateLimiter(AdaptiveRate(100, 1, 100))
            async with make(limiter) as session:
                for _ in range(3):
                    async with session.get(server.url) as response:
                        assert response.status == 200
            assert admitted(limiter) == 3
    async with RateLimitedServer("1/10s") as server:
        for make in (ThrottledSession, throttled_session):
            limiter = RateLimiter(AdaptiveRate(100, 1, 100))
            async with make(limiter, retry=Retry(attempts=1)) as session:
                for _ in range(2):
                    async with session.get(server.url) as response:
                        await response.read()
                    limiter._engine.pause.ends_at = -math.inf
            rate = limiter.statistics().rate_limit
            assert rate is not None
            assert rate < 100


async def test_sessions_tune_the_default_guard() -> None:
    async with RateLimitedServer() as server:
        for make in (ThrottledSession, throttled_session):
            limiter = RateLimiter(100)
            async with make(limiter) as session:
                for _ in range(2):
                    async with session.get(server.url) as response:
                        assert response.status == 200
            guard = limiter.statistics().guard
            assert guard is not None
            assert guard > 0.0  # no two round trips take the same time


async def test_transport_reports_outcomes() -> None:
    answers = iter([200, 200, 429])
    transport = httpx.MockTransport(lambda _: httpx.Response(next(answers)))
    limiter = RateLimiter(AdaptiveRate(100, 1, 100))
    throttled = ThrottledTransport(limiter, transport=transport, retry=Retry(attempts=1))
    async with httpx.AsyncClient(transport=throttled) as client:
        for _ in range(2):
            await client.get("http://example.org/")
        assert admitted(limiter) == 2
        await client.get("http://example.org/")
    rate = limiter.statistics().rate_limit
    assert rate is not None
    assert rate < 100


# ---- the learned burst ---------------------------------------------------------------------------


async def throttle_all(limiter: RateLimiter, requests: int) -> None:
    permits = [await limiter.acquire() for _ in range(requests)]
    await asyncio.sleep(0.01)
    for permit in permits:
        permit.report_throttled(0.1)
        permit.release()
    await asyncio.sleep(0.2)


@virtual
async def test_throttled_burst_spaces_the_next_requests() -> None:
    limiter = RateLimiter("10/s")
    seen: list[events.Event] = []
    limiter.observe(seen.append)
    await throttle_all(limiter, 4)
    assert limiter.statistics().burst == 2.0
    assert events.Adapted(None, "burst", 2.0, 10.0) in seen
    assert "BoundedBurst" in repr(limiter)
    began_at = asyncio.get_running_loop().time()
    for _ in range(6):
        async with limiter.throttle():
            pass
    # Two at once, as the pause has drained the bucket; then a tenth of a second for each.
    waited = asyncio.get_running_loop().time() - began_at
    assert waited == pytest.approx(0.4)


@virtual
async def test_learned_burst_forgets_no_spent_token() -> None:
    limiter = RateLimiter("10/s")
    await throttle_all(limiter, 7)
    assert (await limiter.peek()).limit == 10
    for _ in range(3):
        async with limiter.throttle():
            pass
    assert (await limiter.peek()).retry_after > 0.5, "the window is full, of ten in a second"


@virtual
async def test_learned_burst_is_kept_for_another_rate() -> None:
    limiter = RateLimiter("10/s")
    await throttle_all(limiter, 4)
    limiter.update(rate_limit="20/s")
    assert limiter.statistics().burst == 2.0
    limiter.update(rate_limit=None)
    assert limiter.statistics().burst is None


@virtual
async def test_heavy_cost_passes_a_small_burst() -> None:
    limiter = RateLimiter("10/s")
    for _ in range(3):
        await throttle_all(limiter, 4)
    assert limiter.statistics().burst == 1.0
    async with limiter.throttle(10):
        pass


@virtual
async def test_single_throttled_request_keeps_the_burst() -> None:
    limiter = RateLimiter("10/s")
    await throttle_all(limiter, 1)
    assert limiter.statistics().burst == 10.0


def test_limiter_of_a_session_begins_with_a_small_burst() -> None:
    limiter = RateLimiter("10/s")
    ThrottledTransport(limiter)
    assert limiter.statistics().burst == 1.0
    slow, given = RateLimiter("2/s"), RateLimiter("10/s", guard=0.0)
    for other in (slow, given):
        ThrottledTransport(other)
    assert (slow.statistics().burst, given.statistics().burst) == (2.0, None)
    keyed = KeyedRateLimiter("10/s")
    early = keyed["early"]
    ThrottledTransport(keyed)
    assert [limit.statistics().burst for limit in (early, keyed["late"])] == [1.0, 1.0]
    followed = RateLimiter("server")
    ThrottledTransport(followed)
    followed.follow("10/s")
    assert followed.statistics().burst == 1.0

"""Events: which limiter emits which, when, to which observer, and its statistics."""

import asyncio
import gc
import logging
import random
import re
import statistics
from collections.abc import Callable
from typing import Any

import pytest

from aiothrottle import (
    AdaptiveConcurrency,
    AdaptiveRate,
    KeyedRateLimiter,
    Rate,
    RateLimiter,
    TokenBucket,
    WaitUntil,
    errors,
    events,
)
from aiothrottle.events import Adapted, Event, Granted, Paused, QuotaUpdated, Rejected, Throttled
from aiothrottle.headers import Profile
from aiothrottle.stores import MemoryStore
from aiothrottle.testing import VirtualTimeLoop
from tests.limiter.common import queued, throttle_one, together
from tests.support.failing import Client, Server
from tests.support.observing import adaptations, observed
from tests.support.virtually import counts, now, turns, visit, visits


async def test_observer_gets_the_next_event_until_it_is_removed() -> None:
    limiter = RateLimiter(1000)
    await visit(limiter)  # now the fast path is open
    first, second = list[Event](), list[Event]()
    stop = limiter.observe(first.append)
    limiter.observe(second.append)
    stop_twice = limiter.observe(second.append)  # gets each event twice
    await visit(limiter)
    await visit(limiter)
    assert (len(first), len(second)) == (2, 4)
    for removes, counted in ((stop, 6), (stop, 8), (stop_twice, 9)):
        removes()
        await visit(limiter)
        assert (len(first), len(second)) == (2, counted)


def raises(error: BaseException) -> Callable[[Event], None]:
    def observer_that_raises(_: Event) -> None:
        raise error

    return observer_that_raises


async def test_failing_observer_is_logged_once_and_harmless(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limiter = RateLimiter(1)
    limiter.observe(raises(ZeroDivisionError()))
    seen = observed(limiter)
    await visit(limiter)
    await visit(limiter)
    assert not await limiter.try_acquire()
    assert (len(seen), limiter.statistics().granted) == (3, 2)
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("aiothrottle", "ERROR")
    assert "observer_that_raises" in record.getMessage()
    assert record.exc_info


@pytest.mark.parametrize("error", [asyncio.CancelledError, pytest.fail.Exception])
@pytest.mark.parametrize("parent", [None, RateLimiter(100, concurrency_limit=2)])
async def test_request_does_not_get_what_an_observer_raises(
    error: type[BaseException], parent: RateLimiter | None
) -> None:
    raised = list[object]()

    def note(_: object, context: dict[str, Any]) -> None:
        raised.append(context["exception"].__class__)

    asyncio.get_running_loop().set_exception_handler(note)
    limiter = RateLimiter(2, concurrency_limit=2, parent=parent)
    limiter.observe(raises(error("seen")))
    await asyncio.wait_for(together(*visits(limiter, 10, stay=0.5)), 60.0)
    statistics = limiter.statistics()
    assert (statistics.granted, statistics.rejected, counts(limiter)) == (10, 0, (0, 0))
    assert raised == [error] * 10


def test_exit_of_an_observer_ends_the_program_and_loses_no_slot() -> None:
    limiter = RateLimiter(2, concurrency_limit=1)
    limiter.observe(raises(SystemExit(3)))

    async def main() -> None:
        await together(*visits(limiter, 10, stay=0.5))

    with pytest.raises(SystemExit):  # outside of a loop the caller gets it
        limiter.pause(0.01)
    loop = VirtualTimeLoop()
    task = loop.create_task(main())
    with pytest.raises(SystemExit) as caught:
        loop.run_until_complete(task)
    assert (caught.value.code, counts(limiter)[0]) == (3, 1)  # the granted one has its slot
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(task)
    assert counts(limiter) == (0, 0)
    loop.close()


async def test_wrong_observer_raises_at_once() -> None:
    class Observer:
        async def __call__(self, event: Event) -> None: ...

    async def observer(event: Event) -> None: ...

    for limiter in (RateLimiter(1), KeyedRateLimiter(1)):
        for each in (observer, Observer()):
            with pytest.raises(TypeError, match="an observer must not be async"):
                limiter.observe(each)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
        with pytest.raises(TypeError, match="an observer must be a function of one event"):
            limiter.observe("print")  # type: ignore[arg-type]


async def test_each_grant_is_emitted_with_its_wait() -> None:
    limiter, granted = RateLimiter("2/s"), list[int]()
    seen = observed(limiter)
    limiter.observe(lambda _: granted.append(limiter.statistics().granted))  # it may call it
    for cost in (1, 1, 1, 2):
        await visit(limiter, cost)
    (waiter,) = await queued(limiter)
    waiter.cancel()
    expected = [(1, 0), (1, 0), (1, 1), (2, 1)]
    assert seen == [Granted(None, cost, waited) for cost, waited in expected]
    assert (granted, limiter.statistics().waited_total) == ([1, 2, 3, 4], 2)
    shared, began = RateLimiter(1, store=MemoryStore(), key="shared"), now()
    seen = observed(shared)
    assert await shared.try_acquire()
    assert not await shared.try_acquire()
    assert await visit(shared) == pytest.approx(began + 1.0, abs=0.01)
    assert seen[:2] == [Granted(None, 1.0, 0.0), Rejected(None, "no room")]
    assert [type(event) for event in seen[2:]] == [Granted]


async def test_each_rejection_is_counted_and_has_its_reason() -> None:
    limiter = RateLimiter(1, max_queue=1, concurrency_limit=1)
    permit = await limiter.acquire()
    seen, rejected = observed(limiter), observed(limiter, Rejected)
    assert not await limiter.try_acquire()
    assert not await limiter.peek()  # is none
    for timeout in (0.5, 2):  # known at once, and while the slot is taken
        with pytest.raises(errors.ThrottleTimeout):
            await limiter.acquire(timeout=timeout)
    (waiting,) = await queued(limiter)
    with pytest.raises(errors.QueueFull):
        await limiter.acquire()
    permit.release()
    await waiting
    assert [it.reason for it in rejected] == ["no room", "timeout", "timeout", "queue full"]
    assert seen[4:] == [Granted(None, 1.0, 0.0)]
    await limiter.aclose()
    with pytest.raises(errors.LimiterClosed):  # is none either
        await visit(limiter)
    statistics = limiter.statistics()
    assert (statistics.rejected, statistics.granted, statistics.waiting) == (4, 2, 0)


async def test_parent_and_child_each_emit_their_events() -> None:
    parent = RateLimiter(algorithm=WaitUntil(1.0, raise_after=1.0, limit=10.0))
    child = RateLimiter(5, parent=parent)
    of_parent, of_child = observed(parent), observed(child)
    await child.acquire()
    await child.acquire()
    await parent.record(1)
    with pytest.raises(errors.ThrottleTimeout):
        await child.acquire()
    expected = [Granted(None, 1.0, 0.0), Granted(None, 1.0, 1.0), Rejected(None, "timeout")]
    assert of_parent == of_child == expected


async def test_pause_is_emitted_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "aiothrottle")
    limiter = RateLimiter(1000)
    permit = await limiter.acquire()
    seen = observed(limiter)
    limiter.pause(0.0)
    assert seen == [], "no pause"
    for seconds in (2.0, 1.0, 2.5):  # longer by less than a second: the same
        limiter.pause(seconds)
    assert seen == [Paused(None, 2.0, "requested")]
    limiter.pause(3.5)
    assert seen.pop() == Paused(None, 3.5, "requested")
    await asyncio.sleep(1.0)
    permit.report_throttled(retry_after=5.0)  # the request was sent before the pause
    assert seen[1:] == [Throttled(None, 5.0), Paused(None, 5.0, "retry-after")]
    line = caplog.messages[-1]
    assert line.startswith("'1000/s' is paused for 5 s")
    assert line.endswith("the server throttled a request and asked for a pause")
    await asyncio.sleep(5.0)
    limiter.pause(0.5)
    assert seen.pop() == Paused(None, 0.5, "requested"), "a short one after another"
    seconds = await throttle_one(limiter)
    assert seen[-2:] == [Throttled(None, None), Paused(None, seconds, "throttled")]
    assert 0.5 <= seconds <= 0.55
    await asyncio.sleep(10.0)
    await throttle_one(limiter, 7200.0)
    assert seen[-2:] == [Throttled(None, 7200.0), Paused(None, 3600.0, "retry-after")]


async def test_log_names_the_key_once_per_pause(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "aiothrottle")
    keyed = KeyedRateLimiter(1000)
    for key in ("example.org", "a\nERROR root: b", "\x1b[2Ja"):  # a key may forge no line
        keyed.pause(key, 60.0)
        keyed.pause(key, 60.5)
    without_time = [re.sub(r"until \d\d:\d\d:\d\d", "until then", it) for it in caplog.messages]
    assert without_time == [
        f"{key} is paused for 1 min, until then: the program called pause()"
        for key in ("'example.org'", r"'a\nERROR root: b'", r"'\x1b[2Ja'")
    ]


async def test_keyed_limiter_emits_events_of_every_key() -> None:
    keyed = KeyedRateLimiter(1000)
    await visit(keyed["old"])
    alone = keyed["a"]
    seen, one = list[Event](), observed(alone)
    stop = keyed.observe(seen.append)
    for key in ("old", "new", "a"):
        await visit(keyed[key])
    assert seen == [Granted(key, 1.0, 0.0) for key in ("old", "new", "a")]
    assert one == [Granted("a", 1.0, 0.0)]
    await asyncio.sleep(100.0)
    gc.collect()
    assert "old" not in keyed
    await visit(keyed["old"])  # forgotten, and made anew
    assert seen.pop() == Granted("old", 1.0, 0.0)
    stop()
    for key in ("old", "newest", "a"):
        await visit(keyed[key])
    assert (len(seen), len(one)) == (3, 2)


async def test_adapted_limits_and_quotas_are_emitted() -> None:
    slots = AdaptiveConcurrency(4, 1, 100)
    limiter = RateLimiter(AdaptiveRate(10, 1, 1000), concurrency_limit=slots)
    seen = observed(limiter)
    await throttle_one(limiter, 1.0)
    assert adaptations(seen) == [Adapted(None, "rate", 5, 10), Adapted(None, "slots", 2, 4)]
    followed = RateLimiter("server")
    seen = observed(followed)
    permit = await followed.acquire()
    for _ in range(2):
        followed.follow("100/min")
    permit.update_quota(7, 30.0)
    reported = QuotaUpdated(None, None, None, (Rate(100.0, 60.0),))
    assert seen == [Granted(None, 1.0, 0.0), reported, QuotaUpdated(None, 7, 30.0)]


async def test_spent_quota_is_a_pause_once_until_it_is_longer() -> None:
    limiter = RateLimiter("100/s")
    paused = observed(limiter, Paused)
    permits = [await limiter.acquire() for _ in range(4)]
    for permit, reset_after in zip(permits, (60.0, 60.5, 9.0, 120.0), strict=True):
        permit.update_quota(0, reset_after)
        permit.release()
    assert [(event.reason, event.seconds) for event in paused] == [("quota", 60), ("quota", 120)]
    slower, refilled = RateLimiter("1/h"), RateLimiter("9/s")
    quiet = observed(slower, Paused), observed(refilled, Paused)
    (await slower.acquire()).update_quota(0, 60.0)  # its own rate keeps to that
    headers = {f"X-RateLimit-{name}": "60" for name in ("Limit", "Reset")}
    headers["X-RateLimit-Remaining"] = "0"  # of which one is back in some seconds
    (await refilled.acquire()).report(200, headers, profile=Profile("ours", refills=True))
    assert quiet == ([], [])
    assert slower.statistics().paused_for == refilled.statistics().paused_for == 0.0
    assert refilled.statistics().quota_remaining == 0


@pytest.mark.parametrize("slots", [None, 3])
async def test_server_without_quotas_is_noticed_after_twenty_answers(
    slots: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    limiter = RateLimiter("server", concurrency_limit=slots)
    seen = observed(limiter)
    for answers in range(20):
        assert {type(event) for event in seen} <= {Granted, Rejected}, answers
        async with limiter.throttle() as permit:
            assert not await limiter.try_acquire()  # one at a time
            permit.report_success()
    assert seen[-1] == events.QuotaMissing(None, 20)
    (line,) = caplog.messages
    assert line.startswith("\"rate_limit='server'\": the server reports no limit in 20 answers")
    tasks = await queued(limiter, 4, stay=1)
    assert counts(limiter) == ((1, 3) if slots is None else (3, 1))
    await together(*tasks)


# ---- statistics: the counters, the limits and the current state ----------------------------------


async def test_limits_in_force_are_in_the_statistics() -> None:
    resources = {"requests": "5/s", "tokens": "9/s"}
    updated = RateLimiter("10/s", guard=0.25)
    updated.update(rate_limit="1/s")
    followed = RateLimiter("server")
    followed.follow("7/s")
    (await followed.acquire()).update_quota(5, 10.0)
    for limiter, rate, guard, burst in (
        (RateLimiter("10/s", guard=0.25), 10.0, 0.25, None),
        (updated, 1.0, 0.25, None),
        (RateLimiter("10/s", guard=0), 10.0, 0.0, None),
        (RateLimiter(["10/s", "300/min"], guard=0, burst=3), 5.0, 0.0, 3),
        (RateLimiter(resources, guard=0), 5.0, 0.0, None),
        (RateLimiter(resources, guard=0, burst={"requests": 2}), 5.0, 0.0, 2),
        (RateLimiter("10/s", store=MemoryStore(clock=now), key="k"), 10.0, 0.0, None),
        (RateLimiter("1/s", store=Client(Server()), key="k"), 1.0, 0.045, None),
        (RateLimiter("60/min", store=Client(Server()), key="k"), 1.0, 0.05, None),
        (RateLimiter(AdaptiveRate(7, 1, 9)), 7.0, None, None),
        (followed, 7.0, 0.0, 7),
        (RateLimiter("server"), None, None, None),
        (RateLimiter(concurrency_limit=3), None, None, None),
    ):
        stats = limiter.statistics()
        assert (stats.guard, stats.burst) == (guard, burst), limiter
        assert stats.rate_limit == (rate and pytest.approx(rate)), limiter


@pytest.mark.parametrize("longest", [0.001, 1e6])
async def test_percentiles_are_off_by_an_eighth_at_most(longest: float) -> None:
    limiter, chance, waits = RateLimiter(concurrency_limit=1), random.Random(7), list[float]()
    for _ in range(150):
        permit = await limiter.acquire()
        (waiter,) = visits(limiter, 1)
        await turns(2)
        waits += [0.0, longest * chance.random() ** 3]
        await asyncio.sleep(waits[-1])
        permit.release()
        await waiter
    stats = limiter.statistics()
    assert stats.granted == 300
    assert stats.waited_total == pytest.approx(sum(waits))
    assert stats.waited_max == pytest.approx(max(waits))
    cuts = statistics.quantiles(waits, n=100, method="inclusive")
    assert stats.waited_p50 == pytest.approx(0, abs=longest / 1000)
    assert stats.waited_p90 == pytest.approx(cuts[89], rel=0.15)
    assert stats.waited_p99 == pytest.approx(cuts[98], rel=0.15)


async def test_utilisation_is_the_used_share_of_the_limit() -> None:
    window, bucket = RateLimiter("10/s"), RateLimiter("10/s", algorithm=TokenBucket)
    for limiter, later in ((window, 0.8), (bucket, 0.3)):
        async with limiter.throttle(8) as permit:
            assert limiter.statistics().utilisation == pytest.approx(0.8)
            await asyncio.sleep(0.5)
            assert limiter.statistics().utilisation == pytest.approx(later)
            permit.settle(1000)
        assert limiter.statistics().utilisation == 1  # in debt, but at most 1


async def test_total_is_the_sum_over_the_keys_also_of_forgotten_ones() -> None:
    limiter = KeyedRateLimiter("1/s", concurrency_limit=1)
    assert (limiter.total().granted, limiter.total().store_up) == (0, None)
    await asyncio.gather(*(visit(limiter[key]) for key in "aaabbc"))
    limiter.pause("b", 7.0)
    assert list(limiter) == ["a", "b"]  # "c" was idle, and forgotten
    async with limiter.throttle("d") as permit:
        assert not await limiter.try_acquire("d")
        permit.report_throttled(3.0)
    total = limiter.total()
    assert (total.granted, total.in_flight, total.waiting, total.pauses) == (7, 0, 0, 2)
    assert (total.rejected, total.throttled, total.rate_limit) == (1, 1, None)
    # Two of "a" and one of "b" waited: 1 + 2 + 1 seconds.
    assert (total.waited_total, total.waited_max) == pytest.approx((4.0, 2.0))
    assert (total.waited_p50, total.waited_p90) == pytest.approx((0.0, 2.0), rel=0.13)
    assert total.paused_for == pytest.approx(7.0)

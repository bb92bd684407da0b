"""Events: which limiter emits which, when and to which observer; none without observers."""

import asyncio
import gc
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TypeAlias

import aiohttp
import httpx
import pytest

from aiothrottle import (
    AdaptiveConcurrency,
    AdaptiveRate,
    KeyedRateLimiter,
    QueueFull,
    Rate,
    RateLimiter,
    ThrottleTimeout,
    WaitUntil,
)
from aiothrottle.aiohttp import Retry, ThrottledSession, throttled_session
from aiothrottle.events import (
    Adapted,
    Event,
    Granted,
    Paused,
    QuotaUpdated,
    Rejected,
    Retried,
    Throttled,
)
from aiothrottle.httpx import ThrottledTransport
from aiothrottle.stores import MemoryStore
from tests.serving import answer, hang_up, serving
from tests.virtually import turns, virtual

Events: TypeAlias = list[Event]


def observed(limiter: RateLimiter | KeyedRateLimiter) -> Events:
    seen: Events = []
    limiter.observe(seen.append)
    return seen


@asynccontextmanager
async def held(limiter: RateLimiter) -> AsyncGenerator[None]:
    async with limiter.throttle():
        yield


# ---- grants and rejections ---------------------------------------------------------------------


@virtual
async def test_each_grant_is_emitted_with_its_wait() -> None:
    limiter = RateLimiter("2/s")
    seen = observed(limiter)
    for _ in range(3):
        async with limiter.throttle():
            pass
    async with limiter.throttle(2):
        pass
    assert seen == [
        Granted(None, 1.0, 0.0),
        Granted(None, 1.0, 0.0),
        Granted(None, 1.0, 1.0),
        Granted(None, 2, 1.0),
    ]


@virtual
async def test_new_listener_gets_the_next_event_until_removed() -> None:
    limiter = RateLimiter(1000)
    await limiter.acquire()  # now the fast path is open
    seen: Events = []
    stop = limiter.observe(seen.append)
    await limiter.acquire()
    await limiter.acquire()
    assert len(seen) == 2
    stop()
    stop()
    await limiter.acquire()
    assert len(seen) == 2
    assert limiter._engine.bucket.credit > 0, "the fast path is open again"


@virtual
async def test_one_of_two_listeners_may_be_removed() -> None:
    limiter = RateLimiter(1000)
    first, second = list[Event](), list[Event]()
    stop = limiter.observe(first.append)
    limiter.observe(second.append)
    await limiter.acquire()
    stop()
    await limiter.acquire()
    assert (len(first), len(second)) == (1, 2)


@virtual
async def test_listener_added_twice_gets_events_twice() -> None:
    limiter = RateLimiter(1000)
    seen: Events = []
    stop = limiter.observe(seen.append)
    limiter.observe(seen.append)
    await limiter.acquire()
    stop()
    await limiter.acquire()
    assert len(seen) == 3


@virtual
async def test_events_match_the_statistics() -> None:
    limiter = RateLimiter(10, concurrency_limit=2)
    seen = observed(limiter)

    async def work() -> None:
        async with limiter.throttle():
            await asyncio.sleep(0.03)

    workers = [asyncio.create_task(work()) for _ in range(40)]
    await asyncio.sleep(1.5)
    workers[20].cancel()  # it waits, and is never granted
    await asyncio.wait(workers)
    granted = [event for event in seen if isinstance(event, Granted)]
    statistics = limiter.statistics()
    assert len(granted) == len(seen) == statistics.granted == 39
    assert sum(event.waited for event in granted) == pytest.approx(statistics.waited_total)


@virtual
async def test_each_rejection_has_its_reason() -> None:
    limiter = RateLimiter(1, max_queue=1)
    await limiter.acquire()
    seen = observed(limiter)
    assert not (await limiter.try_acquire()).allowed
    with pytest.raises(ThrottleTimeout):
        await limiter.acquire(timeout=0.5)
    waiting = asyncio.create_task(limiter.acquire())
    await turns()
    with pytest.raises(QueueFull):
        await limiter.acquire()
    await waiting
    assert seen == [
        Rejected(None, "no room"),
        Rejected(None, "timeout"),
        Rejected(None, "queue full"),
        Granted(None, 1.0, 1.0),
    ]
    assert limiter.statistics().rejected == 3


@virtual
async def test_timeout_while_the_slots_are_taken_is_emitted() -> None:
    limiter = RateLimiter(concurrency_limit=1)
    async with held(limiter):
        seen = observed(limiter)
        with pytest.raises(ThrottleTimeout):
            await limiter.acquire(timeout=0.5)
    assert seen == [Rejected(None, "timeout")]


@virtual
async def test_parent_and_child_each_emit_their_grants() -> None:
    parent = RateLimiter(1)
    child = RateLimiter(5, parent=parent)
    of_parent, of_child = observed(parent), observed(child)
    await child.acquire()
    await child.acquire()
    assert of_parent == of_child == [Granted(None, 1.0, 0.0), Granted(None, 1.0, 1.0)]


@virtual
async def test_child_emits_the_rejection_of_its_parent() -> None:
    parent = RateLimiter(algorithm=WaitUntil(1.0, raise_after=0.5, limit=10.0))
    child = RateLimiter(5, parent=parent)
    await child.acquire()
    of_parent, of_child = observed(parent), observed(child)
    with pytest.raises(ThrottleTimeout):
        await child.acquire()
    assert of_parent == of_child == [Rejected(None, "timeout")]


@virtual
async def test_limiter_with_a_store_emits_the_same_events() -> None:
    limiter = RateLimiter(1, store=MemoryStore(), key="shared")
    seen = observed(limiter)
    assert (await limiter.try_acquire()).allowed
    assert not (await limiter.try_acquire()).allowed
    await limiter.acquire()
    granted, rejected, late = seen
    assert (granted, rejected) == (Granted(None, 1.0, 0.0), Rejected(None, "no room"))
    assert isinstance(late, Granted)
    assert late.waited == pytest.approx(1.0, abs=0.01)


# ---- pauses ------------------------------------------------------------------------------------


@virtual
async def test_short_pause_after_another_is_emitted() -> None:
    limiter = RateLimiter(1000)
    await limiter.acquire()
    seen = observed(limiter)
    for pause in (2.0, 0.5):
        limiter.pause(pause)
        await asyncio.sleep(pause)
    assert seen == [Paused(None, 2.0, "requested"), Paused(None, 0.5, "requested")]


@virtual
async def test_pause_is_emitted_with_its_reason() -> None:
    limiter = RateLimiter(1000)
    permit = await limiter.acquire()
    seen = observed(limiter)
    limiter.pause(2.0)
    assert seen == [Paused(None, 2.0, "requested")]
    seen.clear()
    limiter.pause(1.0)
    limiter.pause(0.0)
    limiter.pause(2.5)
    assert seen == [], "shorter, or longer by less than a second: the same pause"
    await asyncio.sleep(1.0)
    permit.report_throttled(retry_after=5.0)  # the request was sent before the pause
    assert seen == [Throttled(None, 5.0), Paused(None, 5.0, "retry-after")]


@virtual
async def test_many_429s_at_once_make_one_pause_event(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "aiothrottle")
    limiter = RateLimiter(1000)
    permits = [await limiter.acquire() for _ in range(50)]
    seen = observed(limiter)
    for permit in permits:
        permit.report_throttled(retry_after=30.0)
        await asyncio.sleep(0.01)
    assert sum(isinstance(event, Throttled) for event in seen) == 50
    assert sum(isinstance(event, Paused) for event in seen) == 1
    (line,) = caplog.messages
    assert line.startswith("SlidingWindowLog(rate=Rate(limit=1000, period=1.0)) is paused for 3")
    assert line.endswith(" s: the server throttled a request and asked for a pause")


@virtual
async def test_429_without_a_duration_has_its_own_reason() -> None:
    limiter = RateLimiter(1000)
    permit = await limiter.acquire()
    seen = observed(limiter)
    permit.report_throttled()
    throttled, paused = seen
    assert throttled == Throttled(None, None)
    assert isinstance(paused, Paused)
    assert paused.reason == "throttled"
    assert 0.5 <= paused.seconds <= 1.5


@virtual
async def test_log_names_the_key_once_per_pause(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "aiothrottle")
    keyed = KeyedRateLimiter(1000)
    keyed.pause("example.org", 60.0)
    keyed.pause("example.org", 60.5)
    assert caplog.messages == ["'example.org' is paused for 1 min: the program called pause()"]


@virtual
async def test_key_cannot_forge_a_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "aiothrottle")
    keyed = KeyedRateLimiter(10)
    for key in ("a\nERROR root: b", "\x1b[2Ja"):
        keyed.pause(key, 60)
    assert [message.partition(" is paused")[0] for message in caplog.messages] == [
        r"'a\nERROR root: b'",
        r"'\x1b[2Ja'",
    ]


# ---- keys --------------------------------------------------------------------------------------


@virtual
async def test_keyed_limiter_emits_events_of_every_key() -> None:
    keyed = KeyedRateLimiter(1000)
    await keyed.acquire("old")
    seen: Events = []
    stop = keyed.observe(seen.append)
    await keyed.acquire("old")
    await keyed.acquire("new")
    assert seen == [Granted("old", 1.0, 0.0), Granted("new", 1.0, 0.0)]
    stop()
    await keyed.acquire("old")
    await keyed.acquire("newest")
    assert len(seen) == 2
    assert keyed["old"]._engine.bucket.credit


@virtual
async def test_key_may_be_observed_alone() -> None:
    keyed = KeyedRateLimiter(1000)
    everything, one = observed(keyed), observed(keyed["a"])
    await keyed.acquire("a")
    await keyed.acquire("b")
    assert (len(everything), len(one)) == (2, 1)


@virtual
async def test_forgotten_key_emits_events_when_it_returns() -> None:
    keyed = KeyedRateLimiter(1000)
    seen = observed(keyed)
    async with keyed.throttle("a"):
        pass
    await asyncio.sleep(100.0)
    gc.collect()
    assert "a" not in keyed
    async with keyed.throttle("a"):
        pass
    assert seen == [Granted("a", 1.0, 0.0)] * 2


# ---- adaptive limits, and server quotas --------------------------------------------------------


@virtual
async def test_adapted_rate_is_emitted() -> None:
    limiter = RateLimiter(AdaptiveRate(10, 1, 1000))
    permit = await limiter.acquire()
    seen = observed(limiter)
    await asyncio.sleep(0.1)
    permit.report_throttled(retry_after=1.0)
    (adapted,) = (event for event in seen if isinstance(event, Adapted))
    assert (adapted.what, adapted.before) == ("rate", 10)
    assert adapted.value == limiter.statistics().rate_limit
    assert adapted.value < 10


@virtual
async def test_adapted_slots_are_emitted() -> None:
    limiter = RateLimiter(concurrency_limit=AdaptiveConcurrency(4, 1, 100))
    permit = await limiter.acquire()
    seen = observed(limiter)
    await asyncio.sleep(0.1)
    permit.report_throttled(retry_after=1.0)
    (adapted,) = (event for event in seen if isinstance(event, Adapted))
    assert (adapted.what, adapted.before) == ("slots", 4)
    assert adapted.value == limiter.statistics().concurrency_limit


@virtual
async def test_adapted_guard_is_emitted() -> None:
    limiter = RateLimiter(1000, guard="auto")
    seen = observed(limiter)
    for seconds in (0.01, 0.02):
        permit = await limiter.acquire()
        await asyncio.sleep(seconds)
        permit.report_success()
    (adapted,) = (event for event in seen if isinstance(event, Adapted))
    assert (adapted.what, adapted.before) == ("guard", 0.0)
    assert adapted.value == limiter.statistics().guard


@virtual
async def test_server_quota_is_emitted() -> None:
    limiter = RateLimiter("server")
    seen = observed(limiter)
    permit = await limiter.acquire()
    limiter.follow("100/min")
    limiter.follow("100/min")
    permit.update_quota(7, 30.0)
    assert seen == [
        Granted(None, 1.0, 0.0),
        QuotaUpdated(None, None, None, (Rate(100.0, 60.0),)),
        QuotaUpdated(None, 7, 30.0),
    ]


# ---- the clients -------------------------------------------------------------------------------


async def test_session_emits_its_retries() -> None:
    async with serving(hang_up, answer(503), answer()) as (url, _):
        limiter = RateLimiter(1000)
        seen = observed(limiter)
        retry = Retry(backoff=0.01)
        async with ThrottledSession(limiter, retry=retry) as session, session.get(url) as response:
            assert response.status == 200
    first, second = (event for event in seen if isinstance(event, Retried))
    assert (first.attempt, first.status) == (2, None)
    assert isinstance(first.error, aiohttp.ClientError)
    assert (second.attempt, second.status, second.error) == (3, 503, None)


async def test_aiohttp_session_with_middleware_emits_its_retries() -> None:
    async with serving(answer(503), answer(429), hang_up, answer()) as (url, _):
        keyed = KeyedRateLimiter(1000)
        seen = observed(keyed)
        retry = Retry(backoff=0.01)
        async with throttled_session(keyed, retry=retry) as session, session.get(url) as response:
            assert response.status == 200
    first, second, third = (event for event in seen if isinstance(event, Retried))
    assert (first.key, first.attempt, first.status) == (url.authority, 2, 503)
    assert (second.key, second.attempt, second.status) == (url.authority, 3, 429)
    assert isinstance(third.error, aiohttp.ClientError)


async def test_transport_emits_its_retries() -> None:
    async with serving(answer(503), answer()) as (url, _):
        keyed = KeyedRateLimiter(1000)
        seen = observed(keyed)
        retry = Retry(backoff=0.01)
        async with httpx.AsyncClient(transport=ThrottledTransport(keyed, retry=retry)) as client:
            assert (await client.get(str(url))).status_code == 200
    (retried,) = (event for event in seen if isinstance(event, Retried))
    assert (retried.key, retried.attempt, retried.status) == (url.authority, 2, 503)


# ---- observers that fail -----------------------------------------------------------------------


@virtual
async def test_failing_observer_is_logged_once_and_harmless(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limiter = RateLimiter(1)

    def fail(event: Event) -> None:
        raise ZeroDivisionError(event)

    limiter.observe(fail)
    seen = observed(limiter)
    await limiter.acquire()
    await limiter.acquire()
    assert not (await limiter.try_acquire()).allowed
    assert len(seen) == 3
    assert limiter.statistics().granted == 2
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("aiothrottle", "ERROR")
    assert "fail" in record.getMessage()
    assert record.exc_info


@virtual
async def test_observer_may_call_the_limiter() -> None:
    limiter = RateLimiter(2, concurrency_limit=1)
    asked = list[tuple[int, int]]()

    def ask(_: Event) -> None:
        statistics = limiter.statistics()
        asked.append((statistics.granted, statistics.in_flight))

    limiter.observe(ask)
    for _ in range(3):
        async with limiter.throttle():
            pass
    assert asked == [(1, 1), (2, 1), (3, 1)]


@virtual
async def test_observer_that_is_no_function_raises() -> None:
    for limiter in (RateLimiter(1), KeyedRateLimiter(1)):
        with pytest.raises(TypeError, match="an observer must be a function of one event"):
            limiter.observe("print")  # type: ignore[arg-type]


@virtual
async def test_pause_of_no_length_is_not_emitted() -> None:
    limiter = RateLimiter(10)
    seen = observed(limiter)
    limiter.pause(0)
    assert seen == []

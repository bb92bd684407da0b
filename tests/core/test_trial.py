"""The trial: after a pause that the server caused one request goes ahead, the rest follow.

In virtual time, for each kind of limiter; and what becomes of the role at each await at which the
request that has it may be cancelled.
"""

import asyncio
import gc
import warnings
from collections.abc import Callable

import pytest

from aiothrottle import Permit, RateLimiter, SharedConcurrency
from aiothrottle._core.pause import LONGEST_TRIAL
from aiothrottle.stores import MemoryStore
from aiothrottle.testing import VirtualTimeLoop
from tests.virtually import now, turns, virtual, visits

PAUSE = 10.0
#: Seconds after the pause at which a trial must have started, with jitter and the store's calls.
SOON = PAUSE + 1.2

Make = Callable[[], RateLimiter]


def child() -> RateLimiter:
    return RateLimiter(1000, parent=RateLimiter(1000, concurrency_limit=50))


KINDS: dict[str, Make] = {
    "rate": lambda: RateLimiter(1000),
    "slots": lambda: RateLimiter(concurrency_limit=50),
    "both": lambda: RateLimiter(1000, concurrency_limit=50),
    "child": child,
    "shared rate": lambda: RateLimiter(1000, store=MemoryStore(), key="k"),
    "shared slots": lambda: RateLimiter(
        concurrency_limit=SharedConcurrency(50), store=MemoryStore(), key="k"
    ),
}
every_kind = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS.keys())


async def throttle(limiter: RateLimiter, seconds: float | None = PAUSE) -> None:
    """Send a request that the server throttles."""
    async with limiter.throttle() as permit:
        await asyncio.sleep(0.01)
        permit.report_throttled(seconds)


class Senders:
    """Tasks that send one request each, and wait for what the test has the server answer."""

    def __init__(self, limiter: RateLimiter, count: int) -> None:
        self.permits: list[Permit] = []
        self.answers = asyncio.Event()
        self.tasks = [asyncio.create_task(self._send(limiter)) for _ in range(count)]

    async def _send(self, limiter: RateLimiter) -> None:
        async with limiter.throttle() as permit:
            self.permits.append(permit)
            await self.answers.wait()

    async def end(self) -> None:
        self.answers.set()
        await asyncio.gather(*self.tasks, return_exceptions=True)


async def ahead(limiter: RateLimiter, count: int = 10) -> Senders:
    """Return the senders of a limiter of which one has gone ahead after a pause."""
    await throttle(limiter)
    senders = Senders(limiter, count)
    await asyncio.sleep(PAUSE - 0.02)
    assert senders.permits == []
    await asyncio.sleep(SOON - PAUSE + 0.02)
    assert len(senders.permits) == 1
    return senders


# ---- outcomes of the trial -----------------------------------------------------------------------


@every_kind
@virtual
async def test_others_follow_a_reported_success(make: Make) -> None:
    senders = await ahead(make())
    await asyncio.sleep(1.0)
    assert len(senders.permits) == 1
    senders.permits[0].report_success()
    await asyncio.sleep(0.1)
    assert len(senders.permits) == 10
    await senders.end()


@every_kind
@virtual
async def test_success_counts_despite_a_requested_pause(make: Make) -> None:
    limiter = make()
    senders = await ahead(limiter)
    limiter.pause(1.0)
    senders.permits[0].report_success()
    await asyncio.sleep(0.99)
    assert len(senders.permits) == 1
    await asyncio.sleep(0.1)
    assert len(senders.permits) == 10
    await senders.end()


@every_kind
@virtual
async def test_success_counts_after_one_of_an_older_request(make: Make) -> None:
    limiter = make()
    async with limiter.throttle() as throttled, limiter.throttle() as older:
        await asyncio.sleep(0.01)
        limiter.pause(0.01)
        throttled.report_throttled(PAUSE)
        older.report_success()
    senders = Senders(limiter, 10)
    await asyncio.sleep(SOON)
    assert len(senders.permits) == 1
    senders.permits[0].report_success()
    await asyncio.sleep(0.1)
    assert len(senders.permits) == 10
    await senders.end()


@every_kind
@virtual
async def test_throttled_trial_begins_the_next_pause(make: Make) -> None:
    limiter = make()
    senders = await ahead(limiter)
    senders.permits[0].report_throttled(PAUSE)
    senders.tasks[0].cancel()
    await asyncio.sleep(PAUSE - 0.01)
    assert len(senders.permits) == 1
    await asyncio.sleep(SOON - PAUSE)
    assert len(senders.permits) == 2
    senders.permits[1].report_success()
    await asyncio.sleep(0.1)
    assert len(senders.permits) == 10
    await senders.end()


@every_kind
@virtual
async def test_others_follow_a_release_without_report(make: Make) -> None:
    limiter = make()
    await throttle(limiter)
    tasks = visits(limiter, 10, stay=0.5)
    began = sorted(await asyncio.gather(*tasks))
    assert PAUSE <= began[0] <= SOON
    assert began[1] == pytest.approx(began[0] + 0.5, abs=0.05)
    assert began[-1] == pytest.approx(began[1], abs=0.05)


@every_kind
@virtual
async def test_silent_trial_holds_up_others_briefly(make: Make) -> None:
    senders = await ahead(make())
    await asyncio.sleep(LONGEST_TRIAL - 1.3)
    assert len(senders.permits) == 1
    await asyncio.sleep(1.5)
    assert len(senders.permits) == 10
    await senders.end()


@virtual
async def test_pauses_double_until_a_trial_succeeds() -> None:
    limiter = RateLimiter(1000)
    began: list[float] = []

    async def send() -> None:
        async with limiter.throttle() as permit:
            began.append(now())
            await asyncio.sleep(0.01)
            if len(began) < 5:
                permit.report_throttled()
            else:
                permit.report_success()

    await asyncio.gather(*(send() for _ in range(3)))  # all of them at once
    assert began == [0.0] * 3
    began.clear()
    await asyncio.gather(*(send() for _ in range(20)))
    waits = [later - earlier for earlier, later in zip([0.0, *began], began, strict=False)]
    for wait, least in zip(waits[:5], [0.5, 1.0, 2.0, 4.0, 8.0], strict=True):
        assert least <= wait <= 1.1 * least + 0.03
    assert max(began[5:]) - began[4] < 0.05


# ---- what is not the outcome of the trial --------------------------------------------------------


@virtual
async def test_pause_of_the_user_has_no_trial() -> None:
    limiter = RateLimiter(1000)
    limiter.pause(1.0)
    assert await asyncio.gather(*visits(limiter, 10, stay=0.5)) == [1.0] * 10


@virtual
async def test_requests_sent_earlier_do_not_end_the_trial() -> None:
    limiter = RateLimiter(1000, guard=0.0)  # it learns no burst
    early = [await limiter.acquire() for _ in range(3)]
    await asyncio.sleep(0.01)
    senders = await ahead(limiter)
    early[0].report_success()
    early[1].report_throttled()
    for permit in early:
        permit.release()
    await turns()
    assert len(senders.permits) == 1
    senders.permits[0].report_success()
    await turns()
    assert len(senders.permits) == 10
    await senders.end()


@virtual
async def test_late_retry_after_pauses_again_and_has_another_trial() -> None:
    limiter = RateLimiter(1000)
    early = await limiter.acquire()
    await asyncio.sleep(0.01)
    senders = await ahead(limiter)
    early.report_throttled(3.0)
    senders.permits[0].report_success()  # it was sent before that pause
    await asyncio.sleep(2.9)
    assert len(senders.permits) == 1
    await asyncio.sleep(0.2)
    assert len(senders.permits) == 2
    await senders.end()


@virtual
async def test_recorded_cost_is_no_trial() -> None:
    limiter = RateLimiter(1000)
    await throttle(limiter)
    await asyncio.sleep(SOON)
    await limiter.record(3)
    assert await limiter.try_acquire()


# ---- cancellation --------------------------------------------------------------------------------


@every_kind
@virtual
async def test_cancelled_waiter_is_not_waited_for(make: Make) -> None:
    limiter = make()
    await throttle(limiter)
    senders = Senders(limiter, 10)
    await turns()
    senders.tasks[0].cancel()
    await asyncio.sleep(SOON)
    assert len(senders.permits) == 1
    await senders.end()


@pytest.mark.parametrize("parent", [False, True])
@pytest.mark.parametrize("others", [0, 5])
async def test_trial_cancelled_before_its_start_passes_the_role_on(
    parent: bool, others: int
) -> None:
    time = 0.0
    above = RateLimiter(1000, clock=lambda: time) if parent else None
    limiter = RateLimiter(1000, clock=lambda: time, parent=above)
    async with limiter.throttle() as permit:
        time = 1.0
        permit.report_throttled(PAUSE)
    senders = Senders(limiter, 1 + others)
    await turns()
    time = 100.0
    limiter._engine.turn()
    assert limiter._engine.resuming == 1  # granted, and not resumed yet
    senders.tasks[0].cancel()
    await turns(20)
    assert len(senders.permits) == min(1, others)
    decision = await limiter.try_acquire()
    assert decision.allowed == (not others)
    await senders.end()
    assert limiter.statistics().in_flight == (not others)  # that of the decision


@every_kind
@virtual
async def test_trial_cancelled_in_flight_passes_the_role_on(make: Make) -> None:
    limiter = make()
    senders = await ahead(limiter)
    senders.tasks[0].cancel()
    await asyncio.sleep(1.0)
    assert len(senders.permits) == 2  # one goes ahead in its place
    senders.permits[1].report_success()
    await asyncio.sleep(0.1)
    assert len(senders.permits) == 10
    await senders.end()
    assert limiter.statistics().in_flight == 0


@virtual
async def test_all_cancelled_leaves_the_role_to_newcomers() -> None:
    limiter = RateLimiter(1000)
    senders = await ahead(limiter)
    for task in senders.tasks:
        task.cancel()
    await turns()
    assert (await limiter.try_acquire()).allowed
    assert not (await limiter.try_acquire()).allowed


@virtual
async def test_request_rejected_by_the_parent_leaves_no_trial() -> None:
    parent = RateLimiter(1000, concurrency_limit=1)
    limiter = RateLimiter(1000, parent=parent)
    await throttle(limiter)
    await asyncio.sleep(SOON)
    held = await parent.acquire()
    first = asyncio.create_task(limiter.acquire())
    await turns()
    first.cancel()
    await turns()
    held.release()
    assert (await limiter.try_acquire()).allowed


@virtual
async def test_dropped_permit_of_a_trial_lets_others_go_on() -> None:
    limiter = RateLimiter(1000)
    await throttle(limiter)
    await asyncio.sleep(SOON)
    decision = await limiter.try_acquire()
    assert decision
    waiting = visits(limiter, 5)
    await turns()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        del decision
        gc.collect()
        began = await asyncio.gather(*waiting)
    assert max(began) < now() + 0.01 < SOON + 1.0


# ---- try_acquire, peek, the fast path, order -----------------------------------------------------


@every_kind
@virtual
async def test_only_one_request_is_admitted_at_once(make: Make) -> None:
    limiter = make()
    await throttle(limiter)
    assert not await limiter.peek()
    assert not await limiter.try_acquire()
    await asyncio.sleep(SOON)
    assert await limiter.peek()
    first = await limiter.try_acquire()
    assert first.permit is not None
    for second in (await limiter.peek(), await limiter.try_acquire()):
        assert (second.allowed, second.retry_after) == (False, 0.0)
    first.permit.report_success()
    assert await limiter.peek()
    third = await limiter.try_acquire()
    assert third.permit is not None
    third.permit.release()
    first.permit.release()


@virtual
async def test_fast_path_is_closed_until_the_trial_is_over() -> None:
    limiter = RateLimiter(1000)
    await throttle(limiter)
    await asyncio.sleep(SOON)
    async with limiter.throttle() as permit:
        assert limiter._engine.bucket.credit == 0
        waiting = visits(limiter, 1)
        await turns()
        assert not waiting[0].done()
        permit.report_success()
        await waiting[0]
    async with limiter.throttle():
        pass
    assert limiter._engine.bucket.credit > 0
    assert not limiter._engine.semaphore.watched


@virtual
async def test_timeout_does_not_reject_for_the_trial() -> None:
    limiter = RateLimiter(1000)
    await throttle(limiter)
    await asyncio.sleep(SOON)
    async with limiter.throttle():
        with pytest.raises(TimeoutError):
            await limiter.acquire(timeout=0.1)
        assert now() == pytest.approx(0.01 + SOON + 0.1, abs=0.01)


@virtual
async def test_highest_priority_goes_ahead() -> None:
    limiter = RateLimiter(1000)
    await throttle(limiter)
    low = asyncio.create_task(limiter.acquire())
    high = asyncio.create_task(limiter.acquire(priority=1))
    await asyncio.sleep(SOON)
    assert (low.done(), high.done()) == (False, True)
    (await high).release()
    (await low).release()


@virtual
async def test_missing_slot_delays_the_trial_alone() -> None:
    limiter = RateLimiter(concurrency_limit=2)
    held = [await limiter.acquire() for _ in range(2)]
    await asyncio.sleep(0.01)
    held[0].report_throttled(PAUSE)
    senders = Senders(limiter, 5)
    await asyncio.sleep(SOON)
    assert senders.permits == []
    for permit in held:
        permit.release()
    await turns()
    assert len(senders.permits) == 1
    await senders.end()


@virtual
async def test_child_goes_ahead_for_its_parent() -> None:
    parent = RateLimiter(1000)
    children = [RateLimiter(1000, parent=parent) for _ in range(3)]
    await throttle(parent)
    senders = [Senders(each, 2) for each in children]
    await asyncio.sleep(SOON)
    [trial] = [permit for each in senders for permit in each.permits]
    trial.report_success()
    await asyncio.sleep(0.1)
    assert sum(len(each.permits) for each in senders) == 6
    for each in senders:
        await each.end()


def test_trial_of_a_closed_loop_is_forgotten() -> None:
    limiter = RateLimiter(1000)
    permits: list[Permit] = []

    async def first() -> None:
        await throttle(limiter)
        await asyncio.sleep(SOON)
        permits.append(await limiter.acquire())

    async def second() -> None:
        permits.append(await limiter.acquire())
        assert not await limiter.try_acquire()

    for main in (first, second):
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            runner.run(main())
    for permit in permits:
        permit.release()


@virtual
async def test_closing_drains_behind_the_trial() -> None:
    limiter = RateLimiter(1000)
    await throttle(limiter)
    tasks = visits(limiter, 5, stay=0.5)
    await turns()
    await limiter.aclose(drain=True)
    began = sorted(await asyncio.gather(*tasks))
    assert began[1] == pytest.approx(began[0] + 0.5, abs=0.01)

"""The trial: after a pause that the server caused one request goes ahead, the rest follow.

In virtual time, for each kind of limiter; and what becomes of the role at each await at which the
request that has it may be cancelled.
"""

import asyncio
import gc
from collections.abc import Callable

import httpx
import pytest

from aiothrottle import Permit, RateLimiter, Retry, SharedConcurrency, ThrottleTimeout
from aiothrottle.stores import MemoryStore
from tests.integrations.scripted import Script, client_of
from tests.limiter.common import throttle_one
from tests.support.serving import generated
from tests.support.virtually import counts, now, turns, virtual, visits

PAUSE = 10.0
#: Seconds after the pause at which a trial must have started, with jitter and the store's calls.
SOON = PAUSE + 1.2
#: Seconds for which the others wait for the trial at the most.
LONGEST_TRIAL = 5.0

Make = Callable[[], RateLimiter]
KINDS: dict[str, Make] = {
    "rate": lambda: RateLimiter(1000),
    "slots": lambda: RateLimiter(concurrency_limit=50),
    "both": lambda: RateLimiter(1000, concurrency_limit=50),
    "child": lambda: RateLimiter(1000, parent=RateLimiter(1000, concurrency_limit=50)),
    "shared rate": lambda: RateLimiter(1000, store=MemoryStore(), key="k"),
    "shared slots": lambda: RateLimiter(
        concurrency_limit=SharedConcurrency(50), store=MemoryStore(), key="k"
    ),
}
every_kind = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS.keys())


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

    async def sent(self, after: float = 0.1) -> int:
        await asyncio.sleep(after)
        return len(self.permits)

    async def end(self) -> None:
        self.answers.set()
        await asyncio.gather(*self.tasks, return_exceptions=True)


async def ahead(limiter: RateLimiter, count: int = 10) -> Senders:
    """Return the senders of a limiter of which one has gone ahead after a pause."""
    await throttle_one(limiter, PAUSE)
    senders = Senders(limiter, count)
    assert await senders.sent(PAUSE - 0.02) == 0
    assert await senders.sent(SOON - PAUSE + 0.02) == 1
    return senders


# ---- outcomes of the trial -----------------------------------------------------------------------


@every_kind
@virtual
async def test_throttled_trial_begins_a_pause_and_a_successful_one_ends_it(make: Make) -> None:
    limiter = make()
    senders = await ahead(limiter)
    senders.permits[0].report_throttled(PAUSE)
    senders.tasks[0].cancel()
    assert await senders.sent(PAUSE - 0.01) == 1
    assert await senders.sent(SOON - PAUSE) == 2
    limiter.pause(1.0)  # does not hide the success
    senders.permits[1].report_success()
    assert await senders.sent(0.99) == 2
    assert await senders.sent() == 10
    await senders.end()
    assert counts(limiter) == (0, 0)


@every_kind
@virtual
async def test_others_follow_a_release_without_report(make: Make) -> None:
    limiter = make()
    await throttle_one(limiter, PAUSE)
    began = sorted(await asyncio.gather(*visits(limiter, 10, stay=0.5)))
    assert PAUSE <= began[0] <= SOON
    assert began[1:] == pytest.approx([began[0] + 0.5] * 9, abs=0.1)


@every_kind
@virtual
async def test_silent_trial_holds_up_others_briefly(make: Make) -> None:
    senders = await ahead(make())
    assert await senders.sent(LONGEST_TRIAL - 1.3) == 1
    assert await senders.sent(1.5) == 10
    await senders.end()


@every_kind
@virtual
async def test_cancelled_trial_passes_the_role_on(make: Make) -> None:
    limiter = make()
    await throttle_one(limiter, PAUSE)
    senders = Senders(limiter, 10)
    await turns()
    senders.tasks.pop(0).cancel()  # while it waits
    assert await senders.sent(SOON) == 1
    senders.tasks.pop(0).cancel()  # in flight
    assert await senders.sent(1.0) == 2  # another one goes ahead in its place
    senders.permits[1].report_success()
    assert await senders.sent() == 9
    await senders.end()
    assert counts(limiter) == (0, 0)


@every_kind
@virtual
async def test_only_one_request_is_admitted_at_once(make: Make) -> None:
    limiter = make()
    await throttle_one(limiter, PAUSE)
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
async def test_trial_that_the_store_rejects_passes_the_role_on() -> None:
    store = MemoryStore()
    limiter, other = (RateLimiter("3/h", store=store, key="k") for _ in range(2))
    await throttle_one(limiter, PAUSE)
    for _ in range(2):
        await other.acquire()
    await asyncio.sleep(SOON)
    assert not await limiter.try_acquire()
    await other.reset()
    senders = Senders(limiter, 3)
    assert await senders.sent() == 1
    await senders.end()


# ---- what is not the outcome of the trial --------------------------------------------------------


@virtual
async def test_requests_sent_earlier_do_not_end_the_trial() -> None:
    limiter = RateLimiter(1000, guard=0.0)  # it learns no burst
    early = [await limiter.acquire() for _ in range(3)]
    await asyncio.sleep(0.01)
    limiter.pause(0.01)
    senders = await ahead(limiter)
    early[0].report_success()
    early[1].report_throttled()
    for permit in early:
        permit.release()
    assert await senders.sent(0.0) == 1
    senders.permits[0].report_success()
    assert await senders.sent() == 10
    await senders.end()


@virtual
async def test_late_retry_after_pauses_again_and_has_another_trial() -> None:
    limiter = RateLimiter(1000)
    early = await limiter.acquire()
    await asyncio.sleep(0.01)
    senders = await ahead(limiter)
    early.report_throttled(3.0)
    senders.permits[0].report_success()  # it was sent before that pause
    assert await senders.sent(2.9) == 1
    assert await senders.sent(0.2) == 2
    await senders.end()


@virtual
async def test_trial_throttled_during_a_longer_pause_keeps_that() -> None:
    limiter = RateLimiter(1000)
    senders = await ahead(limiter, 2)
    limiter.pause(60)
    senders.permits[0].report_throttled()
    assert await senders.sent(59.9) == 1
    assert await senders.sent(0.2) == 2
    await senders.end()


# ---- the role is left ----------------------------------------------------------------------------


@pytest.mark.parametrize("error", [asyncio.CancelledError, ZeroDivisionError, httpx.ReadError])
@virtual
async def test_trial_of_a_client_passes_the_role_on_without_an_answer(
    error: type[BaseException],
) -> None:
    async def answer(_: httpx.Request) -> httpx.Response:
        await asyncio.sleep(2.0)
        if error is httpx.ReadError:
            raise error("cut")
        return httpx.Response(200, content=generated(b"body"))

    def settle(_: object) -> None:
        raise ZeroDivisionError

    limiter = RateLimiter(1000)
    await throttle_one(limiter, PAUSE)
    async with client_of(limiter, answer, settle=settle) as client:
        trial = asyncio.create_task(client.get("http://server"))
        await turns()
        senders = Senders(limiter, 3)
        assert await senders.sent(SOON) == 0
        if error is asyncio.CancelledError:
            trial.cancel()
        assert await senders.sent(2.0) == 1
        with pytest.raises(error):
            await trial
    await senders.end()


@pytest.mark.parametrize("parent", [False, True])
@pytest.mark.parametrize("streams", [False, True])
@virtual
async def test_trial_goes_on_while_its_response_is_judged(*, streams: bool, parent: bool) -> None:
    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=generated(b"body") if streams else b"body")

    async def judge(response: httpx.Response) -> bool:
        await response.aread()  # a stream releases the permit here, other bodies earlier
        await asyncio.sleep(4.0)
        return False

    paused = limiter = RateLimiter(1000)
    if parent:
        limiter = RateLimiter(1000, parent=paused)
    await throttle_one(paused, PAUSE)
    async with client_of(limiter, answer, retry=Retry(should_retry=judge)) as client:
        trial = asyncio.create_task(client.get("http://server"))
        await turns()
        senders = Senders(limiter, 3)
        assert await senders.sent(PAUSE + 3.9) == 0
        assert await senders.sent(1.3) == 3
        await trial
    await senders.end()


@pytest.mark.parametrize("after_turns", range(5))
@pytest.mark.parametrize("parent", [False, True])
@pytest.mark.parametrize("others", [0, 5])
@virtual
async def test_trial_cancelled_at_its_start_passes_the_role_on(
    parent: bool, others: int, after_turns: int
) -> None:
    limiter = RateLimiter(1000, parent=RateLimiter(1000) if parent else None)
    left = await throttle_one(limiter, PAUSE)
    await asyncio.sleep(left / 2)
    senders = Senders(limiter, 1 + others)
    await asyncio.sleep(left / 2)
    await turns(after_turns)  # it is granted, resumes and starts in these turns
    senders.tasks[0].cancel()
    await turns(20)
    assert counts(limiter)[0] == min(1, others)
    decision = await limiter.try_acquire()
    assert decision.allowed == (not others)
    await senders.end()
    assert counts(limiter) == (not others, 0)  # that of the decision


@pytest.mark.parametrize("after_turns", range(8))
@virtual
async def test_child_paused_as_it_goes_ahead_leaves_the_role(after_turns: int) -> None:
    parent = RateLimiter(1000)
    child, sibling = (RateLimiter(1000, parent=parent) for _ in range(2))
    await throttle_one(parent, PAUSE)
    senders = [Senders(each, 3) for each in (child, sibling)]
    await asyncio.sleep(parent.statistics().paused_for)
    await turns(after_turns)
    child.pause(60)
    assert [await each.sent() for each in senders] in ([1, 0], [0, 1])
    for each in senders:
        await each.end()


@pytest.mark.filterwarnings("ignore:<Permit:ResourceWarning")
@virtual
async def test_dropped_permit_of_a_trial_lets_others_go_on() -> None:
    limiter = RateLimiter(1000)
    await throttle_one(limiter, PAUSE)
    await asyncio.sleep(SOON)
    decision = await limiter.try_acquire()
    assert decision
    waiting = visits(limiter, 5)
    await turns()
    del decision
    gc.collect()
    began = await asyncio.gather(*waiting)
    assert max(began) < now() + 0.01 < SOON + 1.0


# ---- the fast path, order, parents, slots, closing -----------------------------------------------


@virtual
async def test_fast_path_is_closed_until_the_trial_is_over() -> None:
    limiter = RateLimiter(1000)
    await throttle_one(limiter, PAUSE)
    await asyncio.sleep(SOON)
    async with limiter.throttle() as permit:
        waiting = visits(limiter, 1)
        await turns()
        assert not waiting[0].done()
        permit.report_success()
        assert await waiting[0] == now()
    with pytest.raises(StopIteration):  # at once, without a turn of the loop
        limiter.throttle().__aenter__().send(None)


@pytest.mark.parametrize("status", [200, 500])
@virtual
async def test_child_goes_ahead_for_its_parent(status: int) -> None:
    parent = RateLimiter(1000, name="account")
    children = [RateLimiter(1000, parent=parent) for _ in range(3)]
    await throttle_one(parent, PAUSE)
    senders = [Senders(each, 2) for each in children]
    await asyncio.sleep(SOON)
    [trial] = [each for each in senders if each.permits]
    assert len(trial.permits) == 1
    with pytest.raises(ThrottleTimeout, match=r"retry after .* s, limited by 'account'"):
        await children[0].acquire(timeout=1)
    trial.tasks[0].cancel()
    assert sum([await each.sent() for each in senders]) == 2  # another one, of any child
    [second] = [it for each in senders for it in each.permits if it is not trial.permits[0]]
    second.report(status, {})  # an error of the server, too, is no 429
    assert sum([await each.sent() for each in senders]) == 6
    for each in senders:
        await each.end()
    assert counts(parent) == (0, 0)


@virtual
async def test_release_ends_a_trial_after_one_that_a_client_judged() -> None:
    limiter = RateLimiter(100)
    retry = Retry(attempts=1, pause_jitter=0)
    async with Script(429).client(limiter, retry=retry) as client:
        for _ in range(2):
            await client.get("http://a/")
    first, second = await asyncio.gather(*visits(limiter, 2, stay=0.1))
    assert second == pytest.approx(first + 0.1)


@virtual
async def test_judging_a_trial_shortens_no_pause() -> None:
    statuses = [429, 200]

    async def respond(_: httpx.Request) -> httpx.Response:
        await asyncio.sleep(1.0)
        return httpx.Response(statuses.pop(0))

    async def think(_: httpx.Response) -> None:
        await asyncio.sleep(10.0)

    limiter = RateLimiter(100)
    retry = Retry(attempts=1, pause_jitter=0, should_retry=think)
    async with client_of(limiter, respond, retry=retry) as client:
        await client.get("http://a/")
        trial = asyncio.create_task(client.get("http://a/"))
        await asyncio.sleep(1.0)
        limiter.pause(60.0)
        assert await asyncio.gather(*visits(limiter, 1)) == [now()] == [72.0]
        await trial


@virtual
async def test_short_pause_does_not_end_the_wait_for_a_trial() -> None:
    limiter = RateLimiter(100)
    await throttle_one(limiter, 1.0)
    trial, other = visits(limiter, 2, stay=3.0)
    await asyncio.sleep(2.0)
    limiter.pause(0.5)
    assert await other == pytest.approx(await trial + 3.0)

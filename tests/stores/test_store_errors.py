"""`on_store_error`: the fallback of a failing store, and the recovery. In virtual time."""

import asyncio
import contextlib
import gc
import logging
import math
import weakref
from itertools import pairwise
from typing import Any

import pytest

from aiothrottle import (
    KeyedRateLimiter,
    LimiterClosed,
    RateLimiter,
    SharedConcurrency,
    StoreUnavailable,
    ThrottleTimeout,
)
from aiothrottle.algorithms import (
    Algorithm,
    FixedWindow,
    LeakyBucket,
    SlidingWindowCounter,
    SlidingWindowLog,
    TokenBucket,
)
from aiothrottle.stores import Answer, MemoryStore
from aiothrottle.stores.health import Health
from aiothrottle.stores.local_share import LocalShare
from aiothrottle.stores.process_count import ProcessCount, ProcessCounter
from aiothrottle.stores.share_size import OnStoreError, ShareSize
from aiothrottle.stores.spent import Spent
from aiothrottle.testing import VirtualTimeLoop
from aiothrottle.testing.audit import greatest_count
from tests.failing import Client, Server
from tests.stores.test_shared import cancel, others, rest
from tests.virtually import now, turns, virtual, visit, visits

OUTAGES = ["refuses", "stalls", "drops"]
FALLBACKS: list[OnStoreError] = ["local", "open", "closed"]


@pytest.fixture(autouse=True)
def _no_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests decide when a retry happens; the jitter of the pauses has a test of its own."""
    monkeypatch.setattr("aiothrottle.stores.health._JITTER", 0.0)


def limiter_on(
    server: Server,
    choice: OnStoreError,
    rate: Any = "20/s",  # noqa: ANN401 - whatever a rate may be
    **options: Any,  # noqa: ANN401
) -> RateLimiter:
    """Make the limiter of a process of its own."""
    return RateLimiter(rate, store=Client(server), key="k", on_store_error=choice, **options)


async def fall(limiter: RateLimiter, server: Server, mode: str = "refuses") -> None:
    """Have the limiter find that the server is unreachable."""
    server.mode = mode
    await limiter.peek()
    assert limiter.statistics().store_up is False


class Workers:
    """Processes that acquire as often as they can."""

    def __init__(self, *limiters: RateLimiter) -> None:
        self.limiters = limiters
        self.granted_at: list[float] = []
        self.tasks = [asyncio.create_task(self.work(limiter)) for limiter in limiters * 20]

    async def work(self, limiter: RateLimiter) -> None:
        while True:
            async with limiter.throttle():
                self.granted_at.append(now())

    def count(self, begin: float, end: float) -> int:
        return sum(begin <= instant < end for instant in self.granted_at)

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for limiter in self.limiters:
            await limiter.aclose()


# ---- each of the choices -------------------------------------------------------------------------


@virtual
async def test_raise_fails_waiters_with_few_retries() -> None:
    server = Server()
    limiter = limiter_on(server, "raise")
    await visit(limiter)
    server.mode = "stalls"
    for waited in (1.0, 1.0, 0.0, 0.0):
        begin = now()
        with pytest.raises(StoreUnavailable) as caught:
            await visit(limiter)
        assert now() - begin == pytest.approx(waited, abs=0.01)
        cause: BaseException | None = caught.value
        while isinstance(cause, StoreUnavailable):
            cause = cause.__cause__
        assert isinstance(cause, TimeoutError)
    assert limiter.statistics().store_up is False
    server.mode = "up"
    await asyncio.sleep(0.7)
    await visit(limiter)
    assert limiter.statistics().store_up is True


@virtual
async def test_error_names_its_key() -> None:
    server = Server()
    server.mode = "refuses"
    limiters = KeyedRateLimiter("20/s", store=Client(server), key="k")
    methods: list[Any]
    methods = [limiters.acquire, limiters.try_acquire, limiters.peek, limiters.record]
    for place, method in enumerate(methods):
        key = f"host {place}"
        with pytest.raises(StoreUnavailable) as caught:
            await method(key)
        assert caught.value.key == key
    with pytest.raises(StoreUnavailable) as caught:
        await limiter_on(server, "raise").acquire()
    assert caught.value.key is None


@pytest.mark.parametrize("mode", OUTAGES)
@pytest.mark.parametrize("rate", ["20/s", ["20/s", "60/5s"]])
@virtual
async def test_local_shares_the_limit_fairly_without_bursts(
    mode: str, rate: str | list[str]
) -> None:
    server = Server()
    server.latency = 0.002
    workers = Workers(*(limiter_on(server, "local", rate) for _ in range(4)))
    await asyncio.sleep(5.0)
    server.mode = mode
    await asyncio.sleep(5.0)
    server.mode = "up"
    await asyncio.sleep(10.0)
    await workers.stop()
    # A reservation may be used 20 ms late.
    assert greatest_count(workers.granted_at, 0.98) <= 20
    if rate == "20/s":
        # At most a second is spent waiting for the first call without an answer.
        assert workers.count(6.1, 10.0) >= 0.9 * 60
        assert workers.count(12.0, 20.0) >= 0.9 * 8 * 20
    else:
        assert greatest_count(workers.granted_at, 4.98) <= 60
        assert workers.count(10.0, 20.0) >= 0.9 * 120 - 60


@virtual
async def test_single_process_has_exactly_the_whole_limit() -> None:
    server = Server()
    workers = Workers(limiter_on(server, "local"))
    await asyncio.sleep(1.5)
    server.mode = "refuses"
    await asyncio.sleep(5.0)
    await workers.stop()
    assert greatest_count(workers.granted_at, 0.98) <= 20
    assert len(workers.granted_at) >= 120


@virtual
async def test_local_counts_the_tokens_spent_before_the_outage() -> None:
    server = Server()
    other, limiter = (limiter_on(server, "local", guard=0.0) for _ in range(2))
    await limiter.peek()
    await asyncio.gather(*visits(other, 20))
    await limiter.peek()
    server.mode = "refuses"
    assert await visit(limiter) == 1.0


@pytest.mark.parametrize("mode", OUTAGES)
@virtual
async def test_open_limits_only_the_slots(mode: str) -> None:
    server = Server()
    limiter = limiter_on(server, "open", "2/min", concurrency_limit=3)

    async def stay() -> None:
        async with limiter.throttle():
            most.append(limiter.statistics().in_flight)
            await asyncio.sleep(0.01)

    most: list[int] = []
    await fall(limiter, server, mode)
    begin = now()
    await asyncio.gather(*(stay() for _ in range(30)))
    assert now() - begin < 0.2
    assert max(most) == 3
    server.mode = "up"
    await asyncio.sleep(2.0)
    # The limit is used up and not exceeded.
    assert server.recorded == [2.0]
    await rest()
    assert limiter.statistics().store_up is True


@pytest.mark.parametrize("mode", OUTAGES)
@virtual
async def test_closed_waits_until_the_store_returns(mode: str) -> None:
    server = Server()
    limiter = limiter_on(server, "closed")
    server.mode = mode
    waiting = visits(limiter, 30)
    with pytest.raises(ThrottleTimeout):
        await visit(limiter, timeout=3.0)
    assert now() == pytest.approx(3.0, abs=0.1)
    assert limiter.statistics().waiting == 30
    await asyncio.sleep(7.0)
    assert len(server.methods(since=4.0)) <= 6.0 / 0.3
    server.mode = "up"
    back = now()
    granted_at = sorted(await asyncio.gather(*waiting))
    # A try without an answer, the pause after it, and a call.
    assert back <= granted_at[0] <= back + 2.0
    assert greatest_count(granted_at, 0.98) <= 20
    await rest()


@virtual
async def test_closed_limiter_without_waiters_makes_no_calls() -> None:
    server = Server()
    limiter = limiter_on(server, "closed")
    await fall(limiter, server)
    await cancel(*visits(limiter, 3))
    await rest()
    calls = len(server.asked)
    await asyncio.sleep(100.0)
    assert len(server.asked) == calls
    assert not others()


# ---- the other methods ---------------------------------------------------------------------------


@virtual
async def test_try_acquire_and_peek_report_the_fallback() -> None:
    allowed: dict[OnStoreError, list[bool]] = {
        "local": [True, True, False, False],
        "open": [True] * 4,
        "closed": [False] * 4,
    }
    for choice in FALLBACKS:
        server = Server()
        limiter = limiter_on(server, choice, "2/s")
        await fall(limiter, server)
        for expected in allowed[choice]:
            assert bool(await limiter.peek()) is expected
            decision = await limiter.try_acquire()
            assert bool(decision) is expected
            if not expected:
                assert 0.0 < decision.retry_after <= 1.0
        assert await limiter.try_acquire(0)  # zero cost is always granted
        await limiter.aclose()


@pytest.mark.parametrize("choice", FALLBACKS)
@virtual
async def test_record_during_an_outage_reaches_the_store_later(choice: OnStoreError) -> None:
    server = Server()
    limiter = limiter_on(server, choice, "10/min")
    await limiter.record(2)
    server.mode = "refuses"
    await limiter.record(3)
    await limiter.record(1)
    server.mode = "up"
    await asyncio.sleep(2.0)  # without a request
    assert server.recorded == [2.0, 4.0]
    assert (await limiter.peek()).remaining == 4.0
    await limiter.aclose()


@virtual
async def test_refund_goes_where_the_tokens_came_from() -> None:
    server = Server()
    limiter = limiter_on(server, "local", "10/min")
    async with limiter.throttle(4) as shared:
        await fall(limiter, server)
        await asyncio.sleep(0.01)
        async with limiter.throttle(4) as local:
            local.settle(1)
            await rest()
            assert (await limiter.peek()).remaining == 5.0
            shared.settle(1)  # the store is unreachable: the tokens stay spent
            await rest()
            assert (await limiter.peek()).remaining == 5.0
            server.mode = "up"
            await asyncio.sleep(2.0)
            local.settle(0)  # and the store never counted these
            await rest()
    assert server.recorded == [1.0]
    assert (await limiter.peek()).remaining == 5.0
    await limiter.aclose()


@virtual
async def test_late_record_expires_with_its_period() -> None:
    server = Server()
    limiter = limiter_on(server, "local", "10/min")
    await fall(limiter, server)
    await asyncio.gather(*visits(limiter, 6))
    await asyncio.sleep(40.0)
    await visit(limiter, 3)
    server.mode = "up"
    await asyncio.sleep(2.0)
    assert server.recorded == [9.0]
    await asyncio.sleep(19.0)
    assert (await server.peek("k", SlidingWindowLog("10/min"))).remaining == 1.0
    await asyncio.sleep(2.0)
    assert (await server.peek("k", SlidingWindowLog("10/min"))).remaining == 7.0
    await rest()
    await asyncio.sleep(100.0)
    assert not others()
    assert limiter._engine.is_forgettable()


@pytest.mark.parametrize(
    ("error", "is_swallowed"),
    [(StoreUnavailable("away"), True), (ValueError("damaged"), True), (OSError("a bug"), False)],
    ids=["outage", "damaged", "bug"],
)
@virtual
async def test_failed_refund_stays_spent_and_hides_no_bug(
    error: Exception,
    is_swallowed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Server()
    limiter = limiter_on(server, "local", "10/min")
    await fall(limiter, server)
    await visit(limiter, 6)
    server.mode = "up"
    await asyncio.sleep(2.0)

    async def refund(*_: object) -> None:
        raise error

    problems: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: problems.append(context.get("exception"))
    )
    monkeypatch.setattr(Client, "refund", refund)
    await asyncio.sleep(70.0)
    gc.collect()
    assert problems == ([] if is_swallowed else [error])
    assert limiter.statistics().store_up is True
    await rest()
    await asyncio.sleep(60.0)
    assert not others()
    assert limiter._engine.is_forgettable()


# ---- trying --------------------------------------------------------------------------------------


@virtual
async def test_retry_intervals_grow_up_to_a_bound() -> None:
    server = Server()
    limiter = limiter_on(server, "closed")
    server.mode = "refuses"
    waiting = visits(limiter, 1)
    await asyncio.sleep(20.0)
    tries = [at for at, method in server.asked if method == "peek"]
    pauses = [later - first for first, later in pairwise(tries)]
    assert len(tries) == len(server.asked) - 1
    assert pauses[0] < 0.2
    assert all(0.37 <= pause <= 0.7 for pause in pauses[4:])
    await cancel(*waiting)


@virtual
async def test_long_outage_ends_like_a_short_one() -> None:
    server = Server()
    limiter = limiter_on(server, "closed")
    server.mode = "refuses"
    (waiting,) = visits(limiter, 1)
    await asyncio.sleep(3600.0)
    server.mode = "up"
    await asyncio.sleep(1.0)
    assert waiting.done()
    await waiting


@virtual
async def test_keys_of_one_store_share_retries_and_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "aiothrottle")
    server = Server()
    limiter = KeyedRateLimiter("5/s", store=Client(server), key="k", on_store_error="local")
    await asyncio.gather(*(limiter.try_acquire(str(key)) for key in range(10)))
    server.mode = "stalls"
    await asyncio.gather(*(limiter.try_acquire(str(key)) for key in range(10)))
    begin = now()
    # A new key need not find out by itself.
    await asyncio.gather(*(limiter.try_acquire(str(key)) for key in range(50)))
    assert now() == begin
    for _ in range(20):
        await asyncio.gather(*(limiter.try_acquire(str(key)) for key in range(50)))
        await asyncio.sleep(0.5)
    assert len(server.methods(since=begin)) <= 11
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert caplog.messages == ["Client fails, on_store_error='local': 'late'"]
    server.mode = "up"
    for _ in range(8):
        await asyncio.gather(*(limiter.try_acquire(str(key)) for key in range(50)))
        await asyncio.sleep(0.25)
    assert all(limiter.statistics(str(key)).store_up for key in range(50))
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "is back after 1" in caplog.messages[1]
    await limiter.aclose()


@pytest.mark.parametrize("choice", FALLBACKS)
@virtual
async def test_read_only_server_has_not_recovered(
    choice: OnStoreError, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "aiothrottle")
    server = Server()
    limiter = limiter_on(server, choice)
    server.mode = "reads"
    waiting = visits(limiter, 5)
    await asyncio.sleep(5.0)
    assert len(caplog.messages) == 1
    server.mode = "up"
    await asyncio.gather(*waiting)
    await asyncio.sleep(1.0)
    await limiter.aclose()


@virtual
async def test_error_that_is_no_outage_is_always_raised() -> None:
    for choice in FALLBACKS:
        server = Server()
        await server.record("k", TokenBucket("1/min"))
        limiter = limiter_on(server, choice)
        with pytest.raises(ValueError, match="another algorithm"):
            await visit(limiter)
        assert limiter.statistics().store_up is True
        # Nor does it delay the recovery.
        await server.clear("k")
        await fall(limiter, server)
        await server.record("k", TokenBucket("1/min"))
        server.mode = "up"
        for _ in range(2):
            await asyncio.sleep(1.0)
            if not limiter.statistics().store_up:
                await limiter.peek()
        with pytest.raises(ValueError, match="another algorithm"):
            await limiter.peek()
        await limiter.aclose()


# ---- cancellation, loops, the end ----------------------------------------------------------------


@virtual
async def test_cancellation_during_the_recovery_harms_nobody() -> None:
    server = Server()
    limiter = limiter_on(server, "local", "2/10s")
    await fall(limiter, server)
    await visit(limiter)
    server.mode, server.latency = "up", 0.5
    while "record" not in server.methods():  # noqa: ASYNC110 - this call reports the spent tokens
        await asyncio.sleep(0.01)
    asking = asyncio.create_task(limiter.try_acquire())
    first, second = visits(limiter, 2)
    await turns()
    assert not asking.done()
    assert not first.done()
    asking.cancel()
    await cancel(first)
    await second
    assert server.recorded == [1.0]
    await rest()
    assert limiter.statistics().in_flight == 0
    await limiter.aclose()


@virtual
async def test_closing_during_the_recovery_leaves_no_task() -> None:
    for step in range(12):
        server = Server()
        server.latency = 0.3
        limiter = limiter_on(server, "local", "2/s")
        waiting = visits(limiter, 4)
        await asyncio.sleep(1.0)
        server.mode = "refuses"
        await asyncio.sleep(1.0)
        server.mode = "up"
        await asyncio.sleep(step * 0.1)
        await limiter.aclose()
        assert not others()
        for result in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(result, float | LimiterClosed)
        with pytest.raises(LimiterClosed):
            await limiter.try_acquire()


@virtual
async def test_task_sweep_does_not_stop_the_recovery() -> None:
    server = Server()
    limiter = limiter_on(server, "closed")
    server.mode = "stalls"
    waiting = visits(limiter, 2)
    await asyncio.sleep(3.2)
    for task in asyncio.all_tasks():
        if task.get_name().startswith("aiothrottle"):
            task.cancel()
    server.mode = "up"
    async with asyncio.timeout(3.0):
        await asyncio.gather(*waiting)


def test_second_loop_starts_with_the_store() -> None:
    servers: list[Server] = []
    clients: list[Client] = []

    async def first() -> None:
        servers.append(Server())
        clients.append(Client(servers[0]))
        limiters.append(RateLimiter("2/s", store=clients[0], key="k", on_store_error="closed"))
        await asyncio.sleep(50.0)
        servers[0].mode = "stalls"
        for task in visits(limiters[0], 2):
            task.add_done_callback(lambda _: None)
        await asyncio.sleep(5.0)

    async def second() -> None:
        servers[0].mode = "up"
        async with asyncio.timeout(5.0):
            await visit(limiters[0])
        await limiters[0].aclose()

    limiters: list[RateLimiter] = []
    for main in (first, second):
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            runner.run(main())


@virtual
async def test_limiter_in_an_outage_can_be_collected() -> None:
    server = Server()
    limiter = limiter_on(server, "local")
    await fall(limiter, server)
    await visit(limiter)
    await asyncio.sleep(0.5)
    line = weakref.ref(limiter._engine)
    del limiter
    gc.collect()
    assert line() is None
    await asyncio.sleep(2.0)  # its timer finds nobody


@virtual
async def test_update_applies_to_the_fallback_too() -> None:
    server = Server()
    limiter = limiter_on(server, "local", "2/min")
    await visit(limiter, 2)
    await fall(limiter, server)
    limiter.update(rate_limit="5/min")
    assert (await limiter.peek()).remaining == 3.0
    limiter.update(rate_limit="3/min")
    assert await limiter.try_acquire()
    assert not await limiter.try_acquire()
    await limiter.aclose()


def test_wrong_choices_are_rejected() -> None:
    unchecked: Any = RateLimiter
    with pytest.raises(ValueError, match="on_store_error must be one of"):
        unchecked("1/s", on_store_error="ignore", store=Client.__new__(Client))
    with pytest.raises(ValueError, match="give a store"):
        RateLimiter("1/s", on_store_error="local")
    assert RateLimiter("1/s").statistics().store_up is None


@pytest.mark.parametrize("limiter", [RateLimiter, KeyedRateLimiter])
@pytest.mark.parametrize("choice", ["raise", "local"])
@pytest.mark.parametrize("wrong", [0, -1, 1.5, math.nan, math.inf, "x", True])
def test_local_share_out_of_range_is_rejected(limiter: Any, choice: str, wrong: object) -> None:  # noqa: ANN401
    options: dict[str, Any] = {"store": MemoryStore(), "key": "k", "on_store_error": choice}
    is_number = isinstance(wrong, int | float) and not isinstance(wrong, bool)
    with pytest.raises(ValueError if is_number else TypeError, match="local_share must be"):
        limiter("1/s", local_share=wrong, **options)
    slots = SharedConcurrency(4)
    with pytest.raises((TypeError, ValueError), match="such as 1/8 for 8 processes"):
        limiter(concurrency_limit=slots, local_share=wrong, **options)


@pytest.mark.parametrize("choice", ["raise", "open", "closed"])
def test_local_share_needs_the_choice_local(choice: OnStoreError) -> None:
    store = MemoryStore()
    with pytest.raises(ValueError, match="write on_store_error='local' too"):
        RateLimiter("1/s", store=store, key="k", on_store_error=choice, local_share=0.5)
    with pytest.raises(ValueError, match="write on_store_error='local' too"):
        RateLimiter("1/s", on_store_error=choice, local_share=0.5)
    with pytest.raises(ValueError, match="give a store"):
        RateLimiter("1/s", on_store_error="local", local_share=0.5)


# ---- a share that the user gives -----------------------------------------------------------------


@pytest.mark.parametrize("mode", OUTAGES)
@pytest.mark.parametrize(
    "algorithm", [SlidingWindowLog, FixedWindow, SlidingWindowCounter, TokenBucket]
)
@virtual
async def test_each_process_uses_exactly_its_given_share(mode: str, algorithm: Any) -> None:  # noqa: ANN401
    server = Server()
    server.latency = 0.002
    shares = (0.25, 0.5)
    groups = [
        Workers(
            limiter_on(server, "local", "100/s", guard=0.0, algorithm=algorithm, local_share=share)
        )
        for share in shares
    ]
    await asyncio.sleep(2.5)
    server.mode = mode
    await asyncio.sleep(22.5)
    for workers, share in zip(groups, shares, strict=True):
        # In the first seconds of the outage the tokens of the others count as well.
        assert workers.count(6.5, 24.5) == 18 * 100 * share
    server.mode = "up"
    await asyncio.sleep(8.0)
    assert sum(workers.count(28.0, 33.0) for workers in groups) >= 0.9 * 5 * 100
    for workers in groups:
        await workers.stop()


@virtual
async def test_keyed_limiter_gives_each_key_its_share() -> None:
    server = Server()
    server.mode = "refuses"
    limiter = KeyedRateLimiter(
        "100/min", store=Client(server), key="k", on_store_error="local", local_share=0.25
    )
    for key in ("a", "b"):
        assert [bool(await limiter.try_acquire(key)) for _ in range(30)].count(True) == 25
    await limiter.aclose()


@virtual
async def test_processes_are_counted_only_without_a_given_share() -> None:
    server = Server()
    clients = [Client(server) for _ in range(3)]
    limiters = [
        limiter_on(server, "local", local_share=0.25),
        *(RateLimiter("20/s", store=each, key="k", on_store_error="local") for each in clients),
    ]
    groups = [Workers(limiter) for limiter in limiters]
    await asyncio.sleep(20.0)
    assert {Health.of(client).counter.processes for client in clients} == {3}
    for workers in groups:
        await workers.stop()


# ---- the parts -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "algorithm",
    [SlidingWindowLog("3/s"), TokenBucket("3/s"), LeakyBucket("3/s"), SlidingWindowLog("10/s")],
    ids=repr,
)
@pytest.mark.parametrize("processes", [1, 2, 3, 8])
def test_shares_add_up_to_the_limit(algorithm: Algorithm[Any], processes: int) -> None:
    share, granted, clock = LocalShare(algorithm), 0, 0.0
    while clock < 80.0:
        wait = share.spend(clock, 1.0, processes)
        granted += wait == 0.0
        clock += wait
    per_second = 10 if algorithm.capacity == 10 else 3
    # In a window a share is a whole number of tokens.
    least: float = per_second // processes * processes
    if processes > per_second:
        least = processes / math.ceil(processes / per_second)
    burst = algorithm.capacity
    assert least * 80 - processes <= granted * processes <= per_second * 80 + burst + processes


@pytest.mark.parametrize("algorithm", [SlidingWindowLog("2/s"), TokenBucket("2/s")], ids=repr)
def test_smallest_share_grants_one_token_at_once(algorithm: Algorithm[Any]) -> None:
    size = ShareSize(5e-324, ProcessCounter())
    share = LocalShare(algorithm)
    assert share.spend(0.0, 0.0, size.divisor) == 0.0
    assert share.spend(0.0, 1.0, size.divisor) == 0.0
    assert 5_000 <= share.wait(0.0, 1.0, size.divisor) <= 10_000


def test_heavy_cost_is_granted_when_shares_cover_it() -> None:
    share = LocalShare(SlidingWindowLog("10/s"))
    assert share.spend(0.0, 5.0, 4) == 0.0  # twenty, so two seconds' worth
    assert share.wait(0.5, 1.0, 4) == 1.5


def test_share_counts_reservations_that_the_store_reported() -> None:
    share = LocalShare(SlidingWindowLog("10/s"))
    share.note_answer(0.0, Answer(50.0, (50.0, 50.4), 0.0, 5.0, 1.4), 2.0)
    assert share.remaining(0.0, 1) == 0.0  # while a reservation lies ahead
    assert share.wait(0.4, 5.0, 1) == 0.0
    assert share.wait(0.4, 6.0, 1) == pytest.approx(1.0)


def test_process_count_excludes_processes_without_recent_renewal() -> None:
    counts = [ProcessCount(name, 30.0) for name in ("ann", "bob", "eve")]
    state = counts[0].start()
    for at, count in enumerate(counts):
        count.take(state, 10.0 * at, 1)
    assert counts[0].load(counts[1].dump(state)) == state
    assert [counts[0].remaining(state, at) for at in (20.0, 30.0, 45.0, 50.0)] == [3, 2, 1, 0]
    assert counts[0].reset_after(state, 20.0) == 30.0
    counts[0].take(state, 45.0, 1)
    assert set(state) == {"ann", "eve"}


@virtual
async def test_ended_processes_are_not_counted_for_long() -> None:
    server = Server()
    stores = [Client(server) for _ in range(5)]
    workers = Workers(
        *(RateLimiter("20/s", store=store, key="k", on_store_error="local") for store in stores)
    )
    await asyncio.sleep(15.0)
    assert {Health.of(store).counter.processes for store in stores} == {5}
    counts = sum(at == 0 for at, _ in server.asked)
    assert counts < 50
    for task in workers.tasks[0::5]:
        task.cancel()
    await asyncio.sleep(45.0)
    assert {Health.of(store).counter.processes for store in stores[1:]} == {4}
    await workers.stop()


def test_spent_tokens_expire_in_portions() -> None:
    spent = Spent(32.0)
    for second in range(64):
        spent.add(float(second), 1.0)
    assert spent.total(63.0) == 33.0
    spent.subtract(1.0, 63.0)
    assert spent.cap(10.0) == 10.0
    assert spent.total(63.0) == 10.0
    assert spent.pop_expired(200.0) == 10.0
    assert spent.total(200.0) == 0.0


@virtual
async def test_retries_of_processes_have_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiothrottle.stores.health._JITTER", 0.25)
    pauses: set[float] = set()
    for _ in range(20):
        health = Health(MemoryStore())
        health.call_failed(StoreUnavailable("no"))
        pauses.add(health.pause())
    assert len(pauses) == 20
    assert 0.0375 <= min(pauses) <= max(pauses) <= 0.0625


@pytest.mark.parametrize("choice", ["raise", *FALLBACKS])
@virtual
async def test_limiters_with_different_clocks_find_the_store_back(choice: OnStoreError) -> None:
    loop = asyncio.get_running_loop()
    client = Client(server := Server())
    ahead = RateLimiter(
        "20/s", store=client, key="a", on_store_error=choice, clock=lambda: 1e9 + loop.time()
    )
    plain = RateLimiter("20/s", store=client, key="b", on_store_error=choice)
    server.mode = "refuses"
    for limiter in (ahead, plain) * 3:
        with contextlib.suppress(StoreUnavailable):
            await limiter.peek()
        await asyncio.sleep(0.3)
    server.mode = "up"
    await asyncio.sleep(2)
    await plain.peek()
    await turns()
    assert plain.statistics().store_up is True

"""`on_store_error`: what serves tokens, slots and `WaitUntil` while the store fails."""

import asyncio
import logging
from typing import Any

import pytest

from aiothrottle import (
    KeyedRateLimiter,
    RateLimiter,
    SharedConcurrency,
    StoreUnavailable,
    ThrottleTimeout,
)
from aiothrottle.algorithms import AllOf, FixedWindow, SlidingWindowLog, TokenBucket, WaitUntil
from aiothrottle.events import Event, StoreDown, StoreUp
from aiothrottle.stores.store import CHOICES, OnStoreError
from aiothrottle.testing import greatest_count
from tests.outages.processes import OUTAGES, back, fall, limiter_on, process
from tests.support.failing import Client, Server
from tests.support.observing import observed
from tests.support.virtually import now, turns, visit, visits
from tests.support.watching import rest

FALLBACKS: list[OnStoreError] = ["local", "open", "closed"]
KINDS: dict[str, dict[str, Any]] = {
    "tokens": {"rate": "3/min", "guard": 0.0},
    "slots": {"rate": None, "concurrency_limit": SharedConcurrency(3, lease=3.0)},
    "wait until": {"rate": None, "algorithm": WaitUntil(1, 5, 10)},
}
# Of six requests, how many the local share grants within ten seconds. Without a slot before the
# outage it has one; the instants of `WaitUntil` are a second apart.
LOCAL = {"tokens": 3, "slots": 1, "wait until": 6}
# For grants after the outage: at most so many within so many seconds.
MOST = {"tokens": (3, 59.9), "slots": (3, 7.5), "wait until": (1, 0.98)}
LASTS = 10.0  # seconds


@pytest.mark.parametrize("mode", [*OUTAGES, "reads", "full"])
@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("kind", KINDS)
async def test_choice_serves_until_the_store_returns(
    kind: str, choice: OnStoreError, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "aiothrottle")
    (server, limiter), events = process(choice, **KINDS[kind]), list[tuple[float, Event]]()
    limiter.observe(lambda event: events.append((now(), event)))
    server.mode = mode
    tasks = visits(limiter, 6, stay=LASTS)
    await asyncio.sleep(LASTS - 1.0)
    if choice == "raise":
        errors = [task.exception() for task in tasks]
        assert {type(error) for error in errors} == {StoreUnavailable}
        assert len(set(map(id, errors))) == 6
    else:
        granted = {"open": 6, "closed": 0, "local": LOCAL[kind]}[choice]
        assert limiter.statistics().granted == granted
        assert limiter.statistics().waiting == 6 - granted
        # The last of the six instants of `WaitUntil` is over by now.
        serves = choice == "open" or (choice == "local" and kind == "wait until")
        began, peek, decision = now(), await limiter.peek(), await limiter.try_acquire()
        assert bool(peek) is bool(decision) is serves
        assert now() == began  # the server is not asked
        if decision.permit is not None:
            decision.permit.release()
    assert limiter.statistics().store_up is False
    assert len(server.asked) <= (6 if mode in {"reads", "full"} else 4) * LASTS  # two calls a probe

    returned_at = now()
    await back(server, 2.2)  # a call under way, the longest pause, and a call
    if choice == "raise":
        await limiter.peek()
    assert limiter.statistics().store_up is True
    of_the_store = [it for it in events if isinstance(it[1], StoreDown | StoreUp)]
    (fell_at, down), (rose_at, up) = of_the_store  # each is reported once
    assert isinstance(down, StoreDown)
    assert isinstance(down.error, StoreUnavailable)
    assert isinstance(up, StoreUp)
    assert up.after == pytest.approx(rose_at - fell_at)
    assert [it.levelname for it in caplog.records] == ["WARNING", "INFO"]
    if choice != "raise":  # no waiter is lost, and there is no burst
        new = [at for at in sorted(await asyncio.gather(*tasks)) if at >= returned_at]
        assert choice != "closed" or returned_at < new[0] <= returned_at + 2.0 or kind == "tokens"
        most, seconds = MOST[kind]
        assert greatest_count(new, seconds) <= most
    await limiter.aclose()
    # Nothing is lost in the store: in the end all is free.
    await asyncio.sleep(120.0)
    await asyncio.gather(*visits(limiter_on(server, "raise", **KINDS[kind]), 3, timeout=3.0))


@pytest.mark.parametrize("kind", ["tokens", "slots"])
async def test_raise_fails_waiters_with_few_retries(kind: str) -> None:
    server, limiter = process("raise", **KINDS[kind])
    await visit(limiter)
    await turns()  # the slot has gone back
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
    await back(server, 0.8)
    await visit(limiter)
    assert limiter.statistics().store_up is True
    assert RateLimiter("1/s").statistics().store_up is None


async def test_outage_of_tokens_and_slots_is_one_event() -> None:
    server, limiter = process("open", **KINDS["slots"] | {"rate": 20})
    events = observed(limiter, StoreDown, StoreUp)
    server.mode = "refuses"
    await visit(limiter)
    await back(server)
    await visit(limiter)
    assert [type(it) for it in events] == [StoreDown, StoreUp]


@pytest.mark.parametrize(
    "limits", [{"rate_limit": 20}, {"concurrency_limit": SharedConcurrency(3)}]
)
async def test_error_and_event_name_their_limiter(limits: dict[str, Any]) -> None:
    server = Server()
    server.mode = "refuses"
    limiters = KeyedRateLimiter(store=Client(server), key="k", **limits)
    outages = observed(limiters, StoreDown)
    methods: list[Any] = [limiters.acquire, limiters.try_acquire, limiters.peek]
    methods += [limiters.record] if "rate_limit" in limits else []
    for place, method in enumerate(methods):
        with pytest.raises(StoreUnavailable) as caught:
            await method(f"host {place}")
        name = limiters[f"host {place}"].name
        assert (caught.value.key, caught.value.name) == (f"host {place}", name)
        assert [it.key for it in outages][place:] == [f"host {place}"]
    with pytest.raises(StoreUnavailable) as caught:
        await RateLimiter(store=Client(server), key="k", **limits).acquire()
    assert caught.value.key is None


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("kind", KINDS)
async def test_error_that_is_no_outage_is_always_raised(
    kind: str, choice: OnStoreError, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask(*_: object, **__: object) -> None:
        raise ValueError("another algorithm")

    monkeypatch.setattr(Client, "ask", ask)
    _, limiter = process(choice, **KINDS[kind])
    for method in (limiter.acquire, limiter.try_acquire, limiter.peek):
        with pytest.raises(ValueError, match="another algorithm"):
            await method()
    assert limiter.statistics().store_up is True


@pytest.mark.parametrize("choice", FALLBACKS)
async def test_error_that_is_no_outage_does_not_delay_the_recovery(choice: OnStoreError) -> None:
    server, limiter = process(choice)
    await fall(limiter, server)
    await limiter.try_acquire()
    await server.record("k", TokenBucket("1/min"))
    await back(server, 1.0)
    if not limiter.statistics().store_up:
        await limiter.peek()
        await asyncio.sleep(1.0)
    with pytest.raises(ValueError, match="another algorithm"):
        await limiter.peek()


@pytest.mark.parametrize(("answers", "failures"), [("refund", 5), ("error", 5), ("claim", 1)])
async def test_any_answer_ends_the_outage_with_raise(
    answers: str, failures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that is an error of this record, and no outage."""

    async def claim(*_: object) -> None:
        raise ValueError("damaged")

    monkeypatch.setattr(Client, "claim", claim)
    client = Client(server := Server())
    limiter, other = (RateLimiter("20/s", store=client, key=key) for key in "ab")
    permit = await other.acquire(5)
    server.mode = "refuses"
    for _ in range(failures):  # after several it is not tried for each request
        with pytest.raises(StoreUnavailable):
            await limiter.try_acquire()
        await asyncio.sleep(0.5)
    await back(server)
    if answers == "refund":
        permit.settle(1)
        await rest()
    elif answers == "claim":
        slots = RateLimiter(concurrency_limit=SharedConcurrency(1), store=client, key="c")
        with pytest.raises(ValueError, match="damaged"):
            await slots.try_acquire()
        await rest()
        assert limiter.statistics().store_up, "it was not asked itself"
    else:
        await server.clear("b")
        await server.record("b", TokenBucket("1/min"))
        with pytest.raises(ValueError, match="another algorithm"):
            await other.try_acquire()
    assert other.statistics().store_up
    assert await limiter.try_acquire()
    assert limiter.statistics().store_up


async def test_open_keeps_the_slots_of_this_process() -> None:
    server, limiter = process("open", "2/min", concurrency_limit=3)
    await visit(limiter)
    await fall(limiter, server)
    staying = visits(limiter, 30, stay=0.01)
    await asyncio.sleep(0.005)
    assert limiter.statistics().in_flight == 3
    assert max(await asyncio.gather(*staying)) < 0.2
    await back(server)
    # The limit is used up and not exceeded.
    assert server.recorded == [1.0]


async def test_record_that_fails_at_the_return_is_made_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server, limiter = process("local", "10/min")
    await fall(limiter, server)
    await visit(limiter, 4)
    record, errors = Client.record, [StoreUnavailable("no")] * 2

    async def fail(client: Client, *call: Any) -> Any:
        if call[0] == "k" and errors:
            raise errors.pop()
        return await record(client, *call)

    monkeypatch.setattr(Client, "record", fail)
    await back(server, 4.0)
    assert limiter.statistics().store_up
    assert server.recorded == [4.0]
    await fall(limiter, server)
    begin = now()
    await asyncio.sleep(100.0)
    assert "refund" not in server.methods(since=begin), "a store that fails again is left alone"


@pytest.mark.parametrize("records", [[4], [3, 1]])
@pytest.mark.parametrize("choice", FALLBACKS)
async def test_record_during_an_outage_reaches_the_store_later(
    choice: OnStoreError, records: list[int]
) -> None:
    server, limiter = process(choice, "10/min")
    await limiter.record(2)
    server.mode = "refuses"
    for cost in records:
        await limiter.record(cost)
    await back(server)  # without a request
    assert server.recorded == [2.0, 4.0]
    assert (await limiter.peek()).remaining == 4.0


async def test_key_is_kept_until_its_store_has_what_it_spent() -> None:
    server = Server()
    limiter = KeyedRateLimiter("2/h", store=Client(server), key="k", on_store_error="open")
    server.mode = "refuses"
    await visit(limiter["a"])
    await asyncio.sleep(600.0)
    await back(server)
    assert server.recorded == [1.0]


@pytest.mark.parametrize("algorithm", [SlidingWindowLog, FixedWindow])
async def test_refund_goes_where_the_tokens_came_from(algorithm: Any) -> None:
    server, limiter = process("local", "10/min", algorithm=algorithm)
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
            await back(server)
            local.settle(0)  # and the store never counted these
            await rest()
    assert server.recorded == [1.0]
    assert (await limiter.peek()).remaining == 5.0


async def test_late_record_expires_with_its_period() -> None:
    server = Server()
    options: dict[str, Any] = {"on_store_error": "local", "max_reservation": 1.0}
    limiters = KeyedRateLimiter("10/min", store=Client(server), key="k", **options)
    await limiters.try_acquire("ann", 0)
    server.mode = "refuses"
    assert all([await limiters.try_acquire("ann") for _ in range(6)])
    await asyncio.sleep(40.0)
    await limiters.acquire("ann", 3)
    await back(server)
    assert server.recorded == [9.0]
    other = KeyedRateLimiter("10/min", store=Client(server), key="k")
    (waiting,) = visits(limiters["ann"], 1, 2)  # rejected until a part has expired
    for seconds, remaining in ((19.0, 1.0), (2.0, 5.0)):
        await asyncio.sleep(seconds)
        assert (await other.peek("ann")).remaining == remaining
    assert waiting.done()
    await rest()
    await limiters.peek("bob")  # a new key has the others checked
    await asyncio.sleep(100.0)
    assert "ann" not in limiters  # it has nothing to do, and is forgotten


@pytest.mark.parametrize(
    "rate",
    [
        {"algorithm": TokenBucket("10/10s")},
        {"rate": ["10/10s", "100/10s"], "algorithm": TokenBucket},
        {"rate": {"requests": "10/10s"}, "algorithm": TokenBucket},
        {"algorithm": AllOf(SlidingWindowLog("100/10s"), TokenBucket("10/10s"))},
    ],
    ids=["one", "several", "resources", "with a window"],
)
async def test_late_record_in_a_bucket_is_not_refunded(rate: dict[str, Any]) -> None:
    server, limiter = process("local", **({"rate": None} | rate), guard=0.0)
    await limiter.peek()
    await fall(limiter, server)
    begin = now()
    granted = len([each for _ in range(10) if (each := await limiter.try_acquire())])
    await back(server)
    while now() < begin + 30.0:
        await limiter.acquire()
        granted += 1
    assert granted <= 10 + (now() - begin)


@pytest.mark.parametrize(
    ("error", "is_swallowed"),
    [(StoreUnavailable("away"), True), (ValueError("damaged"), True), (OSError("a bug"), False)],
    ids=["outage", "damaged", "bug"],
)
async def test_failed_refund_stays_spent_and_hides_no_bug(
    error: Exception,
    is_swallowed: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server, limiter = process("local", "10/min")
    await fall(limiter, server)
    await visit(limiter, 6)
    await back(server)

    async def refund(*_: object) -> None:
        raise error

    monkeypatch.setattr(Client, "refund", refund)
    await asyncio.sleep(70.0)
    reported = [line for line in caplog.messages if "could not be returned" in line]
    assert len(reported) == (not is_swallowed)
    assert is_swallowed or "tokens of 'k'" in reported[0]
    assert limiter.statistics().store_up is True
    await rest()
    assert server.recorded == [6.0]


@pytest.mark.parametrize("choice", ["local", "open"])
async def test_reset_forgets_what_an_outage_has_spent(choice: OnStoreError) -> None:
    server, limiter = process(choice, "5/min", algorithm=FixedWindow)
    await fall(limiter, server)
    assert all([await limiter.try_acquire() for _ in range(5)])
    server.mode = "up"
    await limiter.reset()  # before the limiter has found that the store is back
    await limiter.try_acquire()
    await back(server)
    assert limiter.statistics().store_up
    assert server.recorded == [1.0]
    assert (await limiter.peek()).remaining == 4.0
    await fall(limiter, server)
    await limiter.try_acquire(2)
    await asyncio.sleep(59.0)
    await back(server)
    assert server.recorded == [1.0, 2.0]
    await limiter.reset()
    await server.record("k", FixedWindow("5/min"), 5.0)  # of another process
    await asyncio.sleep(10.0)  # nothing is refunded when it would have left the record
    assert (await limiter.peek()).remaining == 0.0


async def test_reset_forgets_what_the_share_has_spent() -> None:
    server, limiter = process("local", "5/min", guard=0.0)
    assert all([await limiter.try_acquire() for _ in range(5)])
    await limiter.reset()
    await fall(limiter, server)
    assert all([await limiter.try_acquire() for _ in range(5)])
    limiter.update(rate_limit="6/min")
    assert [bool(await limiter.try_acquire()) for _ in range(2)] == [True, False]


@pytest.mark.parametrize("limits", [KINDS["tokens"], KINDS["slots"]], ids=["tokens", "slots"])
async def test_timeout_names_the_store_that_is_waited_for(limits: dict[str, Any]) -> None:
    server, limiter = process("closed", **limits)
    server.mode = "stalls"
    if limits is KINDS["tokens"]:  # a slot is free, however soon the request gives up
        with pytest.raises(ThrottleTimeout, match="has not answered yet"):
            await limiter.acquire(timeout=0)
    with pytest.raises(ThrottleTimeout) as late:
        await limiter.acquire(timeout=0.5)
    assert "of 500 ms: Client has not answered yet, key 'k'" in str(late.value)
    limiter.pause(2.0)  # for which it waits anyway
    with pytest.raises(ThrottleTimeout, match="retry after 2 s"):
        await limiter.acquire(timeout=0.1)
    await asyncio.sleep(1.0)
    with pytest.raises(ThrottleTimeout) as down:
        await limiter.acquire(timeout=5.0)
    assert "of 5 s: late; requests with key 'k' wait until it answers" in str(down.value)
    await back(server, 2.2)
    permits = [await limiter.acquire() for _ in range(3)]
    reason = "all slots are taken" if limits is KINDS["slots"] else "retry after"
    with pytest.raises(ThrottleTimeout, match=reason):
        await limiter.acquire(timeout=0.5)
    for permit in permits:
        permit.release()

"""The attempts of one request: when each is made, what it costs, and what ends them."""

import asyncio
import itertools
import random
from typing import Any

import httpx
import pytest

from aiothrottle import (
    AdaptiveConcurrency,
    AttemptThrottled,
    KeyedRateLimiter,
    RateLimiter,
    ThrottleTimeout,
)
from aiothrottle.events import Paused, Retried
from aiothrottle.httpx import ThrottledTransport
from aiothrottle.retry import Retry, RetryBudget, RetryQuota
from tests.integrations.clients import always
from tests.integrations.scripted import Script, Step
from tests.support.observing import observed
from tests.support.virtually import turns, virtual

A, B, C = "http://a/", "http://b/", "http://c/"
#: Any drawn delay is a second, and so is any pause without a Retry-After.
EXACT: dict[str, Any] = {
    "jitter": "decorrelated",
    "backoff": 1,
    "max_backoff": 1,
    "pause_jitter": 0,
    "max_retry_after": 20,
}


def after(seconds: float) -> dict[str, str]:
    return {"Retry-After": f"{seconds}"}


def quota(remaining: int) -> dict[str, str]:
    return {"RateLimit-Remaining": f"{remaining}", "RateLimit-Reset": "9"}


def half() -> float:
    return 0.5


@pytest.mark.parametrize(
    ("first", "delay", "any_method", "paused"),
    [
        # Throttled: the server did nothing, so any method is repeated, and other requests wait.
        *((status, 1, True, True) for status in (420, 429, 529)),
        ((429, after(20)), 20, True, True),
        ((429, after(20.5)), None, True, True),
        # A wait of this one request is no pause, and none at all is not "as often as you can".
        ((429, after(0.01)), 1, True, True),
        # The reset counts if no quota remains, and no Retry-After was sent.
        ((429, quota(0)), 9, True, True),
        ((429, quota(5)), 1, True, True),
        # Throttled by its headers.
        ((403, after(7)), 7, True, True),
        ((403, quota(0)), 9, True, True),
        ((503, after(7)), 7, True, True),
        # The server may have begun.
        *((status, 1, False, False) for status in (502, 503)),
        ((502, after(7)), 7, False, False),
        ((502, after(0.01)), 1, False, False),
        ((502, {"RateLimit-Reset": "9"}), 1, False, False),
        (httpx.ConnectError("dead"), 1, False, False),
        # No failure, or one that stays.
        *((status, None, True, False) for status in (403, 404, 500)),
        ((200, after(7)), None, True, False),
        (httpx.LocalProtocolError("wrong"), None, True, False),
    ],
    ids=str,
)
@virtual
async def test_delay_of_the_second_attempt(
    first: Step, delay: float | None, any_method: bool, paused: bool
) -> None:
    for method in ("GET", "POST"):
        script, limiter = Script(first, 200), RateLimiter(concurrency_limit=1)
        async with script.client(limiter, retry=Retry(**EXACT)) as client:
            task = asyncio.create_task(client.request(method, A))
            await turns(20)
            assert bool(limiter.statistics().paused_for) == paused
            await asyncio.wait([task])
        retried = delay is not None and (any_method or method == "GET")
        gaps = [b - a for a, b in itertools.pairwise(script.times)]
        assert gaps == pytest.approx([delay] if retried else [])
        if retried:
            assert task.result().status_code == 200


@virtual
async def test_pauses_double_and_have_jitter() -> None:
    script, retry = Script(429, 429, 429, 429, 200), Retry(backoff=1, max_backoff=3, pause_jitter=0)
    limiter = RateLimiter(concurrency_limit=1)
    retries = observed(limiter, Retried)
    async with script.client(limiter, retry=retry) as client:
        assert (await client.get(A)).status_code == 200
    assert script.times == [0, 1, 3, 6, 9]
    assert [it.delay for it in retries] == [1, 2, 3, 3]  # not the delay that was drawn
    limiter = RateLimiter()
    pauses = observed(limiter, Paused)
    async with Script((429, after(5))).client(limiter, retry=Retry(attempts=1)) as client:
        for _ in range(4):  # further ones are longer, as 5 s were not enough
            await client.get(A)
    seconds = [it.seconds for it in pauses]
    assert 5 <= min(seconds) < max(seconds) <= 5.5


@virtual
async def test_retry_after_beyond_the_longest_pause_is_waited_for() -> None:
    script, limiter = Script((429, after(12)), 200), RateLimiter(concurrency_limit=1)
    async with script.client(limiter, retry=Retry(**EXACT, max_pause=3)) as client:
        task = asyncio.create_task(client.post(A))
        await turns(20)
        assert limiter.statistics().paused_for == pytest.approx(3)
        assert (await task).status_code == 200
    assert script.times == [0, 12]


# Tests of the headers have more of them.
FAR = ["1000000000000", "9" * 5000, "Fri, 31 Dec 9999 23:59:59 GMT", "31"]
DATES = ["x" * 5000, "", "Thu, 01 Jan 0001 00:00:00 GMT", "Mon, 01 Jan 1 00:00:00 -9999"]


@virtual
async def test_distant_retry_after_ends_the_attempts() -> None:
    for value, date in itertools.product(FAR, DATES):
        script, limiter = Script((429, {"Retry-After": value, "Date": date})), RateLimiter()
        async with script.client(limiter, retry=Retry(**EXACT, max_pause=40)) as client:
            assert (await client.get(A)).status_code == 429
        assert len(script.times) == 1, value
        assert limiter.statistics().paused_for == (31 if value == "31" else 40), (value, date)


@virtual
async def test_throttled_request_precedes_waiting_ones_twice() -> None:
    script = Script(429, 429, 200)
    limiter = RateLimiter(concurrency_limit=1)
    others = {B: {"cost": 1}, C: {"priority": 1}}
    async with script.client(limiter, retry=Retry(**EXACT)) as client:
        given = [client.get(url, extensions={"aiothrottle": it}) for url, it in others.items()]
        await asyncio.gather(client.get(A), *given)
    # Its priority is added to that of its caller.
    assert script.urls == [A, A, C, A, B]
    script = Script(429, 429, 429, 200)
    async with script.client(retry=Retry(**EXACT)) as client:
        await asyncio.gather(client.get(A), client.get(B))
    assert script.urls == [A, A, A, B, A]


@pytest.mark.parametrize(
    ("step", "slots"), [(403, 4), (500, 2), (httpx.ConnectError("dead"), 2)], ids=str
)
@virtual
async def test_failures_remove_slots_and_forbidden_requests_do_not(step: Step, slots: int) -> None:
    """Also of a limiter above."""
    alone, above = (RateLimiter(concurrency_limit=AdaptiveConcurrency(4, 1, 4)) for _ in range(2))
    for limiter in (alone, RateLimiter(parent=above)):
        async with Script(step).client(limiter, retry=Retry(attempts=1)) as client:
            for _ in range(12):
                await asyncio.gather(client.get(A), return_exceptions=True)
                await asyncio.sleep(1)
    assert [it.statistics().concurrency_limit for it in (alone, above)] == [slots, slots]


@virtual
async def test_retry_of_a_merged_key_counts_where_it_was_merged() -> None:
    script, limiter = Script(502, 200), KeyedRateLimiter("1/s")
    async with script.client(limiter, retry=Retry(**EXACT)) as client:
        limiter.pause("bucket", 20)
        task = asyncio.create_task(client.get(A))
        await turns(20)
        limiter.merge("a", "bucket")
        assert (await task).status_code == 200
    assert script.times == [0, 20]


@virtual
async def test_each_retry_is_reported_to_listeners() -> None:
    limiter, error = RateLimiter(concurrency_limit=1), LookupError()
    retries = observed(limiter, Retried)
    script = Script(error, (429, after(7)), 200, httpx.ConnectError("dead"))
    retry = Retry(exceptions=(LookupError,), **EXACT)
    async with script.client(limiter, retry=retry) as client:
        await client.get(A)
        with pytest.raises(httpx.ConnectError):
            await client.get(A)
    assert retries == [Retried(None, 2, 1, None, error), Retried(None, 3, 7, 429, None)]
    assert limiter.statistics().retries == 2


@virtual
async def test_statuses_of_the_policy_decide_what_is_retried() -> None:
    cases: list[tuple[dict[str, Any], int, int]] = [
        # Those below 400 too.
        *(({name: {202}}, 202, 2) for name in ("statuses", "throttled_statuses")),
        # A 429 pauses the limiter, but is not retried unless it is one of them.
        ({"statuses": {502}}, 429, 1),
    ]
    for options, status, attempts in cases:
        script = Script(status, 200)
        async with script.client(retry=Retry(**options, **EXACT)) as client:
            await client.get(A)
        assert len(script.times) == attempts, options


@virtual
async def test_decorrelated_delays_grow() -> None:
    random.seed(1)
    script = Script(502)
    retry = Retry(attempts=20, backoff=1, max_backoff=99, jitter="decorrelated")
    async with script.client(retry=retry) as client:
        await client.get(A)
    assert max(b - a for a, b in itertools.pairwise(script.times)) > 3


@pytest.mark.parametrize("later", [False, True])
@virtual
async def test_verdict_of_should_retry_comes_first(later: bool) -> None:
    cases: list[tuple[Step, Any, int]] = [
        *((200, True, 2), (200, None, 1), ((429, after(1)), False, 1), (429, None, 2)),
        *((200, "a header", 2), (200, "", 1)),
    ]
    for step, verdict, attempts in cases:

        async def think(_: object, verdict: Any = verdict) -> Any:
            await asyncio.sleep(0)
            return verdict

        script, limiter = Script(step), RateLimiter(concurrency_limit=1)
        retry = Retry(attempts=2, should_retry=think if later else always(verdict), **EXACT)
        async with script.client(limiter, retry=retry) as client:
            await client.put(A)
        assert len(script.times) == attempts, (step, verdict)
        # True is a throttled response of any status, so other requests wait.
        assert bool(limiter.statistics().paused_for) == (attempts == 2)


@virtual
async def test_cause_that_is_known_further_in_is_kept() -> None:
    for steps in ([502, 503], [502]):
        script = Script(*steps)
        inner = ThrottledTransport(
            RateLimiter(f"{len(steps)}/h"),
            transport=script,
            queue_timeout=5,
            retry=Retry(statuses={503}),
        )
        around = ThrottledTransport(RateLimiter(), transport=inner, retry=Retry(statuses={502}))
        async with httpx.AsyncClient(transport=around) as client:
            with pytest.raises(ThrottleTimeout) as caught:
                await client.get(A)
        assert len(script.times) == len(steps)
        assert isinstance(cause := caught.value.__cause__, AttemptThrottled)
        assert cause.status == steps[-1]


# ---- the budget ----------------------------------------------------------------------------------


async def attempts_of(client: httpx.AsyncClient, script: Script, url: str = A) -> int:
    before = len(script.times)
    await asyncio.gather(client.get(url), return_exceptions=True)
    return len(script.times) - before


@virtual
async def test_retries_take_their_cost_and_successes_return_it() -> None:
    budget = RetryBudget(capacity=28, cost=14, throttled_cost=5)
    script = Script(502, 429, 502, 429)  # 14 + 5 of 28, and then 5 of the last 9
    async with script.client(retry=Retry(attempts=9, budget=budget, **EXACT)) as client:
        assert [await attempts_of(client, script) for _ in range(3)] == [3, 2, 1]
    budget = RetryBudget(capacity=20, cost=10, throttled_cost=4)
    script = Script(502, 429, 200, 502)
    options: dict[str, Any] = {"retry": Retry(budget=budget, **EXACT)}
    async with script.client(KeyedRateLimiter(concurrency_limit=1), **options) as client:
        # The first one spends 14, and gets 4.
        found = [await attempts_of(client, script, url) for url in (A, A, A, B, B)]
    assert found == [3, 2, 1, 3, 1]


@pytest.mark.parametrize(
    ("successes", "retries"),
    [
        ([200] * 9, 0),  # 9 of 10
        # Answered, and no status that is retried.
        *(([status] * 10, 1) for status in (200, 404, 500)),
        ([504] * 10, 0),
        ([*[200] * 5, httpx.LocalProtocolError("wrong"), *[200] * 4], 0),
        ([*[200] * 9, 429], 0),
    ],
    ids=lambda value: str(value)[:20],
)
@virtual
async def test_success_refunds(successes: list[Step], retries: int) -> None:
    budget = RetryBudget(capacity=10, cost=10, throttled_cost=10, refund=1)
    script = Script(502, 502, *successes, 502)
    async with script.client(retry=Retry(attempts=2, budget=budget, **EXACT)) as client:
        found = [await attempts_of(client, script) for _ in ["", *successes, ""]]
    assert (found[0], found[-1]) == (2, 1 + retries)


def test_quotas_are_remembered_in_bounded_memory() -> None:
    quota = RetryQuota(RetryBudget(capacity=10, cost=10, throttled_cost=0))

    def fail(key: object) -> bool:
        return quota.pay(key, throttled=False) is not None

    assert fail("first")
    for other in range(9_999):
        assert fail(other)
    # A key that is full again, or costs nothing, takes no place.
    quota.refund(0, 10)
    quota.refund("never failed", 1)
    assert quota.pay("free", throttled=True) == 0
    assert fail("last")
    # The key that failed longest ago has a full quota again, one that fails now has not.
    assert not fail("first")
    assert fail("one more")
    assert fail(1)
    assert not fail("first")


def test_budget_is_validated() -> None:
    assert RetryBudget(capacity=0.5, cost=0).capacity == 0.5
    for name in ("capacity", "cost", "throttled_cost", "refund"):
        for value in ("1", -1, float("nan"), float("inf")):
            options: dict[str, Any] = {name: value}
            with pytest.raises(TypeError if value == "1" else ValueError, match=name):
                RetryBudget(**options)


# ---- the policy by itself ------------------------------------------------------------------------


def test_drawn_delay_is_bounded() -> None:
    """By a doubled backoff or, with decorrelated jitter, by three times the last delay."""
    full = Retry(attempts=10**9, backoff=1, max_backoff=5)
    least = Retry(attempts=10**9, backoff=8, max_backoff=5)
    tiny = Retry(attempts=10**9, backoff=1e-310, max_backoff=5)
    decorrelated = Retry(attempts=10, backoff=1, max_backoff=20, jitter="decorrelated")
    table: dict[tuple[Retry, int, float], tuple[float, float]] = {
        **{(full, attempt, 0): (0, most) for attempt, most in {1: 1, 3: 4, 4: 5, 10**6: 5}.items()},
        (least, 1, 0): (0, 5),
        (tiny, 2, 0): (0, 2e-310),
        **{(decorrelated, 1, last): (1, 3) for last in (0, 0.5)},
        **{(decorrelated, 1, last): (1, most) for last, most in {2: 6, 6: 18, 9: 20}.items()},
    }
    for (retry, attempt, previous), bounds in table.items():
        options: dict[str, Any] = {"status": 429, "previous": previous}
        shortest = retry.next_delay(attempt, "GET", uniform=lambda: 0.0, **options)
        longest = retry.next_delay(attempt, "GET", uniform=lambda: 1.0, **options)
        assert (shortest, longest) == bounds, (retry, attempt, previous)
    assert len({Retry().next_delay(1, "GET", status=429) for _ in range(20)}) > 1


def test_statuses_and_methods_are_the_given_ones() -> None:
    methods = ("GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE", "PATCH", "POST")
    # Only what may be executed twice.
    delays = [Retry().next_delay(1, method, status=502, uniform=half) for method in methods]
    assert delays == [0.25] * 6 + [None] * 2
    retry = Retry(statuses={418}, methods=["post"])
    assert retry.next_delay(1, "POST", status=418, uniform=half) == 0.25
    assert retry.next_delay(1, "GET", status=418, uniform=half) is None
    assert retry.next_delay(1, "POST", status=429, retry_after=1.0) is None
    assert retry.next_delay(1, "POST", status=None, uniform=half) == 0.25  # an exception
    default, given, none = Retry(), Retry(throttled_statuses={429, 403}), set[int]()
    by_status = {default: {420, 429, 529}, given: {403, 429}, Retry(throttled_statuses=none): none}
    for retry, throttled in by_status.items():
        found = {it for it in range(400, 600) if retry.is_throttled(it, reported=False)}
        assert found == throttled
        # A report counts where the status has no rule of its own.
        found = {it for it in (403, 420, 429, 503, 529) if retry.is_throttled(it, reported=True)}
        assert found == throttled | {403, 503}


def test_retry_is_a_value() -> None:
    statuses = [429, 503]
    retry = Retry(statuses=statuses, methods=["get"], exceptions=(OSError, ValueError))
    statuses.clear()
    assert retry == Retry(statuses={429, 503}, methods={"GET"}, exceptions=(OSError, ValueError))
    assert len({Retry(statuses=[429, 503]), Retry(statuses=(503, 429))}) == 1


WRONG_TYPES: list[tuple[str, object]] = [
    *(("attempts", 1.5), ("attempts", True), ("backoff", "1"), ("backoff", True)),
    *(("statuses", "429"), ("statuses", 429), ("statuses", ["429"])),
    *(("each of throttled_statuses", [True]), ("methods", "GET"), ("methods", [429])),
    *(("budget", 500), ("should_retry", True), ("exceptions must be a tuple", OSError)),
    *(("exceptions must be a tuple", [OSError]), ("exceptions", (BaseException,))),
    ("exceptions", (OSError, "x")),
]
WRONG_VALUES: list[tuple[str, object]] = [
    *(("attempts", 0), ("backoff", 0), ("max_backoff", 0), ("max_backoff", float("nan"))),
    *(("max_retry_after", float("inf")), ("pause_jitter", float("inf")), ("jitter", "none")),
    ("pause_jitter must be a finite number, 0 or more", -0.1),
]


def test_wrong_argument_is_named() -> None:
    for error, wrong in ((TypeError, WRONG_TYPES), (ValueError, WRONG_VALUES)):
        for text, value in wrong:
            name = text.removeprefix("each of ").partition(" ")[0]
            options: dict[str, Any] = {name: value}
            with pytest.raises(error, match=text):
                Retry(**options)

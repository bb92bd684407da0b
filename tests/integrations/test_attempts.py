"""The attempts of one request: the cost of each, its outcome, and the delay of the next one."""

from typing import TYPE_CHECKING

import pytest

from aiothrottle import AttemptThrottled, ThrottleError
from aiothrottle._http.attempts import Attempts, Outcome, chain, failed, judge
from aiothrottle.budget import RetryBudget, RetryQuota
from aiothrottle.headers import ServerLimits
from aiothrottle.retry import Retry

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

RETRY = Retry()
ERROR = OSError("the connection is dead")


def answered(status: int, *, throttled: bool = False, verdict: bool | None = None) -> Outcome[str]:
    return Outcome("response", None, status, verdict=verdict, throttled=throttled)


def test_success_refunds_the_cost_of_the_last_attempt() -> None:
    quota = RetryQuota(RetryBudget(capacity=30, cost=14, throttled_cost=5, refund=1))
    attempts = Attempts(Retry(), "GET", quota, "key")
    assert attempts.start_next(answered(502), 0.5)
    assert attempts.start_next(answered(429, throttled=True), 0.5)
    assert (attempts.count, quota._spent) == (3, {"key": 19})
    assert not attempts.start_next(answered(502), 0.5)
    assert (attempts.count, quota._spent) == (3, {"key": 19})
    attempts.finish(answered(200))
    assert quota._spent == {"key": 14}


@pytest.mark.parametrize(
    "outcome", [answered(200, throttled=True), answered(503), failed(RETRY, ERROR)], ids=str
)
def test_failure_refunds_nothing(outcome: Outcome[str]) -> None:
    quota = RetryQuota(RetryBudget())
    quota.pay("key", throttled=False)
    Attempts(Retry(), "GET", quota, "key").finish(outcome)
    assert quota._spent == {"key": 14}


def test_successful_first_attempt_adds_the_refund() -> None:
    quota = RetryQuota(RetryBudget())
    quota.pay(None, throttled=False)
    Attempts(Retry(), "GET", quota).finish(answered(404))
    assert quota._spent == {None: 13}


def test_without_a_quota_only_the_number_limits() -> None:
    attempts = Attempts(Retry(attempts=3), "GET", None)
    attempts.finish(answered(200))
    while attempts.delay(answered(502)) is not None:
        assert attempts.start_next(answered(502), 0.0)
    assert attempts.count == 3


@pytest.mark.parametrize(
    ("method", "outcome", "retried"),
    [
        # A throttled request is retried with any method, also one known by its headers.
        ("POST", answered(403, throttled=True), True),
        ("POST", answered(429, throttled=True), True),
        ("POST", answered(502), False),
        ("GET", answered(502), True),
        # The policy knows these two itself: its statuses may be without them.
        ("POST", answered(503, throttled=True), False),
        # What `should_retry` returned comes first.
        ("GET", answered(403, throttled=True, verdict=False), False),
        ("POST", answered(200, throttled=True, verdict=True), True),
    ],
)
def test_throttled_request_is_retried_with_any_method(
    method: str, outcome: Outcome[str], retried: bool
) -> None:
    delay = Attempts(Retry(), method, None).delay(outcome)
    assert (delay is not None) == retried


def test_delay_is_retry_after_or_a_growing_backoff() -> None:
    attempts = Attempts(Retry(jitter="decorrelated", backoff=1, max_backoff=1000), "GET", None)
    throttled = Outcome("response", None, 429, 7.0, throttled=True)
    assert attempts.delay(throttled) == 7.0
    assert attempts.start_next(throttled, 300.0)
    assert max(attempts.delay(answered(502)) or 0.0 for _ in range(200)) > 3.0


def test_result_is_the_response_or_the_error() -> None:
    assert answered(200).result() == "response"
    with pytest.raises(OSError, match="dead"):
        failed(RETRY, ERROR).result()


def test_retry_after_of_an_outcome() -> None:
    reported = ServerLimits(throttled=True, retry_after=3.0, reset_after=9.0, remaining=0)
    assert failed(RETRY, ERROR, 429, reported) == Outcome(None, ERROR, 429, 3.0, throttled=True)
    # Without a Retry-After: the reset, if no quota remains.
    for limits, seconds in [
        (reported._replace(retry_after=None), 9.0),
        (reported._replace(retry_after=None, remaining=None), 9.0),
        (reported._replace(retry_after=None, remaining=1), None),
        (reported._replace(retry_after=None, throttled=False), None),
        (reported._replace(throttled=False, remaining=1), 3.0),
    ]:
        assert failed(RETRY, ERROR, 429, limits).retry_after == seconds
    assert failed(RETRY, ERROR) == Outcome(None, ERROR, None)


@pytest.mark.parametrize("verdict", [True, False, None])
async def test_should_retry_may_be_a_coroutine_function(verdict: bool | None) -> None:
    async def later(_: object) -> bool | None:
        return verdict

    limits = ServerLimits(throttled=True, retry_after=2.0)
    judges: list[Callable[[object], bool | Awaitable[bool | None] | None]] = [
        later,
        lambda _: verdict,
    ]
    for should_retry in judges:
        outcome = await judge(Retry(should_retry=should_retry), "response", 200, limits)
        throttled = verdict is not False
        assert outcome == Outcome("response", None, 200, 2.0, verdict, throttled)


async def test_without_should_retry_the_server_decides() -> None:
    outcome = await judge(Retry(), "response", 200, ServerLimits())
    assert outcome == Outcome("response", None, 200)


def test_cause_is_the_outcome_before() -> None:
    error = ThrottleError("no slot")
    chain(error, None)
    assert error.__cause__ is None
    chain(error, Outcome(None, None, None))
    assert error.__cause__ is None
    chain(error, Outcome("response", None, 503, 7.0))
    throttled = error.__cause__
    assert isinstance(throttled, AttemptThrottled)
    assert (throttled.status, throttled.retry_after) == (503, 7.0)
    chain(error, failed(RETRY, ERROR))  # there is one
    assert error.__cause__ is throttled
    other = ThrottleError("no slot")
    chain(other, failed(RETRY, ERROR, 429))
    assert other.__cause__ is ERROR


def test_first_attempt_has_no_cost_and_no_delay() -> None:
    quota = RetryQuota(RetryBudget(refund=0.5))
    quota.pay("key", throttled=False)
    Attempts(Retry(), "GET", quota, "key").finish(answered(200))
    assert quota._spent == {"key": 13.5}
    attempts = Attempts(Retry(jitter="decorrelated", backoff=0.25), "GET", None)
    assert max(attempts.delay(answered(502)) or 0.0 for _ in range(200)) <= 0.75

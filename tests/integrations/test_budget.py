"""The retry budget: a quota that retries use up, and successes refund."""

import pytest

from aiothrottle.budget import RetryBudget, RetryQuota


def test_retries_take_their_cost_while_it_lasts() -> None:
    quota = RetryQuota(RetryBudget(capacity=30, cost=10, throttled_cost=4))
    paid = [
        quota.pay("a", throttled=throttled) for throttled in (False, True, False, True, True, True)
    ]
    assert paid == [10, 4, 10, 4, None, None]  # 28 of 30 are spent


def test_success_refunds_its_last_attempt_or_the_refund() -> None:
    quota = RetryQuota(RetryBudget(capacity=10, cost=10, refund=1))
    assert quota.pay("a", throttled=False) == 10
    assert quota.pay("a", throttled=False) is None
    for _ in range(9):
        quota.refund("a", 0.0)
        assert quota.pay("a", throttled=False) is None
    quota.refund("a", 0.0)
    assert quota.pay("a", throttled=False) == 10
    quota.refund("a", 10)
    assert quota.pay("a", throttled=False) == 10


def test_full_quota_of_a_key_takes_no_memory() -> None:
    quota = RetryQuota(RetryBudget(capacity=10, cost=10))
    quota.refund("never failed", 0.0)
    assert quota.pay("a", throttled=False) == 10
    assert quota.pay("b", throttled=False) == 10
    quota.refund("a", 10)
    quota.refund("b", 10)
    assert quota._spent == {}


def test_memory_for_failing_servers_is_bounded() -> None:
    quota = RetryQuota(RetryBudget(capacity=10, cost=10))
    for server in range(30_000):
        assert quota.pay(server, throttled=False) == 10
        assert quota.pay("busy", throttled=False) == (None if server else 10)
        quota.pay("busy", throttled=False)
    assert len(quota._spent) == 10_000
    assert quota.pay(29_999, throttled=False) is None
    assert quota.pay(0, throttled=False) == 10


@pytest.mark.parametrize("name", ["capacity", "cost", "throttled_cost", "refund"])
def test_wrong_argument_is_named(name: str) -> None:
    with pytest.raises(TypeError, match=name):
        RetryBudget(**{name: "1"})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    for value in (-1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=name):
            RetryBudget(**{name: value})


def test_defaults_are_those_of_the_aws_sdks() -> None:
    budget = RetryBudget()
    assert (budget.capacity, budget.cost, budget.throttled_cost, budget.refund) == (500, 14, 5, 1)


def test_retry_without_cost_takes_no_memory() -> None:
    quota = RetryQuota(RetryBudget(capacity=0, cost=0, throttled_cost=0, refund=0))
    assert quota.pay("a", throttled=False) == 0
    assert quota._spent == {}
    assert RetryBudget(capacity=0.5).capacity == 0.5

"""A budget for second attempts: when everything fails, more attempts make it worse."""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

from aiothrottle.checks import check_number

__all__ = ["RetryBudget", "RetryQuota"]

# Servers that never answer well never fill their quota up: of more than these the one that failed
# longest ago begins anew.
_MOST = 10_000


@dataclass(frozen=True, slots=True)
class RetryBudget:
    """How many second attempts a server gets, all requests together: a value.

    A quota that is full at first. Each further attempt takes its cost out; where too little is
    left there is no further attempt, at once: nobody waits for quota. Each success fills it up by
    `refund`, or by what its own last attempt has cost if that is more. (The quota of the AWS SDKs'
    standard retry mode, with its costs of 2026.)

    Args:
        capacity: What a full quota holds.
        cost: Of an attempt after a failure: the connection, a 5xx.
        throttled_cost: Of an attempt after a refusal, such as 429. The server has said when to
            come, so it is the cheaper one.
        refund: What a success at the first attempt fills up.

    Raises:
        TypeError: An argument is no number.
        ValueError: An argument is out of range.

    >>> quota = RetryQuota(RetryBudget(capacity=20, cost=14))
    >>> quota.pay("example.org", throttled=False), quota.pay("example.org", throttled=False)
    (14, None)
    >>> quota.pay("example.net", throttled=False)
    14
    """

    capacity: float = 500.0
    cost: float = 14.0
    throttled_cost: float = 5.0
    refund: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        for name in ("capacity", "cost", "throttled_cost", "refund"):
            check_number(f"{name} of a retry budget", getattr(self, name))


class RetryQuota:
    """What is left of the budget for each key. A key whose quota is full takes no memory."""

    __slots__ = ("_spent", "budget")

    def __init__(self, budget: RetryBudget) -> None:
        self.budget: RetryBudget = budget
        self._spent: OrderedDict[Hashable, float] = OrderedDict()

    def pay(self, key: Hashable, *, throttled: bool) -> float | None:
        """Take the cost of another attempt and give it; None if too little is left."""
        cost = self.budget.throttled_cost if throttled else self.budget.cost
        spent = self._spent.get(key, 0.0) + cost
        enough = spent <= self.budget.capacity
        if enough and spent:
            self._spent[key] = spent
        if key in self._spent:
            self._spent.move_to_end(key)
            if len(self._spent) > _MOST:
                self._spent.popitem(last=False)
        return cost if enough else None

    def refund(self, key: Hashable, paid: float) -> None:
        """Fill up after a success whose last attempt has cost `paid`, 0 for a first one."""
        spent = self._spent.get(key)
        if spent is None:
            return
        spent -= max(self.budget.refund, paid)
        if spent > 0.0:
            self._spent[key] = spent
        else:
            del self._spent[key]

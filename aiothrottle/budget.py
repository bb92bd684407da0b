"""A budget for retries, which would overload a failing server further."""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

from aiothrottle.checks import check_number

__all__ = ["RetryBudget", "RetryQuota"]

# Keys without a success never refill their quota. Beyond this number of keys, the one that failed
# longest ago starts with a full quota again.
_MOST = 10_000


@dataclass(frozen=True, slots=True)
class RetryBudget:
    """How many retries a server gets, for all requests together: a value.

    The quota is full at first. Each retry takes its cost; where too little remains there is no
    retry, without any wait. Each success refunds `refund`, or the cost of its own last attempt if
    that is more. (It is the quota of the AWS SDKs' standard retry mode, with its costs of 2026.)

    Args:
        capacity: The size of a full quota.
        cost: The cost of a retry after a failure: of the connection, or a 5xx.
        throttled_cost: The cost of a retry after a throttled response, such as a 429. It is lower,
            as the server says when to retry.
        refund: The refund of a success at the first attempt.

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
        """Validate the arguments."""
        for name in ("capacity", "cost", "throttled_cost", "refund"):
            check_number(f"{name} of a retry budget", getattr(self, name))


class RetryQuota:
    """The remaining quota of each key. A key whose quota is full takes no memory."""

    __slots__ = ("_spent", "budget")

    def __init__(self, budget: RetryBudget) -> None:
        self.budget: RetryBudget = budget
        self._spent: OrderedDict[Hashable, float] = OrderedDict()

    def pay(self, key: Hashable, *, throttled: bool) -> float | None:
        """Take the cost of a retry and return it, or return None if too little remains."""
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
        """Refund after a success whose last attempt cost `paid`, 0 for a first attempt."""
        spent = self._spent.get(key)
        if spent is None:
            return
        spent -= max(self.budget.refund, paid)
        if spent > 0.0:
            self._spent[key] = spent
        else:
            del self._spent[key]

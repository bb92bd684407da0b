"""Every operation on any algorithm, as a bucket calls it: with a fallback where one is missing."""

from collections.abc import Callable
from typing import Any

from aiothrottle.algorithms import Algorithm
from aiothrottle.algorithms.protocol import capabilities, inherit, max_wait, used

__all__ = [
    "allowance", "cost_of_reject", "delay_behind", "dump", "inherit", "load", "max_wait",
    "refund", "take_each", "used",
]  # fmt: skip


def operation(name: str) -> Callable[..., Any]:
    def ask(algorithm: Algorithm[Any], *arguments: Any) -> Any:
        return getattr(capabilities(algorithm), name)(algorithm, *arguments)

    return ask


allowance = operation("allowance")  # state, now, most
take_each = operation("take_each")  # state, timestamps
delay_behind = operation("delay_behind")  # state, now, cost, ahead
refund = operation("refund")  # state, now, cost, at
cost_of_reject = operation("cost_of_reject")  # state, now, cost, ahead
dump = operation("dump")  # state
load = operation("load")  # data

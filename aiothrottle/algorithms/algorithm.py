"""What every algorithm is: a frozen value with parameters, and two steps on a state of its own.

Strategy: no algorithm knows a clock, an event loop or another process. Time is an argument, the
state is handed in, so the same few lines decide in memory, in a test and behind a store. Instants
are float seconds of whatever clock the caller uses; only their differences mean anything.
"""

import math
from abc import ABC, abstractmethod
from typing import Generic, TypeVar

__all__ = ["Algorithm", "until"]

State = TypeVar("State")


class Algorithm(ABC, Generic[State]):
    """How a bucket drains. `delay` and `take` are the whole contract; the rest is told from them.

    A subclass is a frozen value; its state is an object of its own, made by `start`. To write one,
    give `capacity`, `start`, `delay`, `take`, `remaining` and `reset_after`: every limiter runs it.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def capacity(self) -> float:
        """The greatest cost, in tokens, that can ever be admitted at once."""

    @abstractmethod
    def start(self) -> State:
        """Give the state of a bucket that nothing has gone through yet."""

    @abstractmethod
    def delay(self, state: State, now: float, cost: float) -> float:
        """Seconds until `cost` tokens may go: 0.0 is now, infinity is never. Changes nothing.

        `now + delay` is an instant at which they are admitted, if nothing else goes before.
        A cost of 0 may always go.
        """

    @abstractmethod
    def take(self, state: State, now: float, cost: float) -> None:
        """Record that `cost` tokens went at `now`, whether they fitted or not.

        A cost of 0 changes nothing. A `now` before the last one counts as the last one.
        """

    def admit(self, state: State, now: float, cost: float) -> bool:
        """Take `cost` if it may go now. Tells whether it went.

        This is `delay` and `take` in one step, for the fast path of a limiter. An algorithm that
        says it again does so for speed alone, and has to answer the same.
        """
        if self.delay(state, now, cost) > 0.0:
            return False
        self.take(state, now, cost)
        return True

    @abstractmethod
    def remaining(self, state: State, now: float) -> float:
        """Tokens that may go at `now`, between 0 and `capacity`."""

    @abstractmethod
    def reset_after(self, state: State, now: float) -> float:
        """Seconds until the state is as good as a fresh one and may be forgotten."""


def until(instant: float, now: float) -> float:
    """Seconds from `now` to `instant`, 0.0 if it has come; `now` plus them never falls short of it.

    The plain difference can: 0.3 + (1.1 - 0.3) is below 1.1, and who sleeps that long comes early.
    """
    delay = instant - now
    if delay <= 0.0:
        return 0.0
    while now + delay < instant:
        delay += math.ulp(abs(now) + delay)
    return delay

"""What every algorithm is: a frozen value with parameters, and two steps on a state of its own.

Strategy: no algorithm knows a clock, an event loop or another process. Time is an argument, the
state is handed in, so the same few lines decide in memory, in a test and behind a store. Instants
are float seconds of whatever clock the caller uses; only their differences mean anything, except
to the algorithms that count in periods of the calendar (`FixedWindow`, `SlidingWindowCounter`).

Below the contract stand the few lines that several algorithms share: what is the same for all that
count in aligned periods, and for all dumps. What drains at a constant rate is in `level`.
"""

import math
import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from aiothrottle.rate import Rate

__all__ = [
    "Algorithm",
    "all_spent_now",
    "check_dumped",
    "edge",
    "two_rates",
    "unpack",
    "until",
]

State = TypeVar("State")


class Algorithm(ABC, Generic[State]):
    """How a bucket drains. `delay` and `take` are the whole contract; the rest is told from them.

    A subclass is a frozen value; its state is an object of its own, made by `start`. To write one,
    give `capacity`, `start`, `delay`, `take`, `remaining` and `reset_after`: every limiter runs it.
    With `refund` it gives back what was not needed, with `dump` and `load` it lives in any store.
    With `allowance` and `take_each` it is asked once for many.
    """

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        # Who changes a step wants to be asked each time, until it says again what needs no asking.
        if {"delay", "take", "admit"} & vars(cls).keys() and "allowance" not in vars(cls):
            cls.allowance = Algorithm.allowance  # type: ignore[method-assign]
            cls.take_each = Algorithm.take_each  # type: ignore[method-assign]

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

    def allowance(self, state: State, now: float, most: int) -> int:  # noqa: ARG002
        """Costs of 1, `most` at the most, that may go without being asked about one by one.

        Each may go at any instant from `now` on, whatever becomes of the others, as long as nothing
        else happens to the state. `take_each` is told of them afterwards. This is for speed alone:
        fewer than really may go are never wrong, and by default it is none. Changes nothing.
        """
        return 0

    def take_each(self, state: State, instants: Sequence[float]) -> None:
        """Record that a cost of 1 went at each of the instants: `take`, once for each."""
        for now in instants:
            self.take(state, now, 1.0)

    @abstractmethod
    def remaining(self, state: State, now: float) -> float:
        """Tokens that may go at `now`, between 0 and `capacity`."""

    @abstractmethod
    def reset_after(self, state: State, now: float) -> float:
        """Seconds until the state is as good as a fresh one and may be forgotten."""

    def delay_behind(self, state: State, now: float, cost: float, ahead: float) -> float:
        """Seconds until `cost` may go if `ahead` tokens go before it, each as soon as it may.

        With `ahead` tokens that go at `now`, 0.0 says that `cost` may go at `now` too. It is exact
        while the costs are 1, and never too long. An algorithm whose answer depends on how the
        sum is cut into costs, or that can tell about more than its capacity, says it again.
        """
        return self.delay(state, now, ahead + cost)

    def with_rate(self, rate: Rate) -> "Algorithm[State]":
        """Give the same algorithm at that rate, if it has none of its own yet.

        Raises:
            ValueError: It has one.
        """
        raise two_rates(rate, self)

    def used(self, state: State, now: float) -> float:
        """Tokens that count at `now`: more than the capacity where there is a debt."""
        left = self.remaining(state, now)
        return 0.0 if math.isinf(left) else self.capacity - left

    def inherit(self, old: "Algorithm[Any]", state: object, now: float) -> State:
        """Give the state that goes on where `old` stands: what was spent there is spent here.

        By default it was all spent now, which is safe, and forgets when it really was.
        """
        return all_spent_now(self, old, state, now)

    def refund(self, state: State, now: float, cost: float, at: float) -> None:
        """Give back, at `now`, `cost` of the tokens that were taken at the instant `at`.

        As if they had never gone, as far as the state can tell: never more than that, so that what
        is left of the history keeps the promise. What no longer counts is not given back.
        By default nothing is.
        """

    @property
    def longest_wait(self) -> float:
        """Seconds. Who would have to wait longer is refused at once, by whoever keeps the line."""
        return math.inf

    def cost_of_refusal(
        self,
        state: State,  # noqa: ARG002
        now: float,  # noqa: ARG002
        cost: float,  # noqa: ARG002
        ahead: float = 0.0,  # noqa: ARG002
    ) -> float:
        """Tokens that a refused `cost` takes all the same, behind the `ahead` that wait.

        It is 0.0 for every algorithm but `WaitUntil`. Who keeps the line takes them, when those
        before them have gone; at once if nobody waits.
        """
        return 0.0

    def dump(self, state: State) -> bytes:
        """Write the state as bytes. The first byte names the algorithm and the version."""
        raise NotImplementedError(f"{type(self).__name__} has no dump(state): no store can keep it")

    def load(self, data: bytes) -> State:
        """Read what an equal algorithm has dumped.

        Raises:
            ValueError: The bytes are no such dump.
        """
        raise NotImplementedError(f"{type(self).__name__} has no load(data): no store can keep it")


def all_spent_now(new: Algorithm[State], old: Algorithm[Any], state: object, now: float) -> State:
    """Give a state of `new` in which what was spent of `old` went at `now`: a debt stays one."""
    fresh = new.start()
    spent = old.used(state, now)
    if 0.0 < spent < math.inf:
        debt = max(0.0, spent - old.capacity)
        new.take(fresh, now, min(spent - debt, new.capacity) + debt)
    return fresh


def two_rates(rate: Rate, algorithm: Algorithm[Any]) -> ValueError:
    """Make the error of giving a rate to what has one."""
    return ValueError(f"two rates: rate_limit={rate} and that of {algorithm!r}; give one of them")


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


# ---- periods aligned to the zero of the clock ---------------------------------------------------


def edge(index: float, width: float) -> float:
    """Give an instant, the first but for rounding, with ``floor(instant / width) >= index``."""
    instant = index * width
    while math.floor(instant / width) < index:
        instant = math.nextafter(instant, math.inf)
    return instant


# ---- dumps --------------------------------------------------------------------------------------


def unpack(layout: struct.Struct, kind: int, data: bytes, algorithm: str) -> tuple[Any, ...]:
    """Read a dump whose first byte is `kind`; gives what follows it."""
    if not data or data[0] != kind:
        begin = f"begin with {data[0]:#04x}, not {kind:#04x}" if data else "are none at all"
        raise ValueError(f"no dump of a {algorithm}: the bytes {begin}")
    if len(data) != layout.size:
        raise ValueError(f"no dump of a {algorithm}: {len(data)} bytes instead of {layout.size}")
    return layout.unpack(data)[1:]


def check_dumped(
    number: float,
    algorithm: str,
    *,
    least: float = -math.inf,
    fresh: bool = False,
    whole: bool = False,
) -> None:
    """Refuse what no state holds: NaN, infinity (but minus infinity if `fresh`), and so on."""
    if fresh and number == -math.inf:
        return
    if (
        not (math.isfinite(number) and number >= least)
        # Beyond 2 to the 53rd a float cannot tell a whole number from the next.
        or (whole and not (number.is_integer() and abs(number) < 2**53))
    ):
        raise ValueError(f"no dump of a {algorithm}: {number!r} cannot be in it")

"""Several limits at once: what goes has to fit under all of them."""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from aiothrottle.algorithms.algorithm import Algorithm, all_spent_now

__all__ = ["AllOf"]

_KIND = 0x81
_HEAD = struct.Struct("<BH")
_SIZE = struct.Struct("<I")


@dataclass(frozen=True, slots=True, init=False)
class AllOf(Algorithm[tuple[Any, ...]]):
    """All of the algorithms hold: the greatest delay of them, and then all are taken, or none.

    The state is the tuple of their states. The delay is exact: the least after which all admit.
    A hit that one of them refuses for good (`longest_wait`) is refused; if that one counts refused
    hits, as `WaitUntil` does, all of them count it.

    Args:
        algorithms: One or more.

    Raises:
        TypeError: One of them is no algorithm.
        ValueError: There is none.

    >>> from aiothrottle.algorithms.sliding_window_log import SlidingWindowLog
    >>> both = AllOf(SlidingWindowLog("10/s"), SlidingWindowLog("12/min"))
    >>> state = both.start()
    >>> sum(both.admit(state, 0.0, 1) for _ in range(20)), both.delay(state, 0.0, 1)
    (10, 1.0)
    >>> sum(both.admit(state, 1.0, 1) for _ in range(20)), both.delay(state, 1.0, 1)
    (2, 59.0)
    """

    algorithms: tuple[Algorithm[Any], ...]

    def __init__(self, *algorithms: Algorithm[Any]) -> None:
        if not algorithms:
            raise ValueError("AllOf is of one algorithm or more")
        for algorithm in algorithms:
            if not isinstance(algorithm, Algorithm):
                raise TypeError(
                    f"AllOf is of algorithms, such as SlidingWindowLog(10): {algorithm!r}"
                )
        object.__setattr__(self, "algorithms", algorithms)  # frozen

    def __repr__(self) -> str:
        return f"AllOf({', '.join(map(repr, self.algorithms))})"

    @property
    def capacity(self) -> float:
        """The least of the capacities."""
        return min(algorithm.capacity for algorithm in self.algorithms)

    @property
    def longest_wait(self) -> float:
        """The least of what they let wait."""
        return min(algorithm.longest_wait for algorithm in self.algorithms)

    def start(self) -> tuple[Any, ...]:
        """Give a fresh state of each."""
        return tuple(algorithm.start() for algorithm in self.algorithms)

    def delay(self, state: tuple[Any, ...], now: float, cost: float) -> float:
        """Seconds until all of them admit `cost`."""
        return self.delay_behind(state, now, cost, 0.0)

    def delay_behind(self, state: tuple[Any, ...], now: float, cost: float, ahead: float) -> float:
        """Seconds until all of them admit it when those ahead have gone."""
        delay = max(
            algorithm.delay_behind(part, now, cost, ahead)
            for algorithm, part in zip(self.algorithms, state, strict=True)
        )
        if ahead:
            return delay
        # An algorithm may admit now and not then, and an instant be off by a rounding: look again
        # there.
        while 0.0 < delay < math.inf:
            more = max(
                algorithm.delay(part, now + delay, cost)
                for algorithm, part in zip(self.algorithms, state, strict=True)
            )
            if more <= 0.0:
                break
            delay = max(delay + more, delay + math.ulp(abs(now) + delay))
        return delay

    def take(self, state: tuple[Any, ...], now: float, cost: float) -> None:
        """Take `cost` of each."""
        for algorithm, part in zip(self.algorithms, state, strict=True):
            algorithm.take(part, now, cost)

    def admit(self, state: tuple[Any, ...], now: float, cost: float) -> bool:
        """Take `cost` of each if it may go now under all of them."""
        algorithms = self.algorithms
        for algorithm, part in zip(algorithms, state, strict=True):
            if algorithm.delay(part, now, cost) > 0.0:
                return False
        for algorithm, part in zip(algorithms, state, strict=True):
            algorithm.take(part, now, cost)
        return True

    def allowance(self, state: tuple[Any, ...], now: float, most: int) -> int:
        """The least that one of them allows."""
        for algorithm, part in zip(self.algorithms, state, strict=True):
            most = most and algorithm.allowance(part, now, most)
        return most

    def take_each(self, state: tuple[Any, ...], instants: Sequence[float]) -> None:
        """Take a cost of 1 of each at each of the instants."""
        for algorithm, part in zip(self.algorithms, state, strict=True):
            algorithm.take_each(part, instants)

    def remaining(self, state: tuple[Any, ...], now: float) -> float:
        """The least of what they have left."""
        return min(
            algorithm.remaining(part, now)
            for algorithm, part in zip(self.algorithms, state, strict=True)
        )

    def used(self, state: tuple[Any, ...], now: float) -> float:
        """What counts where least is left; what is left is less than nothing where there is a debt.

        Some algorithms have all or nothing left, so it is not told from that.
        """
        left = min(
            algorithm.capacity
            - (algorithm.used(part, now) if algorithm.capacity < math.inf else 0.0)
            for algorithm, part in zip(self.algorithms, state, strict=True)
        )
        return 0.0 if math.isinf(left) else self.capacity - left

    def reset_after(self, state: tuple[Any, ...], now: float) -> float:
        """Seconds until all of them may be forgotten."""
        return max(
            algorithm.reset_after(part, now)
            for algorithm, part in zip(self.algorithms, state, strict=True)
        )

    def inherit(self, old: Algorithm[Any], state: object, now: float) -> tuple[Any, ...]:
        """Have each go on where its counterpart stands, if there are as many."""
        if not isinstance(old, AllOf) or len(old.algorithms) != len(self.algorithms):
            return all_spent_now(self, old, state, now)
        parts = cast("tuple[Any, ...]", state)
        pairs = zip(self.algorithms, old.algorithms, parts, strict=True)
        return tuple(new.inherit(before, part, now) for new, before, part in pairs)

    def cost_of_refusal(
        self, state: tuple[Any, ...], now: float, cost: float, ahead: float = 0.0
    ) -> float:
        """The most that one of them takes."""
        return max(
            algorithm.cost_of_refusal(part, now, cost, ahead)
            for algorithm, part in zip(self.algorithms, state, strict=True)
        )

    def refund(self, state: tuple[Any, ...], now: float, cost: float, at: float) -> None:
        """Give `cost` back to each."""
        for algorithm, part in zip(self.algorithms, state, strict=True):
            algorithm.refund(part, now, cost, at)

    def dump(self, state: tuple[Any, ...]) -> bytes:
        """Write the states of all, each behind its length."""
        dumps = [_HEAD.pack(_KIND, len(state))]
        for algorithm, part in zip(self.algorithms, state, strict=True):
            data = algorithm.dump(part)
            dumps += _SIZE.pack(len(data)), data
        return b"".join(dumps)

    def load(self, data: bytes) -> tuple[Any, ...]:
        """Read the states of all."""
        if data[: _HEAD.size] != _HEAD.pack(_KIND, len(self.algorithms)):
            begin = f"begin with {data[: _HEAD.size].hex(' ')}" if data else "are none at all"
            raise ValueError(f"no dump of an AllOf of {len(self.algorithms)}: the bytes {begin}")
        state: list[Any] = []
        place = _HEAD.size
        for algorithm in self.algorithms:
            begin_at = place + _SIZE.size
            if begin_at > len(data):
                raise ValueError(f"no dump of an AllOf: it ends after {len(state)} of the states")
            place = begin_at + _SIZE.unpack_from(data, place)[0]
            if place > len(data):
                raise ValueError(f"no dump of an AllOf: it ends in the midst of {algorithm!r}")
            state.append(algorithm.load(data[begin_at:place]))
        if place != len(data):
            raise ValueError(f"no dump of an AllOf: {len(data) - place} bytes too many")
        return tuple(state)

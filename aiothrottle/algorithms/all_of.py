"""Several limits at once: a cost has to fit under all of them."""

import copy
import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from aiothrottle.algorithms.capabilities import (
    Capabilities,
    capabilities,
    inherit,
    max_wait,
    used,
)
from aiothrottle.algorithms.level import ROUNDING
from aiothrottle.algorithms.protocol import Algorithm, check_algorithm
from aiothrottle.algorithms.sliding_window_counter import SlidingWindowCounter
from aiothrottle.algorithms.sliding_window_log import SlidingWindowLog

__all__ = ["AllOf", "parts_of", "when_all_admit"]

_KIND = 0x81
_HEAD = struct.Struct("<BH")
_SIZE = struct.Struct("<I")


@dataclass(frozen=True, slots=True, init=False)
class AllOf:
    """All of the algorithms hold: the greatest of their delays counts, and all are taken, or none.

    The state is the tuple of their states. The delay is exact: the least after which all admit. A
    request that waits too long for one of them (`max_wait`) is rejected; if that one counts
    rejected requests, as `WaitUntil` does, all of them count it.

    Args:
        algorithms: One or more.

    Raises:
        TypeError: One of them is not an algorithm.
        ValueError: There is none.

    >>> from aiothrottle.algorithms.sliding_window_log import SlidingWindowLog
    >>> both = AllOf(SlidingWindowLog("10/s"), SlidingWindowLog("12/min"))
    >>> state = both.start()
    >>> both.take(state, now=0.0, cost=10)
    >>> both.delay(state, now=0.0, cost=1)
    1.0
    >>> both.take(state, now=1.0, cost=2)
    >>> both.delay(state, now=1.0, cost=1)
    59.0
    """

    algorithms: tuple[Algorithm[Any], ...]
    _can: tuple[Capabilities, ...] = field(repr=False, compare=False)

    def __init__(self, *algorithms: Algorithm[Any]) -> None:
        if not algorithms:
            raise ValueError("AllOf needs one algorithm or more, got none")
        for algorithm in algorithms:
            if isinstance(algorithm, type):
                raise TypeError(
                    f"AllOf needs instances, such as SlidingWindowLog(10), got {algorithm!r}"
                )
            check_algorithm(algorithm, "each of AllOf")
        object.__setattr__(self, "algorithms", algorithms)  # frozen
        object.__setattr__(self, "_can", tuple(map(capabilities, algorithms)))

    def __repr__(self) -> str:
        return f"AllOf({', '.join(map(repr, self.algorithms))})"

    @property
    def capacity(self) -> float:
        """The least of the capacities."""
        return min(algorithm.capacity for algorithm in self.algorithms)

    @property
    def max_wait(self) -> float:
        """The least of the maximum waits."""
        return min(map(max_wait, self.algorithms))

    def start(self) -> tuple[Any, ...]:
        """Return a fresh state of each."""
        return tuple(algorithm.start() for algorithm in self.algorithms)

    def delay(self, state: tuple[Any, ...], now: float, cost: float) -> float:
        """Seconds until all of them admit `cost`."""
        return self.delay_behind(state, now, cost, 0.0)

    def delay_behind(self, state: tuple[Any, ...], now: float, cost: float, ahead: float) -> float:
        """Seconds until all of them admit `cost` after the `ahead` tokens."""
        delay = max(
            can.delay_behind(algorithm, part, now, cost, ahead)
            for algorithm, can, part in self._parts(state)
        )
        if ahead or not delay:
            return delay
        return when_all_admit(
            [(*each, cost) for each in zip(self.algorithms, state, strict=True)], now, delay
        )

    def take(self, state: tuple[Any, ...], now: float, cost: float) -> None:
        """Take `cost` of each."""
        for algorithm, part in zip(self.algorithms, state, strict=True):
            algorithm.take(part, now, cost)

    def allowance(self, state: tuple[Any, ...], now: float, most: int) -> int:
        """Return the least that one of them allows."""
        for algorithm, can, part in self._parts(state):
            most = most and can.allowance(algorithm, part, now, most)
        return most

    def take_each(self, state: tuple[Any, ...], timestamps: Sequence[float]) -> None:
        """Take a cost of 1 of each at each of the timestamps."""
        for algorithm, can, part in self._parts(state):
            can.take_each(algorithm, part, timestamps)

    def remaining(self, state: tuple[Any, ...], now: float) -> float:
        """The least that one of them has remaining."""
        return min(
            algorithm.remaining(part, now)
            for algorithm, part in zip(self.algorithms, state, strict=True)
        )

    def used(self, state: tuple[Any, ...], now: float) -> float:
        """Tokens that count where the least is left; less than none is left where there is a debt.

        Not computed from `remaining`, since for some algorithms that is all or nothing.
        """
        left = min(
            algorithm.capacity
            - (can.used(algorithm, part, now) if algorithm.capacity < math.inf else 0.0)
            for algorithm, can, part in self._parts(state)
        )
        return 0.0 if math.isinf(left) else self.capacity - left

    def reset_after(self, state: tuple[Any, ...], now: float) -> float:
        """Seconds until the states of all may be dropped."""
        return max(
            algorithm.reset_after(part, now)
            for algorithm, part in zip(self.algorithms, state, strict=True)
        )

    def inherit(self, old: Algorithm[Any], state: object, now: float) -> tuple[Any, ...]:
        """Continue each where the tightest of those parts of `old` stands that it can continue.

        These are its counterpart, or all together where it has none; and each part of which all
        that counts there counts under the new one as well, or of which it is known how much.
        """
        parts = parts_of(old, state)
        befores, states = zip(*parts, strict=True)
        counterparts = parts + (len(self.algorithms) - len(parts)) * [(AllOf(*befores), states)]
        continued: list[Any] = []
        for new, (before, stood) in zip(self.algorithms, counterparts, strict=False):
            best = inherit(new, before, stood, now)
            for old_part, part in parts:
                if old_part is not before and _tells(old_part, new):
                    other = inherit(new, old_part, part, now)
                    if used(new, other, now) > used(new, best, now) + ROUNDING:
                        best = other
            # No part may share the state of another one, which it would change.
            is_shared = any(best is each for each in continued)
            continued.append(copy.deepcopy(best) if is_shared else best)
        return tuple(continued)

    def cost_of_reject(
        self, state: tuple[Any, ...], now: float, cost: float, ahead: float
    ) -> float:
        """The most that one of them takes for a rejected `cost`."""
        return max(
            can.cost_of_reject(algorithm, part, now, cost, ahead)
            for algorithm, can, part in self._parts(state)
        )

    def refund(self, state: tuple[Any, ...], now: float, cost: float, at: float) -> None:
        """Give `cost` back to each."""
        for algorithm, can, part in self._parts(state):
            can.refund(algorithm, part, now, cost, at)

    def dump(self, state: tuple[Any, ...]) -> bytes:
        """Return the states of all as bytes, each after its length."""
        dumps = [_HEAD.pack(_KIND, len(state))]
        for algorithm, can, part in self._parts(state):
            data = can.dump(algorithm, part)
            dumps += _SIZE.pack(len(data)), data
        return b"".join(dumps)

    def load(self, data: bytes) -> tuple[Any, ...]:
        """Return the states of all that were dumped."""
        if data[: _HEAD.size] != _HEAD.pack(_KIND, len(self.algorithms)):
            begin = f"begin with {data[: _HEAD.size].hex(' ')}" if data else "are empty"
            raise ValueError(f"not a dump of AllOf of {len(self.algorithms)}: the bytes {begin}")
        state: list[Any] = []
        place = _HEAD.size
        for algorithm, can in zip(self.algorithms, self._can, strict=True):
            begin_at = place + _SIZE.size
            if begin_at > len(data):
                raise ValueError(f"not a dump of AllOf: it ends after {len(state)} of the states")
            place = begin_at + _SIZE.unpack_from(data, place)[0]
            if place > len(data):
                raise ValueError(f"not a dump of AllOf: it ends within the state of {algorithm!r}")
            state.append(can.load(algorithm, data[begin_at:place]))
        if place != len(data):
            raise ValueError(f"not a dump of AllOf: {len(data) - place} bytes too many")
        return tuple(state)

    def _parts(self, state: tuple[Any, ...]) -> Iterator[tuple[Algorithm[Any], Capabilities, Any]]:
        return zip(self.algorithms, self._can, state, strict=True)


def parts_of(algorithm: Algorithm[Any], state: object) -> list[tuple[Algorithm[Any], Any]]:
    """Return the algorithms of an `AllOf`, or the only one, each with its state."""
    if not isinstance(algorithm, AllOf):
        return [(algorithm, state)]
    return list(zip(algorithm.algorithms, cast("tuple[Any, ...]", state), strict=True))


def _tells(old: Algorithm[Any], new: Algorithm[Any]) -> bool:
    """Return whether the state of `old` shows how much at least counts under `new`."""
    if isinstance(new, SlidingWindowLog | SlidingWindowCounter) and type(old) is type(new):
        return True  # it has the instants
    return _memory(old) <= _memory(new) < math.inf


def _memory(algorithm: Algorithm[Any]) -> float:
    """Return the seconds for which tokens count; infinity without a greatest cost."""
    if algorithm.capacity == math.inf:
        return math.inf
    full = algorithm.start()
    algorithm.take(full, 0.0, algorithm.capacity)
    return algorithm.reset_after(full, 0.0)


def when_all_admit(
    parts: Sequence[tuple[Algorithm[Any], Any, float]], now: float, delay: float
) -> float:
    """Return the least delay, from the greatest of all on, after which all admit their costs.

    An algorithm may admit now and not then, and a timestamp be off by a rounding: so each is asked
    again for the later one.

    Args:
        parts: Each algorithm with its state and its cost.
        now: Seconds.
        delay: The greatest of their delays, in seconds.
    """
    while 0.0 < delay < math.inf:
        more = max(algorithm.delay(part, now + delay, cost) for algorithm, part, cost in parts)
        if more <= 0.0:
            break
        delay = max(delay + more, delay + math.ulp(abs(now) + delay))
    return delay

"""The sliding window log: never more than the limit in any period, to the last token.

The definition of such a limit, with every timestamp kept.
"""

import bisect
import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, cast

from aiothrottle.algorithms.protocol import (
    Algorithm,
    all_used_now,
    check_times,
    check_tokens,
    pack,
    set_fields,
    unpack,
    until,
)
from aiothrottle.algorithms.windows import Window
from aiothrottle.rate import Rate, RateLike, as_rate

# While there is room, what has left the window is looked for once in so many entries.
_OFTEN = 256
# The pairs of deleted entries are merged when they are more numbers than this. The first entry of a
# merged pair is then older than the last by this factor at the most.
_LONG, _APART = 160, 1.5
# The first byte of a dump without the costs, as they are all 1, and of one with them.
_UNIT_KIND, _COST_KIND = 0x13, 0x14


# A quarter of the memory of a list of floats, and freed at once.
_numbers: "partial[array[float]]" = partial(array, "d")


def _adds_up(costs: Sequence[float], used: float) -> bool:
    """Return whether that is their sum, but for the rounding of a great cost that has left."""
    total = sum(costs)
    off = 1e-6 * (total + 1)
    return used >= 0.0 and -off <= used - total <= off < math.inf


def _merged(past: "array[float]") -> "array[float]":
    """Merge pairs with later ones: the longer ago they are, the more time a pair stands for."""
    last, latest_first = past[-2], _numbers()
    for at, cost, before in zip(past[-2::-2], past[::-2], [*past[-4::-2], -math.inf], strict=True):
        if latest_first and last - before <= _APART * (last - latest_first[-1]):
            latest_first[-2] += cost
        else:
            latest_first.extend((cost, at))
    return latest_first[::-1]


@dataclass(slots=True)
class SlidingWindowLogState:
    """The log: the timestamps at which tokens were taken, never decreasing, oldest first.

    While every cost is 1 the log is all there is. A cost of another size adds `costs`, as long as
    the log, and their sum `used`. What has left the window stays in the log until its room is
    needed. The first `gone` entries count no more: they are deleted many at a time. `last` is the
    latest timestamp there was, even if what was taken then has been given back. The deleted entries
    are the pairs of `past`: the latest timestamp of some, and the sum of their costs.
    """

    log: "array[float]" = field(default_factory=_numbers)
    last: float = -math.inf
    costs: list[float] | None = None
    used: float = 0.0
    gone: int = 0
    # Not in a dump: a record in a store keeps its window.
    past: "array[float]" = field(default_factory=_numbers, compare=False)

    def __deepcopy__(self, _: object) -> "SlidingWindowLogState":
        costs = self.costs and self.costs[:]  # numbers
        return replace(self, log=self.log[:], costs=costs, past=self.past[:])


@dataclass(frozen=True, slots=True, init=False)
class SlidingWindowLog(Window):
    """Never more than the limit in *any* period, and all of it can be used: the default.

    A cost can be taken when what was taken within the last period leaves room for it. The log of
    timestamps makes that exact; it has one number per token of the limit and up to an eighth of
    that, or two per request where costs differ from 1, and up to 160 of what has left the window. A
    request of exactly one period ago is outside the window.

    Args:
        rate: Tokens per period: a number per second, a string or a `Rate`. A limit that is no whole
            number is the next one in as much more time: 2.5/s as 3 in 1.2 s.

    Raises:
        TypeError: `rate` is of a kind that is not a rate.
        ValueError: `rate` is out of range.

    >>> window = SlidingWindowLog("2/s")
    >>> state = window.start()
    >>> window.take(state, now=0.0, cost=1)
    >>> window.take(state, now=0.25, cost=1)
    >>> window.delay(state, now=0.5, cost=1), window.delay(state, now=1.0, cost=1)
    (0.5, 0.0)
    """

    rate: Rate

    def __init__(self, rate: RateLike) -> None:
        set_fields(self, rate=as_rate(rate))
        self._measure(self.rate)

    def constants(self) -> tuple[float, float, float]:
        """Return limit, period and rounding, by which a port decides to the last bit alike."""
        return self.capacity, self._period, self._rounding

    def start(self) -> SlidingWindowLogState:
        """Return an empty log."""
        return SlidingWindowLogState()

    def delay(self, state: SlidingWindowLogState, now: float, cost: float) -> float:
        """Seconds until enough has left the window for `cost`."""
        if cost > self.capacity:
            return math.inf
        # `_used`, inlined: the consumer asks for each grant.
        used = len(state.log) - state.gone if state.costs is None else state.used
        missing = used + cost - self.capacity
        if missing <= self._rounding or cost == 0:
            return 0.0
        return until(self._leaves_at(state, missing), now)

    def take(self, state: SlidingWindowLogState, now: float, cost: float) -> None:
        """Add `cost` to the log."""
        if cost == 1.0 and state.costs is None and now >= state.last:
            entries = len(state.log)
            if entries - state.gone < self.capacity and entries % _OFTEN:
                state.log.append(now)
                state.last = now
                return
        if cost == 0:
            return
        self._forget(state, now)
        if cost != 1 and state.costs is None:
            self._listed_costs(state)
        state.last = max(state.last, now)
        state.log.append(state.last)
        if state.costs is not None:
            state.costs.append(cost)
            state.used += cost

    def allowance(self, state: SlidingWindowLogState, now: float, most: int) -> int:
        """Return how many the window has room for now: later there is only more."""
        if state.costs is not None:
            return 0
        room = int(self.capacity) - len(state.log) + state.gone
        if room < most:
            room += self._leaving(state, now, most - room)
        return max(0, min(most, room))

    def take_each(self, state: SlidingWindowLogState, timestamps: Sequence[float]) -> None:
        """Add them all to the log."""
        if state.costs is not None:
            for now in timestamps:
                self.take(state, now, 1.0)
        elif timestamps:
            ordered = sorted(timestamps)
            if ordered[0] < state.last or timestamps != ordered:
                ordered = list(accumulate(timestamps, max, initial=state.last))[1:]
            self._forget(state, ordered[-1])
            state.log.fromlist(ordered)
            state.last = ordered[-1]

    def remaining(self, state: SlidingWindowLogState, now: float) -> float:
        """Tokens that the last period leaves of the limit."""
        free = self.capacity - self._used(state) + self._left(state, now)
        return min(self.capacity, max(0.0, free))

    def used(self, state: SlidingWindowLogState, now: float) -> float:
        """Tokens taken within the last period."""
        return self._used(state) - self._left(state, now)

    def reset_after(self, state: SlidingWindowLogState, now: float) -> float:
        """Seconds until the last token has left the window."""
        return until(state.log[-1] + self._period, now) if state.log else 0.0

    def delay_behind(
        self, state: SlidingWindowLogState, now: float, cost: float, ahead: float
    ) -> float:
        """Seconds until enough has left the window for `cost` after the `ahead` tokens."""
        if not (ahead and cost) or cost > self.capacity:
            return self.delay(state, now, cost)
        total = ahead + cost
        turns = max(0, math.ceil((total - self._rounding) / self.capacity) - 1)
        rest = min(self.capacity, total - turns * self.capacity)
        return self.delay(state, now, rest) + turns * self._period

    def refund(self, state: SlidingWindowLogState, now: float, cost: float, at: float) -> None:
        """Delete `cost` from the entries of `at`, if they are still in the window."""
        if at + self._period <= now:
            return
        log = state.log
        end = bisect.bisect_right(log, at)
        while cost > self._rounding and end > state.gone and log[end - 1] == at:
            end -= 1
            taken = 1.0 if state.costs is None else state.costs[end]
            if taken - cost > self._rounding:
                self._listed_costs(state)[end] = taken - cost
                state.used -= cost
            else:
                del log[end]
                if state.costs is not None:
                    del state.costs[end]
                    state.used -= taken
            cost -= taken
        if len(log) == state.gone:
            self._clear(state)

    def dump(self, state: SlidingWindowLogState) -> bytes:
        """Return the log as bytes."""
        kind = _UNIT_KIND if state.costs is None else _COST_KIND
        costs = (state.costs or [])[state.gone :]
        used = state.used if _adds_up(costs, state.used) else sum(costs)
        return pack(kind, state.last, used, *state.log[state.gone :], *costs)

    def load(self, data: bytes) -> SlidingWindowLogState:
        """Return the state that was dumped."""
        algorithm = "SlidingWindowLog"
        if data[:1] == bytes([_COST_KIND]):
            last, used, *numbers = unpack(_COST_KIND, data, algorithm, 2, group=2)
            half = len(numbers) // 2
            entries, costs = numbers[:half], numbers[half:]
            fits = bool(costs) and _adds_up(costs, used)
            check_tokens(algorithm, *costs, least=math.ulp(0.0))
        else:
            last, used, *entries = unpack(_UNIT_KIND, data, algorithm, 2, group=1)
            costs, fits = None, used == 0.0
        check_tokens(algorithm, used)
        check_times(algorithm, last, *entries)
        in_order = all(-math.inf < at <= later for at, later in pairwise([*entries, last]))
        if not (in_order and fits):
            raise ValueError(f"not a dump of {algorithm}: its numbers contradict each other")
        return SlidingWindowLogState(_numbers(entries), last, costs, used)

    def inherit(self, old: Algorithm[Any], state: object, now: float) -> SlidingWindowLogState:
        """Continue with the log of another window; how much fits is found anew.

        In a longer window earlier entries count again. Of those that were deleted some were merged,
        and count at the timestamp of the latest.
        """
        if not isinstance(old, SlidingWindowLog):
            return all_used_now(self, old, state, now)
        kept = cast("SlidingWindowLogState", state)
        kept.gone = 0
        kept.used = math.fsum(kept.costs or ())
        # Entries that may be in the window are put back, the latest first, until it is full.
        past, missing = kept.past, self.capacity
        while missing > 0.0 and past and past[-2] + self._period > now:
            tokens, at = past.pop(), past.pop()
            cost = min(missing, tokens)
            entries = math.ceil(cost)
            if kept.costs is not None or cost != entries:
                self._listed_costs(kept)[:0] = [cost / entries] * entries
                kept.used += cost
            kept.log[:0] = _numbers([at] * entries)
            missing -= cost
            if tokens > cost:
                past.extend((at, tokens - cost))
        return kept

    def _used(self, state: SlidingWindowLogState) -> float:
        return len(state.log) - state.gone if state.costs is None else state.used

    def _left(self, state: SlidingWindowLogState, now: float) -> float:
        """Return the tokens that have left the window and are not `gone`."""
        entries = self._leaving(state, now)
        if state.costs is None:
            return entries
        return math.fsum(state.costs[state.gone : state.gone + entries])

    def _leaves_at(self, state: SlidingWindowLogState, missing: float) -> float:
        """Return when `missing` tokens, counted from the oldest, have left the window."""
        missing -= self._rounding
        if state.costs is None:
            return state.log[state.gone + math.ceil(missing) - 1] + self._period
        for at in range(state.gone, len(state.log)):
            missing -= state.costs[at]
            if missing <= 0:
                return state.log[at] + self._period
        return state.last + self._period  # a debt that was paid has left a rounding behind

    def _leaving(self, state: SlidingWindowLogState, now: float, most: int | None = None) -> int:
        """Return how many entries have left the window and are not `gone`, up to `most`."""
        log, gone, period = state.log, state.gone, self._period
        end = len(log) if most is None else min(len(log), gone + most)
        return bisect.bisect_right(log, now, gone, end, key=lambda at: at + period) - gone

    def _forget(self, state: SlidingWindowLogState, now: float) -> None:
        """Mark what has left the window as `gone`."""
        log, costs, gone = state.log, state.costs, state.gone
        if not log or log[gone] + self._period > now:
            return
        if log[-1] + self._period <= now:
            self._clear(state)
            return
        state.gone += self._leaving(state, now)
        if costs is not None:
            for cost in costs[gone : state.gone]:
                state.used -= cost
        # Deleted when they are an eighth: few have to be moved for each one deleted.
        if 8 * state.gone > len(log):
            self._delete(state, state.gone)
            state.gone = 0

    def _clear(self, state: SlidingWindowLogState) -> None:
        self._delete(state, len(state.log))
        state.costs, state.used, state.gone = None, 0.0, 0

    def _delete(self, state: SlidingWindowLogState, entries: int) -> None:
        """Delete the oldest entries; what they were is needed if the window becomes longer."""
        if entries:
            cost = entries if state.costs is None else sum(state.costs[:entries])
            state.past.extend((state.log[entries - 1], cost))
            if len(state.past) > _LONG:
                state.past = _merged(state.past)
            del state.log[:entries]
            if state.costs is not None:
                del state.costs[:entries]

    def _listed_costs(self, state: SlidingWindowLogState) -> list[float]:
        """Return the costs; if all of them were 1 so far, they are listed from now on."""
        if state.costs is None:
            state.costs = [1.0] * len(state.log)
            state.used = len(state.log) - state.gone
        return state.costs

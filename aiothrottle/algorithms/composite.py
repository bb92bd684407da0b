"""Several limits at once, of one resource or of several; and no limit at all."""

import copy
import math
import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

from aiothrottle.algorithms.protocol import (
    Algorithm,
    Capabilities,
    capabilities,
    check_instance,
    inherit,
    max_wait,
    memory_of,
    pack,
    set_fields,
    unpack,
    used,
)
from aiothrottle.algorithms.sliding_window_log import SlidingWindowLog
from aiothrottle.algorithms.windows import Sections
from aiothrottle.amounts import REQUESTS, ROUNDING, Amounts, amounts

# The first byte of a dump; of several states, their number and the length of each follow.
_NONE_KIND, _SEVERAL_KIND = 0x01, 0x81
_HEAD = struct.Struct("<BH")
_SIZE = struct.Struct("<I")

States: TypeAlias = tuple[Any, ...]
# An algorithm, and where it stands.
_Stood: TypeAlias = tuple[Algorithm[Any], Any]
_Part: TypeAlias = tuple[int, Algorithm[Any], Capabilities]


@dataclass(frozen=True, slots=True, init=False)
class Composite(ABC):
    """Several algorithms, each of which takes its share of a cost.

    The state is the tuple of their states.
    """

    algorithms: tuple[Algorithm[Any], ...]
    #: The least of the capacities; of several resources, that of each.
    capacity: float = field(init=False, repr=False, compare=False)
    # The place of each, in the state too, the algorithm, and what it can do.
    _parts: tuple[_Part, ...] = field(init=False, repr=False, compare=False)
    # What each of them takes of a cost of 1.
    _ones: list[float] = field(init=False, repr=False, compare=False)

    def __init__(self, *algorithms: Algorithm[Any]) -> None:
        if not algorithms:
            raise ValueError("AllOf needs one algorithm or more, got none")
        for algorithm in algorithms:
            check_instance(algorithm, "each of AllOf")
        parts = tuple((n, each, capabilities(each)) for n, each in enumerate(algorithms))
        set_fields(self, algorithms=algorithms, _parts=parts)
        set_fields(self, capacity=self._limits([each.capacity for each in algorithms]))
        set_fields(self, _ones=self._shares(1.0))

    @property
    def max_wait(self) -> float:
        """The least of the maximum waits."""
        return min(map(max_wait, self.algorithms))

    def start(self) -> States:
        """Return a fresh state of each."""
        return tuple(algorithm.start() for algorithm in self.algorithms)

    def reset_after(self, state: States, now: float) -> float:
        """Seconds until the states of all may be dropped."""
        return max(each.reset_after(state[place], now) for place, each, _ in self._parts)

    def dump(self, state: States) -> bytes:
        """Return the states of all as bytes, each after its length."""
        dumps = [_HEAD.pack(_SEVERAL_KIND, len(state))]
        for place, algorithm, can in self._parts:
            data = can.dump(algorithm, state[place])
            dumps += _SIZE.pack(len(data)), data
        return b"".join(dumps)

    def load(self, data: bytes) -> States:
        """Return the states of all that were dumped."""
        if data[: _HEAD.size] != _HEAD.pack(_SEVERAL_KIND, len(self.algorithms)):
            begin = f"begin with {data[: _HEAD.size].hex(' ')}" if data else "are empty"
            raise ValueError(f"not a dump of AllOf of {len(self.algorithms)}: the bytes {begin}")
        state: list[Any] = []
        end = _HEAD.size
        for place, algorithm, can in self._parts:
            begin_at = end + _SIZE.size
            if begin_at > len(data):
                raise ValueError(f"not a dump of AllOf: it ends after {place} of the states")
            end = begin_at + _SIZE.unpack_from(data, end)[0]
            if end > len(data):
                raise ValueError(f"not a dump of AllOf: it ends within the state of {algorithm!r}")
            state.append(can.load(algorithm, data[begin_at:end]))
        if end != len(data):
            raise ValueError(f"not a dump of AllOf: {len(data) - end} bytes too many")
        return tuple(state)

    @abstractmethod
    def _shares(self, cost: float) -> list[float]:
        """Return what each of them takes of the cost."""

    @abstractmethod
    def _limits(self, tokens: Sequence[float]) -> float:
        """Return the least of what each has."""

    def delay(self, state: States, now: float, cost: float) -> float:
        """Seconds until all of them admit what they take of `cost`."""
        costs, delay = self._shares(cost), 0.0
        while True:
            more = 0.0
            for place, algorithm, _ in self._parts:
                each = algorithm.delay(state[place], now + delay, costs[place])
                if each > more:
                    more = each
            if not more or more == math.inf:
                return delay + more
            # One may admit now and not then, and a timestamp be off by a rounding: they are asked
            # again for the later one.
            delay = max(delay + more, delay + math.ulp(abs(now) + delay)) if delay else more

    def delay_behind(self, state: States, now: float, cost: float, ahead: float) -> float:
        """Seconds until all of them admit what they take of `cost`, after the `ahead` tokens."""
        if not ahead:
            return self.delay(state, now, cost)
        costs, before, delay = self._shares(cost), self._shares(ahead), 0.0
        for place, algorithm, can in self._parts:
            tokens, first = costs[place], before[place]
            if first > ROUNDING and not tokens and cost:
                # It needs nothing of this resource, but may not overtake the requests that do.
                tokens = min(first, algorithm.capacity)
                first -= tokens
            if tokens:
                each = can.delay_behind(algorithm, state[place], now, tokens, first)
                if each > delay:
                    delay = each
        return delay

    def take(self, state: States, now: float, cost: float) -> None:
        """Take of each what it takes of the cost."""
        costs = self._shares(cost)
        for place, algorithm, _ in self._parts:
            if costs[place]:
                algorithm.take(state[place], now, costs[place])

    def allowance(self, state: States, now: float, most: int) -> int:
        """Return how many costs of 1 all of them allow."""
        for place, algorithm, can in self._parts:
            if most and self._ones[place]:
                most = can.allowance(algorithm, state[place], now, most)
        return most

    def take_each(self, state: States, timestamps: Sequence[float]) -> None:
        """Take a cost of 1 at each of the timestamps."""
        for place, algorithm, can in self._parts:
            if self._ones[place]:
                can.take_each(algorithm, state[place], timestamps)

    def remaining(self, state: States, now: float) -> float:
        """The least that one of them has remaining; of several resources, that of each."""
        return self._limits([each.remaining(state[place], now) for place, each, _ in self._parts])

    def refund(self, state: States, now: float, cost: float, at: float) -> None:
        """Give back to each what it took of the cost."""
        costs = self._shares(cost)
        for place, algorithm, can in self._parts:
            if costs[place]:
                can.refund(algorithm, state[place], now, costs[place], at)

    def _cost_of_rejects(self, state: States, now: float, cost: float, ahead: float) -> list[float]:
        """Return what each of them takes of a rejected cost."""
        costs, before = self._shares(cost), self._shares(ahead)
        return [
            can.cost_of_reject(algorithm, state[place], now, costs[place], before[place])
            for place, algorithm, can in self._parts
        ]


@dataclass(frozen=True, slots=True, init=False)
class AllOf(Composite):
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

    def __repr__(self) -> str:
        return f"AllOf({', '.join(map(repr, self.algorithms))})"

    def _shares(self, cost: float) -> list[float]:
        return [cost] * len(self.algorithms)

    def _limits(self, tokens: Sequence[float]) -> float:
        return min(tokens)

    def used(self, state: States, now: float) -> float:
        """Tokens that count where the least is left; less than none is left where there is a debt.

        Not computed from `remaining`, since for some algorithms that is all or nothing.
        """
        left = min(
            algorithm.capacity - can.used(algorithm, state[place], now)
            for place, algorithm, can in self._parts
        )
        return 0.0 if math.isinf(left) else self.capacity - left

    def inherit(self, old: Algorithm[Any], state: object, now: float) -> States:
        """Continue each where the tightest of those parts of `old` stands that it can continue.

        These are its counterpart, or all together where it has none; and each part of which all
        that counts there counts under the new one as well, or of which it is known how much.
        But where one part has counted the same, that one alone. And a log continues the longest
        one: a shorter one has forgotten when tokens were taken.
        """
        parts = parts_of(old, state)
        befores, states = zip(*parts, strict=True)
        together = AllOf(*befores), states
        continued: list[Any] = []
        for place, new in enumerate(self.algorithms):
            counterpart = parts[place] if place < len(parts) else together
            best = _continue(new, counterpart, parts, now)
            # No part may share the state of another one, which it would change.
            is_shared = any(best is each for each in continued)
            continued.append(copy.deepcopy(best) if is_shared else best)
        return tuple(continued)

    def cost_of_reject(self, state: States, now: float, cost: float, ahead: float) -> float:
        """The most that one of them takes for a rejected `cost`."""
        return max(self._cost_of_rejects(state, now, cost, ahead))


def parts_of(algorithm: Algorithm[Any], state: object) -> list[_Stood]:
    """Return the algorithms of an `AllOf`, or the only one, each with its state."""
    if not isinstance(algorithm, AllOf):
        return [(algorithm, state)]
    return list(zip(algorithm.algorithms, cast("States", state), strict=True))


def _continue(new: Algorithm[Any], counterpart: _Stood, parts: list[_Stood], now: float) -> Any:  # noqa: ANN401 - its state
    """Return the state of `new`, by the rules of `AllOf.inherit`."""
    for part in parts:
        if _counts_alike(part[0], new):
            return inherit(new, *part, now)
    logs = [part for part in parts if isinstance(part[0], SlidingWindowLog)]
    if logs and isinstance(new, SlidingWindowLog):
        return inherit(new, *max(logs, key=lambda part: memory_of(part[0])), now)
    others = [part for part in parts if part is not counterpart and _tells(part[0], new)]
    states = [inherit(new, *part, now) for part in (counterpart, *others)]
    return max(states, key=lambda state: round(used(new, state, now), 9))


def _counts_alike(old: Algorithm[Any], new: Algorithm[Any]) -> bool:
    """Return whether a state of `old` is one of `new` as well."""
    if isinstance(old, Sections) and isinstance(new, Sections):
        return old.constants()[1::2] == new.constants()[1::2]  # whatever their limit
    return old == new


def _tells(old: Algorithm[Any], new: Algorithm[Any]) -> bool:
    """Return whether the state of `old` shows how much at least counts under `new`."""
    if isinstance(new, Sections) and type(old) is type(new):
        return True  # it has the sections
    if math.inf in (old.capacity, new.capacity):
        return False
    return memory_of(old) <= memory_of(new) < math.inf


@dataclass(frozen=True, slots=True, init=False)
class PerResource(Composite):
    """Each algorithm takes the tokens of its resource from the cost: all of them take, or none.

    A cost is an `Amounts`, or a number of `REQUESTS`. A resource of which a request needs nothing
    does not delay it, but for the requests ahead of it, which it never overtakes.

    Args:
        parts: Algorithms, each with the name of its resource. A resource may have several.

    Raises:
        TypeError: One of them is not an algorithm.
        ValueError: There is none.

    >>> from aiothrottle.algorithms.sliding_window_log import SlidingWindowLog
    >>> both = PerResource(
    ...     ("requests", SlidingWindowLog("2/s")), ("tokens", SlidingWindowLog("10/min"))
    ... )
    >>> state = both.start()
    >>> both.take(state, now=0.0, cost=amounts({"requests": 1, "tokens": 10}))
    >>> both.delay(state, now=0.0, cost=1), both.delay(state, 0.0, amounts({"tokens": 1}))
    (0.0, 60.0)
    """

    names: tuple[str, ...]

    def __init__(self, *parts: tuple[str, Algorithm[Any]]) -> None:
        set_fields(self, names=tuple(name for name, _ in parts))
        Composite.__init__(self, *(algorithm for _, algorithm in parts))

    def __repr__(self) -> str:
        parts = map("{}: {!r}".format, self.names, self.algorithms)
        return f"PerResource({', '.join(parts)})"

    @property
    def resources(self) -> tuple[str, ...]:
        """The resources, `REQUESTS` first: it is one although it may have no limit."""
        return tuple(dict.fromkeys((REQUESTS, *self.names)))

    @property
    def by_resource(self) -> dict[str, AllOf]:
        """The algorithms of each resource."""
        names = dict.fromkeys(self.names)
        return {it: AllOf(*(self.algorithms[n] for n in self._places(it))) for it in names}

    def of_requests(self, state: States) -> tuple[AllOf, States] | None:
        """Return the algorithms of `REQUESTS` with their state; None if there are none.

        Args:
            state: The state of all, from `start`.
        """
        return self._of(REQUESTS, state) if REQUESTS in self.names else None

    def _places(self, name: str) -> list[int]:
        return [place for place, each in enumerate(self.names) if each == name]

    def _of(self, name: str, state: States) -> tuple[AllOf, States]:
        return self.by_resource[name], tuple(state[place] for place in self._places(name))

    def _shares(self, cost: float) -> list[float]:
        tokens = cost.by_name if isinstance(cost, Amounts) else {REQUESTS: cost}
        return [tokens.get(name, 0.0) for name in self.names]

    def _limits(self, tokens: Sequence[float]) -> Amounts:
        limits = dict.fromkeys(self.resources, math.inf)  # requests may have no limit
        for name, limit in zip(self.names, tokens, strict=True):
            limits[name] = min(limit, limits[name])
        return Amounts(limits)

    def inherit(self, old: Algorithm[Any], state: object, now: float) -> States:
        """Continue each resource where it stands in `old`; one that is new there is fresh."""
        states = list(self.start())
        if isinstance(old, PerResource):
            for name, algorithm in self.by_resource.items():
                if name in old.names:
                    stood = old._of(name, cast("States", state))
                    continued = inherit(algorithm, *stood, now)
                    for place, each in zip(self._places(name), continued, strict=True):
                        states[place] = each
        return tuple(states)

    def cost_of_reject(self, state: States, now: float, cost: float, ahead: float) -> float:
        """What a rejected cost takes nevertheless: of each resource the most of its algorithms."""
        costs = dict.fromkeys(self.names, 0.0)
        rejects = self._cost_of_rejects(state, now, cost, ahead)
        for name, taken in zip(self.names, rejects, strict=True):
            costs[name] = max(taken, costs[name])
        return amounts(costs)


@dataclass(frozen=True, slots=True)
class Unlimited:
    """Every cost can be taken at any time. There is no state."""

    #: Infinity.
    capacity: float = field(default=math.inf, init=False, repr=False, compare=False)

    def start(self) -> None:
        """Return None: there is no state."""

    def delay(self, state: None, now: float, cost: float) -> float:  # noqa: ARG002
        """Return 0.0: now."""
        return 0.0

    def take(self, state: None, now: float, cost: float) -> None:
        """Do nothing."""

    def delay_behind(self, state: None, now: float, cost: float, ahead: float) -> float:  # noqa: ARG002
        """Return 0.0: now."""
        return 0.0

    def allowance(self, state: None, now: float, most: int) -> int:  # noqa: ARG002
        """Return `most`."""
        return most

    def take_each(self, state: None, timestamps: Sequence[float]) -> None:
        """Do nothing."""

    def remaining(self, state: None, now: float) -> float:  # noqa: ARG002
        """Return infinity."""
        return math.inf

    def reset_after(self, state: None, now: float) -> float:  # noqa: ARG002
        """Return 0.0: there is nothing to drop."""
        return 0.0

    def dump(self, state: None) -> bytes:  # noqa: ARG002
        """Return one byte, which names the algorithm."""
        return pack(_NONE_KIND)

    def load(self, data: bytes) -> None:
        """Check that byte."""
        unpack(_NONE_KIND, data, "Unlimited", 0)

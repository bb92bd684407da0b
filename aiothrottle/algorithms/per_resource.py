"""Several resources at once: of each, a cost has to fit under all of its limits."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from aiothrottle.algorithms.all_of import AllOf, when_all_admit
from aiothrottle.algorithms.capabilities import Capabilities, capabilities, inherit
from aiothrottle.algorithms.protocol import Algorithm
from aiothrottle.amounts import REQUESTS, ROUNDING, Amounts, amounts, by_name

__all__ = ["PerResource"]


@dataclass(frozen=True, slots=True, init=False)
class PerResource:
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
    algorithms: tuple[Algorithm[Any], ...]
    # What has nothing to do with costs is the same as with a single resource.
    _all: AllOf = field(repr=False, compare=False)
    _can: tuple[Capabilities, ...] = field(repr=False, compare=False)
    _capacity: Amounts = field(repr=False, compare=False)

    def __init__(self, *parts: tuple[str, Algorithm[Any]]) -> None:
        names = tuple(name for name, _ in parts)
        algorithms = tuple(algorithm for _, algorithm in parts)
        set_field = object.__setattr__  # frozen
        set_field(self, "names", names)
        set_field(self, "algorithms", algorithms)
        set_field(self, "_all", AllOf(*algorithms))
        set_field(self, "_can", tuple(map(capabilities, algorithms)))
        set_field(self, "_capacity", self._limits([each.capacity for each in algorithms]))

    def __repr__(self) -> str:
        parts = map("{}: {!r}".format, self.names, self.algorithms)
        return f"PerResource({', '.join(parts)})"

    @property
    def capacity(self) -> float:
        """The greatest cost of each resource."""
        return self._capacity

    @property
    def max_wait(self) -> float:
        """The least of the maximum waits."""
        return self._all.max_wait

    @property
    def resources(self) -> tuple[str, ...]:
        """The resources, `REQUESTS` first: it is one although it may have no limit."""
        return tuple(dict.fromkeys((REQUESTS, *self.names)))

    @property
    def by_resource(self) -> dict[str, AllOf]:
        """The algorithms of each resource."""
        return {
            name: AllOf(*(self.algorithms[place] for place in places))
            for name, places in self._places().items()
        }

    def of_requests(self, state: tuple[Any, ...]) -> tuple[AllOf, tuple[Any, ...]] | None:
        """Return the algorithms of `REQUESTS` with their state; None if there are none.

        Args:
            state: The state of all, from `start`.
        """
        requests = self.by_resource.get(REQUESTS)
        if requests is None:
            return None
        return requests, tuple(state[place] for place in self._places()[REQUESTS])

    def start(self) -> tuple[Any, ...]:
        """Return a fresh state of each."""
        return self._all.start()

    def delay(self, state: tuple[Any, ...], now: float, cost: float) -> float:
        """Seconds until all of them admit their part of the cost."""
        return self.delay_behind(state, now, cost, 0.0)

    def delay_behind(self, state: tuple[Any, ...], now: float, cost: float, ahead: float) -> float:
        """Seconds until all of them admit their part of the cost after the `ahead` tokens."""
        wanted = by_name(cost)
        before: Mapping[str, float] = by_name(ahead) if ahead else {}
        delay = 0.0
        for name, algorithm, can, part in self._parts(state):
            tokens, first = wanted.get(name, 0.0), before.get(name, 0.0)
            if first > ROUNDING and not tokens and cost:
                # It needs nothing of this resource, but may not overtake the requests that do.
                tokens = min(first, algorithm.capacity)
                first -= tokens
            if tokens:
                delay = max(delay, can.delay_behind(algorithm, part, now, tokens, first))
        if ahead or not delay:
            return delay
        costs = [
            (algorithm, part, wanted.get(name, 0.0))
            for name, algorithm, _, part in self._parts(state)
        ]
        return when_all_admit(costs, now, delay)

    def take(self, state: tuple[Any, ...], now: float, cost: float) -> None:
        """Take of each its part of the cost."""
        wanted = by_name(cost)
        for name, algorithm, _, part in self._parts(state):
            if tokens := wanted.get(name):
                algorithm.take(part, now, tokens)

    def allowance(self, state: tuple[Any, ...], now: float, most: int) -> int:
        """Return how many single requests all of them allow."""
        for name, algorithm, can, part in self._parts(state):
            if name == REQUESTS and most:
                most = can.allowance(algorithm, part, now, most)
        return most

    def take_each(self, state: tuple[Any, ...], timestamps: Sequence[float]) -> None:
        """Take a single request at each of the timestamps."""
        for name, algorithm, can, part in self._parts(state):
            if name == REQUESTS:
                can.take_each(algorithm, part, timestamps)

    def remaining(self, state: tuple[Any, ...], now: float) -> float:
        """The tokens of each resource that can be taken at `now`."""
        return self._limits(
            [
                algorithm.remaining(part, now)
                for algorithm, part in zip(self.algorithms, state, strict=True)
            ]
        )

    def reset_after(self, state: tuple[Any, ...], now: float) -> float:
        """Seconds until the states of all may be dropped."""
        return self._all.reset_after(state, now)

    def inherit(self, old: Algorithm[Any], state: object, now: float) -> tuple[Any, ...]:
        """Continue each resource where it stands in `old`; one that is new there is fresh."""
        states: list[Any] = [*self.start()]
        if isinstance(old, PerResource):
            parts, before = cast("tuple[Any, ...]", state), old.by_resource
            old_places = old._places()  # noqa: SLF001 - of the same class
            for name, algorithm in self.by_resource.items():
                if name in before:
                    stood = tuple(parts[place] for place in old_places[name])
                    continued = inherit(algorithm, before[name], stood, now)
                    for place, each in zip(self._places()[name], continued, strict=True):
                        states[place] = each
        return tuple(states)

    def cost_of_reject(
        self, state: tuple[Any, ...], now: float, cost: float, ahead: float
    ) -> float:
        """What a rejected cost takes nevertheless: of each resource the most of its algorithms."""
        wanted, before = by_name(cost), by_name(ahead)
        costs: dict[str, float] = {}
        for name, algorithm, can, part in self._parts(state):
            if tokens := wanted.get(name):
                first = before.get(name, 0.0)
                taken = can.cost_of_reject(algorithm, part, now, tokens, first)
                costs[name] = max(taken, costs.get(name, 0.0))
        return amounts(costs)

    def refund(self, state: tuple[Any, ...], now: float, cost: float, at: float) -> None:
        """Give back to each its part of the cost."""
        returned = by_name(cost)
        for name, algorithm, can, part in self._parts(state):
            if tokens := returned.get(name):
                can.refund(algorithm, part, now, tokens, at)

    def dump(self, state: tuple[Any, ...]) -> bytes:
        """Return the states of all as bytes."""
        return self._all.dump(state)

    def load(self, data: bytes) -> tuple[Any, ...]:
        """Return the states of all that were dumped."""
        return self._all.load(data)

    def _parts(
        self, state: tuple[Any, ...]
    ) -> Iterator[tuple[str, Algorithm[Any], Capabilities, Any]]:
        return zip(self.names, self.algorithms, self._can, state, strict=True)

    def _limits(self, tokens: Sequence[float]) -> Amounts:
        """Return the least of each resource; requests without a limit are infinite."""
        limits = dict.fromkeys(self.resources, math.inf)
        for name, limit in zip(self.names, tokens, strict=True):
            limits[name] = min(limit, limits[name])
        return Amounts(limits)

    def _places(self) -> dict[str, list[int]]:
        """Return the places of each resource among the algorithms."""
        places: dict[str, list[int]] = {}
        for place, name in enumerate(self.names):
            places.setdefault(name, []).append(place)
        return places

"""What a process grants by itself while its store fails, and what it has granted meanwhile.

Strategy. With "local", while the store answers, the record here is kept no emptier than that of the
store, from the answers, so it has what all processes have spent. Without the store every token that
is granted here counts `divisor` times: once for this process and once for each of the others, which
are assumed to do the same. So together they keep within the limit, whatever its algorithm, and no
algorithm has to be scaled.

The divisor is that of the user's `local_share`, exact and free; or without one the number of the
processes that use the store, as far as is known.

Invariant: every instant that is granted here is a `Here`: no store has taken tokens for it.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from aiothrottle.algorithms import Algorithm, AllOf, PerResource, WaitUntil
from aiothrottle.algorithms.protocol import inherit, max_wait, memory_of
from aiothrottle.algorithms.windows import Window
from aiothrottle.amounts import Amounts, common, nothing, positive, total
from aiothrottle.stores.health import FIRST_PAUSE
from aiothrottle.stores.record import Record
from aiothrottle.stores.store import Answer, Step

if TYPE_CHECKING:
    from aiothrottle.stores.outage import Outage

# The inverse of the smallest numbers is infinite, and infinity times a cost of 0 is no number.
_MOST = 1e12
# A token counts as this many times the capacity at the most: each time is a step of its own.
_MOST_STEPS = 10_000
# A token may count for so much of a period too long.
_PORTIONS = 32


class Here(float):
    """An instant of this process's clock, of which the store knows nothing."""

    __slots__ = ("divisor",)

    #: The cost was multiplied by this, see `Fallback._spend`.
    divisor: float

    def __new__(cls, instant: float, divisor: float = 1.0) -> Self:
        """Return the instant with its mark."""
        here = super().__new__(cls, instant)
        here.divisor = divisor
        return here


class Fallback:
    """The fallback of one limiter: a store that reserves nothing ahead, except with `WaitUntil`.

    Args:
        outage: The choice of what serves, and the health of the server.
        algorithm: Decides in the store.

    >>> from aiothrottle.algorithms import SlidingWindowLog
    >>> from aiothrottle.stores import MemoryStore
    >>> from aiothrottle.stores.outage import Outage
    >>> outage = Outage(MemoryStore(), "key", "local", local_share=0.25, report=print)
    >>> fallback = Fallback(outage, SlidingWindowLog("10/s"))
    >>> for _ in range(2):  # a quarter of ten
    ...     answer = fallback.apply(0.0, Step("reserve", [1]))
    >>> fallback.patience(0.0, 1)
    1.0
    """

    __slots__ = ("_given", "_outage", "_record", "algorithm", "spent")

    def __init__(self, outage: "Outage", algorithm: Algorithm[Any]) -> None:
        self._outage = outage
        share = outage.local_share
        # The divisor of the user's share; None: the processes are counted.
        self._given = None if share is None else min(1 / share, _MOST)
        #: Decides in the store.
        self.algorithm: Algorithm[Any] = algorithm
        self.forget()

    def forget(self) -> None:
        """Begin anew, by another clock, or as the record was deleted."""
        #: The tokens that were granted since the store fails; None while it does not fail.
        self.spent: Spent | None = None
        # What all processes are known to have spent, and assumed to spend; None unless "local".
        self._record: Record | None = None
        if self._outage.choice == "local":
            self._record = Record(self.algorithm.start())

    def use(self, algorithm: Algorithm[Any], now: float) -> None:
        """Continue with another algorithm; what was spent stays spent."""
        if self._record is not None:
            self._record.state = inherit(algorithm, self.algorithm, self._record.state, now)
        self.algorithm = algorithm

    @property
    def _divisor(self) -> float:
        """The limit divided by this is the share: 1.0 or more."""
        return self._given or self._outage.health.counter.processes

    def must_count(self) -> bool:
        """Return whether it is time to count the processes; if so, the caller has to."""
        return self._given is None and self._outage.health.counter.is_due()

    @property
    def reserves_ahead(self) -> bool:
        """Whether it grants tokens for later instants, as `SharedWaitUntil` needs it."""
        return self._record is not None and isinstance(self.algorithm, WaitUntil)

    def note_answer(self, now: float, answer: Answer, spent: float) -> None:
        """Take in an answer of the store, which has just granted `spent` tokens to this process."""
        algorithm, record = self.algorithm, self._record
        assert record is not None  # it is asked with "local" only
        if isinstance(algorithm, WaitUntil):  # its remaining tokens are all or nothing
            unseen = answer.reset_after - record.reset_after(algorithm, now)
            record.record(algorithm, now, max(0.0, unseen) / algorithm.interval)
            return
        if spent:
            record.take(algorithm, now, now, now + answer.delays[-1], spent)
        # The other processes have spent whatever else is missing there.
        here = algorithm.remaining(record.state, now)
        if unseen := positive(here - answer.remaining):
            record.record(algorithm, now, unseen)

    def begin_outage(self) -> None:
        """Count what is granted from now on, as the store fails."""
        self.spent = Spent(memory_of(self.algorithm))

    # ---- a step ----------------------------------------------------------------------------------

    def apply(self, now: float, step: Step) -> Answer:
        """Do the step."""
        if step.method == "reserve":
            return self._reserve(now, step.costs, step.seconds)
        (cost,) = step.costs
        if step.method == "refund":
            self.refund(now, cost, step.seconds)
        elif step.method == "record":
            self._count(now, cost)
        wait = self._wait(now, cost) if step.method == "peek" else 0.0
        return self._answer(now, (), wait)

    def _reserve(self, now: float, costs: Sequence[float], max_reservation: float) -> Answer:
        """Grant, in order, as many of the costs as may start now, or soon enough."""
        divisor, longest = self._divisor, max_reservation if self.reserves_ahead else 0.0
        instants: list[float] = []
        for place, cost in enumerate(costs):
            wait = self._wait(now, cost)
            if wait > longest:
                if max_wait(self.algorithm) <= longest < wait < math.inf:
                    # Rejected requests count, as in a store.
                    self._count(now, total(costs[place:]))
                return self._answer(now, tuple(instants), wait)
            self._spend(now, cost, divisor)
            instants.append(Here(now + wait, divisor))
        return self._answer(now, tuple(instants), 0.0)

    def _spend(self, now: float, cost: float, divisor: float) -> None:
        """Spend the cost, now or as soon as it may start."""
        if self.spent is not None:
            self.spent.add(now, cost)
        if self._record is None:
            return
        capacity = self.algorithm.capacity
        rest = common(cost * divisor, _MOST_STEPS * capacity)
        while rest:
            # What is more than the capacity is taken as soon as it fits: so one of eight processes
            # that share two per minute starts one request every four minutes.
            part = common(rest, capacity)
            self._record.reserve(self.algorithm, now, [part], math.inf)
            rest -= part

    def _count(self, now: float, cost: float) -> None:
        """Count a cost that was spent already, whether it fits or not."""
        if self._record is not None:
            self._record.record(self.algorithm, now, cost)
        if self.spent is not None:
            self.spent.add(now, cost)

    def refund(self, now: float, cost: float, instant: float) -> None:
        """Give back what was granted for that instant here, except what exceeded the capacity."""
        if isinstance(instant, Here):
            if self._record is not None:
                back = common(cost * instant.divisor, self.algorithm.capacity)
                self._record.refund(self.algorithm, now, back, instant)
            if self.spent is not None:
                self.spent.subtract(cost, instant)

    def _wait(self, now: float, cost: float) -> float:
        """Seconds after which to ask again for the cost; 0.0 if it may start."""
        if not cost or self._outage.choice == "open":
            return 0.0
        wait = self.patience(now, cost)
        if self.reserves_ahead:
            return wait
        return min(max(FIRST_PAUSE, self._outage.health.pause()), wait)

    def patience(self, now: float, cost: float) -> float:
        """Seconds after which it may grant the cost by itself; infinity if it never does."""
        if self._record is None:
            return math.inf
        first = common(cost * self._divisor, self.algorithm.capacity)
        return self._record.peek(self.algorithm, now, first).retry_after

    def _answer(self, now: float, instants: tuple[float, ...], wait: float) -> Answer:
        capacity = self.algorithm.capacity
        remaining, reset_after = nothing(capacity), 0.0
        if self._record is not None:
            known = self._record.peek(self.algorithm, now, 0.0)
            remaining, reset_after = known.remaining / self._divisor, known.reset_after
        elif self._outage.choice == "open":
            remaining = capacity
        return Answer(Here(now), instants, wait, remaining, reset_after)

    # ---- the return of the store -----------------------------------------------------------------

    def total(self, now: float) -> float:
        """Return how many of the tokens granted since the store fails still count."""
        return 0.0 if self.spent is None else self.spent.total(now)

    def most_counting(self, now: float) -> float:
        """Return how many of them the store has to count, at the most: a debt is bounded."""
        if self._record is not None and isinstance(self.algorithm, WaitUntil):
            seconds = self._record.reset_after(self.algorithm, now)
            return seconds / self.algorithm.interval / self._divisor
        return _most(self.algorithm)

    def is_forgettable(self, now: float) -> bool:
        """Return whether a new fallback would answer the same."""
        record = self._record
        is_fresh = record is None or record.reset_after(self.algorithm, now) == 0.0
        return not self.total(now) and is_fresh


def _most(algorithm: Algorithm[Any]) -> float:
    """Return the most tokens that, recorded at once, are no debt after a period of the algorithm.

    Of several windows that is the greatest limit: a shorter one forgets them after its own period.
    """
    if isinstance(algorithm, PerResource):
        most = {name: _most(each) for name, each in algorithm.by_resource.items()}
        return Amounts(dict.fromkeys(algorithm.resources, math.inf) | most)
    if isinstance(algorithm, AllOf) and all(isinstance(it, Window) for it in algorithm.algorithms):
        return max(it.capacity for it in algorithm.algorithms)
    return algorithm.capacity


def expires(algorithm: Algorithm[Any]) -> bool:
    """Return whether a token stops counting after a fixed time, as in a window.

    In a bucket it counts until the bucket is empty, however late that is.
    """
    if isinstance(algorithm, AllOf | PerResource):
        return all(expires(each) for each in algorithm.algorithms)
    return isinstance(algorithm, Window)


# ---- the tokens that were spent lately -----------------------------------------------------------


@dataclass(slots=True)
class _Portion:
    begin: float
    cost: float


class Spent:
    """Tokens that count for a period each.

    >>> spent = Spent(period=60.0)
    >>> spent.add(0.0, 5); spent.add(30.0, 2)
    >>> spent.total(50.0), spent.cap(4.0), spent.pop_expired(80.0), spent.total(80.0)
    (7.0, 4.0, 2.0, 2.0)
    """

    __slots__ = ("_period", "_portions", "_width")

    def __init__(self, period: float) -> None:
        self._width = period / _PORTIONS
        self._period = period + self._width
        self._portions: deque[_Portion] = deque()

    @property
    def expires_at(self) -> float:
        """The instant at which the oldest tokens count no more; infinity if there are none."""
        return self._portions[0].begin + self._period if self._portions else math.inf

    def add(self, now: float, cost: float) -> None:
        """Count the cost."""
        self.pop_expired(now)
        last = self._portions[-1] if self._portions else None
        if last is not None and now < last.begin + self._width:
            last.cost += cost
        elif cost:
            self._portions.append(_Portion(now, cost))

    def subtract(self, cost: float, instant: float) -> None:
        """Subtract the cost from what was spent at that instant."""
        for portion in reversed(self._portions):
            if portion.begin <= instant:
                portion.cost = positive(portion.cost - cost)
                return

    def total(self, now: float) -> float:
        """Return how many tokens still count."""
        self.pop_expired(now)
        return total([portion.cost for portion in self._portions])

    def cap(self, most: float) -> float:
        """Forget the oldest tokens beyond `most`. Return how many are kept."""
        kept = 0.0
        for portion in reversed(self._portions):
            portion.cost = common(portion.cost, most - kept)
            kept += portion.cost
        return kept

    def pop_expired(self, now: float) -> float:
        """Forget the tokens that count no more, and return how many there were."""
        expired = 0.0
        while self.expires_at <= now:
            expired += self._portions.popleft().cost
        return expired

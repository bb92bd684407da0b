"""This process's share of a limit, while it cannot ask the store what the others spend.

Strategy. While the store answers, the record here is kept no emptier than that of the store, from
the answers, so it has what all processes have spent. Without the store every token that is granted
here counts `divisor` times: once for this process and once for each of the others, which are
assumed to do the same. So together they keep within the limit, whatever its algorithm, and no
algorithm has to be scaled.

The divisor is that of the user's `local_share`, exact and free; or without one the number of the
processes that register now and then in a record of the store. That costs two calls every ten
seconds, as every server keeps the record by compare and swap, and it lags behind the processes that
have started or ended since.

Invariant: a process counts from its first registration until 30 seconds after its last one.
"""

import json
import math
import os
import random
import secrets
from collections import deque
from dataclasses import dataclass
from typing import Any, cast

from aiothrottle.algorithms import Algorithm, WaitUntil
from aiothrottle.algorithms.protocol import inherit, until
from aiothrottle.amounts import common, positive, total
from aiothrottle.stores.record import Record
from aiothrottle.stores.store import Answer, Store

# A share of a whole number of slots may be off by a rounding: 0.29 * 100 is below 29.
_ROUNDING = 1e-9
# The inverse of the smallest numbers is infinite, and infinity times a cost of 0 is no number.
_MOST = 1e12
# A token counts as this many times the capacity at the most: each time is a step of its own.
_MOST_STEPS = 10_000
# A token may count for so much of a period too long.
_PORTIONS = 32

# The key of the record. No limiter has it by chance.
_KEY = "aiothrottle.processes"
# Seconds between two registrations, at first and later, and for which one counts.
_FIRST_INTERVAL, _LAST_INTERVAL, _COUNTED = 0.1, 10.0, 30.0
# By up to this part an interval is longer or shorter, so that processes do not all call at once.
_JITTER = 0.25


def slots_of_share(limit: int, local_share: float) -> int:
    """Return the slots of a `SharedConcurrency` that are this process's: at least 1.

    >>> slots_of_share(10, 0.25), slots_of_share(3, 0.125)
    (2, 1)
    """
    return max(1, math.floor(limit * local_share + _ROUNDING))


def divisor_of(local_share: float) -> float:
    """Return how many such shares are a limit: 1.0 or more.

    >>> divisor_of(0.25), divisor_of(5e-324)
    (4.0, 1000000000000.0)
    """
    return min(1 / local_share, _MOST)


class ProcessCounter:
    """Registers this process in a store, and counts the registered ones."""

    __slots__ = ("_due_at", "_interval", "_token", "processes")

    def __init__(self) -> None:
        self._token = secrets.token_hex(8)
        #: How many processes use the store, this one included, as far as is known.
        self.processes: int = 1
        self.restart()

    def restart(self) -> None:
        """Begin anew on another loop, whose clock may be another one; the count stays."""
        self._due_at = -math.inf
        self._interval = _FIRST_INTERVAL

    def is_due(self, now: float) -> bool:
        """Return whether it is time to register; if so, the caller has to."""
        if now < self._due_at:
            return False
        self._due_at = now + self._interval * random.uniform(1 - _JITTER, 1 + _JITTER)
        self._interval = min(2 * self._interval, _LAST_INTERVAL)
        return True

    async def register(self, store: Store) -> None:
        """Register this process, and count the registered ones. Raises what the store raises."""
        # The process is part of the name: a forked child has the same token.
        count = ProcessCount(f"{os.getpid():x}-{self._token}", _COUNTED)
        answer = await store.record(_KEY, count)
        self.processes = max(1, int(answer.remaining))


@dataclass(frozen=True, slots=True)
class ProcessCount:
    """Counts the names that registered lately. An algorithm, since any store can keep its record.

    Args:
        name: The name to register.
        seconds: How long a registration counts.

    >>> ann, bob = ProcessCount("ann", seconds=30.0), ProcessCount("bob", seconds=30.0)
    >>> state = ann.start()
    >>> ann.take(state, 0.0, 1); bob.take(state, 20.0, 1)
    >>> ann.remaining(state, 20.0), ann.remaining(state, 40.0)
    (2, 1)
    """

    name: str
    seconds: float

    @property
    def capacity(self) -> float:
        """Infinity."""
        return math.inf

    def start(self) -> dict[str, float]:
        """Return an empty count."""
        return {}

    def delay(self, state: dict[str, float], now: float, cost: float) -> float:  # noqa: ARG002
        """Return 0.0: now."""
        return 0.0

    def take(self, state: dict[str, float], now: float, cost: float) -> None:
        """Register the name, and drop the registrations that count no more."""
        if cost:
            state[self.name] = max(now, state.get(self.name, now))
            for name in [name for name, at in state.items() if at + self.seconds <= now]:
                del state[name]

    def remaining(self, state: dict[str, float], now: float) -> float:
        """Return how many names count."""
        return sum(at + self.seconds > now for at in state.values())

    def reset_after(self, state: dict[str, float], now: float) -> float:
        """Seconds until no registration counts."""
        return until(max(state.values()) + self.seconds, now) if state else 0.0

    def dump(self, state: dict[str, float]) -> bytes:
        """Return the names and their timestamps as bytes."""
        return json.dumps(state).encode()

    def load(self, data: bytes) -> dict[str, float]:
        """Return the state that was dumped.

        Raises:
            ValueError: The bytes are no such dump.
        """
        names: Any = json.loads(data)
        if not isinstance(names, dict):
            raise ValueError(f"not a dump of ProcessCount: {names!r:.50} is no table of names")
        timestamps = cast("dict[str, float]", names)
        return {name: float(at) for name, at in timestamps.items()}


class LocalShare:
    """A record of what all processes are known to have spent, and assumed to spend.

    >>> from aiothrottle.algorithms import SlidingWindowLog
    >>> share = LocalShare(SlidingWindowLog("10/s"))
    >>> for _ in range(2):
    ...     share.spend(0.0, 1, divisor=4)  # a quarter of ten
    >>> share.wait(0.0, 1, divisor=4)
    1.0
    """

    __slots__ = ("_algorithm", "_record")

    def __init__(self, algorithm: Algorithm[Any]) -> None:
        self._algorithm = algorithm
        self._record = Record(algorithm.start())

    def use(self, algorithm: Algorithm[Any], now: float) -> None:
        """Continue with another algorithm; what was spent stays spent."""
        if algorithm is not self._algorithm:
            self._record.state = inherit(algorithm, self._algorithm, self._record.state, now)
            self._algorithm = algorithm

    def note_answer(self, now: float, answer: Answer, spent: float) -> None:
        """Take in an answer of the store, which has just granted `spent` tokens to this process."""
        if isinstance(self._algorithm, WaitUntil):  # its remaining tokens are all or nothing
            unseen = answer.reset_after - self.reset_after(now)
            self._record.record(self._algorithm, now, max(0.0, unseen) / self._algorithm.interval)
            return
        if spent:
            self._record.take(self._algorithm, now, now, now + answer.delays[-1], spent)
        # The other processes have spent whatever else is missing there.
        here = self._algorithm.remaining(self._record.state, now)
        if unseen := positive(here - answer.remaining):
            self._record.record(self._algorithm, now, unseen)

    @property
    def reserves_ahead(self) -> bool:
        """Whether requests are decided when they arrive, as `SharedWaitUntil` does it."""
        return isinstance(self._algorithm, WaitUntil)

    def wait(self, now: float, cost: float, divisor: float) -> float:
        """Seconds until the cost may start here."""
        first = common(cost * divisor, self._algorithm.capacity)
        return self._record.peek(self._algorithm, now, first).retry_after

    def spend(self, now: float, cost: float, divisor: float) -> None:
        """Spend the cost, now or as soon as it may start."""
        rest = common(cost * divisor, _MOST_STEPS * self._algorithm.capacity)
        while rest:
            # What is more than the capacity is taken as soon as it fits: so one of eight processes
            # that share two per minute starts one request every four minutes.
            part = common(rest, self._algorithm.capacity)
            self._record.reserve(self._algorithm, now, [part], math.inf)
            rest -= part

    def record(self, now: float, cost: float) -> None:
        """Count what was spent here already, whether it fits or not."""
        self._record.record(self._algorithm, now, cost)

    def refund(self, now: float, cost: float, divisor: float, instant: float) -> None:
        """Give back what was spent at the instant, except what exceeded the capacity."""
        back = common(cost * divisor, self._algorithm.capacity)
        self._record.refund(self._algorithm, now, back, instant)

    def remaining(self, now: float, divisor: float) -> float:
        """Tokens that this process may spend now."""
        return self._record.peek(self._algorithm, now, 0.0).remaining / divisor

    def most_counting(self, now: float, divisor: float) -> float:
        """Return how many of the tokens spent here can still count, at the most."""
        if isinstance(self._algorithm, WaitUntil):
            return self.reset_after(now) / self._algorithm.interval / divisor
        return self._algorithm.capacity

    def reset_after(self, now: float) -> float:
        """Seconds until all that was spent is forgotten."""
        return self._record.reset_after(self._algorithm, now)


# ---- the tokens that were spent lately -----------------------------------------------------------


@dataclass(slots=True)
class _Portion:
    begin: float
    cost: float


class Spent:
    """Tokens that count for a period each.

    >>> spent = Spent(period=60.0)
    >>> spent.add(0.0, 5); spent.add(30.0, 2)
    >>> spent.total(50.0), spent.pop_expired(80.0), spent.total(80.0)
    (7.0, 5.0, 2.0)
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

"""The delays of each algorithm, as tables: 0.0 is admitted, else seconds to wait."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from aiothrottle import (
    Cooldown,
    FixedWindow,
    LeakyBucket,
    SlidingWindowCounter,
    SlidingWindowLog,
    TokenBucket,
    WaitUntil,
)
from aiothrottle.algorithms import Algorithm, AllOf, Unlimited

NEVER = math.inf
Taken: TypeAlias = list[tuple[float, float]]  # (now, cost)
TENTHS = [(0, 0.1, 0)] * 10


@dataclass(frozen=True)
class Case:
    """Questions to an algorithm, in order: (now, cost, seconds to wait)."""

    name: str
    algorithm: Algorithm[Any]
    steps: Sequence[tuple[float, float, float]]

    def __str__(self) -> str:
        return f"{type(self.algorithm).__name__}: {self.name}"


# fmt: off
CASES = [
    Case("the limit at once, then nothing until exactly one period has passed",
         SlidingWindowLog("3/s"),
         [(0, 1, 0), (0, 1, 0), (0, 1, 0), (0, 1, 1), (0.75, 1, 0.25), (1, 1, 0), (1, 1, 0)]),
    Case("a timestamp just within the period counts, one period later does not",
         SlidingWindowLog(1),
         [(5, 1, 0), (math.nextafter(6, 0), 1, 6 - math.nextafter(6, 0)), (6, 1, 0)]),
    Case("ten tenths are one",
         SlidingWindowLog(1), [*TENTHS, (0, 0.1, 1), (0, 1e-6, 1), (1, 1, 0)]),
    Case("below one token per period it is one token in more time",
         SlidingWindowLog("0.5/s"), [(0, 1, 0), (0, 1, 2), (1, 1, 1), (2, 1, 0), (2, 1.5, NEVER)]),
    Case("below one, fractions are taken as they fit",
         SlidingWindowLog("0.25/s"), [(0, 0.5, 0), (1, 0.5, 0), (1, 0.5, 3), (4, 0.5, 0)]),
    Case("a cost of 0 is taken when full, and spends nothing",
         SlidingWindowLog(1),
         [(0, 0, 0), (0, 1, 0), (0, 0, 0), (0.5, 0, 0), (0.5, 1, 0.5), (1, 1, 0)]),
    Case("a cost above the limit never fits",
         SlidingWindowLog("3/s"),
         [(0, 4, NEVER), (0, 3.0001, NEVER), (0, 3, 0), (99, 4, NEVER), (99, 3, 0)]),
    Case("a huge limit",
         SlidingWindowLog("1000000000000/s"),
         [(0, 6e11, 0), (0.5, 4e11, 0), (0.5, 1e6, 0.5), (1, 6e11, 0), (1, 4e11, 0.5)]),
    Case("the rounding of a huge limit is no token",
         SlidingWindowLog("2000000000/s"), [(0, 2e9, 0), (0, 1, 1)]),
    Case("a clock that steps back",
         SlidingWindowLog("2/s"),
         [(10, 1, 0), (5, 1, 0), (5, 1, 6), (10, 1, 1), (10.5, 1, 0.5), (11, 1, 0), (11, 1, 0)]),
    Case("a burst of one spaces evenly",
         TokenBucket("4/s", burst=1),
         [(0, 1, 0), (0, 1, 0.25), (0.125, 1, 0.125), (0.25, 1, 0), (0.5, 1, 0), (0.5, 1, 0.25)]),
    Case("ten tenths are one",
         TokenBucket("1/s"), [*TENTHS, (0, 0.1, 0.1), (0.1, 0.1, 0), (0.1, 1, 1)]),
    Case("below one token per period one is taken in its time",
         TokenBucket("0.5/s"),
         [(0, 1, 0), (0, 1, 2), (1, 0.5, 0), (1, 1, 2), (3, 1, 0), (3, 1.5, NEVER)]),
    Case("a cost above the burst never fits",
         TokenBucket("10/s", burst=3),
         [(0, 4, NEVER), (0, 3.0001, NEVER), (0, 3, 0), (99, 4, NEVER), (99, 3, 0)]),
    Case("a clock that steps back",
         TokenBucket("4/s", burst=2),
         [(10, 1, 0), (5, 1, 5), (9.75, 1, 0.25), (10, 1, 0), (10, 1, 0.25)]),
    Case("evenly spaced, 2 ms early at the most",
         LeakyBucket("10/s"),
         [(0, 1, 0), (0, 1, 0.098), (0.09, 1, 0.008), (0.098, 1, 0), (0.098, 1, 0.1)]),
    Case("a late timer is made up for within 2 ms",
         LeakyBucket("10/s"),
         [(0, 1, 0), (0.0995, 1, 0), (0.1985, 1, 0), (0.298, 1, 0), (0.298, 1, 0.1)]),
    Case("fast rates are taken in groups of rate * 2 ms + 1",
         LeakyBucket("1000/s"),
         [(0, 1, 0), (0, 1, 0), (0, 1, 0), (0, 1, 0.001), (0.001, 1, 0), (0.001, 1, 0.001)]),
    Case("a heavy cost is taken when it is due, and occupies its intervals",
         LeakyBucket("10/s"),
         [(0, 10, 0), (0, 1, 0.998), (0.998, 5, 0), (0.998, 0.1, 0.5), (9, 11, NEVER), (9, 0, 0)]),
    Case("below one token per period",
         LeakyBucket("0.5/s"),
         [(0, 1, 0), (0, 1, 1.998), (1.998, 0.5, 0), (2, 1, 0.998), (2.998, 1.5, NEVER)]),
    Case("a clock that steps back",
         LeakyBucket("10/s"), [(5, 1, 0), (4, 1, 1.098), (5.098, 1, 0)]),
    Case("ten at the end of one period and ten at the start of the next",
         FixedWindow("10/s"),
         [*[(0.99, 1, 0)] * 10, (0.99, 1, 0.01), *[(1, 1, 0)] * 10, (1, 1, 1), (1.25, 1, 0.75)]),
    Case("below one token per period it is one token in more time",
         FixedWindow("0.5/s"), [(1, 1, 0), (1, 1, 1), (2, 1, 0), (3, 1.5, NEVER)]),
    Case("a clock that steps back stays in the later period",
         FixedWindow("2/s"),
         [(5, 1, 0), (4.5, 1, 0), (4.5, 1, 1.5), (5.5, 1, 0.5), (6, 1, 0)]),
    Case("before zero", FixedWindow("1/s"), [(-0.5, 1, 0), (-0.25, 1, 0.25), (0, 1, 0), (0, 1, 1)]),
    Case("ten tenths are one", FixedWindow(1), [*TENTHS, (0, 0.1, 1)]),
    Case("with one bucket it is a fixed window",
         SlidingWindowCounter("10/s", buckets=1),
         [*[(0.99, 1, 0)] * 10, (0.99, 1, 0.01), *[(1, 1, 0)] * 10, (1, 1, 1)]),
    Case("around a boundary of the period no more than N",
         SlidingWindowCounter("10/s", buckets=8),
         [*[(0.95, 1, 0)] * 10, (1, 1, 0.875), (1.75, 1, 0.125), (1.875, 1, 0)]),
    Case("a clock that steps back stays in the later section",
         SlidingWindowCounter("2/s", buckets=2),
         [(5, 1, 0), (4, 1, 0), (4, 1, 2), (5.5, 1, 0.5), (6, 2, 0)]),
    Case("costs that never fit, and costs of 0",
         SlidingWindowCounter("2/s"),
         [(0, 2.1, NEVER), (0, 0, 0), (0, 2, 0), (0, 0, 0), (0, 1, 1)]),
    Case("the rounding of a huge limit is no token",
         SlidingWindowCounter("2000000000/s"), [(0, 2e9, 0), (0, 1, 1)]),
    Case("three at once, then one every 20 s",
         Cooldown(3, 60),
         [(0, 1, 0), (0, 1, 0), (0, 1, 0), (0, 1, 20), (5, 1, 15), (20, 1, 0), (20, 1, 20)]),
    Case("a cost of more than one",
         Cooldown(3, 60),
         [(0, 2, 0), (0, 2, 20), (10, 1, 0), (10, 1, 10), (9, 4, NEVER), (70, 3, 0), (70, 0, 0)]),
    Case("seven sevenths", Cooldown(7, 1), [*[(0.1, 1, 0)] * 7, (0.1, 1, 1 / 7)]),
    Case("one every interval",
         WaitUntil(1, 5, 10),
         [(0, 1, 0), (0.75, 1, 0.25), (1, 1, 0), (9, 3, 0), (9, 1, 3), (9, 10.1, NEVER)]),
    Case("the bucket's wait passes a boundary of the window",
         AllOf(FixedWindow("3/s"), TokenBucket("2/s", burst=2)),
         [(0.5, 1, 0), (0.5, 1, 0), (0.5, 1, 0.5), (1, 1, 0), (1, 1, 0.5), (1, 2.1, NEVER)]),
    Case("all or none",
         AllOf(TokenBucket("10/s", burst=10), SlidingWindowLog("1/min")),
         [(0, 1, 0), (0, 1, 60), (0, 1, 60), (60, 1, 0), (60, 2, NEVER)]),
    Case("everything is admitted", Unlimited(), [(0, 1e300, 0), (0, 0, 0), (0, 1, 0), (-5, 9, 0)]),
]
# fmt: on

# algorithm, tokens taken at 0.25, cost, (ahead, wait)
BEHIND: list[tuple[Algorithm[Any], float, float, list[tuple[float, float]]]] = [
    (SlidingWindowLog("3/s"), 1, 1, [(0, 0), (1, 0), (2, 1), (3, 1), (4, 1), (5, 2), (8, 3)]),
    (SlidingWindowLog("3/s"), 0, 1, [(2, 0), (3, 1), (5, 1), (6, 2), (9, 3)]),
    (SlidingWindowLog("3/s"), 1, 4, [(1, NEVER)]),
    (TokenBucket("4/s", burst=2), 1, 1, [(0, 0), (1, 0.25), (2, 0.5), (9, 2.25)]),
    (TokenBucket("4/s", burst=2), 1, 3, [(1, NEVER)]),
    (LeakyBucket("4/s"), 1, 1, [(0, 0.248), (1, 0.498), (9, 2.498)]),
    (LeakyBucket("1000/s"), 0, 1, [(0, 0), (1, 0), (2, 0), (3, 0.001)]),
    (FixedWindow("3/s"), 1, 1, [(0, 0), (1, 0), (2, 0.75), (4, 0.75), (5, 1.75), (8, 2.75)]),
    (SlidingWindowCounter("3/s", buckets=2), 1, 1, [(1, 0), (2, 0.75), (3, 0.75), (5, 1.75)]),
    (Cooldown(3, 60), 1, 1, [(0, 0), (1, 0), (2, 20), (5, 80)]),
    (WaitUntil(1, 5, 10), 1, 1, [(0, 1), (1, 2), (9, 10)]),
    (AllOf(SlidingWindowLog("3/s"), LeakyBucket("4/s")), 1, 1, [(0, 0.248), (1, 0.498), (3, 1)]),
    (Unlimited(), 1, 1, [(99, 0)]),
]

FIVE, HALVES = SlidingWindowLog("5/s"), SlidingWindowCounter("5/s", buckets=2)

# algorithm, (now, cost) taken, (now, cost, at) refunded, what the state is like afterwards
REFUNDS: list[tuple[Algorithm[Any], Taken, tuple[float, float, float], Taken]] = [
    (FIVE, [(0, 1), (0.5, 1)], (0.75, 1, 0), [(0.5, 1)]),
    (FIVE, [(0, 1), (0.5, 2)], (0.75, 0.5, 0.5), [(0, 1), (0.5, 1.5)]),
    (FIVE, [(0, 1), (0, 1)], (0.5, 0.25, 0), [(0, 1), (0, 0.75)]),
    # never more than was taken there
    (FIVE, [(0, 1), (0.5, 2)], (0.75, 99, 0.5), [(0, 1)]),
    (FIVE, [(0, 1), (0.5, 2)], (0.75, 1, 0.25), [(0, 1), (0.5, 2)]),
    # its window is over
    (FIVE, [(0, 1), (0.5, 2)], (1, 1, 0), [(0, 1), (0.5, 2)]),
    (TokenBucket("4/s"), [(0, 1), (0, 2)], (0.25, 2, 0), [(0, 1)]),
    # some of it drained that would not have from an empty bucket
    (TokenBucket("4/s"), [(0, 2), (0.25, 2)], (0.5, 2, 0), [(0.25, 2)]),
    (TokenBucket("4/s"), [(0, 1), (3, 1)], (3, 1, 0), [(0, 1), (3, 1)]),
    (TokenBucket("4/s"), [(0, 1)], (0, 99, 0), [(-0.25, 1)]),
    (TokenBucket("4/s"), [(0, 1)], (9, 1, 0), [(0, 1)]),
    # reserved for later: each is refunded
    (TokenBucket("4/s"), [(0, 4), (0.25, 1)], (0, 1, 0.25), [(0, 4)]),
    (TokenBucket("4/s"), [(0, 4), (0.25, 1), (0.5, 1)], (0, 1, 0.25), [(0, 4), (0.5, 1)]),
    (TokenBucket("4/s"), [(0, 1), (0.25, 1)], (0, 99, 0.25), [(0, 1)]),
    (LeakyBucket("4/s"), [(0, 1), (0.249, 1)], (0.249, 1, 0.249), [(0, 1)]),
    (LeakyBucket("4/s"), [(0, 1)], (0.125, 1, 0), [(0, 0.5)]),
    (FixedWindow("5/s"), [(0.25, 1), (0.5, 2)], (0.75, 1, 0.25), [(0.5, 2)]),
    (FixedWindow("5/s"), [(0.25, 1)], (0.75, 9, 0.25), [(0.25, 0)]),
    (FixedWindow("5/s"), [(0.25, 1)], (1, 1, 1), [(0.25, 1)]),
    (HALVES, [(0.25, 1), (0.5, 2)], (0.75, 1, 0.25), [(0.5, 2)]),
    (HALVES, [(0.25, 1), (0.5, 2)], (0.75, 9, 0.5), [(0.25, 1)]),
    (HALVES, [(0.25, 1)], (1, 1, 1), [(0.25, 1)]),
    (Cooldown(3, 60), [(0, 2)], (30, 2, 0), [(0, 1.5)]),
    (WaitUntil(1, 5, 10), [(0, 3)], (0, 2, 0), [(0, 1)]),
    # the reserved time has moved on
    (WaitUntil(1, 5, 10), [(0, 1), (0.5, 1)], (0.6, 1, 0), [(0, 1), (0.5, 1)]),
    (AllOf(FIVE, TokenBucket("5/s")), [(0, 2)], (0, 1, 0), [(0, 1)]),
    (Unlimited(), [(0, 2)], (0, 1, 0), []),
]

"""A record: the state of an algorithm under a key, and the times that a store needs for it.

This file has, once, what each method of a store does to a record, and what becomes of a damaged
one; a store adds atomicity and a clock. The script of `RedisStore` does the same in Lua, and a test
shows that both decide alike to the last bit.

Invariant: instants are effective ones: those of the store's clock, plus the seconds by which it was
ever set back while the record lived. So a clock that steps back mints nothing, and no request waits
for it to catch up. A later call is granted no earlier instant (`last`), whatever has room.
"""

import logging
import math
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from aiothrottle._checks import number
from aiothrottle.algorithms import AllOf, PerResource, SlidingWindowLog
from aiothrottle.algorithms.protocol import (
    LATEST,
    Algorithm,
    capabilities,
    check_times,
    check_tokens,
    max_wait,
    until,
)
from aiothrottle.algorithms.windows import Sections
from aiothrottle.amounts import nothing
from aiothrottle.stores.store import Answer, Step

_LOG = logging.getLogger("aiothrottle")

EPOCH = 1767225600
"""The zero of a shared clock, in seconds since 1970: 2026-01-01T00:00:00Z.

A double that counts from 1970 is exact to a quarter of a microsecond, too coarse for 100,000
tokens per second. This is a whole number of weeks later, so windows keep their calendar.
"""


def machine_time() -> float:
    """Return the time of this machine: the clock of a store whose server has none."""
    return time.time() - EPOCH


# The seal of the algorithm; then seen, ahead, last. The dump of the state follows.
HEAD = struct.Struct("<8s3d")


class DamagedRecordError(ValueError):
    """The bytes under a key that no store of this package has written, in words for the log."""


@dataclass(slots=True)
class Record:
    """A state, and its times; for the methods, `clock` is the time of the store's clock."""

    state: Any
    #: The effective instant of the last change.
    seen: float = -math.inf
    #: Seconds by which effective instants are ahead of the store's clock.
    ahead: float = 0.0
    #: The latest instant for which anything was taken.
    last: float = -math.inf

    def now(self, clock: float) -> float:
        """Return the effective instant: time stands still while the clock has not caught up."""
        return max(clock + self.ahead, self.seen)

    def reset_after(self, algorithm: Algorithm[Any], now: float) -> float:
        """Seconds until the record may be forgotten: not before the last instant that was granted.

        An algorithm that counts in periods may have forgotten the present one, if it has counted
        in a later one.
        """
        return max(algorithm.reset_after(self.state, now), until(self.last, now))

    def apply(self, algorithm: Algorithm[Any], clock: float, step: Step) -> Answer:
        """Do the step, and return the answer."""
        if step.method == "reserve":
            return self.reserve(algorithm, clock, step.costs, step.seconds)
        (cost,) = step.costs
        if step.method == "refund":
            return self.refund(algorithm, clock, cost, step.seconds)
        method = self.peek if step.method == "peek" else self.record
        return method(algorithm, clock, cost)

    def reserve(
        self,
        algorithm: Algorithm[Any],
        clock: float,
        costs: Sequence[float],
        max_reservation: float,
    ) -> Answer:
        """Take, in order, the costs that can be taken within `max_reservation` seconds.

        Rejected costs change nothing, unless the algorithm rejects by the wait (`WaitUntil`) and
        `max_reservation` is its maximum wait or more: then the first rejected cost and all behind
        it count.
        """
        now = self.now(clock)
        if clock + self.ahead < self.seen:
            self._see(clock, now)  # otherwise time stands still until the clock has caught up
        instants: list[float] = []
        retry_after = 0.0
        for place, cost in enumerate(costs):
            if not cost:
                instants.append(now)
                continue
            instant = self._ready_at(algorithm, now, cost)
            wait = until(instant, now)
            if wait > max_reservation or wait == math.inf:
                retry_after = wait
                if max_wait(algorithm) <= max_reservation < wait < math.inf:
                    for rejected in costs[place:]:
                        self.take(algorithm, clock, now, now, rejected)
                break
            self.take(algorithm, clock, now, instant, cost)
            instants.append(instant)
        return self.answer(algorithm, now, tuple(instants), retry_after)

    def peek(self, algorithm: Algorithm[Any], clock: float, cost: float) -> Answer:
        """Answer when the cost can be taken."""
        now = self.now(clock)
        wait = until(self._ready_at(algorithm, now, cost), now) if cost else 0.0
        return self.answer(algorithm, now, (), wait)

    def record(self, algorithm: Algorithm[Any], clock: float, cost: float) -> Answer:
        """Take the cost, whether it fits or not."""
        now = self.now(clock)
        if cost:
            self.take(algorithm, clock, now, now, cost)
        return self.answer(algorithm, now, (), 0.0)

    def refund(
        self, algorithm: Algorithm[Any], clock: float, cost: float, instant: float
    ) -> Answer:
        """Give back the cost that was taken for the instant."""
        now = self.now(clock)
        capabilities(algorithm).refund(algorithm, self.state, now, cost, instant)
        self._see(clock, now)
        return self.answer(algorithm, now, (), 0.0)

    def _ready_at(self, algorithm: Algorithm[Any], now: float, cost: float) -> float:
        begin = max(now, self.last)
        return begin + algorithm.delay(self.state, begin, cost)

    def take(
        self, algorithm: Algorithm[Any], clock: float, now: float, instant: float, cost: float
    ) -> None:
        """Take the cost for the instant, `now` or later, whether it fits or not."""
        self._see(clock, now)
        algorithm.take(self.state, instant, cost)
        self.last = max(self.last, instant)

    def _see(self, clock: float, now: float) -> None:
        self.ahead = max(self.ahead, now - clock)
        self.seen = now

    def answer(
        self, algorithm: Algorithm[Any], now: float, instants: tuple[float, ...], wait: float
    ) -> Answer:
        """Return the answer of the record, with the granted instants and the wait of the rest."""
        # While a later instant is granted, nothing else can be taken now.
        if self.last > now:
            remaining = nothing(algorithm.capacity)
        else:
            remaining = algorithm.remaining(self.state, now)
        return Answer(now, instants, wait, remaining, self.reset_after(algorithm, now))

    def dump(self, algorithm: Algorithm[Any]) -> bytes:
        """Write the record as bytes."""
        head = HEAD.pack(seal(algorithm), self.seen, self.ahead, self.last)
        return head + capabilities(algorithm).dump(algorithm, self.state)

    @classmethod
    def load(cls, algorithm: Algorithm[Any], key: object, data: bytes) -> "Record":
        """Return the record of the same algorithm that was dumped.

        Raises:
            DamagedRecordError: No store has written the bytes.
            ValueError: The bytes are of another algorithm.
        """
        if len(data) < HEAD.size:
            raise DamagedRecordError(f"it has {len(data)} bytes, a record {HEAD.size} or more")
        sealed, seen, ahead, last = HEAD.unpack_from(data)
        _check_times(seen, ahead, last)  # first: those of foreign bytes are nonsense
        if sealed != seal(algorithm):
            raise other_algorithm(key, algorithm)
        try:
            state = capabilities(algorithm).load(algorithm, data[HEAD.size :])
        except (TypeError, ValueError) as error:
            raise DamagedRecordError(str(error)) from error
        reset_after = algorithm.reset_after(state, max(seen, 0.0))
        if not reset_after <= LATEST:
            raise DamagedRecordError(f"nobody waits for {number(reset_after)} s")
        return cls(state, seen, ahead, last)

    @classmethod
    def exhausted(cls, algorithm: Algorithm[Any], clock: float) -> "Record":
        """Return the record that replaces a damaged one: nothing is left of the limit now.

        How much was spent is not known, so this is the most.
        """
        record = cls(algorithm.start(), clock, 0.0, clock)
        _exhaust(algorithm, record.state, clock)
        return record


def _check_times(seen: float, ahead: float, last: float) -> None:
    """Check the times: a request that waits for NaN would start at once, for a far one never."""
    try:
        check_times("record", seen, last)
        check_tokens("record", ahead)
    except (TypeError, ValueError) as error:
        raise DamagedRecordError(str(error)) from error
    if ahead > LATEST:
        raise DamagedRecordError(f"no clock was set back by {number(ahead)} s")


def _exhaust(algorithm: Algorithm[Any], state: Any, now: float) -> None:  # noqa: ANN401 - of any algorithm
    if isinstance(algorithm, AllOf | PerResource):
        for each, part in zip(algorithm.algorithms, state, strict=True):
            _exhaust(each, part, now)
    elif algorithm.capacity < math.inf:
        algorithm.take(state, now, algorithm.capacity)


def seal(algorithm: Algorithm[Any]) -> bytes:
    """Return eight bytes that are equal for algorithms that can continue each other's state."""
    return blake2b(_shape(algorithm).encode(), digest_size=8).digest()


def _shape(algorithm: Algorithm[Any]) -> str:
    if isinstance(algorithm, AllOf):
        return f"AllOf({','.join(map(_shape, algorithm.algorithms))})"
    if isinstance(algorithm, PerResource):
        shapes = map(_shape, algorithm.algorithms)
        # In its representation a name is quoted: no two lists of names look alike.
        parts = map("{!r}:{}".format, algorithm.names, shapes)
        return f"PerResource({','.join(parts)})"
    name = f"{type(algorithm).__module__}.{type(algorithm).__qualname__}"
    # Their state counts in sections of time: with others it would mean nothing.
    if isinstance(algorithm, Sections):
        _, width, _, number = algorithm.constants()
        return f"{name}({width!r},{number})"
    return name


def other_algorithm(key: object, algorithm: Algorithm[Any]) -> ValueError:
    """Return the error of a key that two algorithms use."""
    return ValueError(
        f"the record of {key!r} is not one of {algorithm!r}: another algorithm has written it, or "
        "one with more or fewer rates, or windows of another period; give each a key of its own, "
        "or call `await limiter.reset()` once"
    )


# ---- damaged records -----------------------------------------------------------------------------

_LINES = SlidingWindowLog("10/min")


class DamageLog:
    """Writes the lines, and counts those that it leaves out.

    Args:
        clock: Returns the time in seconds.
    """

    __slots__ = ("_clock", "_left_out", "_lines")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lines = _LINES.start()
        self._left_out = 0

    def report(self, store: str, key: object, reason: str) -> None:
        """Log that the record of the key in the store was damaged, and replaced."""
        now = self._clock()
        if _LINES.delay(self._lines, now, 1) > 0.0:
            self._left_out += 1
            return
        _LINES.take(self._lines, now, 1)
        # The reason may have words of another program: escaped and cut, it forges no line.
        _LOG.warning(
            "%s: the record of %r was damaged, and counts as all spent now: %.300r%s",
            *(store, key, reason, f" ({self._left_out} more)" if self._left_out else ""),
        )
        self._left_out = 0


report_damage: Callable[[str, object, str], None] = DamageLog().report
"""Of all stores of this process."""

"""What stands under a key: the state of an algorithm, and what of time the store has to know.

Here is, once, what a method does to a record; a store adds atomicity and a clock. The script of
`RedisStore` says the same in Lua, and a test has both decide alike to the last bit.

Instants are effective ones: those of the store's clock, plus what that has ever been set back
while the record lived. So a clock that steps back mints nothing, and nobody waits for it to catch
up. Who asks later goes no earlier than who asked before (`last`), whatever has room.
"""

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from aiothrottle.algorithms import AllOf, FixedWindow, SlidingWindowCounter, SlidingWindowLog
from aiothrottle.algorithms.capabilities import capabilities, max_wait
from aiothrottle.algorithms.dumps import check_dumped
from aiothrottle.algorithms.protocol import Algorithm
from aiothrottle.algorithms.timestamps import until
from aiothrottle.stores.store import Answer
from aiothrottle.texts import number

__all__ = ["EPOCH", "HEAD", "LATEST", "Record", "damaged", "other_algorithm", "seal"]

EPOCH = 1767225600
"""What a shared clock counts from, in seconds since 1970: 2026-01-01T00:00:00Z.

A double that counts from 1970 is exact to a quarter of a microsecond, too coarse for 100,000
tokens per second. This is a whole number of weeks later, so windows keep their calendar.
"""

LATEST = 1e10
"""Seconds: three hundred years. Of an instant beyond a double cannot tell the next fraction of a
second, and beyond 1e16 not the next second: where time stands still, nothing is ever spent."""

# The seal of the algorithm; then seen, ahead, last. The dump of the state follows.
HEAD = struct.Struct("<8s3d")


@dataclass(slots=True)
class Record:
    """A state, and its times."""

    state: Any
    #: The effective instant of the last change.
    seen: float = -math.inf
    #: Seconds by which effective instants are ahead of the store's clock.
    ahead: float = 0.0
    #: The latest instant for which anything was taken.
    last: float = -math.inf

    def now(self, clock: float) -> float:
        """Give the effective instant: time stands still while the clock has not caught up."""
        return max(clock + self.ahead, self.seen)

    def reset_after(self, algorithm: Algorithm[Any], now: float) -> float:
        """Seconds until the record may be forgotten: not while any is let go later.

        An algorithm that counts in periods has forgotten this one when it has counted in a later
        one.
        """
        return max(algorithm.reset_after(self.state, now), until(self.last, now))

    def reserve(
        self, algorithm: Algorithm[Any], clock: float, costs: Sequence[float], horizon: float
    ) -> Answer:
        """Take what may be taken within the horizon.

        Rejected costs change nothing, unless the algorithm rejects by the wait (`WaitUntil`), and
        the horizon is as far as it lets a request wait: then they count, the first one and all
        behind it.
        """
        now = self.now(clock)
        if clock + self.ahead < self.seen:
            self._see(clock, now)  # or time would stand still until the clock has caught up
        instants: list[float] = []
        retry_after = 0.0
        for place, cost in enumerate(costs):
            if cost == 0:
                instants.append(now)
                continue
            instant = self._ready_at(algorithm, now, cost)
            wait = until(instant, now)
            if wait > horizon or wait == math.inf:
                retry_after = wait
                if max_wait(algorithm) <= horizon < wait < math.inf:
                    for rejected in costs[place:]:
                        self.take(algorithm, clock, now, now, rejected)
                break
            self.take(algorithm, clock, now, instant, cost)
            instants.append(instant)
        return self.answer(algorithm, now, tuple(instants), retry_after)

    def peek(self, algorithm: Algorithm[Any], clock: float, cost: float) -> Answer:
        """Tell when the cost may go."""
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
        """Give the cost back that was taken for the instant."""
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
        """Tell how the record stands, for what was taken, and how long the rest has to wait."""
        # While somebody is let go later, nobody else goes now.
        left = 0.0 if self.last > now else algorithm.remaining(self.state, now)
        return Answer(now, instants, wait, left, self.reset_after(algorithm, now))

    def dump(self, algorithm: Algorithm[Any]) -> bytes:
        """Write the record as bytes."""
        head = HEAD.pack(seal(algorithm), self.seen, self.ahead, self.last)
        return head + capabilities(algorithm).dump(algorithm, portable(algorithm, self.state))

    @classmethod
    def load(cls, algorithm: Algorithm[Any], key: object, data: bytes) -> "Record":
        """Read what a record of the same algorithm has written.

        Raises:
            ValueError: It is of another algorithm, or damaged.
        """
        if len(data) < HEAD.size or not data.startswith(seal(algorithm)):
            raise other_algorithm(key, algorithm)
        _, *times = HEAD.unpack_from(data)
        load = capabilities(algorithm).load
        return cls.restored(key, lambda: load(algorithm, data[HEAD.size :]), *times)

    @classmethod
    def restored(
        cls, key: object, state: Callable[[], Any], seen: float, ahead: float, last: float
    ) -> "Record":
        """Make one of what a store has kept, if a record can be so: who waits for NaN, goes.

        Raises:
            ValueError: It cannot.
        """
        try:
            check_dumped(seen, "record", fresh=True)
            check_dumped(ahead, "record", least=0.0)
            check_dumped(last, "record", fresh=True)
            record = cls(state(), seen, ahead, last)
        except (TypeError, ValueError) as error:
            raise damaged(key, str(error)) from error
        if max(seen, ahead) > LATEST:
            raise damaged(key, f"no clock says {number(max(seen, ahead))} s")
        return record


def portable(algorithm: Algorithm[Any], state: Any) -> Any:  # noqa: ANN401 - of whatever algorithm
    """Take out of the state what is true for the numbers of this algorithm alone."""
    if isinstance(algorithm, SlidingWindowLog):
        state.room = 0
    elif isinstance(algorithm, AllOf):
        for each, part in zip(algorithm.algorithms, state, strict=True):
            portable(each, part)
    return state


def seal(algorithm: Algorithm[Any]) -> bytes:
    """Give eight bytes that are equal for algorithms that can go on with each other's state."""
    return blake2b(_shape(algorithm).encode(), digest_size=8).digest()


def _shape(algorithm: Algorithm[Any]) -> str:
    if isinstance(algorithm, AllOf):
        return f"AllOf({','.join(map(_shape, algorithm.algorithms))})"
    name = f"{type(algorithm).__module__}.{type(algorithm).__qualname__}"
    # Their state counts in periods: in those of another length it would be nonsense.
    if isinstance(algorithm, FixedWindow):
        return f"{name}({float(algorithm.width)!r})"
    if isinstance(algorithm, SlidingWindowCounter):
        return f"{name}({algorithm.width!r},{algorithm.buckets})"
    return name


def other_algorithm(key: object, algorithm: Algorithm[Any]) -> ValueError:
    """Make the error of a key that two algorithms want."""
    return ValueError(
        f"the record of {key!r} is not one of {algorithm!r}: another algorithm has written it, or "
        "the same with windows of another period; give each a key of its own, or clear(key)"
    )


def damaged(key: object, reason: str) -> ValueError:
    """Make the error of a record that none of us has written."""
    return ValueError(f"the record of {key!r} is damaged ({reason}): clear(key) begins anew")

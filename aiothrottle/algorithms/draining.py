"""What the algorithms with a constant rate share: everything but how full the bucket can be."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, cast

from aiothrottle.algorithms.capabilities import all_used_now, used
from aiothrottle.algorithms.level import Level, LevelConstants
from aiothrottle.algorithms.protocol import Algorithm

__all__ = ["Draining"]


class Draining(ABC):
    """An algorithm whose state is a `Level`: a subclass says how full the bucket can be."""

    __slots__ = ()

    #: The first byte of a dump.
    _kind: ClassVar[int]

    _limit: float
    _period: float

    @property
    @abstractmethod
    def capacity(self) -> float:
        """The greatest cost, in tokens, that can ever be taken at once."""

    def start(self) -> Level:
        """Return the state of an empty bucket."""
        return Level()

    def delay(self, state: Level, now: float, cost: float) -> float:
        """Seconds until `cost` tokens can be taken: 0.0 is now, infinity is never."""
        return self.delay_behind(state, now, cost, 0.0)

    @abstractmethod
    def constants(self) -> LevelConstants:
        """Return the numbers by which a port of the algorithm decides to the last bit alike."""

    @abstractmethod
    def delay_behind(self, state: Level, now: float, cost: float, ahead: float) -> float:
        """Seconds until `cost` can be taken after the `ahead` tokens."""

    def take(self, state: Level, now: float, cost: float) -> None:
        """Put `cost` tokens in."""
        if cost:
            state.put_in(now, cost, self._limit, self._period)

    def take_each(self, state: Level, timestamps: Sequence[float]) -> None:
        """Put a token in at each of the timestamps."""
        state.put_in_each(timestamps, self._limit, self._period)

    @abstractmethod
    def remaining(self, state: Level, now: float) -> float:
        """Tokens that can be taken at `now`."""

    def used(self, state: Level, now: float) -> float:
        """Tokens in the bucket."""
        return state.tokens_at(now, self._limit, self._period)

    def reset_after(self, state: Level, now: float) -> float:
        """Seconds until the bucket is empty."""
        return state.empty_in(now, self._limit, self._period)

    def refund(self, state: Level, now: float, cost: float, at: float) -> None:
        """Take out what would not be in the bucket if `cost` had not been put in at `at`."""
        state.take_out(now, cost, at, self._limit, self._period)

    def inherit(self, old: Algorithm[Any], state: object, now: float) -> Level:
        """Continue with the level of `old`; one of the same class can still be refunded."""
        fresh = all_used_now(self, old, state, now)
        if type(old) is type(self):
            kept = cast("Level", state)
            # What a smaller bucket has no room for is forgiven, and must not come back as well.
            if kept.at <= now and fresh.tokens == used(old, kept, now) > 0.0:
                fresh.since = kept.since
                fresh.ends, fresh.lows = kept.ends.copy(), kept.lows.copy()
        return fresh

    def dump(self, state: Level) -> bytes:
        """Return the level as bytes."""
        return state.dump(self._kind)

    def load(self, data: bytes) -> Level:
        """Return the level that was dumped."""
        return Level.load(self._kind, data, type(self).__name__)

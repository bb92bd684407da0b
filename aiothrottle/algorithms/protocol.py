"""The protocol of an algorithm: six members, and optional protocols for what only some can do.

Strategy: an algorithm is a frozen value and knows no clock, event loop or process. Time is an
argument and the state is handed in, so the same code decides in memory, in a test and in a store.
A `now` is float seconds of the caller's clock; only differences count, except for the algorithms
that count in calendar periods (`FixedWindow`, `SlidingWindowCounter`).

No base class is needed: any class with the six members of `Algorithm` is an algorithm.
Each optional method counts by itself: `capabilities` finds them, once per class.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol, Self, TypeVar, runtime_checkable

from aiothrottle.rate import Rate
from aiothrottle.redact import shown

__all__ = [
    "Algorithm",
    "SupportsBatches",
    "SupportsInherit",
    "SupportsMaxWait",
    "SupportsRate",
    "SupportsRefund",
    "SupportsStorage",
    "check_algorithm",
]

State = TypeVar("State")

_CORE = ("capacity", "start", "delay", "take", "remaining", "reset_after")


@runtime_checkable
class Algorithm(Protocol[State]):
    """How a rate is enforced: every limiter runs whatever has these six members."""

    @property
    @abstractmethod
    def capacity(self) -> float:
        """The greatest cost, in tokens, that can ever be taken at once."""

    @abstractmethod
    def start(self) -> State:
        """Return the state of an unused bucket."""

    @abstractmethod
    def delay(self, state: State, now: float, cost: float) -> float:
        """Return the seconds until `cost` tokens can be taken: 0.0 is now, infinity is never.

        Changes nothing. At ``now + delay`` they can be taken, unless others are taken first. A cost
        of 0 can always be taken.

        Args:
            state: The state of a bucket, from `start`.
            now: Seconds of the caller's clock.
            cost: Tokens, 0 or more.
        """

    @abstractmethod
    def take(self, state: State, now: float, cost: float) -> None:
        """Take `cost` tokens at `now`, whether they fit or not.

        A cost of 0 changes nothing. A `now` before the last one counts as the last one.

        Args:
            state: The state of a bucket, which is changed.
            now: Seconds of the caller's clock.
            cost: Tokens, 0 or more.
        """

    @abstractmethod
    def remaining(self, state: State, now: float) -> float:
        """Return the tokens that can be taken at `now`, between 0 and `capacity`.

        Args:
            state: The state of a bucket, from `start`.
            now: Seconds of the caller's clock.
        """

    @abstractmethod
    def reset_after(self, state: State, now: float) -> float:
        """Return the seconds until the state is equivalent to a fresh one and may be dropped.

        Args:
            state: The state of a bucket, from `start`.
            now: Seconds of the caller's clock.
        """


@runtime_checkable
class SupportsRefund(Algorithm[State], Protocol[State]):
    """Tokens that were taken can be given back. Without it nothing is given back."""

    @abstractmethod
    def refund(self, state: State, now: float, cost: float, at: float) -> None:
        """Give back, at `now`, `cost` of the tokens that were taken at the timestamp `at`.

        Never more than would be free if they had not been taken, so that what remains of the
        history keeps the promise. Tokens that no longer count are not given back.

        Args:
            state: The state of a bucket, which is changed.
            now: Seconds of the caller's clock.
            cost: Tokens to give back.
            at: When they were taken, in seconds of the same clock.
        """


@runtime_checkable
class SupportsStorage(Algorithm[State], Protocol[State]):
    """The state can be written as bytes. Without it no store that keeps bytes can share it."""

    @abstractmethod
    def dump(self, state: State) -> bytes:
        """Return the state as bytes. The first byte names the algorithm and the version.

        Args:
            state: The state of a bucket, from `start`.
        """

    @abstractmethod
    def load(self, data: bytes) -> State:
        """Return the state that an equal algorithm has dumped.

        Args:
            data: What `dump` has returned.

        Raises:
            ValueError: The bytes are not such a dump.
        """


@runtime_checkable
class SupportsBatches(Algorithm[State], Protocol[State]):
    """One question answers for many requests: for the fast path and for the consumer.

    Without it each request is decided by `delay` and `take`.
    """

    @abstractmethod
    def allowance(self, state: State, now: float, most: int) -> int:
        """Return how many costs of 1, at most `most`, can be taken without another question.

        Each can be taken at any timestamp from `now` on, whatever happens to the others, as long as
        nothing else changes the state. `take_each` records them later. Fewer than possible is never
        wrong. Changes nothing.

        Args:
            state: The state of a bucket, from `start`.
            now: Seconds of the caller's clock.
            most: The greatest number that is of use.
        """

    @abstractmethod
    def take_each(self, state: State, timestamps: Sequence[float]) -> None:
        """Take a cost of 1 at each of the timestamps: the same as `take`, once for each.

        Args:
            state: The state of a bucket, which is changed.
            timestamps: Seconds of the caller's clock, in order.
        """

    @abstractmethod
    def delay_behind(self, state: State, now: float, cost: float, ahead: float) -> float:
        """Return the seconds until `cost` can be taken after `ahead` tokens, each when it can be.

        With `ahead` tokens taken at `now`, 0.0 says that `cost` can be taken at `now` too. Exact
        while the costs are 1, and never too long. Unlike `delay`, it can see beyond `capacity`.

        Args:
            state: The state of a bucket, from `start`.
            now: Seconds of the caller's clock.
            cost: Tokens, 0 or more.
            ahead: Tokens of the requests that are ahead in the queue.
        """


@runtime_checkable
class SupportsMaxWait(Algorithm[State], Protocol[State]):
    """Requests that would wait too long are rejected at once. Without it they may wait forever."""

    @property
    @abstractmethod
    def max_wait(self) -> float:
        """Seconds. A request that would have to wait longer is rejected at once."""

    @abstractmethod
    def cost_of_reject(self, state: State, now: float, cost: float, ahead: float) -> float:
        """Return the tokens that a rejected `cost` takes nevertheless.

        The queue takes them once the requests ahead have taken theirs; at once if the queue is
        empty.

        Args:
            state: The state of a bucket, from `start`.
            now: Seconds of the caller's clock.
            cost: Tokens of the rejected request.
            ahead: Tokens of the requests that are ahead in the queue.
        """


@runtime_checkable
class SupportsInherit(Algorithm[State], Protocol[State]):
    """Continues where another algorithm stands. Without it all that was used was used just now."""

    @abstractmethod
    def used(self, state: State, now: float) -> float:
        """Return the tokens that count at `now`: more than `capacity` where there is a debt.

        Args:
            state: The state of a bucket, from `start`.
            now: Seconds of the caller's clock.
        """

    @abstractmethod
    def inherit(self, old: Algorithm[Any], state: object, now: float) -> State:
        """Return a state of this algorithm in which what was taken under `old` is taken too.

        Args:
            old: The algorithm until now.
            state: Its state.
            now: Seconds of the caller's clock.
        """


@runtime_checkable
class SupportsRate(Algorithm[State], Protocol[State]):
    """An instance can be made without a rate; the limiter's rate limit completes it."""

    @property
    @abstractmethod
    def rate(self) -> Rate | None:
        """The rate, or None if the limiter has to give it."""

    @abstractmethod
    def with_rate(self, rate: Rate) -> Self:
        """Return the same algorithm at that rate.

        Args:
            rate: The rate limit of the limiter.
        """


def check_algorithm(algorithm: object, name: str = "algorithm") -> None:
    """Check that an instance, or a class, has the six members of `Algorithm`.

    Args:
        algorithm: The instance or class.
        name: The argument that it was given as.

    Raises:
        TypeError: Some are missing.
    """
    kind = algorithm if isinstance(algorithm, type) else type(algorithm)
    missing = [each for each in _CORE if not (hasattr(kind, each) or hasattr(algorithm, each))]
    if missing == ["capacity"] and kind is algorithm:
        return  # an attribute of its instances
    if missing:
        raise TypeError(
            f"{name} must be an algorithm, such as TokenBucket, got {shown(algorithm)}, "
            f"which has no {', '.join(missing)}"
        )

"""What an algorithm is: six members, optional protocols for what only some can do, and fallbacks.

Strategy: an algorithm is a frozen value and knows no clock, event loop or process. Time is an
argument and the state is handed in, so the same code decides in memory, in a test and in a store.
A `now` is float seconds of the caller's clock; only differences count, except for the algorithms
that count in calendar periods (`FixedWindow`, `SlidingWindowCounter`).

No base class is needed: any class with the six members of `Algorithm` is an algorithm.
Each optional method counts by itself: `capabilities` finds them, once per class, and puts a
fallback in place of those that a class lacks. It needs only the six members, and is always safe.

At the end is what algorithms share: arithmetic on timestamps, and the bytes of dumps.
"""

import math
import struct
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NoReturn, Protocol, Self, TypeVar, runtime_checkable

from aiothrottle._checks import shown
from aiothrottle.rate import Rate

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


# ---- finding out what an algorithm can do --------------------------------------------------------


def check_instance(algorithm: object, name: str = "algorithm") -> None:
    """Check that it is an instance, and has the six members of `Algorithm`.

    Args:
        algorithm: The instance.
        name: The argument that it was given as.

    Raises:
        TypeError: It is a text or a class, or some members are missing.
    """
    if isinstance(algorithm, str | type):
        raise TypeError(
            f"{name} must be an instance, such as SlidingWindowLog('10/s'), got {shown(algorithm)}"
        )
    check_algorithm(algorithm, name)


def check_algorithm(algorithm: object, name: str = "algorithm") -> None:
    """Check that an instance, or a class, has the six members of `Algorithm`.

    Args:
        algorithm: The instance or class.
        name: The argument that it was given as.

    Raises:
        TypeError: Some are missing.
    """
    if isinstance(algorithm, str):
        raise TypeError(
            f"{name} must be the class of an algorithm or an instance, such as TokenBucket of "
            f"`from aiothrottle import TokenBucket`, not a name, got {shown(algorithm)}"
        )
    kind = algorithm if isinstance(algorithm, type) else type(algorithm)
    missing = [each for each in _CORE if not (hasattr(kind, each) or hasattr(algorithm, each))]
    if missing == ["capacity"] and kind is algorithm:
        return  # an attribute of its instances
    if missing:
        raise TypeError(
            f"{name} must be an algorithm, such as TokenBucket, got {shown(algorithm)}, "
            f"which has no {', '.join(missing)}"
        )


def _delay_of_sum(
    algorithm: Algorithm[State], state: State, now: float, cost: float, ahead: float
) -> float:
    return algorithm.delay(state, now, ahead + cost)


def _take_one_by_one(
    algorithm: Algorithm[State], state: State, timestamps: Sequence[float]
) -> None:
    for now in timestamps:
        algorithm.take(state, now, 1.0)


def _none_unasked(*_: object) -> int:
    return 0


def _no_refund(*_: object) -> None:
    pass


def _free_reject(*_: object) -> float:
    return 0.0


def _capacity_without_remaining(algorithm: Algorithm[State], state: State, now: float) -> float:
    if math.isinf(algorithm.capacity):
        return 0.0
    return algorithm.capacity - algorithm.remaining(state, now)


def all_used_now(new: Algorithm[State], old: Algorithm[Any], state: object, now: float) -> State:
    """Return a state of `new` in which all that counts under `old` was taken at `now`.

    That is safe, as it counts for longer than it would have. A debt stays a debt.
    """
    fresh = new.start()
    spent = used(old, state, now)
    if 0.0 < spent < math.inf:
        debt = max(0.0, spent - old.capacity)
        new.take(fresh, now, min(spent - debt, new.capacity) + debt)
    return fresh


def _not_storable(algorithm: object, _: object) -> NoReturn:
    raise TypeError(
        f"{algorithm!r} has no dump(state) and load(data): a store that keeps bytes needs both"
    )


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The optional methods of a class of algorithms; each is called with the instance first."""

    delay_behind: Callable[[Any, Any, float, float, float], float] = _delay_of_sum
    allowance: Callable[[Any, Any, float, int], int] = _none_unasked
    take_each: Callable[[Any, Any, Sequence[float]], None] = _take_one_by_one
    refund: Callable[[Any, Any, float, float, float], None] = _no_refund
    cost_of_reject: Callable[[Any, Any, float, float, float], float] = _free_reject
    used: Callable[[Any, Any, float], float] = _capacity_without_remaining
    inherit: Callable[[Any, Algorithm[Any], object, float], Any] = all_used_now
    dump: Callable[[Any, Any], bytes] = _not_storable
    load: Callable[[Any, bytes], Any] = _not_storable


# A batch method states again, for many, what these steps do for one.
_RESTS_ON = {"delay_behind": ("delay",), "allowance": ("delay", "take"), "take_each": ("take",)}


@lru_cache(maxsize=256)
def _of_class(kind: type[Algorithm[Any]]) -> Capabilities:
    found = {name: getattr(kind, name) for name in Capabilities.__slots__ if _has(kind, name)}
    return Capabilities(**found)


def _has(kind: type[Algorithm[Any]], name: str) -> bool:
    """Return whether the class has a method that can be trusted.

    A class that overrides `delay` or `take` does not want its base's batch methods, which would
    bypass them.
    """
    for base in kind.__mro__:
        members = vars(base)
        if name in members:
            return True
        if any(step in members for step in _RESTS_ON.get(name, ())):
            break
    return False


def capabilities(algorithm: Algorithm[Any]) -> Capabilities:
    """Return what the algorithm's class can do."""
    return _of_class(type(algorithm))


def max_wait(algorithm: Algorithm[Any]) -> float:
    """Return the longest wait, in seconds, that the algorithm does not reject."""
    longest: float = getattr(algorithm, "max_wait", math.inf)
    return longest


def memory_of(algorithm: Algorithm[Any]) -> float:
    """Return the seconds for which tokens count: after them all of the capacity is there again."""
    full = algorithm.start()
    algorithm.take(full, 0.0, algorithm.capacity)
    return algorithm.reset_after(full, 0.0)


def used(algorithm: Algorithm[Any], state: object, now: float) -> float:
    """Return the tokens that count at `now`: more than the capacity where there is a debt."""
    return capabilities(algorithm).used(algorithm, state, now)


def inherit(new: Algorithm[State], old: Algorithm[Any], state: object, now: float) -> State:
    """Return the state of `new` that continues where `old` stands: what was taken stays taken."""
    inherited: State = capabilities(new).inherit(new, old, state, now)
    return inherited


def set_fields(value: object, **fields: object) -> None:
    """Set fields of a frozen value while it is made."""
    for name, each in fields.items():
        object.__setattr__(value, name, each)


# ---- timestamps: arithmetic that float rounding would make a little wrong ------------------------


def until(timestamp: float, now: float) -> float:
    """Seconds from `now` to the timestamp, or 0.0 if it has passed.

    ``now + until(timestamp, now)`` is never before the timestamp. The plain difference can be too
    short: 0.3 + (1.1 - 0.3) is below 1.1, and a task that sleeps for that long wakes too early.
    """
    delay = timestamp - now
    if delay <= 0.0:
        return 0.0
    while now + delay < timestamp:
        delay += math.ulp(abs(now) + delay)
    return delay


def edge(index: float, width: float) -> float:
    """Return when period `index` begins: ``floor(timestamp / width) >= index`` from there on.

    The periods are aligned to the zero of the clock. Exact but for rounding.
    """
    timestamp = index * width
    while math.floor(timestamp / width) < index:
        timestamp = math.nextafter(timestamp, math.inf)
    return timestamp


# ---- dumps: bytes that no algorithm has written are rejected, never guessed at -------------------

LATEST = 1e10
"""Seconds: three hundred years. Beyond it a double has no small fractions of a second, and beyond
1e16 no single seconds: where time stands still, nothing is ever spent."""

# Beyond 2 to the 53rd a float cannot tell a whole number from the next.
_MOST = 2.0**53


def pack(kind: int, *numbers: float) -> bytes:
    """Return a dump: the byte that names the algorithm and the version, and the numbers."""
    return struct.pack(f"<B{len(numbers)}d", kind, *numbers)


def unpack(kind: int, data: bytes, algorithm: str, count: int, group: int = 0) -> tuple[float, ...]:
    """Return the numbers of a dump.

    Args:
        kind: Its first byte.
        data: The dump.
        algorithm: What it is of, for the message.
        count: How many numbers it has.
        group: Behind these it has any number of groups of so many.

    Raises:
        ValueError: The first byte is not `kind`, or there are not so many numbers.
    """
    if not data or data[0] != kind:
        begin = f"begin with {data[0]:#04x}, not {kind:#04x}" if data else "are empty"
        raise ValueError(f"not a dump of {algorithm}: the bytes {begin}")
    size = 1 + 8 * count
    if group and len(data) > size:
        size += (len(data) - size) // (8 * group) * 8 * group
    if len(data) != size:
        raise ValueError(f"not a dump of {algorithm}: {len(data)} bytes instead of {size}")
    return struct.unpack(f"<{size // 8}d", data[1:])


def check_tokens(algorithm: str, *tokens: float, least: float = 0.0) -> None:
    """Check the tokens of a dump.

    Args:
        algorithm: What it is of, for the message.
        tokens: The tokens.
        least: The least that they can be.

    Raises:
        ValueError: No state holds such a number: NaN, infinity and so on.
    """
    for number in tokens:
        if not least <= number < _MOST:
            raise ValueError(f"not a dump of {algorithm}: it cannot contain {number!r}")


def check_times(algorithm: str, *timestamps: float) -> None:
    """Check the timestamps of a dump; minus infinity is that of an unused state.

    Args:
        algorithm: What it is of, for the message.
        timestamps: The timestamps.

    Raises:
        ValueError: No state holds such a number.
    """
    for number in timestamps:
        if number != -math.inf and not abs(number) <= LATEST:
            raise ValueError(f"not a dump of {algorithm}: it cannot contain {number!r}")

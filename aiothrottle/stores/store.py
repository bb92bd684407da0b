"""The contract of stores: five methods on records, each of them one atomic step.

Strategy. A store keeps, under a key, the state of an algorithm that many processes share. It has
a clock of its own, and that clock alone counts: its answers are seconds from now, so the clocks
of two machines are never compared. One call asks for all waiters of a queue.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from aiothrottle._checks import check_choice, check_number, check_whole, shown
from aiothrottle.algorithms.protocol import Algorithm, check_instance, until
from aiothrottle.amounts import Amounts
from aiothrottle.errors import StoreUnavailable

Key: TypeAlias = str | tuple[str, ...]
"""The name of a record: a text, or several, such as an action and an actor."""

OnStoreError: TypeAlias = Literal["raise", "local", "open", "closed"]
"""What serves while a store fails."""

CHOICES: Final = ("raise", "local", "open", "closed")

# Of longer names the beginning and a digest are kept.
_LONGEST_NAME = 200
_BEGINNING = 120


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a store about a record: all in seconds from now, but for `instants`.

    >>> Answer(now=5.0, instants=(5.0, 5.25), retry_after=0.5, remaining=0, reset_after=1.5).delays
    (0.0, 0.25)
    """

    #: The instant of the answer by the store's own clock. Two of one store may be compared.
    now: float
    #: For each cost that was taken, in order, the instant from which on it may start, by the
    #: store's clock. `Store.refund` takes it; for anything else there is `delays`.
    instants: tuple[float, ...]
    #: Seconds until the first cost that was not taken may start, if nothing else starts before:
    #: infinity if it never may, 0.0 if all were taken. Of `Store.peek`: until its cost may start.
    retry_after: float
    #: Tokens that are still available now.
    remaining: float
    #: Seconds until all spent tokens are forgotten, and the record with them.
    reset_after: float

    @property
    def delays(self) -> tuple[float, ...]:
        """Seconds until each of the costs that were taken may start, in order; 0.0 is now."""
        now = self.now
        return tuple([until(each, now) if each > now else 0.0 for each in self.instants])


Method: TypeAlias = Literal["reserve", "refund", "peek", "record"]


@dataclass(frozen=True, slots=True)
class Step:
    """A call of one of the four methods of `Store` on a record."""

    method: Method
    #: Tokens; of several costs all methods but `reserve` have one.
    costs: Sequence[float]
    #: The longest reservation of `reserve` or the instant of `refund`.
    seconds: float = 0.0

    def check(self) -> None:
        """Check the costs and the instant. Raises TypeError or ValueError if one is wrong."""
        costs = self.costs
        if not isinstance(costs, Sequence) or isinstance(costs, str | bytes):
            raise TypeError(f"costs must be a list of numbers, such as [1], got {shown(costs)}")
        for cost in costs:
            try:
                if isinstance(cost, Amounts):
                    valid = all(0 <= tokens < math.inf for tokens in cost.by_name.values())
                else:
                    valid = 0 <= cost < math.inf
            except TypeError:
                raise TypeError(f"a cost is a number of tokens, not {shown(cost)}") from None
            if not valid:
                raise ValueError(f"a cost is a finite number of tokens, 0 or more, not {cost!r}")
        seconds = self.seconds
        if self.method == "reserve" and not seconds >= 0:
            raise ValueError(f"max_reservation is a number of seconds, 0 or more, not {seconds!r}")
        if self.method == "refund" and not math.isfinite(seconds):
            raise ValueError(f"an instant is a finite number from Answer.instants, not {seconds!r}")

    def sent_to(
        self, store: "Store", key: Key, algorithm: Algorithm[Any]
    ) -> Awaitable[Answer | None]:
        """Call the method of the store, which may be one of the user's own."""
        if self.method == "reserve":
            return store.reserve(key, algorithm, self.costs, max_reservation=self.seconds)
        (cost,) = self.costs
        if self.method == "refund":
            return store.refund(key, algorithm, cost, self.seconds)
        method = store.peek if self.method == "peek" else store.record
        return method(key, algorithm, cost)


class Store(ABC):
    """Keeps the states that many limiters share. Each method is atomic.

    A cost is a number. Of a `PerResource` it may be `Amounts` (`aiothrottle.algorithms.amounts`
    makes them), and what remains always is.

    One key is for one algorithm. Limiters that share a key should have equal limits: otherwise
    each is held to its own limit when it asks, by the tokens that all of them have spent; but
    tokens that the shorter period has forgotten are forgotten for the longer one too.

    Every method raises `StoreUnavailable` if the store does not answer in time or at all,
    `ValueError` if a number is out of range, or if the record of the key is of another algorithm,
    or of windows of another period, and `TypeError` if a key is not a text or a tuple of texts, the
    algorithm not an instance, or the costs not a sequence. A record that no store has written is
    logged, and replaced by one in which all is spent now.

    A store implements `_execute`, or the four methods that lead to it.
    """

    # Shared by the limiters of this process, once there are any: see `Health.of`.
    __slots__ = ("_health",)

    _health: object

    def node_of(self, key: Key) -> str:  # noqa: ARG002 - most stores have one server
        """Return the name of the server that has the record of the key; "" if there is but one.

        Limiters whose keys have the same server take it for down together, and no others.

        Args:
            key: Of the record.
        """
        return ""

    async def reserve(
        self,
        key: Key,
        algorithm: Algorithm[Any],
        costs: Sequence[float],
        *,
        max_reservation: float = 0.0,
    ) -> Answer:
        """Take, in order, as many of the costs as may start within `max_reservation` seconds.

        No later call takes an earlier instant. No cost is taken behind one that is not.

        An algorithm that rejects by the wait (`WaitUntil`) counts what it rejects: if
        `max_reservation` is its ``max_wait`` or more, the first cost that is not taken and all
        behind it are recorded in this call.

        Args:
            key: Of the record.
            algorithm: Decides.
            costs: Tokens of each, 0 or more. A cost of 0 may always start.
            max_reservation: Seconds. With 0.0 only costs that may start now are taken.

        Returns:
            The instants of the costs that were taken, and when the next cost may start.
        """
        return await self._checked(key, algorithm, Step("reserve", costs, max_reservation))

    async def refund(
        self, key: Key, algorithm: Algorithm[Any], cost: float, instant: float
    ) -> None:
        """Give back `cost` tokens of those taken for `instant`, one of `Answer.instants`.

        As far as the algorithm can: see `Algorithm.refund`. Later calls take no instant earlier
        than that one all the same. With an algorithm that spaces requests evenly, an instant that
        is over gives nothing back while others are taken behind it: they keep their intervals.

        Args:
            key: Of the record.
            algorithm: That of the call that took them.
            cost: Tokens, 0 or more.
            instant: Seconds of the store's clock.
        """
        await self._checked(key, algorithm, Step("refund", (cost,), instant))

    async def peek(self, key: Key, algorithm: Algorithm[Any], cost: float = 1.0) -> Answer:
        """Return the answer that `reserve` would give for the cost, and spend nothing.

        A `SlidingWindowLog` of a lower limit or a shorter period may be asked about the record of
        another one.

        Args:
            key: Of the record.
            algorithm: Decides.
            cost: Tokens, 0 or more.
        """
        return await self._checked(key, algorithm, Step("peek", (cost,)))

    async def record(self, key: Key, algorithm: Algorithm[Any], cost: float = 1.0) -> Answer:
        """Count a cost that was spent already; there may be a debt afterwards.

        Args:
            key: Of the record.
            algorithm: Decides what remains.
            cost: Tokens, 0 or more.

        Returns:
            What remains, and when the next cost may start.
        """
        return await self._checked(key, algorithm, Step("record", (cost,)))

    async def _checked(self, key: Key, algorithm: Algorithm[Any], step: Step) -> Answer:
        check_instance(algorithm)
        step.check()
        try:
            return await self._execute(key, algorithm, step)
        except StoreUnavailable as error:
            error.key = key
            raise

    async def _execute(self, key: Key, algorithm: Algorithm[Any], step: Step) -> Answer:
        """Do the step on the record of the key, or a fresh one, atomically."""
        raise NotImplementedError(f"{type(self).__name__} has no {step.method}()")

    @abstractmethod
    async def clear(self, key: Key) -> None:
        """Forget the record of the key. Shared slots stay: they are in use.

        Args:
            key: Of the record.
        """


@dataclass(frozen=True, slots=True)
class SharedConcurrency:
    """A concurrency limit for all processes together, counted in a store.

    It is given in place of a number as the concurrency limit. All limiters with the same store and
    `key` count together, whatever their rates are; they should have the same `limit`. Each that
    needs slots has an equal share of them; the other slots go to all, first come, first served.

    Args:
        limit: How many requests may be inside ``throttle()`` at once, in all processes together.
        lease: Seconds after which the slots of a crashed process are free. Each process renews its
            slots every third of it.
        per_process: The most slots of this limiter. None: all.

    Raises:
        TypeError: An argument has a wrong type.
        ValueError: An argument is out of range.

    >>> from aiothrottle import RateLimiter
    >>> from aiothrottle.stores import MemoryStore
    >>> limiter = RateLimiter(
    ...     "50/s", concurrency_limit=SharedConcurrency(40), store=MemoryStore(), key="example.org"
    ... )
    """

    limit: int
    lease: float = 30.0
    per_process: int | None = None

    def __post_init__(self) -> None:
        """Check the numbers."""
        check_whole("limit", self.limit, "slots")
        check_number("lease", self.lease, "seconds", above=0)
        check_whole("per_process", self.per_process, "slots", none="None for all of them")


def check_share(on_store_error: OnStoreError, local_share: float | None) -> None:
    """Check the two arguments of a limiter.

    Raises:
        TypeError: `local_share` is not a number.
        ValueError: One of them is out of range, or they contradict each other.
    """
    check_choice("on_store_error", on_store_error, CHOICES)
    none = "None; 1/8 is the share of one of 8 processes"
    check_number("local_share", local_share, above=0, most=1, none=none)
    if local_share is not None and on_store_error != "local":
        raise ValueError(
            f"local_share={local_share!r} has no effect with on_store_error={on_store_error!r}: "
            "write on_store_error='local' too, or leave local_share out"
        )


def parts_of(key: Key) -> tuple[str, ...]:
    """Return the texts of a key. Raises TypeError if it is none."""
    parts = (key,) if isinstance(key, str) else key
    if not (parts and isinstance(parts, tuple) and all(isinstance(part, str) for part in parts)):
        raise TypeError(f"a key is a text, or a tuple of texts, not {key!r}")
    return parts


def name_of(key: Key, prefix: str = "") -> str:
    """Make of a key a name for any store: printable ASCII, without blanks or braces.

    Different keys have different names. A name of more than 200 characters is replaced by its
    beginning and the SHA-256 of all of it.

    >>> name_of(("mail", "ann@example.org"), prefix="app"), name_of(("a:b", "c")), name_of("é")
    ('app:mail:ann@example.org', 'a%3Ab:c', '%C3%A9')
    """
    from hashlib import sha256
    from urllib.parse import quote

    parts = parts_of(key)
    if prefix:
        parts = (prefix, *parts)
    name = ":".join([quote(part, safe="/@", errors="surrogatepass") for part in parts])
    if len(name) <= _LONGEST_NAME:
        return name
    # A quoted text has no "#".
    return f"{name[:_BEGINNING]}#{sha256(name.encode()).hexdigest()}"

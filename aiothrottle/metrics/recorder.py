"""The recorder: counts the events of limiters, for Prometheus, OpenTelemetry and the live page.

Only this module distinguishes the types of events. It counts them in series: `Counts` keeps a
series in memory, the instruments of OpenTelemetry are another kind. The present state of a limiter
is not recorded, but read on demand: see `aiothrottle.metrics.gauges`.
"""

import time
from bisect import bisect_left
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeAlias, TypeVar

from aiothrottle import events
from aiothrottle.keyed import AnyLimiter
from aiothrottle.limiter import RateLimiter
from aiothrottle.metrics import gauges

#: Events that are counted by their type and reason. Of `Granted`, costs and waits are summed.
Counted: TypeAlias = (
    events.Rejected | events.Throttled | events.Paused | events.Retried | events.StoreDown
)

_OTHER = "other"  # the label of all keys without a series of their own
_PAUSES = 10  # groups of pauses that are kept
_MARKS = 500  # values of a counter that are kept, of a time that may be a day


class _Series(Protocol):
    """Counts the events of one label."""

    def grant(self, event: events.Granted, /) -> None: ...
    def count(self, event: Counted, reason: str, /) -> None: ...


S = TypeVar("S", bound=_Series)


class Counts:
    """A series in memory. `bounds` are the upper bounds of the buckets for waits, in seconds."""

    __slots__ = ("_bounds", "kinds", "label", "resources", "tokens", "waited", "waits")

    def __init__(self, label: str, bounds: Sequence[float] = ()) -> None:
        self.label: str = label
        self.tokens: float = 0.0
        #: The tokens of each resource, of a limiter with resources.
        self.resources: dict[str, float] = {}
        #: Seconds: the sum of the waits of granted requests.
        self.waited: float = 0.0
        #: Granted requests, by the bucket of their wait.
        self.waits: list[int] = [0] * (len(bounds) + 1)
        self.kinds: Counter[tuple[type[Counted], str]] = Counter()
        self._bounds = bounds

    def grant(self, event: events.Granted) -> None:
        """Add the cost and the wait of a granted request."""
        waited = event.waited
        self.waits[bisect_left(self._bounds, waited)] += 1
        self.waited += waited
        self.tokens += event.cost
        for name, tokens in event.costs.items():
            self.resources[name] = self.resources.get(name, 0.0) + tokens

    def count(self, event: Counted, reason: str) -> None:
        """Count an event by its type and its reason, "" if it has none."""
        self.kinds[type(event), reason] += 1

    def total(self, kind: type[Counted]) -> int:
        """Return how many events of a type there were, for all reasons."""
        return sum(count for (each, _), count in self.kinds.copy().items() if each is kind)


@dataclass(slots=True)
class Pauses(Generic[S]):
    """The pauses of one series for one reason, and when the last one began."""

    series: S
    last: events.Paused
    at: float
    count: int


class Recording(Generic[S]):
    """Records one limiter, from now on until `stop`.

    Args:
        limiter: The limiter to observe.
        own: The series of the limiter itself, in which outages of its store are counted.
        series_of: Returns the series in which the events of a key are counted.
        clock: Returns the time in seconds.
    """

    def __init__(
        self,
        limiter: AnyLimiter,
        own: S,
        series_of: Callable[[Hashable], Iterable[S]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limiter = limiter
        self.own = own
        #: The series of keys, by label.
        self.series: dict[str, S] = {}
        #: Whether the store answers; None: no event about a store yet.
        self.store_up: bool | None = None
        self.store_down_since: float | None = None
        #: The latest pauses, the last one at the end.
        self.pauses: OrderedDict[Hashable, Pauses[S]] = OrderedDict()
        self._last_outage = -1
        self._series_of = series_of
        self._clock = clock
        self.stop: Callable[[], None] = limiter.observe(self._record)

    def _record(self, event: events.Event) -> None:
        match event:
            case events.Granted():  # the first, since the most frequent
                for series in self._series_of(event.key):
                    series.grant(event)
                # A key that is forgotten in an outage emits no `StoreUp`.
                if self.store_up is False and gauges.store_answers(self.limiter, event.key):
                    self.store_up, self.store_down_since = True, None
            case events.Throttled() | events.Retried():
                self._count(event, "")
            case events.Rejected():
                self._count(event, event.reason)
            case events.Paused():
                self._pause(event)
            case events.StoreDown():
                if self.store_down_since is None:
                    self.store_down_since = self._clock()
                self.store_up = False
                # Each key reports the outage; each outage has a higher number.
                if event.outage > self._last_outage:
                    self._last_outage = event.outage
                    self.own.count(event, "")
            case events.StoreUp():
                self.store_up, self.store_down_since = True, None
            case _:  # the gauges show adapted limits and the server's quota
                pass

    def _pause(self, event: events.Paused) -> None:
        series, key = self._count(event, event.reason), (event.key, event.reason)
        before = self.pauses.pop(key, None)
        count = 1 if before is None else before.count + 1
        self.pauses[key] = Pauses(series, event, self._clock(), count)
        if len(self.pauses) > _PAUSES:
            self.pauses.popitem(last=False)

    def _count(self, event: Counted, reason: str) -> S:
        """Count in all series of the key, and return the last one."""
        series = self.own
        for series in self._series_of(event.key):
            series.count(event, reason)
        return series


class Recorder(Generic[S]):
    """Records any number of limiters by their names.

    Args:
        make: Makes a series of a limiter's name and a key's label; None: of the limiter itself.
    """

    def __init__(self, make: Callable[[str, str | None], S]) -> None:
        self._make = make
        #: The present recordings by name, of which any thread may make a copy.
        self._recordings: dict[str, Recording[S]] = {}

    def watch(
        self, limiter: AnyLimiter, name: str | None = None, *, keys: int = 0
    ) -> Callable[[], None]:
        """Watch a limiter from now on.

        Args:
            limiter: The limiter.
            name: Its name in the metrics. None: `RateLimiter.name`; a `KeyedRateLimiter` needs one.
            keys: How many keys of a `KeyedRateLimiter` get a series of their own, first come, first
                served; the others share ``other``. 0: none.

        Returns:
            A function that stops watching.

        Raises:
            TypeError: An argument has a wrong type.
            ValueError: The name is taken; or `keys` is below 0.
        """
        if name is None and isinstance(limiter, RateLimiter):
            name = limiter.name
        gauges.check(limiter, name, keys)
        assert name is not None  # checked
        if isinstance(limiter, RateLimiter):
            keys = 0  # also for a limiter of a key, whose events have that key
        if name in self._recordings:
            raise ValueError(f"a limiter named {name!r} is watched already: give another name")
        own = self._make(name, None)
        rest = self._make(name, _OTHER) if keys else own

        def series_of(key: Hashable) -> tuple[S]:
            if not keys:
                return (rest,)
            # Half of a surrogate pair would break each export.
            label = str(key).encode(errors="backslashreplace").decode()
            # One series is that of the other keys.
            if label not in recording.series and len(recording.series) <= keys:
                recording.series[label] = self._make(name, label)
            return (recording.series.get(label, rest),)

        recording = self._recordings[name] = Recording(limiter, own, series_of)
        # By label and not by key: Prometheus rejects the same label twice, as of 1 and "1".
        recording.series[_OTHER if keys else ""] = rest

        def stop() -> None:
            recording.stop()
            if self._recordings.get(name) is recording:
                del self._recordings[name]

        return stop


class Growth:
    """The growth of a counter within the last `length` seconds; memory is bounded.

    Args:
        length: Seconds.

    >>> growth = Growth(5.0)
    >>> for at, count in [(0, 0), (1, 9), (2, 20), (3, 33), (8, 83)]:
    ...     growth.mark(at, count)
    >>> growth.amount, growth.seconds
    (50, 5)
    """

    __slots__ = ("_length", "_marks", "amount", "seconds")

    def __init__(self, length: float) -> None:
        self._length = length
        self._marks = deque[tuple[float, float]]()
        #: By how much it grew, and in how many seconds: `length` at the most.
        self.amount: float = 0.0
        self.seconds: float = 0.0

    def mark(self, now: float, value: float) -> None:
        """Record the value of the counter.

        Args:
            now: Seconds, not before those of the last mark.
            value: The value.
        """
        marks = self._marks
        while marks and marks[0][0] < now - self._length:
            marks.popleft()
        if not marks or marks[-1][0] <= now - self._length / _MARKS:
            marks.append((now, value))
        self.seconds = now - marks[0][0]
        self.amount = value - marks[0][1]

"""The data of one limiter for the live page: counters, the present state, and the last minutes.

Rates are sampled here, whether or not a page is open, so that one that is opened late shows the
past. Time is an argument here.
"""

import ipaddress
import re
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import TypedDict

from aiothrottle import events
from aiothrottle._checks import number
from aiothrottle.dashboard.history import History
from aiothrottle.dashboard.shared_use import shared_use
from aiothrottle.keyed import KeyedRateLimiter
from aiothrottle.metrics import gauges
from aiothrottle.metrics.growth import Growth
from aiothrottle.metrics.recorder import Counts, Recording

# Keys that are kept, and keys that are shown: the most recently active.
_REMEMBERED, _SHOWN = 500, 50
# Seconds over which a rate is averaged.
_AVERAGED = 5.0

_NAME = re.compile(r"(?=.*[.:]|localhost$)[a-z0-9._-]{1,253}(:[0-9]{1,5})?")
_PORT = re.compile(r"(:[0-9]{1,5})?")


class State(TypedDict):
    """The counters and the state of one key, or of all together."""

    name: str
    rate: float | None
    perSecond: float | None
    granted: int
    inFlight: int
    waiting: int
    rejected: int
    throttled: int
    retried: int
    pausedFor: float


class Pause(TypedDict):
    """The pauses of one key for one reason, of which the last one is shown."""

    ago: float
    key: str
    seconds: float
    reason: str
    count: int


class Snapshot(State):
    """The data of one limiter."""

    limits: list[str]
    slots: int | None
    inUse: float | None
    keys: list[State] | None
    keyCount: int
    pauses: list[Pause]
    storeDownFor: float | None


class _Key:
    """A key that is remembered."""

    __slots__ = ("counts", "growth", "rate")

    def __init__(self, label: str) -> None:
        self.counts = Counts(label)
        self.growth = Growth(_AVERAGED)
        self.rate: float | None = None


class Feed:
    """Records one limiter, until `stop`.

    Args:
        name: The limiter's name on the page.
        limiter: The limiter.
        label: Returns the name of a key on the page; None: see `Labels`.
        clock: Returns the time in seconds.
    """

    def __init__(
        self,
        name: str,
        limiter: gauges.AnyLimiter,
        label: Callable[[Hashable], str] | None,
        clock: Callable[[], float],
    ) -> None:
        self.name = name
        self._label = label or Labels()
        self._clock = clock
        self._keys = OrderedDict[Hashable, _Key]()
        self._recording = Recording(limiter, Counts(name), self._counts_of, clock=clock)
        self._growth, self._history = Growth(_AVERAGED), History()
        self._rate: float | None = None
        self._in_use: float | None = None
        self.stop: Callable[[], None] = self._recording.stop

    def sample(self) -> None:
        """Sample the rates of now; to be called twice a second."""
        now, limiter = self._clock(), self._recording.limiter
        self._rate = _rate_of(self._growth, now, self._recording.own.tokens)
        if self._rate is not None:
            self._history.add(now, self._rate, gauges.tokens_per_second(limiter))
        for key in self._latest().values():
            key.rate = _rate_of(key.growth, now, key.counts.tokens)

    async def ask_store(self) -> None:
        """Ask the store how much of the limit all processes use."""
        self._in_use = await shared_use(self._recording.limiter)

    def history(self) -> list[tuple[float, float, float | None]]:
        """Return the rates of the last minutes: when, the rate, and the limit per second."""
        return [*self._history.points]

    def snapshot(self) -> Snapshot:
        """Return the data of now."""
        recording, now = self._recording, self._clock()
        limiter, down_since = recording.limiter, recording.store_down_since
        keyed = limiter if isinstance(limiter, KeyedRateLimiter) else None
        return {
            **_state(recording.own, self._rate, limiter),
            "limits": [
                f"{number(rate.limit, 6)} per {number(rate.period, 6)} s"
                for rate in gauges.rates(limiter)
            ],
            "slots": gauges.concurrency_limit(limiter),
            "inUse": self._in_use,
            "keys": None if keyed is None else self._states_of(keyed),
            "keyCount": 0 if keyed is None else len(keyed),
            "pauses": [
                {
                    "ago": now - group.at,
                    "key": group.series.label,
                    "seconds": group.seconds,
                    "reason": events.REASONS[group.reason],
                    "count": group.count,
                }
                for group in reversed(recording.pauses.values())
            ],
            "storeDownFor": None if down_since is None else now - down_since,
        }

    def _latest(self) -> dict[Hashable, _Key]:
        """Return the most recently active keys."""
        return dict(list(self._keys.items())[-_SHOWN:])

    def _states_of(self, limiter: KeyedRateLimiter) -> list[State]:
        """Return the most recently active keys, by name, so that rows keep their place."""
        states = [
            # `limiter[key]` alone would make a forgotten key anew.
            _state(each.counts, each.rate, limiter[key] if key in limiter else None)  # noqa: SIM401
            for key, each in self._latest().items()
        ]
        return sorted(states, key=lambda each: each["name"])

    def _counts_of(self, key: Hashable) -> Iterator[Counts]:
        yield self._recording.own
        if key is None:
            return
        known = self._keys.get(key)
        if known is None:
            known = self._keys[key] = _Key(self._label(key))
            if len(self._keys) > _REMEMBERED:
                self._keys.popitem(last=False)
        else:
            self._keys.move_to_end(key)
        yield known.counts


def _rate_of(growth: Growth, now: float, count: float) -> float | None:
    """Return the rate per second of a counter; None while it is too early for an average."""
    growth.mark(now, count)
    # The average over a shorter time would be a peak.
    return None if growth.seconds < _AVERAGED / 2 else growth.amount / growth.seconds


def _state(counts: Counts, rate: float | None, limiter: gauges.AnyLimiter | None) -> State:
    return {
        "name": counts.label,
        "rate": rate,
        "perSecond": gauges.tokens_per_second(limiter) if limiter else None,
        "granted": sum(counts.waits),
        "inFlight": gauges.in_flight(limiter) if limiter else 0,
        "waiting": gauges.waiting(limiter) if limiter else 0,
        "rejected": counts.total(events.Rejected),
        "throttled": counts.total(events.Throttled),
        "retried": counts.total(events.Retried),
        "pausedFor": gauges.paused_for(limiter) if limiter else 0.0,
    }


class Labels:
    """Names keys without showing secrets: hosts are shown, any other key gets a number.

    >>> label = Labels()
    >>> label("api.example.org"), label("127.0.0.1:8080"), label("sk-secret"), label(7)
    ('api.example.org', '127.0.0.1:8080', 'key 1', 'key 2')
    """

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, key: Hashable) -> str:
        """Return the name of a key that has none yet."""
        if isinstance(key, str) and (_NAME.fullmatch(key) or _is_address(key)):
            return key
        self._count += 1
        return f"key {self._count}"


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition("]")
    try:
        ipaddress.ip_address(host.removeprefix("[") if host else text)
    except ValueError:
        return False
    return not host or _PORT.fullmatch(port) is not None

"""The data of one limiter for the live page: counters, the present state, and the last minutes.

Rates are sampled here, whether or not a page is open, so that one that is opened late shows the
past.

Invariant: memory is bounded, however often and for however long it is sampled.
"""

import asyncio
import ipaddress
import math
import re
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from aiothrottle import events
from aiothrottle._checks import number
from aiothrottle.errors import ThrottleError
from aiothrottle.keyed import AnyLimiter, KeyedRateLimiter, engines_of
from aiothrottle.limiter import RateLimiter
from aiothrottle.metrics import gauges
from aiothrottle.metrics.recorder import Counts, Growth, Recording

# Keys that are kept, and keys that are shown: the most recently active.
_REMEMBERED, _SHOWN = 500, 50
# Seconds over which a rate is averaged.
_AVERAGED = 5.0
# Seconds of the past that are kept, and points: more than the server samples in that time.
_PAST, _MOST_POINTS = 120.0, 500

_NAME = re.compile(r"(?=.*[.:]|localhost$)[a-z0-9._-]{1,253}(:[0-9]{1,5})?")
_BRACKETED = re.compile(r"\[(.*)\](:[0-9]{1,5})?")

Shown: TypeAlias = dict[str, Any]
"""An object of the JSON that `page.js` reads."""


@dataclass(slots=True, eq=False)
class _Sampled:
    """The counters of the limiter or of a key, and their rate per second."""

    counts: Counts
    growth: Growth = field(default_factory=lambda: Growth(_AVERAGED))
    #: None while it is too early for an average: one over a shorter time would be a peak.
    rate: float | None = None

    def sample(self, now: float) -> None:
        """Sample the rate."""
        growth = self.growth
        growth.mark(now, self.counts.tokens)
        self.rate = None if growth.seconds < _AVERAGED / 2 else growth.amount / growth.seconds

    def state(self, limiter: AnyLimiter | None) -> Shown:
        """Return what is shown; the limiter is None if its key was forgotten."""
        counts = self.counts
        return {
            "name": counts.label,
            "rate": self.rate,
            "perSecond": gauges.tokens_per_second(limiter) if limiter else None,
            "granted": sum(counts.waits),
            "inFlight": gauges.in_flight(limiter) if limiter else 0,
            "waiting": gauges.waiting(limiter) if limiter else 0,
            "rejected": counts.total(events.Rejected),
            "throttled": counts.total(events.Throttled),
            "retried": counts.total(events.Retried),
            "pausedFor": gauges.paused_for(limiter) if limiter else 0.0,
        }


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
        limiter: AnyLimiter,
        label: Callable[[Hashable], str] | None,
        clock: Callable[[], float],
    ) -> None:
        self.name = name
        self._label = label or Labels()
        self._clock = clock
        self._own = _Sampled(Counts(name))
        self._keys = OrderedDict[Hashable, _Sampled]()
        self._recording = Recording(limiter, self._own.counts, self._counts_of, clock=clock)
        #: The last minutes: when, the rate, and the limit per second at that time, if any.
        self.history: deque[tuple[float, float, float | None]] = deque(maxlen=_MOST_POINTS)
        self._in_use: float | None = None
        self.stop: Callable[[], None] = self._recording.stop

    def sample(self) -> None:
        """Sample the rates of now; to be called twice a second."""
        now, limiter = self._clock(), self._recording.limiter
        for each in (self._own, *self._latest().values()):
            each.sample(now)
        if self._own.rate is not None:
            self.history.append((now, self._own.rate, gauges.tokens_per_second(limiter)))
            while self.history[0][0] < now - _PAST:
                self.history.popleft()

    async def ask_store(self) -> None:
        """Ask the store how much of the limit all processes use."""
        self._in_use = await shared_use(self._recording.limiter)

    def snapshot(self) -> Shown:
        """Return the data of now; of the pauses of one key for one reason, the last one."""
        recording, now = self._recording, self._clock()
        limiter, down_since = recording.limiter, recording.store_down_since
        keyed = limiter if isinstance(limiter, KeyedRateLimiter) else None
        return {
            **self._own.state(limiter),
            "at": now,
            "limits": _limits_of(limiter),
            "slots": gauges.concurrency_limit(limiter),
            "inUse": self._in_use,
            "keys": None if keyed is None else self._states_of(keyed),
            "keyCount": 0 if keyed is None else len(keyed),
            "paused": gauges.paused(limiter),
            "pauses": [
                {
                    "ago": now - group.at,
                    "key": group.series.label,
                    "seconds": group.last.seconds,
                    "reason": events.REASONS[group.last.reason],
                    "count": group.count,
                }
                for group in reversed(recording.pauses.values())
            ],
            "storeDownFor": None if down_since is None else now - down_since,
        }

    def _latest(self) -> dict[Hashable, _Sampled]:
        """Return the most recently active keys."""
        return dict(list(self._keys.items())[-_SHOWN:])

    def _states_of(self, limiter: KeyedRateLimiter) -> list[Shown]:
        """Return the most recently active keys, by name, so that rows keep their place."""
        latest = self._latest().items()
        return [
            # `limiter[key]` alone would make a forgotten key anew.
            each.state(limiter[key] if key in limiter else None)  # noqa: SIM401
            for key, each in sorted(latest, key=lambda it: (it[1].counts.label, id(it[1])))
        ]

    def _counts_of(self, key: Hashable) -> Iterator[Counts]:
        yield self._own.counts
        if not isinstance(self._recording.limiter, KeyedRateLimiter):
            return
        known = self._keys.pop(key, None) or _Sampled(Counts(self._label(key)))
        self._keys[key] = known  # the last one, as the most recently active
        if len(self._keys) > _REMEMBERED:
            self._keys.popitem(last=False)
        yield known.counts


def _limits_of(limiter: AnyLimiter) -> list[str]:
    """Return the rates in force; where there are others than of requests, as they were written."""
    texts = [
        f"{number(rate.limit, 6)} per {number(rate.period, 6)} s" for rate in gauges.rates(limiter)
    ]
    if isinstance(limiter, RateLimiter):
        limits = engines_of(limiter)[0].limits
        if limits.resources or (limits.algorithm is not None and not texts):
            return [limits.text]
    return texts


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
        if isinstance(key, str):
            bracketed = _BRACKETED.fullmatch(key)
            if _NAME.fullmatch(key) or address_of(bracketed[1] if bracketed else key):
                return key
        self._count += 1
        return f"key {self._count}"


def address_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address that a host is; None: it is a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


async def shared_use(limiter: AnyLimiter) -> float | None:
    """Ask the store which part of a shared limit all processes use together, from 0 to 1.

    None: the limiter has no store, limits each key, is not used in this event loop, or its store
    does not answer.
    """
    if not isinstance(limiter, RateLimiter):
        return None
    (engine,) = engines_of(limiter)
    if engine.store_up is None or engine.loop is not asyncio.get_running_loop():
        return None
    try:
        decision = await limiter.peek()
    except ThrottleError:
        return None
    limit = decision.limit
    return max(0.0, 1 - decision.remaining / limit) if 0 < limit < math.inf else None

"""What the page is told of one limiter: counts that go up, and how things stand.

Speeds are left to the page, which knows when it was told. Times are an argument.
"""

import ipaddress
import re
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import NamedTuple, TypedDict

from aiothrottle import gauges
from aiothrottle.events import (
    REASONS,
    Event,
    Granted,
    Paused,
    Reason,
    Refused,
    Retried,
    ServerRefused,
    StoreDown,
    StoreUp,
)
from aiothrottle.keyed import KeyedRateLimiter
from aiothrottle.limiter import RateLimiter
from aiothrottle.texts import number

__all__ = ["Feed", "Snapshot"]

# So many keys are remembered, those that were busy last, and so many of them are shown.
_REMEMBERED, _SHOWN = 500, 50
_PAUSES = 10

_NAME = re.compile(r"(?=.*[.:]|localhost$)[a-z0-9._-]{1,253}(:[0-9]{1,5})?")
_PORT = re.compile(r"(:[0-9]{1,5})?")


class Figures(TypedDict):
    """How one key stands, or all together."""

    name: str
    tokens: float
    granted: int
    inFlight: int
    waiting: int
    refused: int
    serverRefused: int
    retried: int
    pausedFor: float


class Pause(TypedDict):
    """A pause that began."""

    ago: float
    who: str
    seconds: float
    reason: str


class Snapshot(Figures):
    """How one limiter stands."""

    limits: list[str]
    perSecond: float | None
    slots: int | None
    keys: list[Figures] | None
    keyCount: int
    pauses: list[Pause]
    storeDownFor: float | None


class _Counts:
    """What was counted for one key, or for all."""

    __slots__ = ("granted", "name", "refused", "retried", "server_refused", "tokens")

    def __init__(self, name: str) -> None:
        self.name = name
        self.granted = self.refused = self.server_refused = self.retried = 0
        self.tokens = 0.0

    def count(self, event: Event) -> None:
        match event:
            case Granted():
                self.granted += 1
                self.tokens += event.cost
            case Refused():
                self.refused += 1
            case ServerRefused():
                self.server_refused += 1
            case Retried():
                self.retried += 1
            case _:
                pass

    def figures(self, limiter: gauges.AnyLimiter | None) -> Figures:
        return {
            "name": self.name,
            "tokens": self.tokens,
            "granted": self.granted,
            "inFlight": gauges.in_flight(limiter) if limiter else 0,
            "waiting": gauges.waiting(limiter) if limiter else 0,
            "refused": self.refused,
            "serverRefused": self.server_refused,
            "retried": self.retried,
            "pausedFor": gauges.paused_for(limiter) if isinstance(limiter, RateLimiter) else 0.0,
        }


class _Began(NamedTuple):
    at: float
    who: str
    seconds: float
    reason: Reason


class Feed:
    """Listens to one limiter, until `stop`.

    Args:
        name: What the page calls it.
        limiter: What is listened to.
        label: What the page calls a key; None: see `Labels`.
        clock: Gives the time in seconds.
    """

    def __init__(
        self,
        name: str,
        limiter: gauges.AnyLimiter,
        label: Callable[[Hashable], str] | None,
        clock: Callable[[], float],
    ) -> None:
        self._limiter = limiter
        self._label = label or Labels()
        self._clock = clock
        self._all = _Counts(name)
        self._keys = OrderedDict[Hashable, _Counts]()
        self._pauses = deque[_Began](maxlen=_PAUSES)
        self._store_down_since: float | None = None
        self.stop: Callable[[], None] = limiter.observe(self._hear)

    def snapshot(self) -> Snapshot:
        """Tell how it stands now."""
        limiter, now = self._limiter, self._clock()
        one = limiter if isinstance(limiter, RateLimiter) else None
        keyed = limiter if isinstance(limiter, KeyedRateLimiter) else None
        rates = gauges.rates(one) if one else ()
        return {
            **self._all.figures(limiter),
            "limits": [f"{number(rate.limit, 6)} per {number(rate.period, 6)} s" for rate in rates],
            "perSecond": min((rate.limit / rate.period for rate in rates), default=None),
            "slots": gauges.concurrency_limit(one) if one else None,
            "keys": None if keyed is None else self._figures_of(keyed),
            "keyCount": 0 if keyed is None else len(keyed),
            "pauses": [
                {
                    "ago": now - pause.at,
                    "who": pause.who,
                    "seconds": pause.seconds,
                    "reason": REASONS[pause.reason],
                }
                for pause in reversed(self._pauses)
            ],
            "storeDownFor": None
            if self._store_down_since is None
            else now - self._store_down_since,
        }

    def _figures_of(self, limiter: KeyedRateLimiter) -> list[Figures]:
        """Tell of the keys that were busy last, in an order that does not jump about."""
        latest = list(self._keys.items())[-_SHOWN:]
        figures = [
            # To ask for a key that was forgotten would make it anew.
            counts.figures(limiter[key] if key in limiter else None)  # noqa: SIM401
            for key, counts in latest
        ]
        return sorted(figures, key=lambda each: each["name"])

    def _hear(self, event: Event) -> None:
        self._all.count(event)
        who = self._all.name
        if event.key is not None:
            counts = self._counts_of(event.key)
            counts.count(event)
            who = counts.name
        if isinstance(event, Paused):
            self._pauses.append(_Began(self._clock(), who, event.seconds, event.reason))
        elif isinstance(event, StoreDown) and self._store_down_since is None:
            self._store_down_since = self._clock()
        elif isinstance(event, StoreUp):
            self._store_down_since = None

    def _counts_of(self, key: Hashable) -> _Counts:
        counts = self._keys.get(key)
        if counts is None:
            counts = self._keys[key] = _Counts(self._label(key))
            if len(self._keys) > _REMEMBERED:
                self._keys.popitem(last=False)
        else:
            self._keys.move_to_end(key)
        return counts


class Labels:
    """Names keys so that none is shown that may be a secret: only hosts are shown as they are.

    >>> label = Labels()
    >>> label("api.example.org"), label("127.0.0.1:8080"), label("sk-secret"), label(7)
    ('api.example.org', '127.0.0.1:8080', 'key 1', 'key 2')
    """

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, key: Hashable) -> str:
        """Name a key that was not named before."""
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

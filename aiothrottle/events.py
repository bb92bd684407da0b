"""What limiters decide, as values for whoever wants to know.

An observer is a function of one argument. ``limiter.observe(print)`` prints each decision, and
``match`` tells one kind from another::

    def observe(event):
        match event:
            case Paused(key=host, seconds=seconds):
                print(f"{host} is paused for {seconds:.0f} s")

It is called in the limiter's own thread, at once, and for what concerns one request in the task of
that request; so it has to be quick, and may ask the limiter for its statistics. If it raises, that
is logged, once, and the limiter goes on. A limiter that nobody observes makes none of these.

The `key` of each event is that of a `KeyedRateLimiter`; with a `RateLimiter` it is None.
"""

import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from aiothrottle.rate import Rate

__all__ = [
    "Adapted",
    "Event",
    "Granted",
    "Observer",
    "Paused",
    "QuotaUpdated",
    "Rejected",
    "Retried",
    "StoreDown",
    "StoreUp",
    "Throttled",
]

_logger = logging.getLogger("aiothrottle")

Rejection: TypeAlias = Literal["no room", "timeout", "queue full"]
Reason: TypeAlias = Literal["retry-after", "throttled", "requested"]

# As people are told.
REASONS: dict[Reason, str] = {
    "retry-after": "the server throttled a request and sent a Retry-After",
    "throttled": "the server throttled a request",
    "requested": "the program called pause()",
}

# None is frozen, as that would make them four times as expensive: treat them as values.


@dataclass(slots=True)
class Granted:
    """A request was let through."""

    key: Hashable
    #: Tokens that it costs.
    cost: float
    #: Seconds that it has waited; 0.0 if it went at once.
    waited: float


@dataclass(slots=True)
class Rejected:
    """The limiter told a request no: `try_acquire` without room, a time-out, a full queue."""

    key: Hashable
    reason: Rejection


@dataclass(slots=True)
class Throttled:
    """The server told a request no: see `Permit.report_throttled`."""

    key: Hashable
    #: Seconds that the server asked for; None: it did not say.
    retry_after: float | None


@dataclass(slots=True)
class Paused:
    """A pause began, or became longer by a second or more."""

    key: Hashable
    #: For how long from now.
    seconds: float
    #: "retry-after": the server throttled a request and sent a Retry-After. "throttled": it refused one and did
    #: not say. "requested": the program has called `RateLimiter.pause`.
    reason: Reason


@dataclass(slots=True)
class Retried:
    """A request of a session or transport is going to be sent again."""

    key: Hashable
    #: Which attempt that will be: 2 is the first one that is sent again.
    attempt: int
    #: Seconds until then.
    delay: float
    #: Of the response, if there was one.
    status: int | None
    #: Why there was no response.
    error: Exception | None


@dataclass(slots=True)
class Adapted:
    """A controller has changed what it is there for (`AdaptiveRate` and its kin)."""

    key: Hashable
    #: "rate": tokens per second. "slots": how many may be in flight. "guard": seconds.
    what: Literal["rate", "slots", "guard"]
    value: float
    before: float


@dataclass(slots=True)
class QuotaUpdated:
    """The server has said something of its limits, and the limiter heeds it."""

    key: Hashable
    #: Tokens that are left, and the seconds until there are new ones; None: not said.
    remaining: float | None
    reset_after: float | None
    #: The rates that are kept from now on, if the limiter follows the server.
    rates: tuple[Rate, ...] = ()


@dataclass(slots=True)
class StoreDown:
    """The store of a shared limit does not answer."""

    key: Hashable
    error: Exception
    #: Which outage of this process it is: all limiters that share the store tell of the same one.
    outage: int = 0


@dataclass(slots=True)
class StoreUp:
    """The store answers again."""

    key: Hashable
    #: Seconds for which it did not.
    after: float


Event: TypeAlias = (
    Granted | Rejected | Throttled | Paused | Retried | Adapted | QuotaUpdated | StoreDown | StoreUp
)
"""What an observer is told."""

Observer: TypeAlias = Callable[[Event], None]
"""What `RateLimiter.observe` takes."""


class Listener:
    """An observer that can do its limiter no harm."""

    __slots__ = ("_failed", "_observer")

    def __init__(self, observer: Observer) -> None:
        if not callable(observer):
            raise TypeError(f"an observer is a function of one event, such as print: {observer!r}")
        self._observer = observer
        self._failed = False

    def receive(self, event: Event) -> None:
        """Pass the event on."""
        try:
            self._observer(event)
        except Exception:
            if not self._failed:
                self._failed = True
                _logger.exception(
                    "an observer failed, and is not reported again: %r", self._observer
                )

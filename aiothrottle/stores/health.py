"""What this process knows of a server of a store: whether it answers, and when to try it again.

There is one `Health` for each server of a store, for all limiters on it: while the server fails one
limiter tries it, at growing intervals, on behalf of all, and one line is logged. The others follow:
they have no timers and make no calls, and are notified when it is back.

Invariant: while a follower needs the server, a probe is under way or a timer is set for the next.
All times are those of the event loop: the clocks of the limiters may differ.
"""

import asyncio
import itertools
import logging
import random
from contextvars import Context
from typing import Protocol
from weakref import WeakKeyDictionary

from aiothrottle._checks import duration
from aiothrottle.algorithms.protocol import until
from aiothrottle.errors import StoreUnavailable
from aiothrottle.stores.share import ProcessCounter
from aiothrottle.stores.store import Key, Store

__all__ = ["Health"]

_LOG = logging.getLogger("aiothrottle")

# Of all stores of this process.
_OUTAGES = itertools.count(1)

# Seconds between two tries. With a second for a call that is not answered, the timeout of the
# stores, every process finds within two seconds that the store is back.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 0.5
# By up to this part a pause is longer or shorter, so that processes do not all try at once.
_JITTER = 0.25
# Followers that are notified in one turn of the loop.
_NOTIFIED_AT_ONCE = 100


class Follower(Protocol):
    """A limiter for which the server fails."""

    @property
    def needs_probe(self) -> bool:
        """Whether it has a reason to find out soon that the server is back."""
        ...

    def probe(self) -> None:
        """Try the server, and call `probe_ended` afterwards."""
        ...

    def server_returned(self) -> None:
        """Continue with the server."""
        ...


class Health:
    """Whether a server answers.

    Args:
        store: The store that the server is of.
        node: The name of the server, if the store has several.
        counter: Counts the processes that use the store; None: nobody does so yet.
    """

    __slots__ = (
        "_followers",
        "_loop",
        "_name",
        "_reported_at",
        "_timer",
        "_try_at",
        "counter",
        "error",
        "failures",
        "is_tried",
        "outage",
    )

    def __init__(self, store: Store, node: str = "", counter: ProcessCounter | None = None) -> None:
        self._name = f"{type(store).__name__} {node}".rstrip()
        self.counter: ProcessCounter = counter or ProcessCounter()
        self._reported_at: float | None = None
        #: The number of the last outage, or of the present one.
        self.outage: int = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._begin_anew()

    @classmethod
    def of(cls, store: Store, key: Key | None = None) -> "Health":
        """Return the health of the server that has the record of the key."""
        healths: dict[str, Health] | None = getattr(store, "_health", None)
        if healths is None:
            healths = {}
            object.__setattr__(store, "_health", healths)  # a user's own store may be frozen
        node = "" if key is None else store.node_of(key)
        health = healths.get(node)
        if health is None:
            counter = next((each.counter for each in healths.values()), None)
            health = healths[node] = cls(store, node, counter)
        return health

    def move_to(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Begin anew if that is another loop, which may have a time of its own."""
        if loop is not self._loop:
            self._loop = loop
            self._begin_anew()

    def _begin_anew(self) -> None:
        #: Calls that failed one after the other.
        self.failures: int = 0
        #: The error of the last of them.
        self.error: StoreUnavailable | None = None
        self._try_at = 0.0
        #: Whether a follower is trying the server now.
        self.is_tried: bool = False
        self._followers: WeakKeyDictionary[Follower, None] = WeakKeyDictionary()
        self._timer: asyncio.TimerHandle | None = None
        self.counter.restart()

    def pause(self) -> float:
        """Seconds until it is time to try again."""
        return until(self._try_at, _now()) if self.failures else 0.0

    def call_failed(self, error: StoreUnavailable) -> None:
        """Note a failed call. Of several that were under way together one counts."""
        self.error = error
        if self.pause() == 0.0:
            self._begin_pause()

    def take_turn(self) -> bool:
        """Return whether it is time for a call: then it is not for the other limiters."""
        if self.pause() > 0.0 or self.is_tried:
            return False
        self._begin_pause()
        return True

    def _begin_pause(self) -> None:
        doublings = min(self.failures, 20)  # an outage of hours has thousands of failures
        pause = min(_FIRST_PAUSE * 2**doublings, _LONGEST_PAUSE)
        self._try_at = _now() + pause * random.uniform(1 - _JITTER, 1 + _JITTER)
        self.failures += 1

    def call_answered(self) -> None:
        """Note an answer to a limiter whose calls never failed: the others may call no more."""
        if self.failures and self.pause() == 0.0:  # else it may be older than the failure
            self.end_outage()

    def begin_outage(self, choice: str, reason: str) -> None:
        """Log that the store fails, unless that is logged already."""
        if self._reported_at is None:
            self._reported_at = _now()
            self.outage = next(_OUTAGES)
            # The reason is in the words of a server: escaped and cut, it forges no line.
            _LOG.warning("%s fails, on_store_error=%r: %.500r", self._name, choice, reason)

    def end_outage(self) -> None:
        """Notify all followers that the server is back, and log it, unless that is logged."""
        self.failures, self.error = 0, None
        if self._reported_at is not None:
            _LOG.info("%s is back after %s", self._name, duration(_now() - self._reported_at))
            self._reported_at = None
        followers = list(self._followers)
        self._followers.clear()
        self._notify(followers)

    def _notify(self, followers: list[Follower]) -> None:
        for follower in followers[:_NOTIFIED_AT_ONCE]:
            follower.server_returned()
        if (rest := followers[_NOTIFIED_AT_ONCE:]) and self._loop is not None:
            self._loop.call_soon(self._notify, rest, context=Context())

    # ---- followers -------------------------------------------------------------------------------

    @property
    def followers(self) -> int:
        """The number of limiters for which the server fails."""
        return len(self._followers)

    def follow(self, follower: Follower) -> None:
        """Notify the follower when the server is back."""
        self._followers[follower] = None

    def unfollow(self, follower: Follower) -> None:
        """Notify it no more."""
        self._followers.pop(follower, None)

    def probe_later(self) -> None:
        """Have a follower that needs the server try it when it is time."""
        if self._timer is None and not self.is_tried and self._followers and self._loop is not None:
            pause = max(_FIRST_PAUSE, self.pause())
            self._timer = self._loop.call_later(pause, self._probe, context=Context())

    def probe_ended(self) -> None:
        """Note that the probe is over, whatever came of it."""
        self.is_tried = False
        self.probe_later()

    def _probe(self) -> None:
        self._timer = None
        if self.is_tried:
            return
        for follower in list(self._followers):
            if follower.needs_probe:
                self._followers[follower] = self._followers.pop(follower)  # in turns
                follower.probe()
                return


def _now() -> float:
    return asyncio.get_running_loop().time()

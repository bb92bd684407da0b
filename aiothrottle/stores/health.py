"""What this process knows of a server of a store: whether it answers, and when to try it again.

There is one `Health` for each server of a store, for all limiters of an event loop on it: while the
server fails they follow it, which costs no timers and no calls. At growing intervals it is tried by
a call of one follower that needs it (a probe), on behalf of all, and one line is logged. They are
notified when it is back. What one limiter knows is its `Outage`.

Invariant: while a follower needs the server, a probe is under way or a timer is set for the next.
All times are those of the event loop: the clocks of the limiters may differ. Loops share nothing
but the count of processes, as they may run in several threads.
"""

import asyncio
import itertools
import json
import logging
import math
import os
import random
import secrets
from collections.abc import Awaitable, Callable
from contextvars import Context
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakKeyDictionary

from aiothrottle._checks import duration
from aiothrottle.algorithms.protocol import until
from aiothrottle.errors import StoreUnavailable
from aiothrottle.stores.store import Key, Store

if TYPE_CHECKING:
    from aiothrottle.stores.outage import Outage

_LOG = logging.getLogger("aiothrottle")

_Loop: TypeAlias = asyncio.AbstractEventLoop | None

# Of all stores of this process.
_OUTAGES = itertools.count(1)

# Seconds between two tries. With a second for a call that is not answered, the timeout of the
# stores, every process finds within two seconds that the store is back.
FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 0.5
# By up to this part a pause is longer or shorter, so that processes do not all try at once.
_JITTER = 0.25
# Followers that are notified in one turn of the loop.
_NOTIFIED_AT_ONCE = 100

# What becomes of requests until the store answers.
_MEANWHILE: dict[str, str] = {
    "raise": "fail",
    "local": "get this process's share of the limit",
    "open": "are granted without the limit",
    "closed": "wait",
}


class Health:
    """Whether a server answers.

    Args:
        store: The store that the server is of.
        node: The name of the server, if the store has several.
        loop: That of the limiters; None while they have none.
        counter: Counts the processes that use the store.
    """

    def __init__(self, store: Store, node: str, loop: _Loop, counter: "ProcessCounter") -> None:
        #: The name of the server, and that in messages, with the kind of store before it.
        self.node: str = node
        self.name: str = f"{type(store).__name__} {node}".rstrip()
        self.counter: ProcessCounter = counter
        self.counter.restart()
        self._loop = loop
        #: The number of the last outage, or of the present one.
        self.outage: int = 0
        # When the outage was logged, if there is one.
        self._reported_at: float | None = None
        #: Calls that failed one after the other.
        self.failures: int = 0
        #: The error of the last of them.
        self.error: StoreUnavailable | None = None
        self._try_at = 0.0
        # Whether a probe is under way; otherwise the timer for the next, if one is needed.
        self._is_probed = False
        self._timer: asyncio.TimerHandle | None = None
        #: The limiters for which the server fails, in the order in which they try it.
        self.followers: WeakKeyDictionary[Outage, None] = WeakKeyDictionary()

    @classmethod
    def of(cls, store: Store, key: Key, loop: _Loop) -> "Health":
        """Return the health of the server that has the record of the key, as the loop knows it."""
        known: tuple[ProcessCounter, dict[tuple[_Loop, str], Health]] | None
        known = getattr(store, "_health", None)
        if known is None:
            known = ProcessCounter(), {}
            object.__setattr__(store, "_health", known)  # a user's own store may be frozen
        counter, healths = known
        node = store.node_of(key)
        health = healths.get((loop, node))
        if health is None:
            for other, name in [*healths]:
                if other is not None and other.is_closed():
                    healths.pop((other, name), None)
            health = healths[loop, node] = cls(store, node, loop, counter)
        return health

    def pause(self) -> float:
        """Seconds until it is time to try again."""
        return until(self._try_at, loop_time()) if self.failures else 0.0

    def call_failed(self, error: StoreUnavailable) -> None:
        """Note a failed call. Of several that were under way together one counts."""
        self.error = error.with_traceback(None)  # whose frames would keep a limiter alive
        if self.pause() == 0.0:
            self._begin_pause()

    def take_turn(self) -> bool:
        """Return whether it is time for a call: then it is not for the other limiters."""
        if self.pause() > 0.0 or self._is_probed:
            return False
        self._begin_pause()
        return True

    def _begin_pause(self) -> None:
        doublings = min(self.failures, 20)  # an outage of hours has thousands of failures
        pause = min(FIRST_PAUSE * 2**doublings, _LONGEST_PAUSE)
        self._try_at = loop_time() + pause * random.uniform(1 - _JITTER, 1 + _JITTER)
        self.failures += 1

    def begin_outage(self, choice: str, reason: str, key: Key) -> None:
        """Log that the store fails, unless that is logged already."""
        if self._reported_at is None:
            self._reported_at = loop_time()
            self.outage = next(_OUTAGES)
            # The reason is in the words of a server: escaped and cut, it forges no line.
            _LOG.warning(
                "%s fails, on_store_error=%r: %.500r; %s",
                *(self.name, choice, reason, meanwhile(choice, key)),
            )

    def end_outage(self) -> None:
        """Notify all followers that the server is back, and log it, unless that is logged."""
        self.failures, self.error = 0, None
        if self._reported_at is not None:
            _LOG.info("%s is back after %s", self.name, duration(loop_time() - self._reported_at))
            self._reported_at = None
        followers = list(self.followers)
        self.followers.clear()
        self._notify(followers)

    def _notify(self, followers: "list[Outage]") -> None:
        for follower in followers[:_NOTIFIED_AT_ONCE]:
            if self.failures:  # it has failed again meanwhile
                self.followers[follower] = None
            else:
                follower.server_answered()
        if (rest := followers[_NOTIFIED_AT_ONCE:]) and self._loop is not None:
            self._loop.call_soon(self._notify, rest, context=Context())

    # ---- probes ----------------------------------------------------------------------------------

    def probe_later(self, soonest: float = 0.0) -> None:
        """Have a follower that needs the server try it when it is time."""
        if not (self._timer or self._is_probed) and self.followers and self._loop is not None:
            pause = max(soonest, self.pause())
            self._timer = self._loop.call_later(pause, self._on_time, context=Context())

    def _on_time(self) -> None:
        self._timer = None
        for follower in list(self.followers):
            call = None if follower.probe is None else follower.probe()
            if call is not None:
                self.followers[follower] = self.followers.pop(follower)  # in turns
                self._is_probed = True
                task = follower.begin_call(self._probe(follower, call))
                task.add_done_callback(self._probe_ended, context=Context())
                return

    async def _probe(self, follower: "Outage", call: Callable[[], Awaitable[None]]) -> None:
        try:
            await call()
        except StoreUnavailable as error:
            follower.call_failed(error)
            return
        except Exception:  # noqa: BLE001, S110 - the server answers: the next call raises the same
            pass
        self.end_outage()

    def _probe_ended(self, _: "asyncio.Task[None]") -> None:
        self._is_probed = False
        self.probe_later(FIRST_PAUSE)  # code that cancels all tasks wants no new one at once


def message_of(error: StoreUnavailable) -> str:
    """Return the message without a key: that of the limiter follows."""
    return " ".join(map(str, error.args))


def meanwhile(choice: str, key: Key) -> str:
    """Return what becomes of requests while the store fails."""
    return f"requests with key {key!r:.200} {_MEANWHILE[choice]} until it answers"


def loop_time() -> float:
    """Return the time of the running loop."""
    return asyncio.get_running_loop().time()


# ---- how many processes use the store ------------------------------------------------------------

# The key of the record. No limiter has it by chance.
_KEY = "aiothrottle.processes"
# Seconds between two registrations, at first and later, and for which one counts.
_FIRST_INTERVAL, _LAST_INTERVAL, _COUNTED = 0.1, 10.0, 30.0


class ProcessCounter:
    """Registers this process in a record of a store, and counts the registered ones.

    That costs two calls every ten seconds, as every server keeps the record by compare and swap,
    and the count lags behind the processes that have started or ended since.

    Invariant: a process counts from its first registration until 30 seconds after its last one.
    """

    __slots__ = ("_due_at", "_interval", "_token", "processes")

    def __init__(self) -> None:
        self._token = secrets.token_hex(8)
        #: How many processes use the store, this one included, as far as is known.
        self.processes: int = 1
        self.restart()

    def restart(self) -> None:
        """Begin anew on another loop, whose clock may be another one; the count stays."""
        self._due_at = -math.inf
        self._interval = _FIRST_INTERVAL

    def is_due(self) -> bool:
        """Return whether it is time to register; if so, the caller has to."""
        now = loop_time()
        if now < self._due_at:
            return False
        self._due_at = now + self._interval * random.uniform(1 - _JITTER, 1 + _JITTER)
        self._interval = min(2 * self._interval, _LAST_INTERVAL)
        return True

    async def register(self, store: Store) -> None:
        """Register this process, and count the registered ones. Raises what the store raises."""
        # The process is part of the name: a forked child has the same token.
        count = ProcessCount(f"{os.getpid():x}-{self._token}", _COUNTED)
        answer = await store.record(_KEY, count)
        self.processes = int(answer.remaining)


@dataclass(frozen=True, slots=True)
class ProcessCount:
    """Counts the names that registered lately. An algorithm, since any store can keep its record.

    Args:
        name: The name to register.
        seconds: How long a registration counts.

    >>> ann, bob = ProcessCount("ann", seconds=30.0), ProcessCount("bob", seconds=30.0)
    >>> state = ann.start()
    >>> ann.take(state, 0.0, 1); bob.take(state, 20.0, 1)
    >>> ann.remaining(state, 20.0), ann.remaining(state, 40.0)
    (2, 1)
    """

    name: str
    seconds: float
    capacity: float = field(init=False, default=math.inf)

    def start(self) -> dict[str, float]:
        """Return an empty count."""
        return {}

    def delay(self, state: dict[str, float], now: float, cost: float) -> float:  # noqa: ARG002
        """Return 0.0: now."""
        return 0.0

    def take(self, state: dict[str, float], now: float, cost: float) -> None:
        """Register the name, and drop the registrations that count no more."""
        if cost:
            state[self.name] = max(now, state.get(self.name, now))
            for name in [name for name, at in state.items() if at + self.seconds <= now]:
                del state[name]

    def remaining(self, state: dict[str, float], now: float) -> float:
        """Return how many names count."""
        return sum(at + self.seconds > now for at in state.values())

    def reset_after(self, state: dict[str, float], now: float) -> float:
        """Seconds until no registration counts."""
        return until(max(state.values()) + self.seconds, now) if state else 0.0

    def dump(self, state: dict[str, float]) -> bytes:
        """Return the names and their timestamps as bytes."""
        return json.dumps(state).encode()

    def load(self, data: bytes) -> dict[str, float]:
        """Return the state that was dumped.

        Raises:
            TypeError: The bytes are no such dump.
            ValueError: The same.
        """
        names = dict[str, float](json.loads(data))
        return {name: float(at) for name, at in names.items()}

"""What this process knows of a server of a store: whether it answers, and when to try it again.

There is one `Health` for each server of a store, for all limiters of an event loop on it: while the
server fails they follow it, which costs no timers and no calls. At growing intervals it is tried by
a call of one follower that needs it (a probe), on behalf of all, and one line is logged. They are
notified when it is back. What one limiter knows is its `Outage`, in which each failure of the
server begins, is reported and ends once.

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
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from aiothrottle._checks import duration
from aiothrottle.algorithms.protocol import until
from aiothrottle.errors import StoreUnavailable
from aiothrottle.events import StoreDown, StoreUp
from aiothrottle.stores.store import Key, OnStoreError, Store

_LOG = logging.getLogger("aiothrottle")

_Loop: TypeAlias = asyncio.AbstractEventLoop | None
_Call: TypeAlias = Callable[[], Awaitable[None]]

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
        #: The name in messages: that of the kind of store, and of the server.
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
        return until(self._try_at, _now()) if self.failures else 0.0

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
        self._try_at = _now() + pause * random.uniform(1 - _JITTER, 1 + _JITTER)
        self.failures += 1

    def begin_outage(self, choice: str, reason: str, key: Key) -> None:
        """Log that the store fails, unless that is logged already."""
        if self._reported_at is None:
            self._reported_at = _now()
            self.outage = next(_OUTAGES)
            # The reason is in the words of a server: escaped and cut, it forges no line.
            _LOG.warning(
                "%s fails, on_store_error=%r: %.500r; %s",
                *(self.name, choice, reason, _meanwhile(choice, key)),
            )

    def end_outage(self) -> None:
        """Notify all followers that the server is back, and log it, unless that is logged."""
        self.failures, self.error = 0, None
        if self._reported_at is not None:
            _LOG.info("%s is back after %s", self.name, duration(_now() - self._reported_at))
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

    async def _probe(self, follower: "Outage", call: _Call) -> None:
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


@dataclass(slots=True, eq=False, repr=False, weakref_slot=True)
class Outage:
    """The outages of a server as one limiter meets them, with its tokens or its slots.

    `report` and `probe` do not keep the limiter alive.
    """

    #: The store that may fail, and the key of the limiter's record.
    store: Store
    key: Key
    #: What serves while the store fails: `on_store_error`.
    choice: OnStoreError
    #: The part of the limit that this process may use alone then, with "local"; None: what suits.
    local_share: float | None
    #: Called with the event when the store fails or is back, and with None when it is time to ask
    #: again, for example as the server has answered another limiter (`is_back`).
    report: Callable[[StoreDown | StoreUp | None], None]
    #: Returns a call that tries the server if the limiter has a reason to. None: the limiter calls
    #: by itself.
    probe: Callable[[], _Call | None] | None = None
    #: The last call that is of no request: a probe, what was spent, or the count of processes.
    task: asyncio.Task[None] | None = field(init=False, default=None)
    #: The health of the server that has the key, as of the last call.
    health: Health = field(init=False)
    _loop: _Loop = field(init=False, default=None)
    #: Whether the store fails, as far as this limiter knows.
    is_down: bool = field(init=False, default=False)
    _down_since: float = field(init=False, default=0.0)
    #: Whether the server has answered a probe, or another limiter, since it failed for this
    #: one. It may have failed again for others since: their records may be the reason.
    is_back: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        """Begin without a loop."""
        self.health = Health.of(self.store, self.key, None)

    def find(self) -> None:
        """Find the health of the server that has the key now: keys may move."""
        if not self.is_down:
            self.health = Health.of(self.store, self.key, self._loop)

    def too_early(self) -> StoreUnavailable | None:
        """Return the error of a request, without a call, if the server fails and was just asked."""
        health = self.health
        if health.error is None or health.failures < 2:
            return None
        if health.take_turn():
            self.begin()  # so that an answer ends the outage, for all
            return None
        return self.error_for(health.error, "not asked again yet; ")

    def call_failed(self, error: StoreUnavailable) -> None:
        """Note a failed call."""
        self.is_back = False
        self.health.call_failed(error)
        self.health.begin_outage(self.choice, message_of(error), self.key)
        self.follow()  # perhaps again: the server had answered another limiter
        self.begin()

    def error_for(self, error: StoreUnavailable, more: str = "") -> StoreUnavailable:
        """Return the error for the requests: what failed, and what becomes of them."""
        ours = StoreUnavailable(f"{message_of(error)}; {more}{_meanwhile(self.choice, self.key)}")
        ours.__cause__ = error.__cause__
        return ours

    def trouble(self, *, is_calling: bool) -> str:
        """Return why requests wait for the store, and not for the limit; "" if they do not.

        Args:
            is_calling: Whether they wait for the answer to a call.
        """
        error = self.health.error
        if self.is_down and error is not None and self.choice != "open":
            return str(self.error_for(error))
        if is_calling:
            return f"{self.health.name} has not answered yet, key {self.key!r:.200}"
        return ""

    def begin(self) -> None:
        """Go on without the store, as it fails for this limiter or for another one."""
        if not self.is_down:
            self.is_down, self._down_since = True, _now()
            self.follow()
            assert self.health.error is not None
            self.report(StoreDown(None, self.health.error, self.health.outage))

    def call_answered(self) -> None:
        """Note an answer: if the store has failed, the outage is over, for all limiters.

        With a probe only its answer ends it: a call may be from before the outage, and the store
        has to get what was spent.
        """
        if self.is_down:
            if self.probe is None:
                self.end()
                self.health.end_outage()
        elif self.health.failures and self.health.pause() == 0.0:  # else older than the failure
            self.health.end_outage()

    def end(self) -> None:
        """Go on with the store."""
        if self.is_down:
            self.is_down = self.is_back = False
            # The loop may be another one, with a time of its own.
            self.report(StoreUp(None, max(0.0, _now() - self._down_since)))

    def move_to(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin anew on another loop, which may have a time of its own."""
        self._loop, self.health = loop, Health.of(self.store, self.key, loop)
        self.task, self.is_back = None, False

    # ---- as a follower ---------------------------------------------------------------------------

    def follow(self) -> None:
        """Try the server in turns with the others, and be notified when it is back."""
        self.health.followers[self] = None
        if self.probe is not None:
            self.health.probe_later()

    def server_answered(self) -> None:
        """Note that the server has answered a probe, or another limiter."""
        self.is_back = self.is_down
        self.report(None)

    def unfollow(self) -> None:
        """Try it no more, and be notified no more."""
        self.health.followers.pop(self, None)

    async def close(self) -> None:
        """Leave no task, and try the server no more until the next call."""
        self.unfollow()
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait([self.task])

    def begin_call(self, call: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Begin a call that is of no request, in place of another one."""
        if self.task is not None:
            self.task.cancel()
        # As with the consumer of a limiter: a plain Task, in an empty context.
        self.task = asyncio.Task(call, loop=self._loop, name="aiothrottle store", context=Context())
        return self.task


def message_of(error: StoreUnavailable) -> str:
    """Return the message without a key: that of the limiter follows."""
    return " ".join(map(str, error.args))


def _meanwhile(choice: str, key: Key) -> str:
    return f"requests with key {key!r:.200} {_MEANWHILE[choice]} until it answers"


def _now() -> float:
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
        now = _now()
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

"""Wakes the waiters for shared slots in Redis when it is their turn: publish and subscribe.

Strategy. The subscription is in doubt when it has failed, the server permits no messages, or does
not confirm it or answer a ping soon: a network that forgets a connection tells neither end. A ping
is to subscribe again. In doubt the owners are woken at a bounded pace, so that they ask by
themselves; a connection that stays silent, or on which anything fails, is replaced.

Invariant: while an owner listens the server has just answered, or a timer is set that wakes it.
"""

import asyncio
import logging
import random
import secrets
from collections.abc import Awaitable, Callable
from contextvars import Context
from itertools import islice
from typing import Any, TypeAlias

from aiothrottle._checks import duration
from aiothrottle.errors import reason_of
from aiothrottle.stores.store import name_of

# A client, a pipeline, a node, a script or a reply: the driver's own types are half unknown.
OfDriver: TypeAlias = Any

_LOG = logging.getLogger("aiothrottle")

# Seconds before the next attempt to listen; they double up to the longest, and begin anew after a
# subscription that lasted longer than that.
_BACKOFF, _LONGEST_BACKOFF = 0.05, 2.0
# Seconds without a message after which the server is pinged. They double while nothing but answers
# to pings comes: where slots change hands often, a silent connection is noticed soon.
_PING_AFTER, _LONGEST_PING_AFTER = 0.1, 2.0
# Seconds for an answer: then the subscription is in doubt, and after so many times as many it is
# replaced.
_ANSWER, _GIVE_UP_AFTER = 0.2, 10
# The most seconds between two rounds in which owners are woken in doubt, and how many of them in
# each: about a thousand calls a second, however many owners there are.
_POLL, _OWNERS_PER_POLL = 0.004, 3
# A doubt that lasts longer than this is polled less often in proportion, up to the longest pause:
# a server that forbids subscriptions does so for ever.
_LASTING, _LONGEST_POLL = 60.0, 0.05


class Wakes:
    """One subscription for all owners of one store, while any of them listens.

    Messages are lost while there is no connection: so a new subscription wakes all owners.

    Args:
        client: The client of the store.
        prefix: The beginning of every name.
        publish: Publishes an empty message to a channel. Raises if that is not permitted.
    """

    def __init__(
        self, client: OfDriver, prefix: str, publish: Callable[[str], Awaitable[None]]
    ) -> None:
        self._client = client
        self._publish = publish
        #: The beginning of an owner's name in the server, before a full stop.
        self.id: str = secrets.token_hex(8)
        #: The beginning of the channels of all stores; the `id` follows.
        self.channels: str = f"{name_of(prefix)}:wake:"
        self._wakes: dict[str, Callable[[], None]] = {}
        self._reader: asyncio.Task[None] | None = None
        # Wakes owners while the subscription is in doubt, since `_doubted_at`.
        self._timer: asyncio.TimerHandle | None = None
        self._doubted_at = 0.0
        # When it was logged that wake-ups fail, if they do.
        self._reported_at: float | None = None

    def listen(self, owner: str, wake: Callable[[], None]) -> bool:
        """Call `wake` for each message to the owner; False if the driver cannot listen."""
        if not hasattr(self._client, "pubsub"):  # an old driver, for a cluster
            return False
        self._wakes[owner] = wake
        loop = asyncio.get_running_loop()
        reader = self._reader
        if reader is None or reader.done() or reader.get_loop() is not loop:
            self._stop_timer()
            self._reader = asyncio.Task(
                self._read(loop), loop=loop, name="aiothrottle wakes", context=Context()
            )
        return True

    def unlisten(self, owner: str) -> None:
        """Stop calling it."""
        self._wakes.pop(owner, None)
        if not self._wakes and self._reader is not None:
            self._stop_timer()
            if not self._reader.get_loop().is_closed():
                self._reader.cancel()
            self._reader = None

    # ---- the subscription ------------------------------------------------------------------------

    async def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        backoff = _BACKOFF
        while not _is_cancelled():
            began = loop.time()
            try:
                await self._subscribe(loop)
            except Exception as error:  # noqa: BLE001 - whatever the driver raises: subscribe anew
                self._doubt(loop)
                self._report(loop, error)
            if loop.time() - began > _LONGEST_BACKOFF:
                backoff = _BACKOFF
            await asyncio.sleep(backoff * random.uniform(0.5, 1.0))
            backoff = min(2 * backoff, _LONGEST_BACKOFF)

    async def _subscribe(self, loop: asyncio.AbstractEventLoop) -> None:
        """Deliver messages until the connection fails, or is silent for too long."""
        pubsub: OfDriver = self._client.pubsub()
        began, ping_after, unanswered, confirmed = loop.time(), _PING_AFTER, 1, False
        try:
            await self._ping(pubsub)
            while not _is_cancelled():
                message = await pubsub.get_message(timeout=_ANSWER if unanswered else ping_after)
                if message is not None:
                    if not confirmed:  # what this user may not publish, no script of it may
                        await self._publish(self.channels + self.id)
                    # The driver itself connects anew, too: then the answer was not asked for.
                    is_new = message["type"] == "subscribe" and not unanswered
                    if self._timer is not None or is_new or not confirmed:
                        self._trust()
                        confirmed = True
                    unanswered = 0
                    if self._deliver(message):
                        ping_after = _PING_AFTER
                    if loop.time() - began > _LONGEST_BACKOFF:
                        self._report_return(loop)
                elif not unanswered:
                    await self._ping(pubsub)
                    unanswered = 1
                    ping_after = min(2 * ping_after, _LONGEST_PING_AFTER)
                elif unanswered < _GIVE_UP_AFTER:
                    unanswered += 1
                    self._doubt(loop)
                else:
                    raise TimeoutError("the server does not answer the subscription")
        finally:
            await pubsub.aclose()

    async def _ping(self, pubsub: OfDriver) -> None:
        """Subscribe, perhaps once more: the server answers, and needs no other permission."""
        async with asyncio.timeout(_ANSWER * _GIVE_UP_AFTER):
            await pubsub.subscribe(self.channels + self.id)

    def _deliver(self, message: dict[str, Any]) -> bool:
        """Wake the owner that the message names. Return whether it is a message."""
        if message["type"] != "message":
            return False
        data: str | bytes = message["data"]
        # Anybody may publish anything: what is no text names no owner.
        name = data if isinstance(data, str) else data.decode(errors="replace")
        if wake_owner := self._wakes.get(name.partition(".")[2]):
            wake_owner()
        return True

    # ---- in doubt --------------------------------------------------------------------------------

    def _doubt(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to wake the owners at intervals."""
        if self._timer is None:
            self._doubted_at = loop.time()
            self._timer = loop.call_later(_POLL, self._poll, loop, context=Context())

    def _trust(self) -> None:
        """End the doubt: the server has answered. Wake the owners, as messages may be lost."""
        self._stop_timer()
        for wake in list(self._wakes.values()):
            wake()

    def _poll(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wake the owners that were not woken for longest."""
        lasting = (loop.time() - self._doubted_at) / _LASTING
        pause = min(_POLL * max(1.0, lasting), _LONGEST_POLL) * random.uniform(0.5, 1.0)
        self._timer = loop.call_later(pause, self._poll, loop, context=Context())
        for owner in list(islice(self._wakes, _OWNERS_PER_POLL)):
            if wake := self._wakes.pop(owner, None):  # another one may have ended it
                self._wakes[owner] = wake  # to the end
                wake()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _report(self, loop: asyncio.AbstractEventLoop, error: Exception) -> None:
        if self._reported_at is None:
            self._reported_at = loop.time()
            _LOG.warning(
                "Redis: wake-ups for shared slots fail, limiters ask at intervals: %.500r",
                reason_of(error),
            )

    def _report_return(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._reported_at is not None:
            seconds, self._reported_at = loop.time() - self._reported_at, None
            _LOG.info("Redis: wake-ups for shared slots are back after %s", duration(seconds))


def _is_cancelled() -> bool:
    """Return whether this task was cancelled, though the driver has swallowed that."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0

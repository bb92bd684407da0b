"""The observers: what others learn of a limiter, as events, log lines and counts.

Invariant: without listeners no event is made, so callers check `listeners` before they make one.
"""

import asyncio
import logging
import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from inspect import iscoroutinefunction

from aiothrottle import events
from aiothrottle._checks import duration, number
from aiothrottle.errors import Label
from aiothrottle.statistics import Statistics, Waits

logger = logging.getLogger("aiothrottle")

# Seconds. The end of a shorter pause is not worth a date.
_MINUTE, _DAY = 60.0, 86400.0


class Listener:
    """Calls an observer, and catches what it raises: it is called in the middle of a decision.

    An exception is logged. What is none, such as `SystemExit` or the failure of a test, is for the
    program: it is raised in a callback of its own, and so reaches whatever runs the event loop.
    """

    __slots__ = ("_failed", "_observer")

    def __init__(self, observer: events.Observer) -> None:
        if not callable(observer):
            raise TypeError(
                f"an observer must be a function of one event, such as print, got {observer!r}"
            )
        if iscoroutinefunction(observer) or iscoroutinefunction(type(observer).__call__):
            raise TypeError(
                f"an observer must not be async, got {observer!r}: the limiter calls it and goes "
                "on; let it start a task, or put the event into an asyncio.Queue"
            )
        self._observer = observer
        self._failed = False

    def receive(self, event: events.Event) -> None:
        """Call the observer with the event."""
        try:
            self._observer(event)
        except Exception:
            if not self._failed:
                self._failed = True
                logger.exception(
                    "an observer failed; further failures of it are not logged: %r", self._observer
                )
        except BaseException as error:  # noqa: BLE001 - raised again, elsewhere
            try:
                loop = asyncio.get_running_loop()
            except RuntimeError:  # no request is in the middle of anything
                raise error from None
            loop.call_soon(_raise, error)


def _raise(error: BaseException) -> None:
    raise error


@dataclass(slots=True, eq=False, repr=False)
class Observers:
    """The name of a limiter, its listeners and its counters."""

    #: The name of the limiter, which each event gets.
    name: str = ""
    #: Its key in a `KeyedRateLimiter`.
    key: Hashable = None
    listeners: tuple[Listener, ...] = ()
    #: Requests that the limiter has rejected.
    rejected: int = 0
    #: Responses by which the server throttled, and the attempts that followed.
    throttled: int = 0
    retries: int = 0
    #: Pauses, as `Paused` reports them.
    pauses: int = 0
    #: Why the limiter was last paused.
    pause_reason: events.Reason = "requested"
    #: Requests that were granted, and cancelled before they could start.
    withdrawn: int = 0
    waits: Waits = field(default_factory=Waits)

    @property
    def title(self) -> Hashable:
        """What the log calls this limiter: its key, or without one its name."""
        return self.name if self.key is None else self.key

    @property
    def label(self) -> Label:
        """What an error says of this limiter."""
        return {"key": self.key, "name": self.name}

    # ---- listeners -------------------------------------------------------------------------------

    def add(self, listener: Listener) -> None:
        """Add a listener."""
        self.listeners += (listener,)

    def remove(self, listener: Listener) -> None:
        """Remove a listener."""
        self.listeners = tuple(other for other in self.listeners if other is not listener)

    def emit(self, event: events.Event) -> None:
        """Pass the event to all listeners."""
        event.name = self.name
        for listener in self.listeners:
            listener.receive(event)

    def reject(self, reason: events.Rejection) -> None:
        """Count a rejected request and emit it."""
        self.rejected += 1
        if self.listeners:
            self.emit(events.Rejected(self.key, reason))

    def paused(self, seconds: float, reason: events.Reason) -> None:
        """Log a pause, count it and emit it."""
        if logger.isEnabledFor(logging.INFO):
            self._log_pause(seconds, reason)
        self.pauses += 1
        self.pause_reason = reason
        if self.listeners:
            self.emit(events.Paused(self.key, seconds, reason))

    def retried(
        self, attempt: int, delay: float, status: int | None, error: Exception | None
    ) -> None:
        """Count a retry and emit it.

        Args:
            attempt: The number of the next attempt; the first one was 1.
            delay: Seconds until the next attempt.
            status: Status of the response; None: there was no response.
            error: Why there was no response; None: there was a response.
        """
        self.retries += 1
        if self.listeners:
            self.emit(events.Retried(self.key, attempt, delay, status, error))

    def suspected(self, host: str, statuses: frozenset[int], part: float) -> None:
        """Emit that these statuses of a host do not count as throttled, but seem to be."""
        if self.listeners:
            self.emit(events.ThrottlingSuspected(self.key, host, statuses, part))

    # ---- the log ---------------------------------------------------------------------------------
    # A key may come from an attacker: escaped and cut, it forges no line and fills no disk.

    def _log_pause(self, seconds: float, reason: events.Reason) -> None:
        until = ""
        if seconds >= _MINUTE:
            from datetime import datetime, timedelta  # few limiters are paused for so long

            end = datetime.now().astimezone() + timedelta(seconds=seconds)
            until = f", until {end:%H:%M:%S}" if seconds < _DAY else f", until {end:%Y-%m-%d %H:%M}"
        logger.info(
            "%.200r is paused for %s%s: %s",
            *(self.title, duration(seconds), until, events.REASONS[reason]),
        )

    def log_slower(self, burst: float, guard: float) -> None:
        """Log that the limiter is slower than its limit."""
        if not logger.isEnabledFor(logging.INFO):
            return
        bursts = "evenly spaced requests"
        if burst > 1.0:
            bursts = f"bursts of {number(burst)} at the most"
        logger.info(
            "%.200r is slower than its limit, with %s%s: the server throttled a request within the "
            "limit",
            *(self.title, bursts, f" and a guard of {duration(guard)}" if guard else ""),
        )

    def log_full_speed(self) -> None:
        """Log that the limiter uses its whole limit again."""
        logger.info("%.200r uses its whole limit again", self.title)

    def log_learned_rate(self, rate: float) -> None:
        """Log that a limiter learns a rate; infinity: that it gives it up."""
        if rate == math.inf:
            logger.info("%.200r gives up the rate that it has learned", self.title)
        else:
            logger.info(
                "%.200r learns a rate, from %s/s on: the server throttles it again and again",
                *(self.title, number(rate, 3)),
            )

    def log_stall(self, seconds: float, waiting: int) -> None:
        """Warn that the program keeps all slots, while requests wait for one."""
        logger.warning(
            "%.200r: no slot was released for %s while requests wait for one (%d): a response "
            "keeps its slot until it is read or closed, a permit until the end of its block or its "
            "release()",
            *(self.title, duration(seconds), waiting),
        )

    def log_silent_server(self, answers: int, concurrency_limit: object) -> None:
        """Warn that a server whose rate is to be followed reports none."""
        logger.warning(
            "%.200r: the server reports no limit in %d answers, so only the concurrency limit "
            "holds (%s); give a rate_limit that you know, or an AdaptiveRate",
            self.title,
            answers,
            concurrency_limit or "none is given: one request at a time",
        )

    # ---- counts ----------------------------------------------------------------------------------

    def absorb(self, other: "Observers") -> None:
        """Take over the counts of another limiter, which begins anew."""
        self.rejected += other.rejected
        self.throttled += other.throttled
        self.retries += other.retries
        self.pauses += other.pauses
        self.withdrawn += other.withdrawn
        other.rejected = other.throttled = other.retries = other.pauses = other.withdrawn = 0
        other.waits.count_recent()
        if other.waits.count:
            self.waits.add(other.waits)
            other.waits = Waits()


class Past:
    """The counts of the keys that were forgotten, to which those of the present keys are added."""

    def __init__(self) -> None:
        self._granted = 0
        self._observers = Observers()

    def absorb(self, granted: int, observers: Observers) -> None:
        """Take over the counts of a key that is forgotten; if it is used again, from zero.

        Args:
            granted: The requests that its bucket has granted.
            observers: Its other counts, which begin anew.
        """
        self._granted += granted
        self._observers.absorb(observers)

    def total(self, keys: Iterable[tuple[Statistics, Observers]]) -> Statistics:
        """Return the sums of the counts of all keys, whose limits are their own.

        Args:
            keys: The statistics of each present key, and what they were read from.
        """
        gone, waits, each = self._observers, Waits(), list[Statistics]()
        waits.add(gone.waits)
        for statistics, observers in keys:
            each.append(statistics)
            waits.add(observers.waits)
        granted = self._granted - gone.withdrawn + sum(it.granted for it in each)
        up = [it.store_up for it in each if it.store_up is not None]
        return Statistics(
            granted=granted,
            rejected=gone.rejected + sum(it.rejected for it in each),
            throttled=gone.throttled + sum(it.throttled for it in each),
            retries=gone.retries + sum(it.retries for it in each),
            pauses=gone.pauses + sum(it.pauses for it in each),
            waiting=sum(it.waiting for it in each),
            in_flight=sum(it.in_flight for it in each),
            **waits.fields(granted),
            paused_for=max((it.paused_for for it in each), default=0.0),
            quota_remaining=None,
            utilisation=max((it.utilisation for it in each), default=0.0),
            store_up=all(up) if up else None,
        )

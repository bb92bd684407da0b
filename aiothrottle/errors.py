"""What aiothrottle raises on purpose: one base, few kinds, each with what a handler needs.

Wrong arguments are plain `ValueError` and `TypeError`; they are not listed here.
"""

# Each name tells a state of affairs, and its base that it is an error.
# ruff: noqa: N818

from collections.abc import Hashable
from typing import Any

from aiothrottle.texts import duration, number

__all__ = [
    "AttemptThrottled",
    "CostTooHigh",
    "LimiterClosed",
    "QueueFull",
    "RequestDropped",
    "StoreUnavailable",
    "ThrottleError",
    "ThrottleTimeout",
    "entered_before",
    "in_another_thread",
    "no_copy",
    "reason_of",
    "twin",
]


# So many causes of causes are looked at.
_DEEPEST = 20


class ThrottleError(Exception):
    """Base of every error that aiothrottle raises on purpose. It can be pickled and copied."""

    #: Of the limiter that refused, in a `KeyedRateLimiter`; None: it has no key, or none is told.
    key: Hashable = None

    def __str__(self) -> str:
        """Give the message, with the key."""
        # A key may come from a stranger: escaped and cut, it forges no line of a log.
        return super().__str__() + ("" if self.key is None else f" (key {self.key!r:.200})")

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Come back as it was: by default Python would give `__init__` the message."""
        return _unmade, (type(self),), {**self.__dict__, "args": self.args}


def _unmade(kind: type[ThrottleError]) -> ThrottleError:
    return kind.__new__(kind)


class CostTooHigh(ThrottleError, ValueError):
    """The cost is more than the limit can ever admit, so waiting would never end."""

    #: The cost that was asked for, in tokens.
    cost: float
    #: The greatest cost that can ever be admitted, in tokens.
    limit: float

    def __init__(self, cost: float, limit: float, *, key: Hashable = None) -> None:
        super().__init__(f"cost must be at most {number(limit)} tokens, got {number(cost)}")
        self.cost = cost
        self.limit = limit
        self.key = key


class ThrottleTimeout(ThrottleError, TimeoutError):
    """The wait is longer than `timeout` allows; told at once where it is known beforehand."""

    #: Seconds after which rate and pauses will let it go: it is of no use to ask again earlier. 0.0
    #: if only a slot is missing: nobody knows when one comes free.
    retry_after: float
    #: Seconds: the `timeout` of the call, or the longest wait that the algorithm allows. None: not
    #: known.
    timeout: float | None

    def __init__(
        self, retry_after: float, *, timeout: float | None = None, key: Hashable = None
    ) -> None:
        limit = "" if timeout is None else f" of {duration(timeout)}"
        reason = f"retry after {duration(retry_after)}" if retry_after else "all slots are taken"
        super().__init__(f"not granted within the timeout{limit}: {reason}")
        self.retry_after = retry_after
        self.timeout = timeout
        self.key = key


class QueueFull(ThrottleError):
    """As many wait already as `max_queue` allows."""

    #: How many wait.
    waiting: int
    #: Seconds after which the rate would let it go, behind those who wait.
    retry_after: float

    def __init__(self, waiting: int, retry_after: float, *, key: Hashable = None) -> None:
        when = f"; retry after {duration(retry_after)}" if retry_after else ""
        super().__init__(f"max_queue is reached with {waiting} waiting{when}")
        self.waiting = waiting
        self.retry_after = retry_after
        self.key = key


class RequestDropped(ThrottleError):
    """Adaptive throttling dropped the request, as the server is failing; nothing was sent.

    See the option `adaptive_throttling`. The request took no token. It is not retried: that would
    only add to what the server fails at.
    """

    #: Of the server, ``"api.example.org"``, with its port unless that is the usual one.
    origin: str
    #: The share of the requests to it that is dropped at present, above 0 and below 1.
    dropped_share: float

    def __init__(self, origin: str, dropped_share: float) -> None:
        super().__init__(
            f"{origin} is failing: the request was dropped, as {dropped_share:.0%} of all to it are"
        )
        self.origin = origin
        self.dropped_share = dropped_share


class AttemptThrottled(ThrottleError):
    """The outcome of an attempt that was to be retried; only ever a `__cause__`.

    It is that of a `ThrottleTimeout` or a `RequestDropped`, for example, which prevented the retry.
    """

    #: Of the response.
    status: int
    #: Seconds that the server asked for; None: it did not.
    retry_after: float | None

    def __init__(self, status: int, retry_after: float | None) -> None:
        wait = "" if retry_after is None else f", retry after {duration(retry_after)}"
        super().__init__(f"the attempt before was answered with status {status}{wait}")
        self.status = status
        self.retry_after = retry_after


class LimiterClosed(ThrottleError, RuntimeError):
    """The limiter was closed, before the call or while it was waiting."""

    def __init__(self, *, key: Hashable = None) -> None:
        super().__init__("this limiter is closed: make a new one, or close it later")
        self.key = key


class StoreUnavailable(ThrottleError):
    """The store of the limits did not answer in time, or refused; the driver's error is the cause.

    Whether what was asked of it was done nobody knows.
    """


def entered_before(verb: str) -> RuntimeError:
    """Make the error of a limiter that is entered as those of other libraries are, for each turn.

    It would wait for nothing, and what ends first would close the limiter of the others.
    """
    return RuntimeError(
        "a limiter is entered once, around all that use it, and is closed at the end: around each "
        f"request write `async with limiter.{verb}:`"
    )


def no_copy(kind: str) -> TypeError:
    """Make the error of a limiter, or of a part of one, that is to be pickled or copied.

    The copy would grant the whole limit once more, to a pool of processes for example.
    """
    return TypeError(
        f"a {kind} cannot be pickled or copied, as each copy would grant the whole limit again; to "
        "share a limit between processes, make a limiter with the same store= and key= in each "
        "(see aiothrottle.stores)"
    )


def in_another_thread(loop: object) -> RuntimeError:
    """Make the error of changing a limiter in another thread than that of its loop.

    No waiter would notice, and two threads would count over each other.
    """
    return RuntimeError(
        f"this limiter belongs to {loop!r}, which is open and runs in another thread: there "
        "call it by `loop.call_soon_threadsafe(...)`, or by `asyncio.run_coroutine_threadsafe(...)`"
    )


def reason_of(error: BaseException, outer: BaseException | None = None) -> str:
    """Say why a driver failed: what its error says, or the nearest cause of it that says anything.

    A timeout, for one, says nothing; what the driver tried again because of stands behind it. What
    the operating system or TLS said at first is added, if the driver left it out.

    Args:
        error: What the driver raised.
        outer: What was being handled before the driver was called: no part of it.
    """
    chain: list[Exception] = []
    cause: BaseException | None = error
    for _ in range(_DEEPEST):
        if cause is None or cause is outer:
            break
        if isinstance(cause, Exception):
            chain.append(cause)
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    told = next((text for each in chain if (text := str(each))), "")
    system = next(
        (each for each in reversed(chain) if isinstance(each, OSError) and str(each)), None
    )
    parts = [told] if str(error) else [_name_of(error), told]
    if system is not None and (system.strerror or str(system)) not in told:
        parts.append(str(system))
    return ": ".join(filter(None, parts))


def _name_of(error: BaseException) -> str:
    return "no answer in time" if isinstance(error, TimeoutError) else type(error).__name__


def twin(error: Exception, key: Hashable) -> Exception:
    """Give each who waits an error of its own: what is raised twice collects two tracebacks.

    The store's own says of which limiter it is: the store does not know.
    """
    if type(error) not in {StoreUnavailable, TypeError, ValueError}:
        return error
    other = type(error)(*error.args)
    other.__cause__ = error
    if isinstance(other, StoreUnavailable):
        other.key = key
    return other

"""The exceptions of aiothrottle: one base, and attributes with what a handler needs.

Wrong arguments raise plain `ValueError` and `TypeError`.
"""

# The names describe a state; the base `ThrottleError` says that it is an error.
# ruff: noqa: N818

from collections.abc import Hashable
from typing import Any, TypedDict

from aiothrottle._checks import duration, number
from aiothrottle.amounts import Amounts, by_name, excess

# The longest chain of causes that `reason_of` follows.
_DEEPEST = 20
# As OpenSSL names it in its errors, which drivers pass on, some as a text.
_REFUSED_CERTIFICATE = "CERTIFICATE_VERIFY_FAILED"


class Label(TypedDict):
    """What an error says of its limiter."""

    key: Hashable
    name: str | None


class ThrottleError(Exception):
    """Base of every error that aiothrottle raises on purpose. It can be pickled and copied."""

    #: The key of the limiter in a `KeyedRateLimiter`; None: no key, or not known.
    key: Hashable = None
    #: The name of the limiter (`RateLimiter.name`); None: not known.
    name: str | None = None

    def __str__(self) -> str:
        """Return the message, with the key, or without one the name."""
        # A key may come from an attacker: escaped and cut, it forges no line of a log.
        if self.key is not None:
            return f"{super().__str__()} (key {self.key!r:.200})"
        return super().__str__() + ("" if self.name is None else f" (limiter {self.name!r:.200})")

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Restore the attributes: by default Python would call `__init__` with the message."""
        return _unmade, (type(self),), {**self.__dict__, "args": self.args}


def _unmade(kind: type[ThrottleError]) -> ThrottleError:
    return kind.__new__(kind)


class CostTooHigh(ThrottleError, ValueError):
    """The cost is more than the limit can ever admit, so the wait would never end."""

    #: The cost of the request, in tokens.
    cost: float
    #: The greatest cost that the limit can ever admit, in tokens.
    limit: float
    #: The resource that both are of; None: the limiter has no resources.
    resource: str | None

    def __init__(
        self,
        cost: float,
        limit: float,
        *,
        resource: str | None = None,
        key: Hashable = None,
        name: str | None = None,
    ) -> None:
        of = f"{number(limit)} tokens" if resource is None else f"{number(limit)} of {resource!r}"
        super().__init__(f"cost must be at most {of}, got {number(cost)}")
        self.cost, self.limit, self.resource = cost, limit, resource
        self.key = key
        self.name = name


class ThrottleTimeout(ThrottleError, TimeoutError):
    """The wait is longer than `timeout`. Raised at once if that is known beforehand."""

    #: Seconds until pauses and rates allow the request: an earlier retry is of no use. 0.0 if only
    #: a slot is missing: it is not known when one is released.
    retry_after: float
    #: Seconds: the `timeout` of the call, or the longest wait of the algorithm. None: not known.
    timeout: float | None
    #: The name, or the key, of the limiter above (`parent`) that would not grant in time; None: it
    #: is this limiter.
    limited_by: Hashable
    #: Why the request waits for the store and not for the limit; "" if it does not.
    store_error: str

    def __init__(
        self,
        retry_after: float,
        *,
        timeout: float | None = None,
        limited_by: Hashable = None,
        store_error: str = "",
        key: Hashable = None,
        name: str | None = None,
    ) -> None:
        limit = "" if timeout is None else f" of {duration(timeout)}"
        wait = f"retry after {duration(retry_after)}" if retry_after else "all slots are taken"
        by = "" if limited_by is None else f", limited by {limited_by!r:.200}"
        super().__init__(f"not granted within the timeout{limit}: {store_error or wait}{by}")
        self.retry_after, self.timeout, self.limited_by = retry_after, timeout, limited_by
        self.store_error = store_error
        self.key = key
        self.name = name


class QueueFull(ThrottleError):
    """The queue already has `max_queue` waiters."""

    #: The number of waiters.
    waiting: int
    #: Seconds until pauses and rates allow the request, behind the waiters.
    retry_after: float

    def __init__(
        self, waiting: int, retry_after: float, *, key: Hashable = None, name: str | None = None
    ) -> None:
        when = f"; retry after {duration(retry_after)}" if retry_after else ""
        super().__init__(f"max_queue is reached with {waiting} waiting{when}")
        self.waiting, self.retry_after = waiting, retry_after
        self.key = key
        self.name = name


class RequestDropped(ThrottleError):
    """Adaptive throttling dropped the request, as the server is failing; nothing was sent.

    See the option `adaptive_throttling`. The request took no token. It is not retried: that would
    only add load to a failing server.
    """

    #: The host of the server, ``"api.example.org"``, with its port unless that is the default one.
    origin: str
    #: The share of the requests to the origin that is dropped at present, above 0 and below 1.
    dropped_share: float

    def __init__(self, origin: str, dropped_share: float) -> None:
        super().__init__(
            f"{origin} is failing: the request was dropped, as {dropped_share:.0%} of all to it are"
        )
        self.origin, self.dropped_share = origin, dropped_share


class AttemptThrottled(ThrottleError):
    """The outcome of an attempt that was to be retried; only ever a `__cause__`.

    It is the cause of a `ThrottleTimeout` or a `RequestDropped` that prevented the retry.
    """

    #: The status of the response.
    status: int
    #: Seconds that the server asked to wait; None: it sent no duration.
    retry_after: float | None

    def __init__(self, status: int, retry_after: float | None) -> None:
        wait = "" if retry_after is None else f", retry after {duration(retry_after)}"
        super().__init__(f"the previous attempt got a response with status {status}{wait}")
        self.status, self.retry_after = status, retry_after


class LimiterClosed(ThrottleError, RuntimeError):
    """The limiter was closed, before the call or during its wait."""

    def __init__(self, *, key: Hashable = None, name: str | None = None) -> None:
        super().__init__("this limiter is closed: make a new one, or close it later")
        self.key = key
        self.name = name


class StoreUnavailable(ThrottleError):
    """The store of a limit failed, or did not answer in time. `__cause__` is the driver's error.

    It is not known whether the store carried out the call.
    """


def entered_before(method: str) -> RuntimeError:
    """Return the error of a limiter that is entered around each request, as in other libraries.

    That would limit nothing, and the first block to end would close the limiter for the others.
    """
    return RuntimeError(
        "a limiter is entered once, around all code that uses it, and is closed at the end of the "
        f"block: around each request write `async with limiter.{method}:`"
    )


def no_copy(kind: str) -> TypeError:
    """Return the error of pickling or copying a limiter, or a part of one.

    The copy would grant the whole limit again, for example in each process of a pool.
    """
    return TypeError(
        f"a {kind} cannot be pickled or copied, as each copy would grant the whole limit again; to "
        "share a limit between processes, make a limiter with the same store= and key= in each "
        "(see aiothrottle.stores)"
    )


def nested(limiter: Hashable) -> RuntimeError:
    """Return the error of a task that holds a slot and asks for another one, while none is free."""
    return RuntimeError(
        f"this task holds a slot of the limiter {limiter!r:.200} already, and none is free: inside "
        "its `async with limiter.throttle():` block it would wait for itself; leave that block "
        "first, or raise the concurrency_limit"
    )


def in_another_thread(loop: object) -> RuntimeError:
    """Return the error of changing a limiter in another thread than that of its loop.

    The change would wake no waiter, and two threads would overwrite each other's counts.
    """
    return RuntimeError(
        f"this limiter belongs to {loop!r}, which is open and runs in another thread: call the "
        "limiter there, with `loop.call_soon_threadsafe(...)` or "
        "`asyncio.run_coroutine_threadsafe(...)`"
    )


def no_asyncio() -> RuntimeError:
    """Return the error of using a limiter where no event loop runs, or one of another library."""
    return RuntimeError(
        "no running event loop of asyncio: aiothrottle runs neither on trio nor without a loop"
    )


def reason_of(error: BaseException, outer: BaseException | None = None, hint: str = "") -> str:
    """Return why a driver failed: the text of its error, or of the nearest cause that has one.

    A timeout, for example, has no text; its cause is the error that made the driver retry. The
    first error of the operating system or TLS is added, if the driver left it out.

    Args:
        error: The exception of the driver.
        outer: The exception that was being handled when the driver was called: not a cause.
        hint: What the driver says elsewhere.
    """
    chain: list[Exception] = []
    cause: BaseException | None = error
    for _ in range(_DEEPEST):
        if cause is None or cause is outer:
            break
        if isinstance(cause, Exception):
            chain.append(cause)
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    message = next((text for each in chain if (text := str(each))), "")
    system = next(
        (each for each in reversed(chain) if isinstance(each, OSError) and str(each)), None
    )
    parts = [message.rstrip(".")]
    if system is not None and (system.strerror or str(system)) not in message:
        parts.append(str(system))
    if not (str(error) or isinstance(error, TimeoutError)):
        parts.insert(0, type(error).__name__)
    reason = "; ".join(filter(None, [": ".join(filter(None, parts)), hint]))
    if _REFUSED_CERTIFICATE in reason:
        reason = f"certificate refused: {reason}"
    if isinstance(error, TimeoutError) and not str(error):
        # At the end: it is only what came of a reason, if there is one.
        reason = f"{reason}; no answer in time" if reason else "no answer in time"
    return reason


def too_high(cost: float, limit: float, label: Label) -> CostTooHigh | None:
    """Return the error of a cost that is above the limit, of any resource; None if it fits."""
    resource = excess(cost, limit)
    if resource is None:
        return None
    most = by_name(limit)[resource]
    named = resource if isinstance(limit, Amounts) else None
    return CostTooHigh(by_name(cost)[resource], most, resource=named, **label)


def not_async(write: str) -> TypeError:
    """Make the error of `with` in place of `async with`."""
    return TypeError(
        f"it is entered with `async with`, not with `with`: write `async with {write}`"
    )


def twin(error: Exception, label: Label) -> Exception:
    """Return a copy of an error for one waiter: an error that is raised twice has two tracebacks.

    A `StoreUnavailable` gets key and name of the limiter, which the store does not know, and
    keeps the driver's error as its cause.
    """
    if type(error) not in {StoreUnavailable, TypeError, ValueError}:
        return error
    other = type(error)(*error.args)
    other.__cause__ = error
    if isinstance(other, StoreUnavailable):
        other.key, other.name = label["key"], label["name"]
        other.__cause__ = error.__cause__
    return other

"""The terms on which a request waits: its key, cost and priority, by hooks and by overrides.

Invariant: each hook is called once for a request, before the request joins a queue, and only if the
request does not override it. What a hook raises is the caller's, and takes nothing.
"""

import math
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Generic, NamedTuple, TypeVar, cast

from aiothrottle._checks import check_names, check_number, shown
from aiothrottle._http.admission import Admission, Target
from aiothrottle._http.options import Options, names_of
from aiothrottle.amounts import Cost
from aiothrottle.hooks import Request, SettleHook, Throttle
from aiothrottle.permit import ONE

__all__ = ["Hooking", "Terms", "result_of"]

_Request = TypeVar("_Request")
_Result = TypeVar("_Result")

_NAMES = names_of(Throttle)
_BY_ORIGIN = object()


class Terms(NamedTuple):
    """On which terms a request waits for its limiter."""

    target: Target
    cost: Cost = ONE
    priority: float = 0.0
    #: Seconds that an attempt may wait; None: no limit.
    timeout: float | None = None
    #: What the hooks see of the request; None: there is no hook.
    request: Request | None = None


class Hooking(Generic[_Request]):
    """Calls the hooks of an integration.

    Args:
        options: The options of the integration.
        admission: Finds the limiter of a request.
        view: Makes what a hook sees of a request.
    """

    __slots__ = ("_admission", "_options", "_view", "has_hooks", "settle")

    def __init__(
        self, options: Options, admission: Admission, view: Callable[[_Request], Request]
    ) -> None:
        self._options = options
        self._admission = admission
        self._view = view
        self.settle: SettleHook | None = options.settle
        #: Whether there is a hook: then each request has terms.
        self.has_hooks: bool = any(
            hook is not None
            for hook in (options.key, options.cost, options.priority, options.settle)
        )

    def terms(self, request: _Request, method: str, url: Any, override: object) -> Terms:  # noqa: ANN401
        """Return the terms of a request.

        Args:
            request: The request.
            method: The method, in capitals.
            url: The URL, as the client has it.
            override: A `Throttle` of this request; None: it overrides nothing.

        Raises:
            TypeError: A hook returned, or the override has, a value of a wrong type.
            ValueError: The same with a value out of range.
            Exception: What a hook raised.
        """
        own = _checked(override)
        seen = self._view(request) if self.has_hooks else None
        cost = _cost(self._value("cost", own, seen, None))
        priority = self._value("priority", own, seen, 0.0)
        check_number("priority", priority, least=-math.inf)
        key = self._value("key", own, seen, _BY_ORIGIN)
        # Last, as it may make the limiter of a key.
        if key is _BY_ORIGIN:
            target = self._admission.target(method, url)
        else:
            target = self._admission.target_of(key)
        return Terms(target, cost, priority, own.get("timeout", self._options.queue_timeout), seen)

    def _value(
        self,
        name: str,
        own: Mapping[str, Any],
        seen: Request | None,
        default: object,
    ) -> Any:  # noqa: ANN401 - checked by the caller
        """Return what the request overrides, else what the hook returns, else the default."""
        if name in own:
            return own[name]
        hook = getattr(self._options, name)
        return default if hook is None else result_of(name, hook, seen)


def result_of(name: str, hook: Callable[[Any], _Result], argument: object) -> _Result:
    """Return the result of a hook.

    Raises:
        TypeError: The hook is asynchronous.
        Exception: What the hook raised.
    """
    result = hook(argument)
    if isinstance(result, Awaitable):
        if isinstance(result, Coroutine):
            cast("Coroutine[Any, Any, Any]", result).close()  # no warning besides the error
        raise TypeError(f"{name}= must be a plain function, got the asynchronous {shown(hook)}")
    return result


def _cost(cost: object) -> Cost:
    """Return a cost that a limiter checks further; None is the default."""
    if cost is None:
        return ONE
    if isinstance(cost, Mapping) or (isinstance(cost, int | float) and not isinstance(cost, bool)):
        return cast("Cost", cost)
    raise TypeError(
        "cost= must return tokens, a mapping of resources to tokens, or None for the default, "
        f"got {shown(cost)}"
    )


def _checked(override: object) -> Mapping[str, Any]:
    """Check the names of an override, and its timeout; a limiter checks the rest."""
    if override is None:
        return {}
    if not isinstance(override, Mapping):
        raise TypeError(f'throttle must be a mapping, such as {{"cost": 3}}, got {shown(override)}')
    own = cast("Mapping[str, Any]", override)
    check_names("throttle", _NAMES, own)
    check_number("timeout of throttle", own.get("timeout"), "seconds", none="None")
    return own

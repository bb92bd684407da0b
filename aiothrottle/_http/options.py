"""The options of all integrations: declared, documented and validated here, and nowhere else.

Each integration takes its options as ``**options: Unpack[...]`` of one of the classes below, and
makes an `Options` of them with `read_options`. A new option is a line in one of these classes, a
field of `Options`, and a check if it can have a wrong value.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypedDict, cast

from aiothrottle._checks import check_choice, check_names, check_number, shown
from aiothrottle.adaptive import AdaptiveThrottling
from aiothrottle.headers import Profile
from aiothrottle.hooks import CostHook, KeyHook, PriorityHook, SettleHook
from aiothrottle.retry import Retry

#: The options that are called, and with what.
HOOKS = dict.fromkeys(("key", "cost", "priority"), "hooks.Request") | {"settle": "hooks.Response"}

ServerQuotaUse: TypeAlias = Literal["at once", "evenly"] | None


class HeaderOptions(TypedDict, total=False):
    """Options of every integration: all of them parse the headers about limits."""

    profiles: Iterable[Profile]
    """How to parse the headers of servers that the package does not know, or knows otherwise: see
    `aiothrottle.headers.Profile`. By default none."""


class RetryOptions(HeaderOptions, total=False):
    """Options of a `RetryMiddleware`, and of every integration that retries.

    >>> options: RetryOptions = {"buffer_body": True}
    """

    buffer_body: bool
    """Whether a body that cannot be sent twice, such as an async generator, is read into memory
    first, so that it can. By default it is sent once, and the throttled response is returned."""


class ThrottleOptions(HeaderOptions, total=False):
    """Options of every integration that waits for a limiter.

    >>> options: ThrottleOptions = {"queue_timeout": 5, "max_hold": 60}
    """

    key: KeyHook | None
    """Returns the key of a request in a `KeyedRateLimiter`, from a `hooks.Request`. None, as the
    option or as the result: the host as DNS has it, ``"xn--bcher-kva.example"``, with the port
    unless it is the usual one: ``"localhost:8080"``."""

    cost: CostHook | None
    """Returns the cost of a request, from a `hooks.Request`: tokens, or with resources a mapping,
    ``{"tokens": 1500}``. None, as the option or as the result: the default cost."""

    priority: PriorityHook | None
    """Returns the priority of a request, from a `hooks.Request`: see `RateLimiter.throttle`. Each
    attempt after a throttled one has one step more. None, as the option or as the result: 0."""

    settle: SettleHook | None
    """Returns the final cost of an attempt, from a `hooks.Response`, when its headers have arrived;
    or a `hooks.BodyReader`, which reads the body along with the caller and returns it at the end;
    or None: it stays as it was charged. None, the default: for all."""

    retry: Retry
    """When to retry; ``Retry(attempts=1)`` for never. By default a ``Retry()``. It also decides
    which responses count as throttled, and how long a pause may be."""

    queue_timeout: float | None
    """Seconds that an attempt may wait for the limiter. None, the default: no limit (but aiohttp's
    `total`, which runs while a middleware waits)."""

    max_hold: float | None
    """Seconds that a response may hold its slot, after which its connection is closed; above 0.
    None, the default: as long as the client keeps the connection, which is for ever if a response
    is dropped half-read. A `ThrottledSession`, and from aiohttp 3.15 on a `ThrottleMiddleware`,
    uses the `total` of the request's `aiohttp.ClientTimeout` by default, after which the body
    cannot be read any more."""

    adaptive_throttling: AdaptiveThrottling | None
    """How requests to a failing origin are dropped, before they take a token, with a
    `RequestDropped`: ``AdaptiveThrottling(k=2.0)``, for each origin by itself. None, the default:
    never."""

    server_quota: ServerQuotaUse
    """How the limiter uses the quota that a server reports (what remains, until its reset): "at
    once", the default, or "evenly" until the reset. It makes the limiter tighter, never looser than
    its own rate. None: it is ignored."""


class ClientOptions(ThrottleOptions, RetryOptions, total=False):
    """Options of every integration that throttles and retries: a transport has these."""


class WebsocketOptions(TypedDict, total=False):
    """Options of every integration that opens websockets."""

    hold_websockets: bool
    """Whether a websocket holds its slot until it is closed; by default only for the handshake."""


class MiddlewareOptions(ThrottleOptions, WebsocketOptions, total=False):
    """Options of a `ThrottleMiddleware`."""


class SessionOptions(ClientOptions, WebsocketOptions, total=False):
    """Options of a `ThrottledSession` and of `throttled_session`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The validated options of an integration.

    Raises:
        TypeError: An option is of a wrong type.
        ValueError: An option is out of range.
    """

    key: KeyHook | None = None
    cost: CostHook | None = None
    priority: PriorityHook | None = None
    settle: SettleHook | None = None
    retry: Retry = Retry()  # noqa: RUF009 - a frozen value
    queue_timeout: float | None = None
    max_hold: float | None = None
    hold_websockets: bool = False
    buffer_body: bool = False
    adaptive_throttling: AdaptiveThrottling | None = None
    server_quota: ServerQuotaUse = "at once"
    profiles: Iterable[Profile] = ()

    def __post_init__(self) -> None:
        """Validate each option, before the first request."""
        for name, argument in HOOKS.items():
            hook = getattr(self, name)
            if hook is not None and not callable(hook):
                raise TypeError(f"{name} must be a function of a {argument}, got {shown(hook)}")
        if not isinstance(self.retry, Retry):
            raise TypeError(
                f"retry must be a Retry, such as Retry(attempts=1), got {shown(self.retry)}"
            )
        check_number("queue_timeout", self.queue_timeout, "seconds", none="None")
        check_number("max_hold", self.max_hold, "seconds", above=0, none="None")
        if self.adaptive_throttling is not None and not isinstance(
            self.adaptive_throttling, AdaptiveThrottling
        ):
            raise TypeError(
                f"adaptive_throttling is an AdaptiveThrottling, such as AdaptiveThrottling(k=2), "
                f"not {shown(self.adaptive_throttling)}"
            )
        check_choice("server_quota", self.server_quota, ("at once", "evenly", None))
        for name in ("buffer_body", "hold_websockets"):
            check_choice(name, getattr(self, name), (True, False))
        # It is read several times, and may be an iterator.
        object.__setattr__(self, "profiles", _as_tuple(self.profiles))

    def of_kind(self, kind: type[Mapping[str, object]]) -> Any:  # noqa: ANN401 - a `kind`
        """Return the options that a class of options has."""
        return {name: getattr(self, name) for name in names_of(kind)}


def _as_tuple(profiles: object) -> tuple[Profile, ...]:
    if isinstance(profiles, str) or not isinstance(profiles, Iterable):
        raise TypeError(f"profiles must be a list of Profiles, such as [], got {shown(profiles)}")
    own = tuple(cast("Iterable[object]", profiles))
    for profile in own:
        if not isinstance(profile, Profile):
            raise TypeError(f"each of profiles must be a Profile, got {shown(profile)}")
    return cast("tuple[Profile, ...]", own)


def names_of(kind: type[Mapping[str, object]]) -> frozenset[str]:
    """Return the names of all options of a class of options, inherited ones too."""
    return frozenset(kind.__annotations__)


def read_options(owner: str, kind: type[Mapping[str, object]], given: Mapping[str, Any]) -> Options:
    """Validate the options given to `owner`, which has the options of the class `kind`.

    Raises:
        TypeError: An option is unknown, or of a wrong type.
        ValueError: An option is out of range.
    """
    check_names(owner, names_of(kind), given)
    return Options(**given)

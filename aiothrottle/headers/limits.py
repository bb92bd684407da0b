"""The limits that a response reports, as values, and which of several limits binds."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from aiothrottle.headers.memo import Memo

Headers: TypeAlias = Mapping[str, str] | Iterable[tuple[str, str]]
"""A multidict, another mapping, or pairs in the order received."""


class Policy(NamedTuple):
    """One of several limits in a response.

    Args:
        name: The server's name for it, or the name that a `Profile` gives; None: it has none.
        quota: How much may be used in a window: requests, tokens or bytes, as `unit` says.
        window: Seconds.
        remaining: The unused part of the quota.
        reset_after: Seconds until the quota is refilled, in whole or in part.
        unit: What is counted: the server's word (draft 10's `qu`), or by the name of the limit
            "requests", "tokens", "input-tokens" and the like. None: most likely requests.
        reset_error: Seconds by which the reset may be earlier, as in `ServerLimits`.

    A field that was missing or unreadable is None. 0 is a number like any other.
    """

    name: str | None = None
    quota: float | None = None
    window: float | None = None
    remaining: float | None = None
    reset_after: float | None = None
    unit: str | None = None
    reset_error: float = 0.0

    @property
    def counts(self) -> str:
        """What is counted: the unit; "requests" where that is not known, or "request"."""
        return "requests" if self.unit is None or self.unit == "request" else self.unit


class ServerLimits(NamedTuple):
    """The limits that one response reports. A field that it does not report is None, not 0.

    Args:
        throttled: The server throttled the request, because of rate or load.
        retry_after: Seconds to wait, as sent by the server; at most 2**31. No floor, no cap of
            the client's and no jitter are applied.
        limit: The quota of the binding limit.
        remaining: The unused part of it. 0: it is used up.
        reset_after: Seconds until the quota is refilled, in whole or in part. If a throttled
            response has something remaining, this belongs to another limit than the exceeded one.
        window: Seconds, the length of its window.
        policies: The separate limits of the response, if it lists any.
        scope: The server's word for the scope of the limit ("user", "global", "shared").
        reason: The server's word for what was exceeded, or for the kind of resource.
        unit: What the binding limit counts, as in `Policy`. None: most likely requests.
        reset_error: Seconds by which the reset may be earlier than `reset_after`: servers round it
            up to whole seconds, and a Date is cut to them.
        refills: Whether the quotas are refilled steadily, and are full at the reset.

    >>> ServerLimits(throttled=True, retry_after=30.0).remaining is None
    True
    """

    throttled: bool = False
    retry_after: float | None = None
    limit: float | None = None
    remaining: float | None = None
    reset_after: float | None = None
    window: float | None = None
    policies: tuple[Policy, ...] = ()
    scope: str | None = None
    reason: str | None = None
    unit: str | None = None
    reset_error: float = 0.0
    refills: bool = False

    @property
    def wait(self) -> float | None:
        """Seconds that the server asks for: Retry-After, or the reset of an empty quota.

        >>> ServerLimits(throttled=True, remaining=0, reset_after=5.0).wait
        5.0
        """
        if self.retry_after is not None or not self.throttled or self.remaining:
            return self.retry_after
        return self.reset_after

    @property
    def is_global(self) -> bool:
        """Whether the limit is one of all requests of the client, by the server's word for it.

        >>> ServerLimits(throttled=True, scope="global").is_global
        True
        """
        return self.scope is not None and self.scope.lower() == "global"

    @property
    def by_unit(self) -> dict[str, Policy]:
        """The binding limit of each unit, by what it counts.

        >>> tokens = Policy("tokens", 30_000, remaining=900, reset_after=5.0, unit="tokens")
        >>> requests = Policy("requests", 500, remaining=499, reset_after=1.0, unit="requests")
        >>> limits = ServerLimits(limit=30_000, remaining=900, reset_after=5.0, unit="tokens",
        ...     policies=(requests, tokens))
        >>> {unit: limit.remaining for unit, limit in limits.by_unit.items()}
        {'requests': 499, 'tokens': 900}
        """
        policies: dict[str, list[Policy]] = {}
        for policy in self.policies:
            policies.setdefault(policy.counts, []).append(policy)
        limits = {unit: bound for unit, each in policies.items() if (bound := binding(each))}
        own = self.limit, self.window, self.remaining, self.reset_after
        if own != (None, None, None, None):
            bound = Policy(None, *own, self.unit, self.reset_error)
            limits[bound.counts] = bound
        return limits


def binding(policies: Iterable[Policy]) -> Policy | None:
    """Return the limit with the smallest part of its quota remaining.

    If no remainder is known, return the one that resets last; if no reset is known either, None.
    """
    known = [policy for policy in policies if policy.remaining is not None]
    if known:
        return min(known, key=_tightness) if len(known) > 1 else known[0]
    resetting = [policy for policy in policies if policy.reset_after is not None]
    return max(resetting, key=lambda policy: policy.reset_after or 0.0, default=None)


def _tightness(policy: Policy) -> tuple[bool, float, float, float]:
    _, quota, _, remaining, reset_after, *_ = policy
    remaining = remaining or 0.0
    longest_first = 1.0 if reset_after is None else -reset_after
    if quota:
        return False, remaining / quota, remaining, longest_first
    # 0 remaining is comparable even if the quota is unknown; any other remainder is not.
    return remaining > 0, 0.0, remaining, longest_first


_REQUESTS = frozenset({"request", "requests", "req", "reqs"})
_OTHERS = frozenset(
    {
        "tokens", "characters", "images", "audio", "bytes",
        "complexity", "cost", "credits", "points", "usd", "concurrency",
    }
)  # fmt: skip
_WINDOWS = frozenset(
    {
        "second", "secondly", "minute", "minutely", "hour", "hourly", "day", "daily",
        "week", "weekly", "month", "monthly", "year", "yearly",
    }
)  # fmt: skip
_WORDS = re.compile("[^-_]+")


def _unit_of(name: str) -> str | None:
    words = _WORDS.findall(name.lower())
    if words and words[-1] in _WINDOWS:
        words.pop()
    if not _REQUESTS.isdisjoint(words):
        return "requests"
    return None if _OTHERS.isdisjoint(words) else "-".join(words)


UNIT_BY_NAME = Memo(_unit_of)
"""The unit of a limit by its name; None: not known, most likely requests."""


# More limits than any vendor has.
_MOST = 256
_BRACES = re.compile(r"\{([^{}]*)\}")


@dataclass(slots=True)
class Record:
    """A limit under construction, from several headers."""

    name: str | None = None
    limit: float | None = None
    remaining: float | None = None
    used: float | None = None
    reset_after: float | None = None
    window: float | None = None

    def merge(self, other: "Record") -> None:
        """Merge another header: the lower limit and remainder, the later reset."""
        self.limit = pick(min, self.limit, other.limit)
        self.remaining = pick(min, self.remaining, other.remaining)
        self.used = pick(max, self.used, other.used)
        self.reset_after = pick(max, self.reset_after, other.reset_after)
        self.window = pick(max, self.window, other.window)

    def policy(self) -> Policy:
        """Return the limit as an immutable value."""
        remaining = self.remaining
        if remaining is None and self.limit is not None and self.used is not None:
            remaining = max(0, self.limit - self.used)
        unit = UNIT_BY_NAME[self.name or ""]
        return Policy(self.name, self.limit, self.window, remaining, self.reset_after, unit)


class Vendor:
    """The limits with a name, one without, and the waits."""

    __slots__ = ("_named", "_unnamed", "wait", "wait_if_throttled")

    def __init__(self) -> None:
        self._named: dict[str | None, Record] = {}
        self._unnamed: Record | None = None
        self.wait: float | None = None
        self.wait_if_throttled: float | None = None

    @property
    def policies(self) -> list[Policy]:
        """The limits that have a name."""
        return [record.policy() for record in self._named.values()]

    @property
    def unnamed(self) -> Policy | None:
        """The limit that fills the fields if none of the others binds."""
        return self._unnamed.policy() if self._unnamed else None

    def add(self, record: Record, *, named: bool) -> None:
        """Add the limit of one header."""
        if not named:
            self._unnamed = self._unnamed or record
        elif record.name in self._named:
            self._named[record.name].merge(record)
        elif len(self._named) < _MOST:
            self._named[record.name] = record


def pick(
    choose: Callable[[float, float], float], one: float | None, other: float | None
) -> float | None:
    """Choose between two numbers, either of which may be missing."""
    if one is None or other is None:
        return other if one is None else one
    return choose(one, other)


def fill_template(template: str, label_of: Callable[[str], str | None]) -> str:
    """Fill in the braces of the name of a limit; return "" if a value is missing.

    Braces in a value are not expanded: a server could make each value name the next one twice.
    """
    pieces = _BRACES.split(template)  # texts and keys in turn
    for place in range(1, len(pieces), 2):
        word = label_of(pieces[place])
        if word is None:
            return ""
        pieces[place] = word
    return "".join(pieces)

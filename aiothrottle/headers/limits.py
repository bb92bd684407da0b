"""The limits that a response reports, and which one binds."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

Headers: TypeAlias = Mapping[str, str] | Iterable[tuple[str, str]]
"""A multidict, another mapping, or pairs in the order received."""

Lines: TypeAlias = Mapping[str, list[str]]
"""The lines of each field of a limit."""


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
    def binding(self) -> Policy | None:
        """The binding limit, without its name; None: the response reports no number of it.

        >>> ServerLimits(limit=60, remaining=59).binding
        Policy(name=None, quota=60, window=None, remaining=59, reset_after=None, unit=None, \
reset_error=0.0)
        """
        numbers = self.limit, self.window, self.remaining, self.reset_after
        if numbers == (None, None, None, None):
            return None
        return Policy(None, *numbers, self.unit, self.reset_error)

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
        if (own := self.binding) is not None:
            limits[own.counts] = own
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

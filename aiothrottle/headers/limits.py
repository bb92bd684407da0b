"""What a response says about limits, as values; and which of several limits binds."""

from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["Policy", "ServerLimits", "binding"]


class Policy(NamedTuple):
    """One of the limits that a response tells apart.

    Args:
        name: The server's own word for it, or the label that a `Profile` gives; None: it has none.
        quota: How much may be used in a window: requests, tokens, bytes, whatever `unit` says.
        window: Seconds.
        remaining: What is left of the quota.
        reset_after: Seconds until there is more of it.
        unit: The server's word for what is counted (draft 10's `qu`), if it says so.

    Whatever was not said, or could not be read, is None. 0 is a number like any other.
    """

    name: str | None = None
    quota: float | None = None
    window: float | None = None
    remaining: float | None = None
    reset_after: float | None = None
    unit: str | None = None


class ServerLimits(NamedTuple):
    """What one response says about limits. Whatever it does not say is None, which is not 0.

    Args:
        throttled: The server refused because of rate or load.
        retry_after: Seconds to wait, said in so many words; at most 2**31. It is what was said:
            without a floor, a cap of one's own, or jitter.
        limit: The quota of the limit that binds.
        remaining: What is left of it. 0 is used up.
        reset_after: Seconds until there is more of it. Where something remains on a refusal,
            this belongs to another limit than the one that refused.
        window: Seconds, the length of its window.
        policies: The limits that the response tells apart, if it does.
        scope: The server's word for whom the limit holds ("user", "global", "shared").
        reason: The server's word for what was exceeded, or for the kind of resource.
        unit: The server's word for what the binding limit counts. None: most likely requests.

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


def binding(policies: Iterable[Policy]) -> Policy | None:
    """Give the limit that stops the caller first: the least part of its quota remains.

    If no remainder is known it is the one that resets last; if no reset is known either, none is.
    """
    told = [policy for policy in policies if policy.remaining is not None]
    if told:
        return min(told, key=_tightness) if len(told) > 1 else told[0]
    resetting = [policy for policy in policies if policy.reset_after is not None]
    return max(resetting, key=lambda policy: policy.reset_after or 0.0, default=None)


def _tightness(policy: Policy) -> tuple[bool, float, float, float]:
    _, quota, _, remaining, reset_after, _ = policy
    remaining = remaining or 0.0
    longest_first = 1.0 if reset_after is None else -reset_after
    if quota:
        return False, remaining / quota, remaining, longest_first
    # Nothing left is nothing left, of an unknown quota too; any other part of it can't be compared.
    return remaining > 0, 0.0, remaining, longest_first

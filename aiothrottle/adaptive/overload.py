"""Client-side throttling: who gets mostly errors sends less, so that the server can recover."""

import math
from dataclasses import dataclass

from aiothrottle.checks import check_number

__all__ = ["ClientThrottling", "OverloadState"]


@dataclass(slots=True)
class OverloadState:
    """Requests counted and accepted, in the window under way and in the one before it."""

    begun_at: float = -math.inf
    requests: float = 0.0
    accepted: float = 0.0
    old_requests: float = 0.0
    old_accepted: float = 0.0


@dataclass(frozen=True, slots=True)
class ClientThrottling:
    """Reject requests here, without sending them, in the measure in which the server fails.

    Of all requests a part is rejected:
    ``max(0, (requests - k * accepted) / (requests + 1))``, over the last two minutes, where
    `requests` are those that have ended and those that were rejected here. (Beyer,
    Jones, Petoff, Murphy: "Site Reliability Engineering", chapter 21.) This is for servers that
    are overloaded and answer with 5xx, one state for each host, and not for quotas.

    Args:
        k: How many requests are let through for each that is accepted; 1 or more. At 2 half of
            what is sent to a server that is down for some goes to waste; less is stricter.
        window: Seconds; at least as long as the slowest response.

    Raises:
        TypeError: An argument is no number.
        ValueError: An argument is out of range.

    >>> throttling = ClientThrottling(k=2.0)
    >>> state = throttling.start()
    >>> for _ in range(99):
    ...     throttling.request(state, now=0.0)
    >>> throttling.rejected_share(state, now=1.0)
    0.99
    """

    k: float = 2.0
    window: float = 120.0

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        check_number("k", self.k, least=1)
        check_number("window", self.window, "seconds", least=0.001)

    def start(self) -> OverloadState:
        """Give the state of a server of which nothing is known."""
        return OverloadState()

    def request(self, state: OverloadState, now: float) -> None:
        """Count a request that has ended, however it did, or that was rejected here.

        Not sooner: one that is under way says nothing about the server yet.
        """
        self._turn(state, now)
        state.requests += 1.0

    def accepted(self, state: OverloadState, now: float) -> None:
        """Count, in addition, that the server has dealt with it."""
        self._turn(state, now)
        state.accepted += 1.0

    def rejected_share(self, state: OverloadState, now: float) -> float:
        """Give the chance, from 0 to 1, with which the next request is to be rejected here."""
        self._turn(state, now)
        # Of the window before, that part counts which is still within the length of a window.
        old = max(0.0, 1.0 - (now - state.begun_at) / self.window)
        requests = state.requests + old * state.old_requests
        accepted = state.accepted + old * state.old_accepted
        return max(0.0, (requests - self.k * accepted) / (requests + 1.0))

    def _turn(self, state: OverloadState, now: float) -> None:
        age = now - state.begun_at
        if age < self.window:
            return
        recent = age < 2.0 * self.window
        state.old_requests = state.requests if recent else 0.0
        state.old_accepted = state.accepted if recent else 0.0
        state.requests = state.accepted = 0.0
        state.begun_at = state.begun_at + self.window if recent else now

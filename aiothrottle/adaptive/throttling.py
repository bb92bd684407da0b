"""Adaptive throttling: a client that gets mostly errors sends less, so the server can recover."""

import math
from dataclasses import dataclass

from aiothrottle._checks import check_number


@dataclass(slots=True)
class ThrottlingState:
    """Requests counted and accepted, in the current window and in the one before it."""

    begun_at: float = -math.inf
    requests: float = 0.0
    accepted: float = 0.0
    old_requests: float = 0.0
    old_accepted: float = 0.0


@dataclass(frozen=True, slots=True)
class AdaptiveThrottling:
    """Rejects requests without sending them, the more of them the more the server fails.

    The rejected share is ``max(0, (requests - k * accepted) / (requests + 1))``, over the last two
    minutes, where `requests` counts requests that have ended and requests that were rejected here.
    (Beyer, Jones, Petoff, Murphy: "Site Reliability Engineering", chapter 21.) This is for servers
    that fail and answer with 5xx, with one state for each host, and not for quotas.

    Args:
        k: Requests to send for each one that is accepted; 1 or more. At 2, half of the requests
            to a server that accepts only some are sent in vain; less is stricter.
        window: Seconds; at least as long as the slowest response.

    Raises:
        TypeError: An argument is not a number.
        ValueError: An argument is out of range.

    >>> throttling = AdaptiveThrottling(k=2.0)
    >>> state = throttling.start()
    >>> for _ in range(99):
    ...     throttling.request(state, now=0.0)
    >>> throttling.rejected_share(state, now=1.0)
    0.99
    """

    k: float = 2.0
    window: float = 120.0

    def __post_init__(self) -> None:
        """Check the arguments."""
        check_number("k", self.k, least=1)
        check_number("window", self.window, "seconds", least=0.001)

    def start(self) -> ThrottlingState:
        """Return the state of an unknown server."""
        return ThrottlingState()

    def request(self, state: ThrottlingState, now: float) -> None:
        """Count a request that has ended, whatever the outcome, or that was rejected here.

        Not sooner: a request in flight says nothing about the server yet.

        Args:
            state: The counts of the origin, which are changed.
            now: Seconds of the caller's clock.
        """
        self._turn(state, now)
        state.requests += 1.0

    def accepted(self, state: ThrottlingState, now: float) -> None:
        """Count, in addition, that the server has accepted it.

        Args:
            state: The counts of the origin, which are changed.
            now: Seconds of the caller's clock.
        """
        self._turn(state, now)
        state.accepted += 1.0

    def rejected_share(self, state: ThrottlingState, now: float) -> float:
        """Return the probability, from 0 to 1, with which to reject the next request here.

        Args:
            state: The counts of the origin.
            now: Seconds of the caller's clock.
        """
        self._turn(state, now)
        # Of the window before, the part that is still within the length of a window counts.
        old = max(0.0, 1.0 - (now - state.begun_at) / self.window)
        requests = state.requests + old * state.old_requests
        accepted = state.accepted + old * state.old_accepted
        return max(0.0, (requests - self.k * accepted) / (requests + 1.0))

    def _turn(self, state: ThrottlingState, now: float) -> None:
        age = now - state.begun_at
        if age < self.window:
            return
        recent = age < 2.0 * self.window
        state.old_requests = state.requests if recent else 0.0
        state.old_accepted = state.accepted if recent else 0.0
        state.requests = state.accepted = 0.0
        state.begun_at = state.begun_at + self.window if recent else now

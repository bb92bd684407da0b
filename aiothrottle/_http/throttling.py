"""Adaptive throttling per origin: drops requests to a failing server, as many as it fails.

A response below 500 counts as accepted, since the server was able to decide. A 5xx, a failed
connection and a timeout of the client do not. A request counts when it ends, so one in flight or
cancelled is not counted: neither shows that the server fails.
"""

import asyncio
import random
from collections import OrderedDict

from aiothrottle.adaptive import AdaptiveThrottling
from aiothrottle.adaptive.throttling import ThrottlingState
from aiothrottle.errors import RequestDropped

__all__ = ["OriginThrottling"]

# Beyond this number of origins, the one used longest ago starts anew.
_MOST = 1024
_LEAST_FAILURE = 500


class OriginThrottling:
    """Counts requests and accepted requests for each origin, and drops some by these counts."""

    __slots__ = ("_algorithm", "_states")

    def __init__(self, algorithm: AdaptiveThrottling) -> None:
        self._algorithm = algorithm
        self._states: OrderedDict[str, ThrottlingState] = OrderedDict()

    def check(self, origin: str) -> None:
        """Drop a request at random, with the probability that the algorithm returns.

        Raises:
            RequestDropped: It is dropped.
        """
        state, now = self._state(origin), asyncio.get_running_loop().time()
        share = self._algorithm.rejected_share(state, now)
        if share > 0.0 and random.random() < share:
            self._algorithm.request(state, now)  # a dropped request counts as demand
            raise RequestDropped(origin, share)

    def count(self, origin: str, status: int | None) -> None:
        """Count a request that has ended with that status; None: without a response."""
        state, now = self._state(origin), asyncio.get_running_loop().time()
        self._algorithm.request(state, now)
        if status is not None and status < _LEAST_FAILURE:
            self._algorithm.accepted(state, now)

    def _state(self, origin: str) -> ThrottlingState:
        state = self._states.get(origin)
        if state is None:
            state = self._states[origin] = self._algorithm.start()
            if len(self._states) > _MOST:
                self._states.popitem(last=False)
        else:
            self._states.move_to_end(origin)
        return state

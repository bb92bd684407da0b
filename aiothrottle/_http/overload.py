"""Requests to a server that fails are rejected here, in the measure in which it fails.

Shared by all HTTP clients that we put in front of a limiter; none is imported here.
"""

import asyncio
import random
from collections import OrderedDict

from aiothrottle.adaptive import ClientThrottling
from aiothrottle.adaptive.overload import OverloadState
from aiothrottle.errors import Overloaded

__all__ = ["Overloads"]

# Who talks to more of them at once can do without what is known of the one asked longest ago.
_MOST = 1024
_LEAST_FAILURE = 500


class Overloads:
    """What is known of each origin: how many requests have ended, and how many it accepted.

    A response below 500 is accepted: the server was able to decide. A 5xx is not, nor a connection
    that failed or a time-out of the client. A request under way counts for nothing yet, and one
    that is cancelled for nothing at all: neither says that the server fails.
    """

    __slots__ = ("_states", "_throttling")

    def __init__(self, throttling: ClientThrottling) -> None:
        self._throttling = throttling
        self._states: OrderedDict[str, OverloadState] = OrderedDict()

    def check(self, origin: str) -> None:
        """Reject the request by chance, as the algorithm says.

        Raises:
            Overloaded: It is rejected.
        """
        state, now = self._state(origin), asyncio.get_running_loop().time()
        share = self._throttling.rejected_share(state, now)
        if share > 0.0 and random.random() < share:
            self._throttling.request(state, now)  # it was wanted all the same
            raise Overloaded(origin, share)

    def ended(self, origin: str, status: int | None) -> None:
        """Count a request that has ended with that status; None: the origin did not answer."""
        state, now = self._state(origin), asyncio.get_running_loop().time()
        self._throttling.request(state, now)
        if status is not None and status < _LEAST_FAILURE:
            self._throttling.accepted(state, now)

    def _state(self, origin: str) -> OverloadState:
        state = self._states.get(origin)
        if state is None:
            state = self._states[origin] = self._throttling.start()
            if len(self._states) > _MOST:
                self._states.popitem(last=False)
        else:
            self._states.move_to_end(origin)
        return state

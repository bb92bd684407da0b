"""The bucket: an algorithm, its state and its clock, and the credit of the fast path.

Strategy. A call of the algorithm costs more than the rest of an uncontended entry. So the algorithm
returns how many requests with a cost of 1 may start without a further decision, the `credit`; each
of these requests only appends its timestamp to `timestamps`.

The tokens of a waiter that resumes are taken after it has started: it is `started` until then.

Invariant: before any other call of the algorithm, what has started is charged, the pending
timestamps are flushed into it and the credit is void. So each method below needs a `now` that was
read by `now`.
"""

import math
from typing import TYPE_CHECKING, Any

from aiothrottle.algorithms.all_of import AllOf, parts_of
from aiothrottle.algorithms.capabilities import Capabilities, capabilities, inherit, max_wait
from aiothrottle.algorithms.per_resource import PerResource
from aiothrottle.algorithms.server_quota import ServerQuota, ServerQuotaState
from aiothrottle.amounts import REQUESTS, Amounts, amounts, by_name, least

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiothrottle._core.wait_queue import Waiter
    from aiothrottle.algorithms import Algorithm
    from aiothrottle.reported_quota import ReportedQuota

__all__ = ["LocalBucket"]

# The most requests that may start on credit before the next call of the algorithm.
_MOST_CREDIT = 256


class LocalBucket:
    """The tokens of one limiter, in this process."""

    __slots__ = (
        "_can",
        "_own",
        "_quotas",
        "algorithm",
        "clock",
        "credit",
        "granted",
        "max_wait",
        "started",
        "state",
        "timestamps",
    )

    def __init__(self, algorithm: "Algorithm[Any]", clock: "Callable[[], float]") -> None:
        # The server's quota of each resource and its state, once it is reported: then `algorithm`
        # is that of the limiter, `_own`, and the quotas beside it.
        self._quotas: dict[str, tuple[ServerQuota, ServerQuotaState]] = {}
        self._own: tuple[Algorithm[Any], Any]
        self._adopt(algorithm, algorithm.start())
        self.clock: Callable[[], float] = clock
        #: Requests with a cost of 1 that may start now without a decision. Kept small, as Python
        #: is fastest with small integers.
        self.credit: int = 0
        self.timestamps: list[float] = []
        #: The last waiter that resumed: its tokens are not taken yet.
        self.started: Waiter | None = None
        #: Requests whose tokens were taken, without those in `timestamps`.
        self.granted: int = 0

    def _adopt(self, algorithm: "Algorithm[Any]", state: Any) -> None:  # noqa: ANN401 - its state
        if self._quotas:
            self._own = algorithm, state
            quotas, states = _in_one(self._quotas)
            algorithm, state = AllOf(algorithm, quotas), (state, states)
        self.algorithm: Algorithm[Any] = algorithm
        self.state: Any = state
        self._can: Capabilities = capabilities(algorithm)
        #: Seconds. The algorithm rejects requests that would have to wait longer.
        self.max_wait: float = max_wait(algorithm)

    @property
    def capacity(self) -> float:
        """The greatest cost that can ever be admitted."""
        return self._own[0].capacity if self._quotas else self.algorithm.capacity

    # ---- deciding and charging -------------------------------------------------------------------

    def now(self) -> float:
        """Read the clock, and charge all started requests, so that the algorithm may decide."""
        now = self.clock()
        if self.started is not None:
            self.take_started(self.started, now)
        self.flush()
        return now

    def take_started(self, started: "Waiter", now: float) -> None:
        """Take the tokens of the last waiter that resumed: by now it has started.

        The system may suspend the process between any two steps. A timestamp that is read before
        the request starts could be too early by as much.
        """
        self.started = None
        started.at = now
        if started.cost == 1.0:
            self.timestamps.append(now)
        else:
            self.flush()
            self.take(now, started.cost)

    def flush(self) -> None:
        """Flush the pending timestamps into the algorithm, and void the credit."""
        self.credit = 0
        if self.timestamps:
            self.granted += len(self.timestamps)
            timestamps, self.timestamps = self.timestamps, []
            self._can.take_each(self.algorithm, self.state, timestamps)

    def delay(self, now: float, cost: float, ahead: float = 0.0) -> float:
        """Return the seconds until `cost` may be taken, behind `ahead` tokens; 0.0 is now."""
        return self._can.delay_behind(self.algorithm, self.state, now, cost, ahead)

    def take(self, now: float, cost: float) -> None:
        """Take the tokens of a request that starts."""
        self.granted += 1
        self.algorithm.take(self.state, now, cost)

    def charge(self, now: float, cost: float) -> None:
        """Take tokens whether they fit or not, without counting a request."""
        self.algorithm.take(self.state, now, cost)

    def refund(self, now: float, cost: float, at: float) -> None:
        """Give back tokens that were taken at the instant `at`."""
        self._can.refund(self.algorithm, self.state, now, cost, at)

    def cost_of_reject(self, now: float, cost: float, ahead: float) -> float:
        """Return the tokens that a rejected request takes all the same, behind `ahead` tokens."""
        return self._can.cost_of_reject(self.algorithm, self.state, now, cost, ahead)

    def startable(self, now: float, most: int) -> int:
        """Return how many requests with a cost of 1 may start now, at most `most`."""
        return self._can.allowance(self.algorithm, self.state, now, most)

    def open_credit(self, now: float) -> None:
        """Set the credit: how many requests may start without a decision."""
        self.credit = self._can.allowance(self.algorithm, self.state, now, _MOST_CREDIT)

    # ---- state -----------------------------------------------------------------------------------

    def remaining(self, now: float) -> float:
        """Return the tokens that may be taken now."""
        if not self._quotas:
            return self.algorithm.remaining(self.state, now)
        own, state = self._own
        remaining = own.remaining(state, now)
        for resource, (quota, of_server) in self._quotas.items():
            left = quota.remaining(of_server, now)
            if resource != REQUESTS:
                left = Amounts({REQUESTS: math.inf, resource: left})
            remaining = least(remaining, left)
        return remaining

    def reset_after(self, now: float) -> float:
        """Return the seconds until the state is as good as new."""
        return self.algorithm.reset_after(self.state, now)

    # ---- changing --------------------------------------------------------------------------------

    @property
    def own(self) -> "tuple[Algorithm[Any], Any]":
        """The algorithm and its state, without the server's quota."""
        return self._own if self._quotas else (self.algorithm, self.state)

    def use(self, algorithm: "Algorithm[Any]", now: float) -> None:
        """Replace the algorithm; spent tokens stay spent."""
        several = algorithm if isinstance(algorithm, AllOf) else AllOf(algorithm)
        state = inherit(several, *self.own, now)
        self._adopt(algorithm, state if several is algorithm else state[0])

    def reset(self) -> None:
        """Forget the tokens that were spent; the server's quota stays."""
        algorithm, _ = self.own
        self._adopt(algorithm, algorithm.start())

    def restart(self, clock: "Callable[[], float]") -> None:
        """Start with a new state and another clock: timestamps of the old clock are void."""
        self.clock = clock
        self._quotas = {name: (quota, quota.start()) for name, (quota, _) in self._quotas.items()}
        self.reset()

    # ---- the server's quota ----------------------------------------------------------------------

    def update_quota(
        self,
        now: float,
        reported: "ReportedQuota",
        *,
        sent_at: float,
        cost: float,
        in_flight: int,
        evenly: bool,
    ) -> None:
        """Keep to a quota that the server reported, besides the own algorithm.

        Args:
            now: The time.
            reported: The quota.
            sent_at: When the request was sent.
            cost: Its tokens.
            in_flight: Other requests in flight, which a report may not count yet.
            evenly: Whether the remaining tokens are spread over the time until the reset; the
                first report of the resource decides.
        """
        remaining, reset_after, resource, limit, error, _, refill = reported
        tokens = by_name(cost).get(resource, 0.0)
        uncounted = 0.0
        if resource not in self._quotas:
            quota, own = ServerQuota(evenly=evenly), self.own
            state = quota.start()
            self._quotas = {**self._quotas, resource: (quota, state)}
            self._adopt(*own)
            uncounted = in_flight * tokens  # each of them is taken for one like this
            state.unanswered = in_flight + 1.0
        quota, state = self._quotas[resource]
        # Seconds until the earliest reset, counted from when the server answered at the earliest.
        earliest = reset_after - error - (now - sent_at)
        binds = quota.evenly or refill or self._exceeds(now, resource, remaining, earliest)
        state.limit = limit
        quota.update(
            state,
            now,
            remaining - uncounted,
            reset_after,
            sent_at,
            binds=bool(binds),
            in_flight=in_flight,
            refill=refill,
            counts=tokens > 0.0,
        )

    def take_sent(self, now: float, in_flight: int) -> None:
        """Take the tokens of all requests before an algorithm that counts was known."""
        own, state = self.own
        log = self._quotas[REQUESTS][1].log if REQUESTS in self._quotas else ()
        for timestamp, cost in log or ((now, max(1.0, in_flight)),):
            own.take(state, timestamp, cost)

    def expect_reset(self, at: float) -> None:
        """Let one request find out whether the server has reset its requests at that instant."""
        if REQUESTS in self._quotas:
            quota, state = self._quotas[REQUESTS]
            quota.expect_reset(state, at)

    def _exceeds(self, now: float, resource: str, tokens: float, seconds: float) -> bool:
        """Return whether the limiter's own algorithm admits more tokens within so many seconds.

        If not, a quota of so many tokens holds by itself. It may be less than what the server has
        by now: the report is late, the requests in flight are counted or not, and a window of the
        server ends before one of the limiter does.
        """
        own, state = self.own
        if by_name(own.capacity).get(resource, math.inf) == math.inf:
            return True
        one, before = amounts({resource: 1.0}), amounts({resource: tokens})
        delay = capabilities(own).delay_behind(own, state, now, one, before)
        return delay < seconds or delay == math.inf  # a store alone knows

    def quota_delay(self, now: float, cost: float) -> float:
        """Return the seconds until the server's quotas admit the cost."""
        if not self._quotas:
            return 0.0
        quotas, states = parts_of(self.algorithm, self.state)[-1]
        return quotas.delay(states, now, cost)

    def quota_remaining(self, now: float) -> float | None:
        """Return the requests that the server has left; None: not known."""
        if REQUESTS not in self._quotas:
            return None
        quota, state = self._quotas[REQUESTS]
        return quota.reported(state, now)


def _in_one(
    quotas: dict[str, tuple[ServerQuota, ServerQuotaState]],
) -> "tuple[Algorithm[Any], Any]":
    """Return the quotas of all resources as one algorithm, and its state."""
    if quotas.keys() == {REQUESTS}:
        return quotas[REQUESTS]
    algorithm = PerResource(*((resource, quota) for resource, (quota, _) in quotas.items()))
    return algorithm, tuple(state for _, state in quotas.values())

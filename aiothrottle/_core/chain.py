"""A chain: a request that needs several limiters, each of which has to grant it.

Strategy. A chain joins one engine and the limiter above it, an engine or a chain. A request queues
at its own engine first. The head, once granted there, joins the queue above, one request at a time;
so each engine below has one request in the queue above, and the engines take turns. When all have
granted, all are charged, in one synchronous step; if one rejects by then, none is charged.

Invariant: at most one request of the engine stands in the queue above.
"""

import asyncio
from typing import TYPE_CHECKING

from aiothrottle._core import trying
from aiothrottle._core.engine import Engine, fail
from aiothrottle._core.entry import Entry
from aiothrottle._core.verdict import Verdict
from aiothrottle._core.wait_queue import Waiter
from aiothrottle.amounts import least, positive
from aiothrottle.errors import LimiterClosed, QueueFull, ThrottleTimeout

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Callable

    from aiothrottle._core.bucket import LocalBucket
    from aiothrottle._core.semaphore import Semaphore

__all__ = ["Chain"]


class Chain:
    """An engine, and the limiter above it."""

    __slots__ = ("__weakref__", "_climber", "_narrows", "above", "bucket", "engine", "semaphore")

    def __init__(self, engine: Engine, above: Entry) -> None:
        self.engine: Engine = engine
        self.above: Entry = above
        # The parts of the engine, for `Permit`: a chain has no credit.
        self.bucket: LocalBucket = engine.bucket
        self.semaphore: Semaphore = engine.semaphore
        # Whether the limiter above has no resources, and so counts requests only.
        self._narrows = bool(engine.resources and not above.engine.resources)
        # The request that stands in the queue above.
        self._climber: Waiter | None = None
        engine.chained = True
        engine.watch()

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop that the engine belongs to."""
        return self.engine.loop

    @property
    def capacity(self) -> float:
        """The greatest cost that this limiter and those above can ever admit."""
        return least(self.engine.capacity, self.above.capacity)

    @property
    def engines(self) -> tuple[Engine, ...]:
        """The engine, and those above it."""
        return (self.engine, *self.above.engines)

    @property
    def takes_outcomes(self) -> bool:
        """Whether reports of outcomes have an effect, here or above."""
        return self.engine.takes_outcomes or self.above.takes_outcomes

    # ---- arriving, waiting, starting -------------------------------------------------------------

    def arrive(self, waiter: Waiter, *, as_head: bool = False) -> "Future[None] | None":
        """Start the request if all limiters admit it now, else queue it.

        Returns:
            None if it has started, else the future to wait on.
        """
        return self.engine.arrive(waiter, as_head=as_head, chain=self)

    def decide_at_once(self, waiter: Waiter, now: float) -> float:
        """Decide about a new request, here and above."""
        wait = self.engine.decide_at_once(waiter, now)
        return wait or self.above.decide_at_once(waiter, self.above.now())

    def start(self, waiter: Waiter, now: float) -> None:
        """Take a slot and the tokens of a new request, here and above."""
        waiter.above = self._waiter_above(waiter)
        self.above.start(waiter.above, self.above.now())
        self.engine.start(waiter, now)

    def resume(self, waiter: Waiter) -> "Future[None] | None":
        """Queue above, and then start the request, or return the future to wait on."""
        if not self.engine.rejects_waiters:
            future = self._climb(waiter)
            if future is not None:
                return future
        future = self.engine.resume(waiter)
        if future is not None:  # it waits on; the grant from above is given back
            self._descend(waiter)
        self._climber = None
        return future

    def _climb(self, waiter: Waiter) -> "Future[None] | None":
        try:
            if waiter.above is None:
                waiter.above = self._waiter_above(waiter)
                self._climber = waiter
                return self.above.arrive(waiter.above, as_head=True)
            return None if waiter.above.started else self.above.resume(waiter.above)
        except ThrottleTimeout:
            self.engine.reject("timeout")
            raise
        except QueueFull:
            self.engine.reject("queue full")
            raise

    def _waiter_above(self, waiter: Waiter) -> Waiter:
        return Waiter(self._cost_above(waiter.cost), waiter.priority)

    def _cost_above(self, cost: float) -> float:
        """Return what a cost is for the limiter above."""
        return cost.real if self._narrows else cost

    def _descend(self, waiter: Waiter) -> None:
        """Leave the queue above, or give back the grant from above."""
        above, waiter.above = waiter.above, None
        if above is not None:
            if above.started:
                self.above.undo(above)
            else:
                self.above.cancel(above)

    def cancel(self, waiter: Waiter) -> None:
        """Take the request out of all queues."""
        if self._climber is waiter:
            self._climber = None
        self._descend(waiter)
        self.engine.cancel(waiter)

    # ---- after the start -------------------------------------------------------------------------

    def slot_released(self, waiter: Waiter | None = None) -> None:
        """Handle the release of a slot, and release the slot above."""
        self.engine.slot_released(waiter)
        if waiter is not None and waiter.above is not None:
            self.above.release(waiter.above)

    def release(self, waiter: Waiter) -> None:
        """Release the slots of a request that has started."""
        self.engine.release(waiter)
        if waiter.above is not None:
            self.above.release(waiter.above)

    def pass_on(self, waiter: Waiter | None) -> None:
        """Let another request go ahead if this one went ahead and failed, here or above."""
        self.engine.pass_on(waiter)
        if waiter is not None:
            self.above.pass_on(waiter.above)

    @property
    def is_bounded(self) -> bool:
        """Whether there is a concurrency limit, here or above."""
        return self.engine.is_bounded or self.above.is_bounded

    def abandon(self, release: "Callable[[], None]") -> bool:
        """Release a permit that is garbage. Returns whether there is a concurrency limit."""
        self.engine.abandon(release)
        return self.is_bounded

    def undo(self, waiter: Waiter) -> None:
        """Undo the start of a request that was not sent, here and above."""
        self.engine.undo(waiter)
        if waiter.above is not None:
            self.above.undo(waiter.above)

    def settle(self, waiter: Waiter, cost: float) -> None:
        """Charge the request `cost` in place of its earlier cost, here and above."""
        self.engine.settle(waiter, cost)
        if waiter.above is not None:
            self.above.settle(waiter.above, self._cost_above(cost))

    def charge(self, cost: float) -> None:
        """Take tokens out of turn, here and above."""
        self.engine.charge(cost)
        self.above.charge(self._cost_above(cost))

    async def record(self, cost: float) -> None:
        """Take tokens for a request that was sent already, here and above."""
        self.bind()
        self.charge(cost)

    # ---- try_acquire, peek -----------------------------------------------------------------------

    async def try_start(self, waiter: Waiter) -> Verdict:
        """Start the request if all limiters admit it now; it never waits in a queue."""
        return await trying.try_start(self, waiter)

    async def peek(self, waiter: Waiter) -> Verdict:
        """Return the verdict of `try_start`, and change nothing."""
        return await trying.peek(self, waiter)

    def verdict(self, wait: float, *, allowed: bool = False) -> Verdict:
        """Combine a decision with the state of the buckets: the tightest one counts."""
        here, above = self.engine.verdict(wait), self.above.verdict(wait)
        return Verdict(
            allowed,
            least(here.remaining, above.remaining),
            wait,
            max(here.reset_after, above.reset_after),
        )

    def estimate(self, now: float, waiter: Waiter, ahead: float | None = None) -> float:
        """Return the seconds until pauses and rates admit the request, here and above."""
        if ahead is None:
            ahead = self.engine.cost_ahead(waiter)
        wait = self.engine.estimate(now, waiter, ahead)
        ahead = self._cost_above(ahead)
        climber = self._climber
        if climber is not None and climber.above is not None and not climber.above.started:
            ahead -= climber.above.cost  # it stands in the queue above already
        probe = self._waiter_above(waiter)
        probe.at = waiter.at
        ahead = positive(ahead) + self.above.cost_ahead(probe)
        return max(wait, self.above.estimate(self.above.now(), probe, ahead))

    def cost_ahead(self, waiter: Waiter) -> float:
        """Return the cost of all waiters that precede a request that arrives now."""
        return self.engine.cost_ahead(waiter)

    def timed_out(self, waiter: Waiter) -> ThrottleTimeout:
        """Count a rejected waiter whose timeout has passed, and return the error to raise."""
        self.engine.reject("timeout")
        wait = self.estimate(self.engine.now(), waiter)
        return ThrottleTimeout(wait, timeout=waiter.timeout, key=self.engine.key)

    def now(self) -> float:
        """Read the clock of the engine, and flush its bucket."""
        return self.engine.now()

    # ---- the end, and loops ----------------------------------------------------------------------

    def bind(self) -> None:
        """Bind this chain to the running loop, or raise and change nothing."""
        loop = asyncio.get_running_loop()
        self.check_loop(loop)
        if self.engine.loop is not loop:
            self._climber = None
        self.engine.bind()
        self.above.bind()

    def check_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Raise RuntimeError if this or a limiter above belongs to another loop that is open."""
        self.engine.check_loop(loop)
        self.above.check_loop(loop)

    async def close(self, *, drain: bool) -> None:
        """Close the engine, and take its request out of the queue above."""
        self.check_loop(asyncio.get_running_loop())
        highest = self._climber
        while not drain and highest is not None:
            fail(highest, LimiterClosed(key=self.engine.key))
            highest = highest.above
        await self.engine.close(drain=drain)

"""One simulation: real limiters, a network of delays, a server, and what it records.

Invariant: the same arguments give the same outcome, and chance for one purpose disturbs no other.
"""

import asyncio
import math
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Literal, TypeAlias, get_args

from aiothrottle._checks import check_choice, check_number, check_whole, shown
from aiothrottle._core.engine import running_loop
from aiothrottle._core.feedback import PauseRule
from aiothrottle.errors import CostTooHigh, LimiterClosed, ThrottleError
from aiothrottle.keyed import expect_outcomes
from aiothrottle.limiter import RateLimiter
from aiothrottle.rate import Rate, RateLike, as_rate
from aiothrottle.retry import Retry
from aiothrottle.simulation.outcome import Arrival, Outcome, fairness, waits_of
from aiothrottle.testing.algorithms import AlgorithmName, ServerAlgorithm, make_algorithm
from aiothrottle.testing.server import greatest_count
from aiothrottle.testing.virtual_time import VirtualTimeLoop

RetryAfter: TypeAlias = Literal["seconds", "exact", "none"]
"""The Retry-After of a 429: whole seconds (rounded up), exact seconds, or none."""

# Seconds. Sums of durations are off by a few units in the last place.
_ROUNDING = 1e-9
_SHORTEST_PERIOD = 1e-6
# A server that admits so many at one instant has no limit.
_NO_LIMIT = 1_000_000


@dataclass(frozen=True, slots=True, init=False)
class Server:
    """A simulated server: what it admits, and its response to a throttled request.

    A throttled request does not count under the algorithm.

    Args:
        rate: Requests per period, of all clients together.
        algorithm: How the rate is enforced, as in `aiothrottle.testing.RateLimitedServer`:
            ``"sliding-window-log"``, ``"fixed-window"`` or ``"token-bucket"``. Or a function
            without arguments that makes your own algorithm, with the methods of
            `aiothrottle.testing.algorithms.ServerAlgorithm`; `rate` then only gives the period.
        burst: How many requests the token bucket holds; by default the limit of the rate.
        phase: How far into a fixed window the simulation begins, in seconds. A client cannot know
            it; by default the seed of the simulation decides.
        retry_after: The Retry-After: ``"seconds"``, the time until the next request is admitted,
            rounded up to a whole second, as in HTTP; ``"exact"``, not rounded, as in the headers
            and bodies of some APIs; ``"none"``, no header.

    Raises:
        TypeError: `rate` is of a kind that is not a rate.
        ValueError: An argument is out of range, or contradicts another one.

    >>> Server("100/min", algorithm="fixed-window").period
    60.0
    """

    rate: Rate
    algorithm: AlgorithmName | Callable[[], ServerAlgorithm]
    burst: float | None
    phase: float | None
    retry_after: RetryAfter

    def __init__(
        self,
        rate: RateLike,
        algorithm: AlgorithmName | Callable[[], ServerAlgorithm] = "sliding-window-log",
        *,
        burst: float | None = None,
        phase: float | None = None,
        retry_after: RetryAfter = "seconds",
    ) -> None:
        check_choice("retry_after", retry_after, get_args(RetryAfter))
        rate = as_rate(rate)
        if not callable(algorithm):
            check_choice("algorithm", algorithm, get_args(AlgorithmName))
            make_algorithm(rate, algorithm, burst, phase)  # which checks the arguments
        elif burst is not None or phase is not None:
            raise ValueError("burst and phase belong to an algorithm that is named")
        set_field = object.__setattr__  # frozen
        set_field(self, "rate", rate)
        set_field(self, "algorithm", algorithm)
        set_field(self, "burst", burst)
        set_field(self, "phase", phase)
        set_field(self, "retry_after", retry_after)
        check_number("the period of a server", self.period, "seconds", least=_SHORTEST_PERIOD)

    @property
    def period(self) -> float:
        """Seconds of a window; a rate below one request per period is one in a longer period."""
        return self.rate.in_whole_tokens.period

    def make_algorithm(self, phase: float = 0.0) -> ServerAlgorithm:
        """Return a fresh algorithm.

        Args:
            phase: Seconds since a fixed window began.
        """
        if callable(self.algorithm):
            return self.algorithm()
        begun = phase if self.algorithm == "fixed-window" else None
        return make_algorithm(self.rate, self.algorithm, self.burst, begun)


def simulate(
    client: Callable[[], RateLimiter],
    server: Server | RateLike,
    *,
    clients: int = 1,
    workers: int = 20,
    demand: float | None = None,
    latency: float = 0.05,
    jitter: float = 0.01,
    seconds: float = 60.0,
    changes: Mapping[float, Server | RateLike] = MappingProxyType({}),
    retry: Retry = Retry(),  # noqa: B008 - a frozen value
    seed: int = 0,
) -> Outcome:
    """Run clients against a server for some virtual time, and return the outcome.

    A request waits for its limiter, travels, is admitted or throttled, and the response travels
    back; it holds its slot for that time. A throttled request pauses its limiter and is retried,
    just as in `aiothrottle.aiohttp.ThrottledSession`, and its limiter learns from each outcome. The
    limiters are real, and follow the virtual time unless they have a `clock` of their own.

    It blocks, for about 30 microseconds per request. Where an event loop is running already, such
    as in a notebook, use ``await asyncio.to_thread(simulate, ...)``.

    Args:
        client: Makes the limiter of a client; called once for each.
        server: A `Server`, or just a rate, for a sliding window log.
        clients: How many clients there are. They are independent.
        workers: How many tasks of each client send requests in a loop. They cannot send more than
            ``workers / (2 * latency)`` per second.
        demand: Requests per second that each client has to send, at random times (a Poisson
            process), however many are waiting already; instead of `workers`.
        latency: The least seconds that a request, and its response too, travels.
        jitter: The most seconds that it travels longer, at random, uniformly.
        seconds: How long the server is observed.
        changes: The servers, or rates, that replace it, by the seconds after which they do. Each
            starts with nothing counted.
        retry: How throttled requests are retried; by default as a session does.
        seed: Of all randomness. The demand and the phase are the same for all clients and servers,
            and so are the delays, in the order of sending: outcomes can be compared.

    Raises:
        TypeError: An argument is of a wrong kind, or `client` makes something that is not a
            limiter.
        ValueError: An argument is out of range.
        RuntimeError: An event loop is running in this thread.

    >>> exact = simulate(lambda: RateLimiter("20/s", guard=0.0), "20/s")
    >>> exact.throttled > 0
    True
    >>> guarded = simulate(lambda: RateLimiter("20/s", guard=0.01), "20/s")
    >>> guarded.throttled
    0
    """
    if running_loop() is not None:
        raise RuntimeError(
            "simulate() runs its own event loop, but one is running in this thread: write "
            "`await asyncio.to_thread(simulate, ...)`"
        )
    if not callable(client):
        raise TypeError(f"client makes a RateLimiter when it is called, not {client!r}")
    if not isinstance(retry, Retry):
        raise TypeError(f"retry must be a Retry, such as Retry(attempts=1), got {shown(retry)}")
    check_whole("clients", clients)
    check_whole("workers", workers)
    check_number("demand", demand, "requests per second", above=0, none="None")
    # Without latency a client could send any number of requests in no time.
    check_number("latency", latency, "seconds", above=0)
    check_number("jitter", jitter, "seconds")
    check_number("seconds", seconds, above=0)
    for seconds_after in changes:
        check_number("the time of a change", seconds_after, "seconds", above=0)
    servers = {
        at: it if isinstance(it, Server) else Server(it)
        for at, it in {0.0: server, **changes}.items()
    }
    world = _World(servers, latency, jitter, seconds, retry, seed)
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(world.run(client, clients, workers, demand))
    return world.outcome(clients)


@dataclass(eq=False)
class _World:
    """One simulation: the network, the server, and the records. Used once.

    The server's time begins `latency` after the clients': when the first request can arrive.
    """

    servers: Mapping[float, Server]
    latency: float
    jitter: float
    seconds: float
    retry: Retry
    seed: int

    def __post_init__(self) -> None:
        """Begin with the first server."""
        self._delivery = self._chance("delivery")
        self._uniform = self._chance("back-off").random
        # Without jitter, as the same arguments give the same outcome.
        retry = self.retry
        self._rule = PauseRule(0.0, retry.max_pause, retry.backoff, retry.max_backoff)
        phase = self._chance("phase").random()
        instants = sorted(at for at in self.servers if at < self.seconds)
        # The algorithm of each server is made twice: the second one measures how much it can admit.
        self._to_come: list[tuple[float, Server, ServerAlgorithm]] = []
        self._most = 0
        for at, until in pairwise([*instants, self.seconds]):
            server = self.servers[at]
            begun = phase * server.period if server.phase is None else server.phase
            self._to_come.append((at, server, server.make_algorithm(begun)))
            self._most += most_admitted(server.make_algorithm(begun), until - at)
        self._begun_at, self._server, self._algorithm = self._to_come.pop(0)
        self._arrivals: list[Arrival] = []
        self._waits: list[float] = []
        self._given_up = 0
        self._turned_away = 0

    def _chance(self, what: str) -> random.Random:
        """Return a random generator for one purpose, so that the others are not disturbed."""
        return random.Random(f"{self.seed} {what}")

    async def run(
        self, make: Callable[[], RateLimiter], clients: int, workers: int, demand: float | None
    ) -> None:
        """Run the clients until the time is over."""
        limiters = [make() for _ in range(clients)]
        for limiter in limiters:
            if not isinstance(limiter, RateLimiter):
                raise TypeError(f"client made {limiter!r}, which is not a RateLimiter")
            expect_outcomes(limiter)  # as a session does
        try:
            async with (
                asyncio.timeout(self.latency + self.seconds),
                asyncio.TaskGroup() as group,
            ):
                for client, limiter in enumerate(limiters):
                    if demand is not None:
                        group.create_task(self._come_and_go(limiter, client, demand, group))
                        continue
                    for _ in range(workers):
                        group.create_task(self._ask_on_and_on(limiter, client))
        except TimeoutError:
            pass  # a failure would be raised in a group
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            for limiter in limiters:
                await limiter.aclose()

    async def _ask_on_and_on(self, limiter: RateLimiter, client: int) -> None:
        while True:
            error = await self._request(limiter, client)
            if error is not None:
                # An immediate retry would be rejected again: no time has passed.
                await asyncio.sleep(getattr(error, "retry_after", None) or self._server.period)

    async def _come_and_go(
        self, limiter: RateLimiter, client: int, demand: float, group: asyncio.TaskGroup
    ) -> None:
        chance = self._chance(f"demand of client {client}")
        while True:
            await asyncio.sleep(chance.expovariate(demand))
            group.create_task(self._request(limiter, client))

    async def _request(self, limiter: RateLimiter, client: int) -> ThrottleError | None:
        """Send until it is admitted or given up; return the error of a limiter that rejected it."""
        wanted_at = _now()
        attempt = 1
        try:
            while True:
                # As in a session, a throttled request precedes those that were not throttled.
                async with limiter.throttle(priority=attempt - 1) as permit:
                    waited = _now() - wanted_at
                    await asyncio.sleep(self._travel())
                    wait = self._arrive(client, waited)
                    await asyncio.sleep(self._travel())
                    if wait is None:
                        permit.report_success()
                        return None
                    retry_after = self._retry_after(wait)
                    paused = permit._report_pause(retry_after, self._rule)
                delay = self.retry.next_delay(
                    attempt, "GET", status=429, retry_after=retry_after, uniform=self._uniform
                )
                if delay is None:
                    self._given_up += 1
                    return None
                attempt += 1
                if not paused:  # else the limiter makes it wait
                    await asyncio.sleep(delay)
        except (CostTooHigh, LimiterClosed):
            raise
        except ThrottleError as error:
            self._turned_away += 1
            return error

    def _travel(self) -> float:
        return self.latency + self._delivery.random() * self.jitter

    def _arrive(self, client: int, waited: float) -> float | None:
        """Return None if the server admits the request, else the seconds until it would."""
        now = _now() - self.latency
        while self._to_come and now >= self._to_come[0][0]:
            self._begun_at, self._server, self._algorithm = self._to_come.pop(0)
        ready_at = self._begun_at + self._algorithm.ready_at()
        throttled = ready_at > now + _ROUNDING
        if now < self.seconds - _ROUNDING:
            self._arrivals.append(Arrival(now, client, throttled))
            if not throttled:
                self._waits.append(waited)
        if throttled:
            return ready_at - now
        self._algorithm.count(max(now, ready_at) - self._begun_at)
        return None

    def _retry_after(self, wait: float) -> float | None:
        match self._server.retry_after:
            case "seconds":
                return float(math.ceil(wait - _ROUNDING))
            case "exact":
                return wait
            case "none":
                return None

    def outcome(self, clients: int) -> Outcome:
        """Return what was recorded."""
        admitted = Counter(it.client for it in self._arrivals if not it.throttled)
        return Outcome(
            sent=len(self._arrivals),
            throttled=len(self._arrivals) - admitted.total(),
            utilisation=admitted.total() / self._most if self._most else 1.0,
            waits=waits_of(self._waits),
            fairness=fairness([admitted[client] for client in range(clients)]),
            greatest_count=greatest_count(
                (arrival.at for arrival in self._arrivals), self._server.period - _ROUNDING
            ),
            given_up=self._given_up,
            turned_away=self._turned_away,
            arrivals=tuple(self._arrivals),
        )


def _now() -> float:
    return asyncio.get_running_loop().time()


def most_admitted(algorithm: ServerAlgorithm, seconds: float) -> int:
    """Return the most requests that an algorithm can admit in that time."""
    count, now = 0, 0.0
    at_once = 0
    while at_once < _NO_LIMIT:
        ready_at = algorithm.ready_at()
        at_once = 0 if ready_at > now else at_once + 1
        now = max(now, ready_at)
        if now >= seconds - _ROUNDING:
            return count
        algorithm.count(now)
        count += 1
    raise ValueError(f"a server that admits {_NO_LIMIT} requests at one instant limits nothing")

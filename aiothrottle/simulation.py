"""Which law and which guard does an API need? Any client against any server, on virtual time.

`simulate` lets real limiters, unchanged, loose on a server that is a law and a delay, on a loop on
which waiting takes no time: an hour of a slow API is over in a moment. The same arguments always
give the same outcome.
"""

import asyncio
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, NamedTuple, TypeAlias, get_args

from aiothrottle.errors import CostTooHigh, LimiterClosed, ThrottleError
from aiothrottle.limiter import RateLimiter
from aiothrottle.permit import Permit
from aiothrottle.rate import Rate, RateLike, as_rate
from aiothrottle.retry import Retry
from aiothrottle.testing.audit import greatest_count
from aiothrottle.testing.laws import FixedWindow, Law, RollingWindow, TokenBucket
from aiothrottle.testing.server import LawName
from aiothrottle.testing.virtual_time import VirtualTimeLoop

__all__ = ["Arrival", "Outcome", "RetryAfter", "Server", "Waits", "simulate", "table"]

RetryAfter: TypeAlias = Literal["seconds", "exact", "none"]
"""What a server says to whom it refuses: whole seconds (rounded up), the exact ones, nothing."""

# Sums of durations are off by some units in the last place: neither early nor late.
_ROUNDING = 1e-9
_SHORTEST_PERIOD = 1e-6
# Who admits so many at one instant limits nothing.
_NO_LIMIT = 1_000_000


@dataclass(frozen=True, slots=True, init=False)
class Server:
    """What a simulated server admits, and what it says to whom it refuses.

    What it refuses costs the client nothing under the law.

    Args:
        rate: Requests per period, of all clients together.
        law: How the rate is meant, as in `aiothrottle.testing.RateLimitedServer`:
            ``"rolling-window"``, ``"fixed-window"`` or ``"token-bucket"``. Or what makes a law of
            your own, with the methods of `aiothrottle.testing.laws.Law`: it is called without
            arguments, and `rate` then only tells the period.
        burst: How many requests the token bucket holds; by default the limit of the rate.
        phase: How far into a fixed window the simulation begins, in seconds. A client can't know;
            by default the seed of the simulation decides.
        retry_after: What is said in Retry-After: ``"seconds"``, the time until the next request is
            admitted, rounded up to a whole second, since HTTP knows no other; ``"exact"``, not
            rounded, as in the headers and bodies of some APIs; ``"none"``, nothing.

    Raises:
        TypeError: `rate` is of a kind that is no rate.
        ValueError: An argument is out of range, or makes no sense together with the others.

    >>> Server("100/min", law="fixed-window").period
    60.0
    """

    rate: Rate
    law: LawName | Callable[[], Law]
    burst: float | None
    phase: float | None
    retry_after: RetryAfter

    def __init__(
        self,
        rate: RateLike,
        law: LawName | Callable[[], Law] = "rolling-window",
        *,
        burst: float | None = None,
        phase: float | None = None,
        retry_after: RetryAfter = "seconds",
    ) -> None:
        if not callable(law):
            _check_choice("law", law, get_args(LawName))
        _check_choice("retry_after", retry_after, get_args(RetryAfter))
        if burst is not None:
            if law != "token-bucket":
                raise ValueError("burst belongs to law='token-bucket'")
            _check_number("burst", burst, at_least=1)
        if phase is not None:
            if law != "fixed-window":
                raise ValueError("phase belongs to law='fixed-window'")
            _check_number("phase", phase, at_least=0)
        set_field = object.__setattr__  # frozen
        set_field(self, "rate", as_rate(rate))
        set_field(self, "law", law)
        set_field(self, "burst", burst)
        set_field(self, "phase", phase)
        set_field(self, "retry_after", retry_after)
        if not (phase or 0.0) < self.period:
            raise ValueError(f"phase is below the period of {self.period:g} s, not {phase!r}")
        _check_number("the period of a server", self.period, at_least=_SHORTEST_PERIOD)

    @property
    def period(self) -> float:
        """Seconds in which the law counts; a rate below one request is one in as much more."""
        return self.rate.period / min(1.0, self.rate.limit)

    def make_law(self, phase: float = 0.0) -> Law:
        """Make the law, with nothing counted yet, so far into a fixed window."""
        # A window counts whole requests. Not even one would be none for ever.
        limit = max(1, int(self.rate.limit))
        match self.law:
            case "rolling-window":
                return RollingWindow(limit, self.period)
            case "fixed-window":
                return FixedWindow(limit, self.period, phase)
            case "token-bucket":
                burst = max(1.0, self.rate.limit) if self.burst is None else self.burst
                return TokenBucket(self.rate.limit, self.rate.period, burst)
            case make_law:
                return make_law()


class Arrival(NamedTuple):
    """One request as the server saw it: when, in seconds, from which client, and the verdict."""

    at: float
    client: int
    refused: bool


@dataclass(frozen=True, slots=True)
class Waits:
    """How long the requests waited at home, in seconds; not a number if none was admitted."""

    mean: float
    p50: float
    p99: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a simulation, as the server saw it.

    The server is watched for as long as was asked, from the first instant at which a request could
    have arrived.

    Attributes:
        sent: Requests that arrived, refused or not; one that is tried again counts again.
        refused: Requests that were one too many.
        utilisation: Admitted requests, as a part of the most that the law could have admitted in
            the time.
        waits: Of the admitted requests: from being wanted to being sent, for the last time.
        fairness: Jain's index over the admitted requests x of the n clients,
            ``sum(x)**2 / (n * sum(x**2))``: 1 if all got the same, 1/n if one got everything.
            (R. Jain, D. Chiu, W. Hawe: "A Quantitative Measure Of Fairness And Discrimination For
            Resource Allocation In Shared Computer Systems", DEC Research Report TR-301, 1984.)
        greatest_count: The most arrivals, refused or not, in any window of the server's period.
        given_up: Requests that were refused too often to be tried again.
        turned_away: Requests that were never sent, since the limiter itself refused them: its
            queue was full, say.
        arrivals: Every arrival, in order.
    """

    sent: int
    refused: int
    utilisation: float
    waits: Waits
    fairness: float
    greatest_count: int
    given_up: int = 0
    turned_away: int = 0
    arrivals: tuple[Arrival, ...] = field(default=(), repr=False)

    @property
    def admitted(self) -> int:
        """Requests that arrived and were not refused."""
        return self.sent - self.refused

    @property
    def refused_share(self) -> float:
        """Refused requests, as a part of those that were sent."""
        return self.refused / self.sent if self.sent else 0.0

    def __str__(self) -> str:
        """Say it in a line."""
        return (
            f"{self.sent} sent, {self.refused_share:.2%} refused, {self.utilisation:.1%} used, "
            f"waited {self.waits.mean:.3g} s (p99 {self.waits.p99:.3g} s), "
            f"at most {self.greatest_count} in a period, fairness {self.fairness:.3f}"
        )


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
    changes: Mapping[float, Server] = MappingProxyType({}),
    retry: Retry = Retry(),  # noqa: B008 - a frozen value
    seed: int = 0,
) -> Outcome:
    """Let clients ask a server for some virtual time, and tell what came of it.

    A request waits for its limiter, travels, is admitted or refused, and the answer travels back;
    so long its slot is held. A refused one pauses its limiter and is tried again, just as in
    `aiothrottle.aiohttp.ThrottledSession`. The limiters are real ones, and follow the virtual time
    as long as they are given no `clock` of their own.

    It blocks, for some 30 microseconds a request. Where an event loop is running already,
    in a notebook say, use ``await asyncio.to_thread(simulate, ...)``.

    Args:
        client: Makes the limiter of a client, new for every one of them.
        server: A `Server`, or just a rate: then it counts in a rolling window.
        clients: How many clients there are. They know nothing of each other.
        workers: How many tasks of each client ask again and again, as soon as they have an
            answer. They can't send more than ``workers / (2 * latency)`` a second.
        demand: Requests per second that each client is asked for, at random times (a Poisson
            process), however many are waiting already; instead of `workers`.
        latency: Seconds that a request, and its answer too, takes at the least.
        jitter: At most so much longer it takes, by chance: any time up to that is as likely.
        seconds: How long the server is watched.
        changes: What the server turns into, and after how many seconds: its limit may be another
            one from then on. It begins with nothing counted.
        retry: What is done with refused requests; by default what a session does.
        seed: Of all that is left to chance. The demand and the phase are the same for all clients
            and servers, and so are the delays, in the order of sending: outcomes can be compared.

    Raises:
        TypeError: An argument is of a wrong kind, or `client` makes something that is no limiter.
        ValueError: An argument is out of range.
        RuntimeError: An event loop is running in this thread.

    >>> exact = simulate(lambda: RateLimiter("20/s"), "20/s")
    >>> exact.refused > 0
    True
    >>> guarded = simulate(lambda: RateLimiter("20/s", guard=0.01), "20/s")
    >>> guarded.refused
    0
    """
    if not callable(client):
        raise TypeError(f"client makes a RateLimiter when it is called, not {client!r}")
    for name, whole in (("clients", clients), ("workers", workers)):
        if isinstance(whole, bool) or not isinstance(whole, int):
            raise TypeError(f"{name} is a whole number, not {whole!r}")
        _check_number(name, whole, at_least=1)
    if demand is not None:
        _check_number("demand", demand)
    # Without it a client could do anything in no time at all.
    _check_number("latency", latency)
    _check_number("jitter", jitter, at_least=0)
    _check_number("seconds", seconds)
    for instant in changes:
        _check_number("the instant of a change", instant)
    world = _World(
        servers={0.0: server if isinstance(server, Server) else Server(server), **changes},
        latency=latency,
        jitter=jitter,
        seconds=seconds,
        retry=retry,
        seed=seed,
    )
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(world.run(client, clients, workers, demand))
    return world.outcome(clients)


def table(outcomes: Mapping[str, Outcome]) -> str:
    """Lay outcomes out as a table in Markdown, one named outcome a line.

    >>> print(table({"exact": simulate(lambda: RateLimiter(20), 20, jitter=0.0)}))
    |       | sent | refused |    used | mean wait | p99 wait | in a period | fairness |
    | ----- | ---: | ------: | ------: | --------: | -------: | ----------: | -------: |
    | exact | 1200 |  0.00 % | 100.0 % |   0.885 s |  0.900 s |          20 |    1.000 |
    """
    head = ["", "sent", "refused", "used", "mean wait", "p99 wait", "in a period", "fairness"]
    rows = [head, *([name, *_cells(outcome)] for name, outcome in outcomes.items())]
    widths = [max(3, *map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        " | ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    rules = ["-" * width if i == 0 else "-" * (width - 1) + ":" for i, width in enumerate(widths)]
    lines.insert(1, " | ".join(rules))
    return "\n".join(f"| {line} |" for line in lines)


def _cells(outcome: Outcome) -> list[str]:
    return [
        f"{outcome.sent}",
        f"{outcome.refused_share * 100:.2f} %",
        f"{outcome.utilisation * 100:.1f} %",
        f"{outcome.waits.mean:.3f} s",
        f"{outcome.waits.p99:.3f} s",
        f"{outcome.greatest_count}",
        f"{outcome.fairness:.3f}",
    ]


class _World:
    """One simulation: the network, the server, what was seen. It is used once.

    The server's time begins `latency` after the clients': when the first request can arrive.
    """

    def __init__(
        self,
        *,
        servers: Mapping[float, Server],
        latency: float,
        jitter: float,
        seconds: float,
        retry: Retry,
        seed: int,
    ) -> None:
        self._latency = latency
        self._jitter = jitter
        self._seconds = seconds
        self._retry = retry
        self._seed = seed
        self._delivery = self._chance("delivery")
        self._back_off = self._chance("back-off")
        phase = self._chance("phase").random()
        instants = sorted(at for at in servers if at < seconds)
        # Each server with its law, made twice: how much it admits is asked of the other one.
        self._to_come: list[tuple[float, Server, Law]] = []
        self._most = 0
        for at, until in zip(instants, [*instants[1:], seconds], strict=True):
            server = servers[at]
            begun = phase * server.period if server.phase is None else server.phase
            self._to_come.append((at, server, server.make_law(begun)))
            self._most += _most(server.make_law(begun), until - at)
        self._begun_at, self._server, self._law = self._to_come.pop(0)
        self._arrivals: list[Arrival] = []
        self._waits: list[float] = []
        self._given_up = 0
        self._turned_away = 0

    def _chance(self, what: str) -> random.Random:
        """Give a chance of its own to each thing, so that none disturbs the other."""
        return random.Random(f"{self._seed} {what}")

    async def run(
        self,
        make_limiter: Callable[[], RateLimiter],
        clients: int,
        workers: int,
        demand: float | None,
    ) -> None:
        """Let the clients ask until the time is over."""
        limiters = [make_limiter() for _ in range(clients)]
        for limiter in limiters:
            if not isinstance(limiter, RateLimiter):
                raise TypeError(f"client made {limiter!r}, which is no RateLimiter")
        try:
            async with (
                asyncio.timeout(self._latency + self._seconds),
                asyncio.TaskGroup() as group,
            ):
                for client, limiter in enumerate(limiters):
                    if demand is not None:
                        group.create_task(self._come_and_go(limiter, client, demand, group))
                        continue
                    for _ in range(workers):
                        group.create_task(self._ask_on_and_on(limiter, client))
        except TimeoutError:
            pass  # what went wrong would come in a group
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            for limiter in limiters:
                await limiter.aclose()

    async def _ask_on_and_on(self, limiter: RateLimiter, client: int) -> None:
        while True:
            error = await self._request(limiter, client)
            if error is not None:
                # At once, it would be turned away again: no time has passed.
                await asyncio.sleep(getattr(error, "retry_after", None) or self._server.period)

    async def _come_and_go(
        self, limiter: RateLimiter, client: int, demand: float, group: asyncio.TaskGroup
    ) -> None:
        chance = self._chance(f"demand of client {client}")
        while True:
            await asyncio.sleep(chance.expovariate(demand))
            group.create_task(self._request(limiter, client))

    async def _request(self, limiter: RateLimiter, client: int) -> ThrottleError | None:
        """Ask until it is admitted or given up. Gives the error of a limiter that has refused."""
        wanted_at = _now()
        attempt = 1
        try:
            while True:
                async with limiter.throttle() as permit:
                    wait = await self._exchange(client, _now() - wanted_at)
                    if wait is None:
                        permit.succeeded()
                        return None
                    delay, paused = self._refused(permit, attempt, wait)
                if delay is None:
                    self._given_up += 1
                    return None
                attempt += 1
                if not paused:
                    await asyncio.sleep(delay)
        except (CostTooHigh, LimiterClosed):
            raise
        except ThrottleError as error:
            self._turned_away += 1
            return error

    async def _exchange(self, client: int, waited: float) -> float | None:
        """Send a request. Gives None when it is admitted, else seconds until one would be."""
        await asyncio.sleep(self._travel())
        wait = self._arrive(client, _now() - self._latency, waited)
        await asyncio.sleep(self._travel())
        return wait

    def _travel(self) -> float:
        return self._latency + self._delivery.random() * self._jitter

    def _arrive(self, client: int, now: float, waited: float) -> float | None:
        while self._to_come and now >= self._to_come[0][0]:
            self._begun_at, self._server, self._law = self._to_come.pop(0)
        ready_at = self._begun_at + self._law.ready_at()
        refused = ready_at > now + _ROUNDING
        if now < self._seconds - _ROUNDING:
            self._arrivals.append(Arrival(now, client, refused))
            if not refused:
                self._waits.append(waited)
        if refused:
            return ready_at - now
        self._law.count(max(now, ready_at) - self._begun_at)
        return None

    def _refused(self, permit: Permit, attempt: int, wait: float) -> tuple[float | None, bool]:
        """Tell the limiter, as a session does.

        Gives the seconds until the next attempt, None if the request is given up, and whether the
        limiter is paused for as long.
        """
        retry_after = self._retry_after(wait)
        delay = self._retry.next_delay(
            attempt, "GET", status=429, retry_after=retry_after, uniform=self._back_off.random
        )
        paused = permit.refused_for(
            delay if delay is not None else retry_after or 0.0,
            told=bool(retry_after),
            spread=0.0,  # the same arguments give the same outcome
            longest=self._retry.max_retry_after,
        )
        return delay, paused

    def _retry_after(self, wait: float) -> float | None:
        match self._server.retry_after:
            case "seconds":
                return float(math.ceil(wait - _ROUNDING))
            case "exact":
                return wait
            case "none":
                return None

    def outcome(self, clients: int) -> Outcome:
        """Tell what was seen."""
        admitted = [0] * clients
        for arrival in self._arrivals:
            admitted[arrival.client] += not arrival.refused
        return Outcome(
            sent=len(self._arrivals),
            refused=len(self._arrivals) - sum(admitted),
            utilisation=sum(admitted) / self._most,
            waits=_waits(self._waits),
            fairness=_fairness(admitted),
            greatest_count=greatest_count(
                (arrival.at for arrival in self._arrivals), self._server.period - _ROUNDING
            ),
            given_up=self._given_up,
            turned_away=self._turned_away,
            arrivals=tuple(self._arrivals),
        )


def _now() -> float:
    return asyncio.get_running_loop().time()


def _most(law: Law, seconds: float) -> int:
    """Count what a law admits to somebody who asks at every instant."""
    count, now = 0, 0.0
    at_once = 0
    while at_once < _NO_LIMIT:
        ready_at = law.ready_at()
        at_once = 0 if ready_at > now else at_once + 1
        now = max(now, ready_at)
        if now >= seconds - _ROUNDING:
            return count
        law.count(now)
        count += 1
    raise ValueError(f"{law!r} limits nothing: it admits {_NO_LIMIT} requests at one instant")


def _waits(waits: Sequence[float]) -> Waits:
    if not waits:
        return Waits(math.nan, math.nan, math.nan)
    ordered = sorted(waits)

    def percentile(part: float) -> float:  # the nearest rank
        return ordered[math.ceil(part * len(ordered)) - 1]

    return Waits(math.fsum(waits) / len(waits), percentile(0.50), percentile(0.99))


def _fairness(admitted: Sequence[int]) -> float:
    squares = sum(count**2 for count in admitted)
    return sum(admitted) ** 2 / (len(admitted) * squares) if squares else 1.0


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} is one of {', '.join(map(repr, choices))}, not {value!r}")


def _check_number(name: str, value: float, *, at_least: float | None = None) -> None:
    """Refuse what is not finite, or below the least; where there is none, what is not above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} is a number, not {value!r}")
    if not (math.isfinite(value) and (value > 0 if at_least is None else value >= at_least)):
        least = "above 0" if at_least is None else f"{at_least:g} or more"
        raise ValueError(f"{name} is {least} and finite, not {value!r}")

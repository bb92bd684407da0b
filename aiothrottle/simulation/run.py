"""The one function: clients, a server, a network, and so many seconds."""

import asyncio
from collections.abc import Callable, Mapping
from types import MappingProxyType

from aiothrottle.checks import check_number, check_whole
from aiothrottle.limiter import RateLimiter
from aiothrottle.rate import RateLike
from aiothrottle.retry import Retry
from aiothrottle.simulation.outcome import Outcome
from aiothrottle.simulation.server import Server
from aiothrottle.simulation.world import World
from aiothrottle.testing.virtual_time import VirtualTimeLoop

__all__ = ["simulate"]


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

    >>> exact = simulate(lambda: RateLimiter("20/s", guard=0.0), "20/s")
    >>> exact.refused > 0
    True
    >>> guarded = simulate(lambda: RateLimiter("20/s", guard=0.01), "20/s")
    >>> guarded.refused
    0
    """
    if _a_loop_runs():
        raise RuntimeError(
            "simulate() runs a loop of its own, and in this thread one is running: write "
            "`await asyncio.to_thread(simulate, ...)`"
        )
    if not callable(client):
        raise TypeError(f"client makes a RateLimiter when it is called, not {client!r}")
    check_whole("clients", clients)
    check_whole("workers", workers)
    check_number("demand", demand, "requests per second", above=0, none="None")
    # Without it a client could do anything in no time at all.
    check_number("latency", latency, "seconds", above=0)
    check_number("jitter", jitter, "seconds")
    check_number("seconds", seconds, above=0)
    for instant in changes:
        check_number("the instant of a change", instant, "seconds", above=0)
    world = World(
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


def _a_loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True

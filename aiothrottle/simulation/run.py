"""The function that runs a simulation: clients, a server, a network, and a time."""

import asyncio
from collections.abc import Callable, Mapping
from types import MappingProxyType

from aiothrottle._checks import check_number, check_whole
from aiothrottle.limiter import RateLimiter
from aiothrottle.rate import RateLike
from aiothrottle.retry import Retry
from aiothrottle.simulation.outcome import Outcome
from aiothrottle.simulation.server import Server
from aiothrottle.simulation.world import World
from aiothrottle.testing.virtual_time import VirtualTimeLoop


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
        changes: The servers that replace it, by the seconds after which they do. Each starts with
            nothing counted.
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
    if _a_loop_runs():
        raise RuntimeError(
            "simulate() runs its own event loop, but one is running in this thread: write "
            "`await asyncio.to_thread(simulate, ...)`"
        )
    if not callable(client):
        raise TypeError(f"client makes a RateLimiter when it is called, not {client!r}")
    check_whole("clients", clients)
    check_whole("workers", workers)
    check_number("demand", demand, "requests per second", above=0, none="None")
    # Without latency a client could send any number of requests in no time.
    check_number("latency", latency, "seconds", above=0)
    check_number("jitter", jitter, "seconds")
    check_number("seconds", seconds, above=0)
    for seconds_after in changes:
        check_number("the time of a change", seconds_after, "seconds", above=0)
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

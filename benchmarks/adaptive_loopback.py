"""Unknown limits, over real HTTP: `uv run benchmarks/adaptive_loopback.py [--write]`.

The same search as in adaptive.py, but by a session against a server on 127.0.0.1, in real time, and
beside it the simulation of the same minute. All runs are concurrent: it takes a minute.
`--write` puts the table into docs/project/results/adaptive.md, between the markers there.
"""

import argparse
import asyncio
from functools import partial

from adaptive import ALGORITHMS, PAGE, RATES, SEARCH, STARTS, Part, adaptive, named, part, percent
from aiohttp import web
from measure import Rows, machine, markdown, put_into, table

from aiothrottle.aiohttp import ThrottledSession
from aiothrottle.rate import Rate
from aiothrottle.simulation import Arrival, Server, simulate
from aiothrottle.testing import RateLimitedServer
from aiothrottle.testing.algorithms import AlgorithmName

RATE = RATES[0]
SECONDS = 60.0
WORKERS = 20
# Seconds each way, and the range of its variation.
LATENCY, JITTER = 0.05, 0.01


async def answer(_: web.Request) -> web.Response:
    """Answer after the way back."""
    await asyncio.sleep(LATENCY)
    return web.Response(text="Here you are.\n")


async def send_on_and_on(session: ThrottledSession, server: RateLimitedServer) -> None:
    """Send requests without a pause."""
    while True:
        async with session.get(server.url) as response:
            await response.read()


async def search(rate: Rate, algorithm: AlgorithmName, start: float) -> Part:
    """Search in real time; return the traffic at the server from the eleventh window on."""
    async with (
        RateLimitedServer(
            rate, algorithm=algorithm, latency=LATENCY, jitter=JITTER, handler=answer
        ) as server,
        ThrottledSession(adaptive(rate, start)) as session,
    ):
        tasks = [asyncio.create_task(send_on_and_on(session, server)) for _ in range(WORKERS)]
        await asyncio.wait(tasks, timeout=SECONDS)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        requests = server.audit.requests
        begun = requests[0].arrived_at
        arrivals = [Arrival(it.arrived_at - begun, 0, it.throttled) for it in requests]
    return part(arrivals, rate, SEARCH * rate.period, SECONDS)


def search_in_virtual_time(rate: Rate, algorithm: AlgorithmName, start: float) -> Part:
    """Simulate the same."""
    outcome = simulate(
        partial(adaptive, rate, start),
        Server(rate, algorithm, phase=0.0 if algorithm == "fixed-window" else None),
        workers=WORKERS,
        latency=LATENCY,
        jitter=JITTER,
        seconds=SECONDS,
    )
    return part(outcome.arrivals, rate, SEARCH * rate.period, SECONDS)


async def report() -> Rows:
    """Run all cases at once, in real time, and then in virtual time."""
    cases: list[tuple[AlgorithmName, str]] = [
        (algorithm, name) for algorithm in ALGORITHMS for name in STARTS
    ]
    found = await asyncio.gather(
        *(search(RATE, algorithm, STARTS[name]) for algorithm, name in cases)
    )
    rows: Rows = [["server", "begun", "loopback: throttled, % / used, %", "simulator"]]
    for (algorithm, name), real in zip(cases, found, strict=True):
        # The simulation has a loop of its own.
        virtual = await asyncio.to_thread(search_in_virtual_time, RATE, algorithm, STARTS[name])
        cells = [f"{percent(it.throttled)} / {percent(it.used, 1)}" for it in (real, virtual)]
        rows.append([f"{algorithm}, {named(RATE)}", name, *cells])
    return rows


def main() -> None:
    """Measure and print, or write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.name}")
    options = parser.parse_args()
    rows = asyncio.run(report())
    print(table(rows))
    if options.write:
        terms = (
            "*Measured by `python benchmarks/adaptive_loopback.py --write`, "
            f"{SECONDS:g} s each, one run: {machine()}.*"
        )
        put_into(PAGE, "adaptive_loopback.py", f"{terms}\n\n{markdown(rows, texts=2)}")


if __name__ == "__main__":
    main()

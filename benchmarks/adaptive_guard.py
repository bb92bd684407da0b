"""`guard="auto"` over real HTTP: `uv run benchmarks/adaptive_guard.py [--write]`.

A session against a server on 127.0.0.1 that counts in an exact rolling window, in real time: with
a network that jitters, and with some responses that take longer. One case after the other, because
bursts of other cases in this process would be jitter as well: it takes eight minutes. `--write`
puts the table into docs/project/results/adaptive.md, between the markers there.
"""

import argparse
import asyncio
import random
from typing import Literal, NamedTuple, TypeAlias

from adaptive import PAGE, Part, named, part, percent
from adaptive_loopback import LATENCY, WORKERS, send_on_and_on
from aiohttp import web
from measure import Rows, machine, markdown, put_into, table

from aiothrottle import RateLimiter
from aiothrottle.aiohttp import ThrottledSession
from aiothrottle.rate import Rate
from aiothrottle.simulation import Arrival
from aiothrottle.testing import RateLimitedServer

RATE = Rate(10, 1)
# Seconds; and the instant from which it is watched, after about a hundred responses.
SECONDS, SINCE = 110.0, 10.0


class Case(NamedTuple):
    """How many seconds each way varies, and how much longer every tenth response takes."""

    name: str
    jitter: float
    slow: float = 0.0


CASES = (
    Case("no jitter", 0.0),
    Case("10 ms of jitter", 0.01),
    Case("100 ms of jitter", 0.1),
    Case("10 ms, every tenth response takes 0.4 s longer", 0.01, 0.4),
)
Guard: TypeAlias = float | Literal["auto"]


async def watch(case: Case, guard: Guard) -> Part:
    """Send requests in real time; return the traffic at the server."""
    chance = random.Random(f"{case} {guard}")

    async def answer(_: web.Request) -> web.Response:
        slow = case.slow if chance.random() < 0.1 else 0.0
        await asyncio.sleep(LATENCY + chance.random() * case.jitter + slow)
        return web.Response(text="Here you are.\n")

    async with (
        RateLimitedServer(RATE, latency=LATENCY, jitter=case.jitter, handler=answer) as server,
        ThrottledSession(RateLimiter(RATE, guard=guard)) as session,
    ):
        tasks = [asyncio.create_task(send_on_and_on(session, server)) for _ in range(WORKERS)]
        await asyncio.wait(tasks, timeout=SECONDS)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        requests = server.audit.requests
        begun = requests[0].arrived_at
        arrivals = [Arrival(it.arrived_at - begun, 0, it.throttled) for it in requests]
    return part(arrivals, RATE, SINCE, SECONDS)


async def report() -> Rows:
    """Run one case after the other, with both guards side by side."""
    rows: Rows = [["network and responses", "guard as long as the jitter", 'guard="auto"']]
    for case in CASES:
        parts = await asyncio.gather(watch(case, case.jitter), watch(case, "auto"))
        cells = [f"{percent(it.throttled)} / {percent(it.used, 1)}" for it in parts]
        rows.append([case.name, *cells])
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
            "*Measured by `python benchmarks/adaptive_guard.py --write`: "
            f"{named(RATE)}, {WORKERS} workers, {SECONDS:g} s each; {machine()}.*"
        )
        put_into(PAGE, "adaptive_guard.py", f"{terms}\n\n{markdown(rows)}")


if __name__ == "__main__":
    main()

"""Guards the hot path by a count that no busy machine changes: instructions executed.

    python benchmarks/guard.py             compares with benchmarks/guard.json
    python benchmarks/guard.py --accept    writes the new counts there, on purpose

Counted are an entry that does not wait, a grant to one of a thousand waiters, and a GET of sessions
with all defaults, before and after a 429. What `ClientSession` needs is subtracted from a GET:
aiohttp is not guarded. The server is in this process and answers after 10 ms of virtual time; the
limit is ten times the demand, so no GET waits.

Valgrind's callgrind counts them, one process for all: each phase ends with a call of `getppid`,
at which callgrind writes the count since the last one. A phase is run with few and with many
rounds, and the difference divided, so the start of a phase is excluded. The hash seed is
fixed and time is virtual, so counts repeat within a few parts in a thousand, those of a GET within
one part in a hundred.

The baselines are of one Python minor version each: run it with each Python that has one, in an
environment with aiohttp. All of them are accepted with the same version of aiohttp.
"""

import argparse
import asyncio
import gc
import json
import os
import platform
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiothrottle
from aiothrottle import RateLimiter, TokenBucket
from aiothrottle.amounts import Cost
from aiothrottle.permit import ONE

if TYPE_CHECKING:
    from aiohttp import ClientSession
    from connector import AnsweringConnector

    from aiothrottle.aiohttp import ThrottledSession

BASELINE = Path(__file__).with_name("guard.json")
# More than this above the baseline is a regression; more below asks for a new baseline.
SLACK = 0.10
WAITERS = 1000
# Seconds until the server answers a GET.
DELAY = 0.01
ALGORITHMS: dict[str, Callable[[float], RateLimiter]] = {
    "SlidingWindowLog": lambda rate: RateLimiter(rate, concurrency_limit=100_000),
    "TokenBucket": lambda rate: RateLimiter(rate, concurrency_limit=100_000, algorithm=TokenBucket),
    "cost of 2": lambda rate: RateLimiter(2 * rate, concurrency_limit=100_000),
    # Twice as much as a cost in one resource, at the most.
    "cost in two resources": lambda rate: RateLimiter(
        {"requests": rate, "tokens": 2 * rate}, concurrency_limit=100_000
    ),
}
COSTS: dict[str, Cost] = {"cost of 2": 2.0, "cost in two resources": {"tokens": 2}}


async def enter(limiter: RateLimiter, rounds: int, cost: Cost) -> None:
    """Enter without a wait."""
    for _ in range(rounds):
        async with limiter.throttle(cost):
            pass


async def queue(limiter: RateLimiter, rounds: int, cost: Cost) -> None:
    """Have a thousand workers wait, `rounds` times each."""

    async def worker() -> None:
        for _ in range(rounds):
            async with limiter.throttle(cost):
                pass

    await asyncio.gather(*(worker() for _ in range(WAITERS)))


def plain(connector: "AnsweringConnector") -> "ClientSession":
    """Return a session of aiohttp alone."""
    from aiohttp import ClientSession

    return ClientSession(connector=connector)


def wrapped(connector: "AnsweringConnector") -> "ThrottledSession":
    """Return a session with all defaults."""
    from aiothrottle.aiohttp import ThrottledSession

    return ThrottledSession(RateLimiter(10 / DELAY, concurrency_limit=100), connector=connector)


def with_middlewares(connector: "AnsweringConnector") -> "ClientSession":
    """Return a session with middlewares, with all defaults."""
    from aiothrottle.aiohttp import throttled_session

    return throttled_session(RateLimiter(10 / DELAY, concurrency_limit=100), connector=connector)


Make = Callable[["AnsweringConnector"], "ClientSession | ThrottledSession"]
BARE = "ClientSession, GET"
BEYOND = ", more than of ClientSession"
# How each session is made, and whether the server throttles its second request.
SESSIONS: dict[str, tuple[Make, bool]] = {
    BARE: (plain, False),
    "ThrottledSession, GET": (wrapped, False),
    "ThrottledSession, GET after a 429": (wrapped, True),
    "throttled_session, GET": (with_middlewares, False),
    "throttled_session, GET after a 429": (with_middlewares, True),
}


async def get(make: Make, rounds: int, *, throttled: bool) -> None:
    """Send one GET after the other."""
    from connector import OK, THROTTLED, AnsweringConnector

    connector = AnsweringConnector(DELAY)
    connector.next = [OK, THROTTLED] if throttled else []
    async with make(connector) as session:
        for _ in range(rounds):
            async with session.get("http://server.test/") as response:
                await response.read()
                assert response.status == 200, response.status


Phase = tuple[str, Callable[[], Coroutine[Any, Any, None]], int]


def phases() -> list[Phase]:
    """Return name, work and rounds of each phase: few, then many."""
    of_limiters = [phase for algorithm in ALGORITHMS for phase in phases_of(algorithm)]
    of_sessions = [
        (name, partial(get, make, n, throttled=throttled), n)
        for name, (make, throttled) in SESSIONS.items()
        for n in (100, 400)
    ]
    return of_limiters + of_sessions


def phases_of(algorithm: str) -> list[Phase]:
    """Return the phases of one algorithm."""
    make, cost = ALGORITHMS[algorithm], COSTS.get(algorithm, ONE)
    return [
        *((f"{algorithm}, entry", lambda n=n: enter(make(1e9), n, cost), n) for n in (200, 1200)),
        *(
            (
                f"{algorithm}, grant of {WAITERS}",
                lambda n=n: queue(make(1000), n, cost),
                n * WAITERS,
            )
            for n in (1, 3)
        ),
    ]


def work() -> None:
    """Run all phases, under callgrind."""
    # Loaded by its file: `aiothrottle.testing` imports the server of aiohttp, which takes long.
    file = Path(aiothrottle.__file__).parent / "testing" / "virtual_time.py"
    loop_factory = runpy.run_path(str(file))["VirtualTimeLoop"]
    found = phases()
    for place, (_, start, _) in enumerate([*found[::2], *found]):
        counted = place >= len(found[::2])  # first once to warm up: parts are imported on use
        gc.collect()
        gc.freeze()
        if counted:
            os.getppid()
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(start())
        if counted:
            os.getppid()


def count() -> dict[str, float]:
    """Return the instructions of each phase, per entry, grant or GET."""
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run(  # noqa: S603 - this very file
            [
                *("valgrind", "--tool=callgrind", "--dump-before=getppid"),
                f"--callgrind-out-file={folder}/out",
                *(sys.executable, __file__, "--work"),
            ],
            env={**os.environ, "PYTHONHASHSEED": "0"},
            capture_output=True,
            text=True,
            check=False,
        )
        if run.returncode:
            sys.exit(f"valgrind failed:\n{run.stderr[-2000:]}")
        dumps = {int(path.suffix[1:]): path for path in Path(folder).glob("out.*")}
        counted = [_total(dumps[number]) for number in sorted(dumps)]
    named = [(name, rounds) for name, _, rounds in phases()]
    if len(counted) < 2 * len(named):
        sys.exit(f"callgrind reported {len(counted)} phases, expected {2 * len(named)}")
    # The first count includes the start of Python and the warm-up.
    inside = counted[1 : 2 * len(named) : 2]
    found: dict[str, float] = {}
    for place in range(0, len(named), 2):
        (name, few), (_, many) = named[place], named[place + 1]
        found[name] = (inside[place + 1] - inside[place]) / (many - few)
    bare = found.pop(BARE)
    print(f"{BARE}: {bare:,.0f} instructions, not guarded")
    for name in [*SESSIONS][1:]:
        found[name + BEYOND] = found.pop(name) - bare
    return found


def _total(dump: Path) -> int:
    match = re.search(r"^(?:totals|summary): (\d+)", dump.read_text(), re.MULTILINE)
    if match is None:
        sys.exit(f"callgrind reported no total in {dump.name}")
    return int(match[1])


def verdicts(found: dict[str, float], baseline: dict[str, float]) -> list[tuple[str, bool]]:
    """Return a line for each count, and whether it is too high."""
    lines: list[tuple[str, bool]] = []
    for name, instructions in found.items():
        before = baseline.get(name)
        if before is None:
            lines.append((f"{name}: {instructions:,.0f} instructions, no baseline", False))
            continue
        change = instructions / before - 1
        line = f"{name}: {instructions:,.0f} instructions, {change:+.1%} of {before:,.0f}"
        lines.append((line, change > SLACK))
    return lines


def main() -> int:
    """Compare, or accept."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--accept", action="store_true", help="make this the baseline")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work()
        return 0
    if shutil.which("valgrind") is None:
        print("**** NO VALGRIND: the hot path is not guarded ****")
        return 0
    version, kind = ".".join(platform.python_version_tuple()[:2]), platform.machine()
    baselines: dict[str, dict[str, float]] = json.loads(BASELINE.read_text())
    name = f"{version} {kind}"
    found = count()
    if options.accept:
        baselines[name] = {what: round(number) for what, number in found.items()}
        BASELINE.write_text(json.dumps(baselines, indent=2, sort_keys=True) + "\n")
    if name not in baselines:
        print(f"**** NO BASELINE FOR PYTHON {name}: the hot path is not guarded ****")
    failed = False
    for line, too_much in verdicts(found, baselines.get(name, {})):
        print(line + (f": MORE THAN {SLACK:.0%}" * too_much))
        failed = failed or too_much
    if failed:
        print(
            "The hot path costs more than it did. Find out why; if it is worth it, "
            "`python benchmarks/guard.py --accept` makes it the baseline."
        )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

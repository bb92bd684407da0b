"""The time that an import adds to the start of a program: `uv run benchmarks/imports.py`.

Each import runs in a process of its own that has imported asyncio, or aiohttp, before. All modules
are compiled. `import aiothrottle` alone imports no part: `from aiothrottle import RateLimiter` is
what a program pays.
"""

import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile

from measure import Report, arguments, machine, show

__all__ = ["report"]

# What is imported, after which module.
IMPORTS = {
    "import asyncio": "sys",
    "import aiohttp": "asyncio",
    "import aiothrottle": "asyncio",
    "from aiothrottle import RateLimiter": "asyncio",
    "from aiothrottle import KeyedRateLimiter": "asyncio",
    "from aiothrottle.aiohttp import ThrottledSession": "aiohttp",
}
PEERS = {
    "import aiolimiter": "asyncio",
    "import asyncio_throttle": "asyncio",
    "import pyrate_limiter": "asyncio",
    "import limits.aio": "asyncio",
    "import throttled": "asyncio",
    "import aiohttp_retry": "aiohttp",
}
CODE = """\
import {before}, sys, time
modules, begun = len(sys.modules), time.process_time()
{statement}
print(1000 * (time.process_time() - begun), len(sys.modules) - modules)
"""


def measure(statement: str, before: str, compiled: str) -> tuple[float, int]:
    """Return the milliseconds of CPU of an import, and how many modules it loads."""
    variables = {**os.environ, "PYTHONPYCACHEPREFIX": compiled}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    code = CODE.format(statement=statement, before=before)
    command = [sys.executable, "-c", code]
    printed = subprocess.check_output(command, env=variables, text=True)  # noqa: S603 - as above
    taken, modules = printed.split()
    return float(taken), int(modules)


def report(rounds: int = 15) -> Report:
    """Measure, and compare the results with the targets."""
    peers = {it: at for it, at in PEERS.items() if importlib.util.find_spec(it.split()[1])}
    imports = IMPORTS | peers
    times: dict[str, list[float]] = {statement: [] for statement in imports}
    loads: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as compiled:
        for _ in range(rounds + 1):
            for statement, before in imports.items():
                taken, loads[statement] = measure(statement, before, compiled)
                times[statement].append(taken)
    # The first round compiles the modules.
    medians = {statement: statistics.median(taken[1:]) for statement, taken in times.items()}
    found = Report("Importing")
    rows = [["", "after", "ms", "modules"]]
    rows += [
        [statement, before, f"{medians[statement]:.1f}", f"{loads[statement]}"]
        for statement, before in imports.items()
    ]
    found.add(f"Median of {rounds} interleaved rounds.", rows)
    for statement, most in (
        ("import aiothrottle", 60.0),
        ("from aiothrottle import RateLimiter", 60.0),
        ("from aiothrottle.aiohttp import ThrottledSession", 100.0),
    ):
        what = f"`{statement}`, after {imports[statement]}"
        found.want(what, medians[statement], most, " ms")
    return found


def main() -> None:
    """Measure and print."""
    options = arguments(__doc__, rounds=(15, "rounds"))
    print(machine())
    show(report(options.rounds))


if __name__ == "__main__":
    main()

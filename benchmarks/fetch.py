"""The cost of `aiothrottle fetch` beside a bare loop: `uv run benchmarks/fetch.py`.

Both fetch 100,000 URLs with small responses, twenty at once, from a server in another process. No
limit binds. The bare loop is a task for each URL, a semaphore, and `aiohttp`; it reads each body
and keeps nothing, while `fetch` writes a record of each. The time is that of the whole program,
from start to end.
"""

import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measure import Report, apart, arguments, machine, show
from overhead import serve

__all__ = ["report"]

AT_ONCE = 20
BARE = """
import asyncio, sys
from aiohttp import ClientSession, TCPConnector

async def main():
    with open(sys.argv[1]) as file:
        urls = file.read().split()
    semaphore = asyncio.Semaphore(int(sys.argv[2]))
    async with ClientSession(connector=TCPConnector(limit=0)) as session:
        async def get(url):
            async with semaphore, session.get(url) as response:
                await response.read()
        async with asyncio.TaskGroup() as group:
            for url in urls:
                group.create_task(get(url))

asyncio.run(main())
"""


def timed(command: list[str], compiled: str) -> tuple[float, int]:
    """Run a program; return its seconds, and its peak memory in KiB."""
    environment = os.environ | {"PYTHONPYCACHEPREFIX": compiled, "PYTHONDONTWRITEBYTECODE": ""}
    began = time.perf_counter()
    subprocess.run(command, check=True, env=environment)  # noqa: S603 - our own
    return time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss


def report(urls: int = 100_000, rounds: int = 3) -> Report:
    """Measure, and compare the results with the targets."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    server = context.Process(target=serve, args=(theirs,))
    server.start()
    try:
        return _compare(ours.recv(), urls, rounds)
    finally:
        server.kill()
        server.join()


def _compare(port: int, urls: int, rounds: int) -> Report:
    found = Report("Fetching a list")
    with tempfile.TemporaryDirectory() as folder:
        names, out = Path(folder, "urls.txt"), Path(folder, "out.jsonl")
        fetch = ["-m", "aiothrottle", "fetch", "-s", "-i", str(names), "-o", str(out)]
        contestants = {
            "a bare loop": ["-c", BARE, str(names), str(AT_ONCE)],
            "aiothrottle fetch": [*fetch, "--concurrency", str(AT_ONCE)],
            "the same, with a rate": [*fetch, "--concurrency", str(AT_ONCE), "--rate", "1000000/s"],
        }
        seconds: dict[str, list[float]] = {name: [] for name in contestants}
        memory = dict.fromkeys(contestants, 0)
        for turn in range(rounds + 1):
            count = urls if turn else 1  # the first turn is for Python to compile its modules
            names.write_text("".join(f"http://127.0.0.1:{port}/{n}\n" for n in range(count)))
            for name, arguments in contestants.items():
                out.unlink(missing_ok=True)
                measured = apart(600.0, timed, [sys.executable, *arguments], f"{folder}/compiled")
                assert measured is not None, f"{name} has taken more than ten minutes"
                if turn:
                    seconds[name].append(measured[0])
                    memory[name] = max(memory[name], measured[1])
    rows = [["", "seconds", "beside the bare loop", "µs a URL", "MiB at most"]]
    medians = {name: statistics.median(taken) for name, taken in seconds.items()}
    for name, median in medians.items():
        ratio = median / medians["a bare loop"]
        per_url = 1e6 * median / urls
        rows.append(
            [
                name,
                f"{median:.1f}",
                f"{ratio:.2f} x",
                f"{per_url:.0f}",
                f"{memory[name] / 1024:.0f}",
            ]
        )
    found.add(f"{urls:,} URLs, the median of {rounds}.", rows)
    worst = max(medians.values()) / medians["a bare loop"]
    found.want("beside a bare loop", worst, 1.25)
    found.want("memory", max(list(memory.values())[1:]) / 1024, 150, " MiB")
    return found


if __name__ == "__main__":
    options = arguments(
        __doc__, urls=(100_000, "how many of them"), rounds=(3, "times that each runs")
    )
    print(machine())
    show(report(int(options.urls), int(options.rounds)))

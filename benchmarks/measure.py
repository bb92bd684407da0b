"""How everything here is measured: in one process, interleaved, as medians and their ratios.

A machine that is busy for a moment then slows all contestants alike, and a figure in nanoseconds
is never compared with one from another run.
"""

import argparse
import platform
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping

__all__ = ["arguments", "interleave", "machine", "table"]


async def interleave(
    contestants: Mapping[str, Callable[[], Awaitable[object]]], *, rounds: int, per_round: int
) -> dict[str, float]:
    """Time each contestant once a round; give the median nanoseconds of one of `per_round`."""
    times: dict[str, list[int]] = {name: [] for name in contestants}
    for _ in range(rounds + 1):
        for name, run in contestants.items():
            begun = time.perf_counter_ns()
            await run()
            times[name].append(time.perf_counter_ns() - begun)
    # The first round is the interpreter's, which specialises the code as it runs.
    return {name: statistics.median(taken[1:]) / per_round for name, taken in times.items()}


def table(rows: list[list[str]]) -> str:
    """Lay out rows of text, the first being the head, the first column to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def machine() -> str:
    """Say what this was measured on."""
    return (
        f"{platform.python_implementation()} {platform.python_version()}, "
        f"{platform.system()} {platform.machine()}, {time.strftime('%Y-%m-%d')}"
    )


def arguments(description: str | None, **options: tuple[int, str]) -> argparse.Namespace:
    """Read whole-number options from the command line: name = (default, help)."""
    parser = argparse.ArgumentParser(description=description)
    for name, (default, text) in options.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{text} ({default})")
    return parser.parse_args()

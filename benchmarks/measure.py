"""The method of all benchmarks: interleaved runs, medians and their ratios.

A machine that is busy for a while then slows all contestants alike, and a time in nanoseconds is
never compared with one from another run. Measurements that neighbours would disturb (memory, the
state of a loop) run in a process of their own.
"""

import argparse
import multiprocessing
import os
import platform
import statistics
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

__all__ = [
    "Chart",
    "Report",
    "Target",
    "apart",
    "arguments",
    "interleave",
    "jain",
    "machine",
    "markdown",
    "put_into",
    "show",
    "table",
]

P = ParamSpec("P")
Result = TypeVar("Result")
Rows = list[list[str]]


@dataclass(frozen=True)
class Target:
    """A target, and the result."""

    what: str
    wanted: str
    found: str
    reached: bool


@dataclass(frozen=True)
class Chart:
    """The chart of a report: a bar for each contestant, in groups with a title each.

    None in place of a value: it took too long. A contestant that is neither ours nor a yardstick is
    a peer. A `share` is of 1, and written as per cent. The caption is a text alternative.
    """

    name: str
    caption: str
    unit: str
    groups: Mapping[str, Mapping[str, float | None]]
    ours: Collection[str]
    yardsticks: Collection[str] = ()
    share: bool = False

    def file(self, shade: str) -> str:
        """Return the name of the file in docs/pictures, on light paper or on dark."""
        return f"benchmarks-{self.name}-{shade}.svg"

    def shown(self) -> str:
        """Return the lines of a page that show the chart."""
        return (
            f"![{self.caption}](../../pictures/{self.file('light')}){{.only-light}}\n"
            f"![The same picture on dark paper.](../../pictures/{self.file('dark')}){{.only-dark}}"
        )


@dataclass
class Report:
    """The result of one benchmark: tables, each below a caption; and a chart."""

    title: str
    chart: Chart | None = field(default=None, kw_only=True)
    tables: list[tuple[str, Rows]] = field(default_factory=list[tuple[str, Rows]])
    targets: list[Target] = field(default_factory=list[Target])

    def add(self, caption: str, rows: Rows) -> None:
        """Add a table, with the first row as its head."""
        self.tables.append((caption, rows))

    def want(self, what: str, found: float, most: float, unit: str = " x") -> None:
        """Add a target: a number that must not be greater than `most`."""
        wanted, text = f"<= {most:,g}{unit}", f"{_number(found)}{unit}"
        self.targets.append(Target(what, wanted, text, found <= most))

    def want_least(self, what: str, found: float, least: float, unit: str = " x") -> None:
        """Add a target: a number that must not be smaller than `least`."""
        wanted, text = f">= {least:,g}{unit}", f"{_number(found)}{unit}"
        self.targets.append(Target(what, wanted, text, found >= least))

    def want_share(self, what: str, found: float, least: float) -> None:
        """Add a target: a share that must not be smaller than `least`."""
        self.targets.append(Target(what, f">= {least:.1%}", f"{found:.2%}", found >= least))


def _number(number: float) -> str:
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"


async def interleave(
    contestants: Mapping[str, Callable[[], Awaitable[object]]], *, rounds: int, per_round: int
) -> dict[str, float]:
    """Run each contestant once a round; return the median nanoseconds of CPU of one of `per_round`.

    They never wait, so CPU is all their time, and other programs are left out.
    """
    times: dict[str, list[int]] = {name: [] for name in contestants}
    for _ in range(rounds + 1):
        for name, run in contestants.items():
            begun = time.process_time_ns()
            await run()
            times[name].append(time.process_time_ns() - begun)
    # In the first round the interpreter specialises the code.
    return {name: statistics.median(taken[1:]) / per_round for name, taken in times.items()}


def apart(
    seconds: float, function: Callable[P, Result], *args: P.args, **kwargs: P.kwargs
) -> Result | None:
    """Call a function of a module in a process of its own. None: it took too long."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(theirs, function, args, kwargs))
    process.start()
    theirs.close()
    try:
        return ours.recv() if ours.poll(seconds) else None
    except EOFError:
        raise RuntimeError(f"{function.__name__}{args} failed: see above") from None
    finally:
        process.kill()
        process.join()


def _send(
    pipe: "Connection[Any, Any]",
    function: Callable[..., object],
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> None:
    pipe.send(function(*args, **kwargs))


def table(rows: Rows) -> str:
    """Lay out rows of text: the first as head, the first column to the left."""
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


def show(report: Report) -> None:
    """Print a report."""
    print(f"\n== {report.title}")
    for caption, rows in report.tables:
        print(f"\n{caption}\n{table(rows)}")
    if report.targets:
        print()
    for target in report.targets:
        sign = "reached" if target.reached else "MISSED "
        print(f"{sign}  {target.what}: {target.found} (wanted {target.wanted})", flush=True)


def markdown(rows: Rows, texts: int = 1) -> str:
    """Lay out rows as a table: the first as head, the first `texts` columns to the left."""
    head, *body = [[cell.replace("|", r"\|") for cell in row] for row in rows]
    rule = [":--"] * texts + ["--:"] * (len(head) - texts)
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, rule, *body])


def put_into(page: Path, program: str, text: str) -> None:
    """Write the text into the page, between the markers that name the program."""
    begin, end = (f"<!-- {it}: benchmarks/{program} -->" for it in ("begin", "end"))
    before, rest = page.read_text(encoding="utf-8").split(begin)
    after = rest.split(end)[1]
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")


def machine() -> str:
    """Return a description of this machine."""
    return (
        f"{platform.python_implementation()} {platform.python_version()}, "
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores{_processor()}, "
        f"{time.strftime('%Y-%m-%d')}"
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f" ({names[0]})" if names else ""


def arguments(description: str | None, **options: tuple[float, str]) -> argparse.Namespace:
    """Read numbers from the command line: name = (default, help)."""
    parser = argparse.ArgumentParser(description=description)
    for name, (default, text) in options.items():
        kind = type(default)
        parser.add_argument(f"--{name}", type=kind, default=default, help=f"{text} ({default})")
    return parser.parse_args()


def jain(counts: Sequence[float]) -> float:
    """Return Jain's index of fairness: 1 if all are equal, 1/n if one has everything."""
    return sum(counts) ** 2 / (len(counts) * sum(count**2 for count in counts))

"""Everything, one after the other: `uv run benchmarks/all.py [--quick] [--only NAME] [--write]`.

With `--write` tables and plots become docs/project/benchmarks.md, with each target and its
result, reached or not. With `--only` some of it is measured again: the rest of the page stays.
"""

import argparse
import importlib.metadata
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import accuracy
import adaptive
import cancelled
import contended
import crawl
import far_store
import fetch
import headers
import idle
import keyed
import many_keys
import observed
import observer
import overhead
import scale
import stores
import uncontended
from measure import Report, machine, markdown, show

PAGE = Path(__file__).parent.parent / "docs" / "project" / "benchmarks.md"
PEERS = (
    "aiolimiter",
    "asyncio-throttle",
    "pyrate-limiter",
    "limits",
    "redis",
    "throttled-py",
    "aiometer",
    "aiohttp-retry",
)

FULL: dict[ModuleType, Callable[[], Report]] = {
    uncontended: uncontended.report,
    contended: contended.report,
    cancelled: cancelled.report,
    accuracy: accuracy.report,
    idle: idle.report,
    keyed: keyed.report,
    observed: observed.report,
    overhead: overhead.report,
    headers: headers.report,
    crawl: crawl.report,
    fetch: fetch.report,
    stores: stores.report,
    far_store: far_store.report,
    observer: observer.report,
    many_keys: many_keys.report,
    scale: scale.report,
    adaptive: adaptive.report,
}
QUICK: dict[ModuleType, Callable[[], Report]] = {
    uncontended: lambda: uncontended.report(rounds=5, repeat=5_000),
    contended: lambda: contended.report(rounds=1, patience=3.0, sizes=(10_000,)),
    cancelled: lambda: cancelled.report(rounds=1, seconds=1.0),
    accuracy: lambda: accuracy.report(seconds=1.0, rates=(1_000,)),
    idle: lambda: idle.report(seconds=1.0),
    keyed: lambda: keyed.report(times=50, keys=20_000, peer_keys=5_000, patience=2.0),
    observed: lambda: observed.report(rounds=5, repeat=5_000),
    overhead: lambda: overhead.report(rounds=7, repeat=200),
    crawl: lambda: crawl.report(pages=100, rounds=1),
    fetch: lambda: fetch.report(urls=10_000, rounds=1),
    stores: lambda: stores.report(rounds=1, seconds=0.2, shared=1),
    observer: lambda: observer.report(seconds=3.0, rates=(100,)),
    far_store: lambda: far_store.report(rates=(100,), workers=(30,), seconds=2),
    many_keys: lambda: many_keys.report(sizes=(100, 1_000), seconds=0.5),
    scale: lambda: scale.report(seconds=5.0, keys=1_000, processes=20),
}

HEAD = """\
# Benchmarks

Generated, not written: `{command}` made this page, and, with `--only`, parts of it anew.
{machine}.
{versions}.

How it is measured: contestants in turn, many rounds, medians, and ratios between contestants that
ran side by side; a process of its own where memory or the state of a loop would be disturbed.
Results in seconds are of this machine; compare ratios.
Each peer is used as its own documentation says (`benchmarks/peers.py`).

## Targets

"""


def page(reports: dict[ModuleType, Report], command: str) -> str:
    """Return the page."""
    versions = [f"{name} {importlib.metadata.version(name)}" for name in PEERS]
    parts = [HEAD.format(command=command, machine=machine(), versions=", ".join(versions))]
    rows = [["", "wanted", "measured", ""]]
    for found in reports.values():
        rows += target_rows(found)
    parts.append(markdown(rows) + "\n")
    parts += [section(module, found) for module, found in reports.items()]
    return "".join(parts)


def target_rows(found: Report) -> list[list[str]]:
    """Return the targets, as rows of their table."""
    signs = {True: "reached", False: "**missed**"}
    return [
        [f"{found.title}: {target.what}", target.wanted, target.found, signs[target.reached]]
        for target in found.targets
    ]


def section(module: ModuleType, found: Report) -> str:
    """Return the section of the page about one benchmark."""
    about = (module.__doc__ or "").strip().partition("\n\n")[2]
    parts = [f"\n## {found.title}\n\n{about.strip()}\n"]
    if found.chart:
        parts.append(f"\n{found.chart.shown()}\n")
    parts += [f"\n{caption}\n\n{markdown(table)}\n" for caption, table in found.tables]
    return "".join(parts)


def renewed(text: str, module: ModuleType, found: Report) -> str:
    """Return the page with a new run of one benchmark; what the page lacks comes last."""
    lines, mark = text.split("\n"), f"| {found.title}: "
    rows = markdown([[""] * 4, *target_rows(found)]).split("\n")[2:]
    if not any(line.startswith(mark) for line in lines):
        # The table of the targets ends before the first section.
        end = lines.index("", lines.index("## Targets") + 2)
        lines.insert(end, mark)
    first = next(number for number, line in enumerate(lines) if line.startswith(mark))
    lines = [line for line in lines if not line.startswith(mark)]
    lines[first:first] = rows
    before, _, rest = "\n".join(lines).partition(f"\n## {found.title}\n")
    _, head, after = rest.partition("\n## ")
    return before.rstrip("\n") + "\n" + section(module, found) + head + after


def main() -> None:
    """Run them all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a minute, for a first impression")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    names = [module.__name__ for module in FULL]
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=", ".join(names))
    options = parser.parse_args()
    if options.quick and options.only and options.write:
        parser.error("--only and --write update a full run: leave out --quick")
    print(machine())
    begun = time.monotonic()
    reports: dict[ModuleType, Report] = {}
    for module, report in (QUICK if options.quick else FULL).items():
        if options.only and module.__name__ not in options.only:
            continue
        reports[module] = report()
        show(reports[module])
    print(f"\n{time.monotonic() - begun:.0f} s in all")
    if options.write:
        from plots import draw  # noqa: PLC0415 - each process that measures imports this module

        for found in reports.values():
            if found.chart:
                draw(found.chart)
    if options.write and options.only:
        text = PAGE.read_text(encoding="utf-8")
        for module, found in reports.items():
            text = renewed(text, module, found)
        PAGE.write_text(text, encoding="utf-8")
    elif options.write:
        flags = "--quick --write" if options.quick else "--write"
        PAGE.write_text(page(reports, f"uv run benchmarks/all.py {flags}"), encoding="utf-8")


if __name__ == "__main__":
    main()

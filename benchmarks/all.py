"""Everything, one after the other: `uv run benchmarks/all.py [--quick] [--only NAME] [--write]`.

With `--write` each benchmark makes its page in docs/project/benchmarks, with its tables, its chart
and its targets, reached or not; the first page lists the targets that are missed.
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
import imports
import keyed
import many_keys
import observed
import observer
import outage
import overhead
import scale
import stores
import swap_stores
import uncontended
import unknown
from measure import Report, machine, markdown, put_into, show

PAGES = Path(__file__).parent.parent / "docs" / "project" / "benchmarks"
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
    imports: imports.report,
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
    swap_stores: swap_stores.report,
    outage: outage.report,
    adaptive: adaptive.report,
    unknown: unknown.report,
}
QUICK: dict[ModuleType, Callable[[], Report]] = {
    uncontended: lambda: uncontended.report(rounds=5, repeat=5_000),
    contended: lambda: contended.report(rounds=1, patience=3.0, sizes=(10_000,)),
    cancelled: lambda: cancelled.report(rounds=1, seconds=1.0),
    accuracy: lambda: accuracy.report(seconds=1.0, rates=(1_000,)),
    idle: lambda: idle.report(seconds=1.0),
    imports: lambda: imports.report(rounds=3),
    keyed: lambda: keyed.report(times=50, keys=20_000, patience=2.0),
    observed: lambda: observed.report(rounds=5, repeat=5_000),
    overhead: lambda: overhead.report(rounds=7, repeat=200),
    crawl: lambda: crawl.report(pages=100, rounds=1),
    fetch: lambda: fetch.report(urls=10_000, rounds=1),
    stores: lambda: stores.report(rounds=1, seconds=0.2, shared=1),
    observer: lambda: observer.report(seconds=3.0, rates=(100,)),
    far_store: lambda: far_store.report(rates=(100,), workers=(30,), seconds=2),
    many_keys: lambda: many_keys.report(sizes=(100, 1_000), seconds=0.5),
    scale: lambda: scale.report(seconds=5.0, keys=1_000, processes=20),
    swap_stores: lambda: swap_stores.report(seconds=5),
    outage: lambda: outage.report(seconds=5.0, keys=500),
    unknown: lambda: unknown.report(servers=40),
}

MISSED = "**missed**"


def page(module: ModuleType, found: Report) -> str:
    """Return the page of one benchmark."""
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PEERS)
    about = (module.__doc__ or "").strip().partition("\n\n")[2].strip()
    command = f"uv run benchmarks/all.py --only {module.__name__} --write"
    parts = [
        f"# {found.title}\n\n`{command}` writes this page.\n{machine()}.\n{versions}.\n\n{about}\n"
    ]
    if found.chart:
        parts.append(f"\n{found.chart.shown()}\n")
    parts += [f"\n{caption}\n\n{markdown(table)}\n" for caption, table in found.tables]
    if found.targets:
        signs = {True: "reached", False: MISSED}
        rows = [[it.what, it.wanted, it.found, signs[it.reached]] for it in found.targets]
        parts.append(f"\n## Targets\n\n{markdown([['', 'wanted', 'measured', ''], *rows])}\n")
    return "".join(parts)


def missed(pages: Path) -> str:
    """Return a table of the targets that are missed, of all pages."""
    rows = [["benchmark", "target", "wanted", "measured"]]
    for path in sorted(pages.glob("*.md")):
        if path.name == "index.md":
            continue
        text = path.read_text(encoding="utf-8")
        title = text.partition("\n")[0].removeprefix("# ")
        lines = [line for line in text.split("\n") if line.endswith(f"| {MISSED} |")]
        rows += [[f"[{title}]({path.name})", *line[2:-2].split(" | ")[:3]] for line in lines]
    return markdown(rows, texts=2)


def main() -> None:
    """Run them all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a minute, for a first impression")
    parser.add_argument("--write", action="store_true", help="write the pages")
    names = [module.__name__ for module in FULL]
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=", ".join(names))
    options = parser.parse_args()
    if options.quick and options.write:
        parser.error("--write is for full runs: leave out --quick")
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
        from plots import draw  # each process that measures imports this module

        for found in reports.values():
            if found.chart:
                draw(found.chart)
    if options.write:
        for module, found in reports.items():
            path = PAGES / f"{module.__name__}.md"
            path.write_text(page(module, found), encoding="utf-8")
        put_into(PAGES / "index.md", "all.py", missed(PAGES))


if __name__ == "__main__":
    main()

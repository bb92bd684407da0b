"""Everything, one after the other: `uv run benchmarks/all.py [--quick] [--write]`.

With `--write` the tables become docs/benchmarks.md, and beside each target stands what was
measured, reached or not.
"""

import argparse
import importlib.metadata
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import accuracy
import contended
import crawl
import fetch
import headers
import keyed
import observed
import overhead
import stores
import uncontended
from measure import Report, machine, markdown, show

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
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
    accuracy: accuracy.report,
    keyed: keyed.report,
    observed: observed.report,
    overhead: overhead.report,
    headers: headers.report,
    crawl: crawl.report,
    fetch: fetch.report,
    stores: stores.report,
}
QUICK: dict[ModuleType, Callable[[], Report]] = {
    uncontended: lambda: uncontended.report(rounds=5, repeat=5_000),
    contended: lambda: contended.report(rounds=1, patience=3.0, sizes=(10_000,)),
    accuracy: lambda: accuracy.report(seconds=1.0, rates=(1_000,)),
    keyed: lambda: keyed.report(times=50, keys=20_000, peer_keys=5_000, patience=2.0),
    observed: lambda: observed.report(rounds=5, repeat=5_000),
    overhead: lambda: overhead.report(rounds=7, repeat=200),
    crawl: lambda: crawl.report(pages=100, rounds=1),
    fetch: lambda: fetch.report(urls=10_000, rounds=1),
    stores: lambda: stores.report(rounds=1, seconds=0.2, shared=1),
}

HEAD = """\
# Benchmarks

Generated, not written: `{command}` made this page.
{machine}.
{versions}.

How it is measured: contestants in turn, many rounds, medians, and ratios between what ran side by
side; a process of its own for what memory or the state of a loop would disturb.
Figures in seconds are of this machine; compare ratios.
Each peer is used as its own documentation says (`benchmarks/peers.py`).

## Targets

"""


def page(reports: dict[ModuleType, Report], command: str) -> str:
    """Make the page."""
    versions = [f"{name} {importlib.metadata.version(name)}" for name in PEERS]
    parts = [HEAD.format(command=command, machine=machine(), versions=", ".join(versions))]
    rows = [["", "wanted", "measured", ""]]
    for found in reports.values():
        for target in found.targets:
            reached = "reached" if target.reached else "**missed**"
            rows.append([f"{found.title}: {target.what}", target.wanted, target.found, reached])
    parts.append(markdown(rows) + "\n")
    for module, found in reports.items():
        about = (module.__doc__ or "").strip().partition("\n\n")[2]
        parts.append(f"\n## {found.title}\n\n{about.strip()}\n")
        parts += [f"\n{caption}\n\n{markdown(table)}\n" for caption, table in found.tables]
    return "".join(parts)


def main() -> None:
    """Run them all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a minute, for a first look")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    options = parser.parse_args()
    print(machine())
    begun = time.monotonic()
    reports: dict[ModuleType, Report] = {}
    for module, report in (QUICK if options.quick else FULL).items():
        reports[module] = report()
        show(reports[module])
    print(f"\n{time.monotonic() - begun:.0f} s in all")
    if options.write:
        flags = "--quick --write" if options.quick else "--write"
        PAGE.write_text(page(reports, f"uv run benchmarks/all.py {flags}"), encoding="utf-8")


if __name__ == "__main__":
    main()

"""`aiothrottle probe --find-limit` in front of a server, and a crawl with the line that it prints.

The command runs as a process of its own, as a user runs it. The crawl meets a server that was
started anew. What was sent and throttled, in both, is what the server logged.
"""

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from measure import Rows, machine, markdown, put_into

from real_servers.results import PAGE, percent, rounded, throttled_shares
from real_servers.server import Server, watch
from real_servers.trial import Trial, run_trial

__all__ = ["HEAD", "Probed", "cells", "probe", "write_probed"]

HEAD = ("server", "printed line", "throttled, %", "used, %", "search, s", "requests", "throttled")

_FILE = Path(__file__).with_name("probed.json")
_PATIENCE = 900.0  # seconds of one search


@dataclass(frozen=True)
class Probed:
    """The printed line, what its search cost, and the trial of the line."""

    line: str
    seconds: float
    requests: int
    throttled: int
    trial: Trial


def probe(server: Server, seconds: float) -> Probed:
    """Run the command in front of a server, and a trial of the line that it prints.

    Raises:
        InstallError: The server cannot be installed.
        RuntimeError: The server does not answer, or the command failed.
    """
    begun = time.monotonic()
    printed, answers = watch(server, _printed)
    lasted = time.monotonic() - begun
    line = printed.splitlines()[-1].strip()
    throttled = sum(it.status >= 400 for it in answers)
    return Probed(line, lasted, len(answers), throttled, run_trial(server, line, seconds))


def _printed(url: str) -> str:
    command = [sys.executable, "-m", "aiothrottle", "probe", "--find-limit", "--yes", url]
    ended = subprocess.run(  # noqa: S603 - ours
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_PATIENCE,
        check=False,
    )
    if ended.returncode:
        raise RuntimeError(f"aiothrottle probe failed: {ended.stderr}")
    return ended.stdout


def cells(probed: Probed) -> list[str]:
    """Return the result in the columns of `HEAD`, without the server."""
    trial = probed.trial
    costs = f"{probed.seconds:.0f}", str(probed.requests), str(probed.throttled)
    return [f"`{probed.line}`", throttled_shares(trial), percent(trial.used, 0), *costs]


def write_probed(servers: Sequence[Server], found: Mapping[str, Probed], seconds: float) -> None:
    """Add results to those of the file, and write the table of the page anew."""
    results: dict[str, Any] = {}
    if _FILE.exists():
        results = json.loads(_FILE.read_text(encoding="utf-8"))
    for name, it in found.items():
        results[name] = asdict(it) | {"seconds": round(it.seconds), "trial": rounded(it.trial)}
    results = {it.name: results[it.name] for it in servers if it.name in results}
    _FILE.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    rows: Rows = [list(HEAD)]
    for name, result in results.items():
        values: dict[str, Any] = result | {"trial": Trial(**result["trial"])}
        rows.append([name, *cells(Probed(**values))])
    terms = (
        f"*Measured by `uv run benchmarks/real_servers/run.py --probe --write`, {seconds:g} s of "
        f"each line, one run: {machine()}.*"
    )
    put_into(PAGE, "real_servers/probing.py", f"{terms}\n\n{markdown(rows, texts=2)}")

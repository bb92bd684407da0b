"""The results that were written last, by server and line, and the page that shows them.

A run of some servers replaces their results, and leaves the others as they are.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from measure import Rows, machine, markdown, put_into

from real_servers.clients import CLIENTS, clients_of
from real_servers.server import Server
from real_servers.trial import Trial

__all__ = ["PAGE", "Found", "percent", "rounded", "throttled_shares", "write"]

#: Of each server the trials by line, or why it was skipped.
Found = Mapping[str, Mapping[str, Trial] | str]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "project" / "results" / "servers.md"
_FILE = Path(__file__).with_name("results.json")


def write(servers: Sequence[Server], found: Found, seconds: float) -> None:
    """Add results to those of the file, and write the tables of the page anew."""
    results: dict[str, Any] = {}
    if _FILE.exists():
        results = json.loads(_FILE.read_text(encoding="utf-8"))
    for name, trials in found.items():
        if isinstance(trials, str):
            results[name] = trials
            continue
        kept: Any = results.get(name)
        if isinstance(kept, str) or kept is None:  # it was skipped, or is new
            kept = {}
        results[name] = kept | {line: rounded(trial) for line, trial in trials.items()}
    results = {it.name: results[it.name] for it in servers if it.name in results}
    _FILE.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    terms = (
        f"*Measured by `uv run benchmarks/real_servers/run.py --write`, {seconds:g} s each, one "
        f"run: {machine()}.*"
    )
    known = [it for it in servers if it.name in results]
    parts = [terms, markdown(_advised(known, results), texts=2)]
    parts += ["### Each client at each server", markdown(_compared(known, results))]
    put_into(PAGE, "real_servers/run.py", "\n\n".join(parts))


def rounded(trial: Trial) -> dict[str, float]:
    """Return the values of a trial for a file."""
    values = asdict(trial)
    del values["fairness"]  # of one session
    return {name: round(value, 4) for name, value in values.items()}


def _advised(servers: Sequence[Server], results: Mapping[str, Any]) -> Rows:
    rows: Rows = [["server", "arguments of the session", "throttled, %", "used, %", "failures"]]
    for server in servers:
        trials = results[server.name]
        if isinstance(trials, str):
            rows.append([server.name, f"skipped: {trials}", "", "", ""])
        elif server.line in trials:
            trial = Trial(**trials[server.line])
            cells = [throttled_shares(trial), percent(trial.used, 0), str(trial.failures)]
            rows.append([server.name, f"`{server.line}`", *cells])
    return rows


def _compared(servers: Sequence[Server], results: Mapping[str, Any]) -> Rows:
    headings = dict.fromkeys(client.heading for client in CLIENTS)
    rows: Rows = [["server", *headings]]
    for server in servers:
        trials = results[server.name]
        if isinstance(trials, str):
            continue
        suited = {it.heading: it.line for it in clients_of(server)}
        rows.append([server.name])
        for heading in headings:
            trial = trials.get(suited.get(heading))
            rows[-1].append("" if trial is None else _cell(Trial(**trial)))
    return rows


def _cell(trial: Trial) -> str:
    failed = f", {trial.failures} failed" if trial.failures else ""
    return f"{throttled_shares(trial)} / {percent(trial.used, 0)}{failed}"


def throttled_shares(trial: Trial) -> str:
    """Return the share that was throttled, and in brackets that of the time after 10 s."""
    return f"{percent(trial.throttled)} ({percent(trial.throttled_later)})"


def percent(share: float, digits: int = 1) -> str:
    """Return a share of 1 as per cent."""
    return f"{100 * share:.{digits}f}"

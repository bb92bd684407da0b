"""The command: which servers and clients, the trials one after the other, and the tables."""

import argparse
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

from measure import Rows, machine, table

from real_servers import apache, envoy, haproxy, nginx, node_apps, python_apps, traefik, varnish
from real_servers.clients import Client, clients_of
from real_servers.install import InstallError
from real_servers.probing import HEAD, cells, probe, write_probed
from real_servers.results import PAGE, write
from real_servers.server import Server
from real_servers.trial import SETTLED, Trial, run_trial

__all__ = ["SERVERS", "main"]

SERVERS: Sequence[Server] = [
    *nginx.SERVERS,
    *haproxy.SERVERS,
    *envoy.SERVERS,
    *traefik.SERVERS,
    *varnish.SERVERS,
    *apache.SERVERS,
    *node_apps.SERVERS,
    *python_apps.SERVERS,
]
_HEAD = (
    "server",
    "client",
    "throttled, %",
    f"after {SETTLED:g} s",
    "used, %",
    f"after {SETTLED:g} s",
    "failures",
    "requests",
    "Jain",
)


def main(description: str | None) -> None:
    """Run the trials that the command line asks for, and print or write the results."""
    options = _options(description)
    servers = [it for it in SERVERS if not options.only or _is_meant(it, options.only)]
    if options.list or not servers:
        print("\n".join(it.name for it in SERVERS))
        return
    # So that the servers are stopped too if this process is.
    signal.signal(signal.SIGTERM, _end)
    print(machine())
    compare = _probe if options.probe else _try
    print(f"\n{table(compare(servers, options))}")


def _try(servers: Sequence[Server], options: argparse.Namespace) -> Rows:
    """Run the trials of the clients."""
    rows: Rows = [list(_HEAD)]
    for server in servers:
        clients = clients_of(server)
        chosen = [it for it in clients if not options.clients or it.name in options.clients]
        try:
            trials = _run(server, chosen, options.seconds, options.sessions)
        except InstallError as error:
            print(f"**** SKIPPED {server.name}: {error} ****", flush=True)
            rows.append([server.name, "skipped", *[""] * (len(_HEAD) - 2)])
            found: dict[str, Trial] | str = str(error)
        else:
            rows += [[server.name, it.name, *_cells(trials[it.line])] for it in chosen]
            found = trials
        if options.write:  # at once: the whole run takes half an hour
            write(SERVERS, {server.name: found}, options.seconds)
    return rows


def _probe(servers: Sequence[Server], options: argparse.Namespace) -> Rows:
    """Probe each server with a rate limit, and try the line that the command prints."""
    rows: Rows = [list(HEAD)]
    for server in servers:
        if server.slots is not None:
            continue
        try:
            probed = probe(server, options.seconds)
        except InstallError as error:
            print(f"**** SKIPPED {server.name}: {error} ****", flush=True)
            continue
        rows.append([server.name, *cells(probed)])
        print("  ".join(rows[-1]), flush=True)
        if options.write:
            write_probed(SERVERS, {server.name: probed}, options.seconds)
    return rows


def _end(number: int, _: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


def _run(
    server: Server, clients: Sequence[Client], seconds: float, sessions: int
) -> dict[str, Trial]:
    trials: dict[str, Trial] = {}
    for client in clients:
        trials[client.line] = run_trial(server, client.line, seconds, sessions)
        print("  ".join([server.name, client.name, *_cells(trials[client.line])]), flush=True)
    return trials


def _is_meant(server: Server, names: Sequence[str]) -> bool:
    return any(it.lower() in (server.name.lower(), server.family.lower()) for it in names)


def _cells(trial: Trial) -> list[str]:
    shares = (trial.throttled, trial.throttled_later, trial.used, trial.used_later)
    counts = str(trial.failures), str(trial.requests)
    return [*(f"{100 * it:.1f}" for it in shares), *counts, f"{trial.fairness:.3f}"]


def _options(description: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = sorted({client.name for server in SERVERS for client in clients_of(server)})
    parser.add_argument("--only", nargs="+", metavar="SERVER", help="first words, or whole names")
    parser.add_argument(
        "--clients", nargs="+", choices=names, metavar="CLIENT", help=", ".join(names)
    )
    parser.add_argument(
        "--probe",
        action="store_true",
        help="run `aiothrottle probe --find-limit`, and try the line that it prints",
    )
    parser.add_argument("--seconds", type=float, default=15.0, help="of each trial (15)")
    parser.add_argument(
        "--sessions",
        type=int,
        default=1,
        metavar="N",
        help="sessions that share the workers, and know nothing of each other (1)",
    )
    parser.add_argument("--list", action="store_true", help="print the names of the servers")
    parser.add_argument("--write", action="store_true", help=f"put the tables into {PAGE.name}")
    options = parser.parse_args()
    if options.write and options.sessions > 1:
        parser.error("--write is for the tables of one session: leave out --sessions")
    return options

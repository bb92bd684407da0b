"""The command: which servers and clients, the trials one after the other, and the tables."""

import argparse
from collections.abc import Sequence

from measure import Rows, machine, table

from real_servers import apache, envoy, haproxy, nginx, node_apps, python_apps, traefik, varnish
from real_servers.clients import CLIENTS, clients_of
from real_servers.install import InstallError
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


def main(description: str | None) -> None:
    """Run the trials that the command line asks for, and print the results."""
    options = _options(description)
    servers = [it for it in SERVERS if not options.only or _is_meant(it, options.only)]
    if options.list or not servers:
        print("\n".join(it.name for it in SERVERS))
        return
    print(machine())
    head = ["server", "client", "throttled, %", f"after {SETTLED:g} s", "used, %"]
    rows: Rows = [[*head, f"after {SETTLED:g} s", "failures", "requests"]]
    for server in servers:
        for name, client in clients_of(server).items():
            if options.clients and name not in options.clients:
                continue
            try:
                trial = run_trial(server, client, options.seconds)
            except InstallError as error:
                print(f"**** SKIPPED {server.name}: {error} ****", flush=True)
                rows.append([server.name, "skipped", *[""] * 6])
                break
            rows.append([server.name, client.heading, *_cells(trial)])
            print("  ".join(rows[-1]), flush=True)
    print(f"\n{table(rows)}")


def _is_meant(server: Server, names: Sequence[str]) -> bool:
    return any(it.lower() in (server.name.lower(), server.family.lower()) for it in names)


def _cells(trial: Trial) -> list[str]:
    shares = (trial.throttled, trial.throttled_later, trial.used, trial.used_later)
    return [*(f"{100 * it:.1f}" for it in shares), str(trial.failures), str(trial.requests)]


def _options(description: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="SERVER", help="first words, or whole names")
    parser.add_argument(
        "--clients", nargs="+", choices=CLIENTS, metavar="CLIENT", help=", ".join(CLIENTS)
    )
    parser.add_argument("--seconds", type=float, default=15.0, help="of each trial (15)")
    parser.add_argument("--list", action="store_true", help="print the names of the servers")
    return parser.parse_args()

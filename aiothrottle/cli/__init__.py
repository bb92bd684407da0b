"""The command line: ``aiothrottle COMMAND``. A module for each command: its arguments, its run."""

import argparse
import sys
from collections.abc import Sequence

from aiothrottle import __version__
from aiothrottle.cli.demo import add_demo
from aiothrottle.cli.fetch import add_fetch
from aiothrottle.cli.probe import add_probe
from aiothrottle.cli.simulate import add_simulate

__all__ = ["main"]

# What a shell reports of a program that Ctrl-C has ended: 128 and the number of SIGINT.
_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and give the exit status; `arguments` are by default the program's.

    Raises:
        SystemExit: The arguments ask for help or the version (0), or make no sense (2).
    """
    parser = _make_parser()
    try:
        options = parser.parse_args(arguments)
        if options.run is None:
            parser.print_help()
            return 0
        return int(options.run(options))
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        return _INTERRUPTED


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="aiothrottle", description="Stay under the limits of the APIs you call."
    )
    parser.add_argument("--version", action="version", version=f"aiothrottle {__version__}")
    parser.set_defaults(run=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for add in (add_fetch, add_probe, add_simulate, add_demo):
        add(commands)
    return parser

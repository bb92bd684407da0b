"""The command line: ``aiothrottle COMMAND``. A module for each command: its arguments, its run."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from aiothrottle import __version__

__all__ = ["main"]

# Each is a module here: `fill` gives a parser its arguments, `execute` does what they say.
_COMMANDS = {
    "fetch": "fetch lists of URLs, under limits",
    "probe": "ask a server for its limits, and get the line of Python that keeps to them",
    "simulate": "see how an algorithm and a guard get on with a server, before anything is sent",
    "demo": "crawl a server on this machine, without and with aiothrottle, and compare",
}
# What a shell reports of a program that Ctrl-C has ended: 128 and the number of SIGINT.
_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and give the exit status; `arguments` are by default the program's.

    Raises:
        SystemExit: The arguments ask for help or the version (0), or make no sense (2).
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = _make_parser()
    try:
        name = parser.parse_args(arguments[:1]).command
        if name is None:
            parser.print_help()
            return 0
        # Only now: fetch is not to wait until all that simulate needs has been read.
        module = import_module(f"{__name__}.{name}")
        command = argparse.ArgumentParser(prog=f"{parser.prog} {name}")
        module.fill(command)
        # Intermixed: a URL may also stand behind an option, as it may with curl.
        return int(module.execute(command, command.parse_intermixed_args(arguments[1:])))
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        return _INTERRUPTED


def _make_parser() -> argparse.ArgumentParser:
    """Make the parser of what stands before the arguments of a command."""
    parser = argparse.ArgumentParser(
        prog="aiothrottle", description="Stay under the limits of the APIs you call."
    )
    parser.add_argument("--version", action="version", version=f"aiothrottle {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    for name, summary in _COMMANDS.items():
        commands.add_parser(name, help=summary)
    return parser

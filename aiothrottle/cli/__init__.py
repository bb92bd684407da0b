"""The command line, ``aiothrottle COMMAND``, with one module for each command."""

import argparse
import errno
import os
import re
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

from aiothrottle import __version__

if TYPE_CHECKING:
    from aiothrottle.cli.options import Command

# Each is a module here, whose COMMAND has its options and runs it.
_COMMANDS = {
    "fetch": "fetch lists of URLs, under limits",
    "probe": "ask a server for its limits, and print the limiter that keeps to them",
    "simulate": "try an algorithm and a guard against a simulated server, without any request",
    "demo": "crawl a server on this machine, without and with aiothrottle, and compare",
    "completion": "print a script that completes these commands and their options in a shell",
}
# How argparse begins the errors that `_Parser` improves.
_UNKNOWN_ARGUMENT = re.compile(r"unrecognized arguments: (\S+)")
_UNKNOWN_COMMAND = re.compile(r"argument COMMAND: invalid choice: '([^']*)'")
# The exit status of a program that a signal ended: 128 and the number of SIGINT, or of SIGPIPE.
_INTERRUPTED, _BROKEN_PIPE = 130, 141
# That of an output that cannot be written, and the errors: a full disk or quota, a bad disk, and a
# closed output.
_NOT_WRITTEN = 3
_UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF}
# What replaces a standard stream that was closed. Using input or output stays an error, as they can
# only be used the other way round; what is printed to the standard error is dropped.
_REPLACED = {"stdin": os.O_WRONLY, "stdout": os.O_RDONLY, "stderr": os.O_WRONLY}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status; by default with the program's arguments.

    Raises:
        SystemExit: The arguments ask for help or the version (0), or are invalid (2).
    """
    _prepare_streams()
    try:
        try:
            return _run(sys.argv[1:] if arguments is None else arguments)
        finally:
            print(end="", flush=True)  # not left to the interpreter, which would print an error
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:  # the reader closed the output
        _drop_output()
        return _BROKEN_PIPE
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        _drop_output()
        ended = error.__context__
        if isinstance(ended, SystemExit) and ended.code:
            raise ended from None  # its message was printed
        print(f"aiothrottle: the output cannot be written: {error.strerror}", file=sys.stderr)
        return _NOT_WRITTEN


def _prepare_streams() -> None:
    """Open the standard streams that were closed: no other file must take their places.

    What the encoding of the output lacks is escaped.
    """
    for name, flags in _REPLACED.items():
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, flags)
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(descriptor, mode, encoding="utf-8"))  # noqa: PTH123, SIM115
    # As the standard error: another encoding than UTF-8 lacks characters of a server's texts.
    output: Any = sys.stdout
    if hasattr(output, "reconfigure"):
        output.reconfigure(errors="backslashreplace")


def _drop_output() -> None:
    """Have the interpreter drop the rest when it exits: that must not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Parser(argparse.ArgumentParser):
    """A parser that suggests what an unknown option or command may have meant."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - those of `ArgumentParser`
        # An abbreviation would be another option as soon as a second one begins like it.
        super().__init__(**options, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Print the usage and the message, with a suggestion, and exit."""
        super().error(self._plain(message))

    def _print_message(self, message: str, file: Any = None) -> None:  # noqa: ANN401 - theirs
        """Print; an output that cannot be written raises, which `argparse` would hide."""
        if file is sys.stdout:
            print(message, end="")
        else:
            super()._print_message(message, file)

    def _plain(self, message: str) -> str:
        if found := _UNKNOWN_ARGUMENT.match(message):
            given = found[1].partition("=")[0]
            known = [it for action in self._actions for it in action.option_strings]
            what = "option" if given.startswith("-") else "argument"
            return f"unknown {what} {given}{_meant(given, known)}"
        if found := _UNKNOWN_COMMAND.match(message):
            known = [*_COMMANDS]
            meant = _meant(found[1], known) or f"; the commands are {', '.join(known)}"
            return f"unknown command {found[1]!r}{meant}"
        return message


def _meant(given: str, known: Sequence[str]) -> str:
    # The dashes alone would make any two options similar.
    names = {name.lstrip("-"): name for name in known}
    given = given.lstrip("-")
    near = [name for name in names if name.startswith(given)] or get_close_matches(given, names)
    return f"; did you mean {names[near[0]]}?" if near else ""


def _run(arguments: Sequence[str]) -> int:
    """Run the command and return its exit status.

    Raises:
        SystemExit: As `main`.
    """
    parser = make_parser()
    name = parser.parse_args(arguments[:1]).command
    if name is None:
        parser.print_help()
        return 0
    own = _Parser(prog=f"{parser.prog} {name}", exit_on_error=False)
    command = _load(name)
    command.fill(own)
    return command.execute(own, _parse(own, arguments[1:]))


def _parse(own: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments of a command; print no usage where it would not explain the error.

    Raises:
        SystemExit: As `main`.
    """
    try:
        # Intermixed: a URL may follow an option, as with curl.
        return own.parse_intermixed_args(arguments)
    except argparse.ArgumentError as error:
        if isinstance(error.__context__, argparse.ArgumentTypeError):  # the value is invalid
            own.exit(2, f"{own.prog}: error: {error}\n")
        own.error(str(error))


def _load(name: str) -> "Command":
    # Imported late, so that fetch does not load what only simulate needs.
    command: Command = import_module(f"{__name__}.{name}").COMMAND
    return command


def make_parser(*, filled: bool = False) -> argparse.ArgumentParser:
    """Make the parser of the arguments before those of a command, or of those, too."""
    parser = _Parser(prog="aiothrottle", description="Stay under the limits of the APIs you call.")
    parser.add_argument("--version", action="version", version=f"aiothrottle {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    for name, summary in _COMMANDS.items():
        command = commands.add_parser(name, help=summary)
        if filled:
            _load(name).fill(command)
    return parser

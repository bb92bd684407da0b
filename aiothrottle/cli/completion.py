r"""Print a script that completes commands, options and files in a shell.

Needs shtab, which writes it: pip install 'aiothrottle-client[cli]'

Examples:
  aiothrottle completion bash \
    > ~/.local/share/bash-completion/completions/aiothrottle
  aiothrottle completion zsh > ~/.zfunc/_aiothrottle # a folder of your $fpath
  aiothrottle completion tcsh > ~/.aiothrottle.tcsh # and source it in ~/.tcshrc
"""

# argparse leaves the parsers of its commands untyped.
# pyright: reportUnknownMemberType=false

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from aiothrottle.cli import make_parser
from aiothrottle.cli.options import Command, argument

_NO_WORD = re.compile(r"\W+")


@dataclass
class Options:
    """The options of the command.

    Attributes:
        shell: the shell
    """

    shell: str = argument(None, choices=("bash", "zsh", "tcsh"))


def _run(parser: argparse.ArgumentParser, options: Options) -> int:
    try:
        import shtab  # of an extra
    except ImportError:
        parser.error("a completion needs shtab: pip install 'aiothrottle-client[cli]'")
    whole = make_parser(filled=True)
    files = {"FILE": shtab.FILE, "FOLDER": shtab.DIRECTORY}
    for action in _actions(whole):
        if isinstance(action.metavar, str):
            if action.metavar in files:
                action.complete = files[action.metavar]  # type: ignore[attr-defined]
            # shtab does not escape it, and zsh would run the quoted one of --header.
            action.metavar = _NO_WORD.sub(" ", action.metavar)
    print(shtab.complete(whole, options.shell))
    return 0


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the arguments of a parser, and of its commands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            commands = cast("dict[str, argparse.ArgumentParser]", action.choices)
            for command in commands.values():
                yield from _actions(command)


COMMAND = Command(text=__doc__, usage="[options] shell", options={"": Options}, run=_run)

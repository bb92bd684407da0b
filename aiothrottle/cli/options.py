"""Options of a command: fields of a dataclass, which argparse fills and a type checker knows.

An option is written once: its name is that of the field, its help the description of the attribute
in the docstring of the class. The parsers of values are here too: each returns a value, or raises
an error of one line.
"""

import argparse
import contextlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from importlib.util import find_spec
from inspect import getdoc
from itertools import takewhile
from pathlib import Path
from typing import Any, NoReturn, get_origin

from aiothrottle.cli.output import SUFFIXES
from aiothrottle.rate import ACCEPTED, Rate, RateLike, as_rate

# One % is that of a text, and %( of argparse.
_PERCENT = re.compile(r"%(?!\()")
_RATES = "write 20 (per second), 10/s, 100/min, 5000/24h, 1/250ms or '1000 per hour'"
_NAME = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"  # RFC 9110 (5.6.2)
_METHOD = re.compile(_NAME)
_HEADER = re.compile(rf"({_NAME})\s*:\s*+([^\x00-\x08\x0a-\x1f\x7f]*)")
#: Headers, in lower case, that would contradict the body: it would be cut short, or its end would
#: be taken for the next request.
FRAMING = frozenset({"content-length", "transfer-encoding"})

# ---- commands and their options ------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command.

    Attributes:
        text: Its help, the docstring of its module: from the exit status on it follows the options.
        usage: Its arguments, after its name.
        options: The dataclasses of its options by the titles of their groups; "" is no group.
        run: Runs it with its parser and an object of each dataclass; returns the exit status.
    """

    text: str | None
    usage: str
    options: Mapping[str, type[Any]]
    run: Callable[..., int]

    def fill(self, parser: argparse.ArgumentParser) -> None:
        """Add the help and the options to the parser of the command."""
        parser.usage = f"{parser.prog} {self.usage}"
        before, status, after = (self.text or "").partition("exit status:")
        parser.description, parser.epilog = before, f"{status}{after}"
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        for title, kind in self.options.items():
            group = parser.add_argument_group(title) if title else parser
            texts = _attributes(_PERCENT.sub("%%", getdoc(kind) or ""))
            for each in fields(kind):
                if each.metadata:
                    _add(group, each, " ".join(texts.get(each.name, [])))

    def execute(self, parser: argparse.ArgumentParser, parsed: argparse.Namespace) -> int:
        """Run with the parsed options, and return the exit status.

        Raises:
            SystemExit: Options contradict each other; the message has been printed.
        """
        try:
            made = [
                kind(**{it.name: getattr(parsed, it.name) for it in fields(kind) if it.metadata})
                for kind in self.options.values()
            ]
        except ValueError as error:
            fail(parser, str(error))
        return self.run(parser, *made)


def _attributes(text: str) -> dict[str, list[str]]:
    """Return the words about each attribute in the docstring of a dataclass."""
    found = dict[str, list[str]]()
    words = list[str]()
    for line in text.splitlines():
        name, colon, rest = line.partition(": ")
        if colon and name.startswith("    ") and name.strip().isidentifier() and name[4] != " ":
            words = found[name.strip()] = rest.split()
        elif line.startswith("     "):
            words += line.split()
        else:
            words = []
    return found


def fail(parser: argparse.ArgumentParser, message: str) -> NoReturn:
    """End with an error that the usage would not explain."""
    parser.exit(2, f"{parser.prog}: error: {message}\n")


def _add(group: argparse._ActionsContainer, of: Field[Any], text: str) -> None:
    names: list[str] | None = of.metadata["names"]
    arguments: dict[str, Any] = {**of.metadata["arguments"], "help": text}
    is_list = get_origin(of.type) is list
    if names is None:
        group.add_argument(of.name, nargs="*" if is_list else None, **arguments)
        return
    if is_list:
        arguments |= {"action": "append", "default": list[Any]()}
    group.add_argument(*names, f"--{of.name.replace('_', '-')}", dest=of.name, **arguments)


def option(
    usage: str,
    parse: Callable[[str], Any] = str,
    default: object = None,
    choices: Sequence[str] | None = None,
) -> Any:  # noqa: ANN401 - of the type of the field
    """Make a field that is an option with a value; of a list, an option that may be repeated.

    Args:
        usage: The name of its value, after other names of the option: ``-X --request METHOD``.
        parse: Parses the value.
        default: The value if the option is not given.
        choices: The valid values.
    """
    words = usage.split()
    names = [*takewhile(lambda word: word.startswith("-"), words)]
    metavar = " ".join(words[len(names) :]) or None
    arguments = {"metavar": metavar, "type": parse, "default": default, "choices": choices}
    return _field(names, default, arguments)


def flag(also: str = "") -> Any:  # noqa: ANN401 - a bool
    """Make a field that is an option without a value, with other names, too."""
    return _field(also.split(), default=False, arguments={"action": "store_true"})


def argument(
    metavar: str | None,
    parse: Callable[[str], Any] = str,
    choices: Sequence[str] | None = None,
) -> Any:  # noqa: ANN401 - of the type of the field
    """Make a field that is an argument without a name; of a list, any number of them."""
    return _field(None, None, {"metavar": metavar, "type": parse, "choices": choices})


def _field(names: list[str] | None, default: object, arguments: dict[str, Any]) -> Any:  # noqa: ANN401
    return field(default=default, metadata={"names": names, "arguments": arguments})


# ---- values --------------------------------------------------------------------------------------


def rate(text: str) -> Rate:
    """Parse a rate; a bare number is per second."""
    given: RateLike = text
    with contextlib.suppress(ValueError):
        given = float(text)
    try:
        return as_rate(given)
    except ValueError as error:
        # The advice of the library is about arguments of Python.
        raise argparse.ArgumentTypeError(str(error).replace(ACCEPTED, _RATES)) from None


def whole_rate(text: str) -> Rate:
    """Parse a rate of whole requests."""
    read = rate(text)
    if read.limit < 1 or read.limit != math.floor(read.limit):
        raise argparse.ArgumentTypeError(
            f"must be a rate of whole requests, got {text!r}; for one in two seconds write 1/2s"
        )
    return read


def whole_number(greatest: int, least: int = 1) -> Callable[[str], int]:
    """Make a parser of whole numbers from `least` to `greatest`."""

    def read(text: str) -> int:
        with contextlib.suppress(ValueError):
            if least <= int(text) <= greatest:
                return int(text)
        raise argparse.ArgumentTypeError(
            f"must be a whole number from {least} to {greatest}, got {text!r}"
        )

    return read


def _bounded(wanted: str, *, zero: bool) -> Callable[[str], float]:
    """Make a parser of finite numbers above 0, or from 0 on."""

    def read(text: str) -> float:
        with contextlib.suppress(ValueError):
            if 0 < float(text) < math.inf or (zero and float(text) == 0):
                return float(text)
        raise argparse.ArgumentTypeError(f"must be a {wanted}, got {text!r}")

    return read


#: Parse a duration, 0 or more; one above 0; and a number above 0.
duration: Callable[[str], float] = _bounded("number of seconds, 0 or more", zero=True)
positive_duration: Callable[[str], float] = _bounded("number of seconds, above 0", zero=False)
number: Callable[[str], float] = _bounded("number above 0", zero=False)


def method(text: str) -> str:
    """Parse an HTTP method."""
    if not _METHOD.fullmatch(text):
        raise argparse.ArgumentTypeError(f"a method is a word such as GET, got {text!r}")
    return text.upper()


def header(text: str) -> tuple[str, str]:
    """Parse a header as curl does. No line break is accepted: it would inject another header."""
    match = _HEADER.fullmatch(text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"must be 'Name: value', got {text!r}")
    try:
        text.encode()
    except UnicodeEncodeError:  # aiohttp would leave out those bytes
        raise argparse.ArgumentTypeError(f"must be in UTF-8, got {text!r}") from None
    if match[1].lower() in FRAMING:
        raise argparse.ArgumentTypeError(f"must not be {match[1]}: it follows from the body")
    return match[1], match[2]


def filled(text: str) -> str:
    """Parse a text that is not empty, as that of a variable that is not set is."""
    if not text.strip():
        raise argparse.ArgumentTypeError("must not be empty")
    return text


def named_path(text: str) -> Path:
    """Parse a path; "" would be the current folder."""
    return Path(filled(text))


def picture(text: str) -> Path:
    """Parse the path of a picture, and check before the run that it can be drawn."""
    path = Path(text)
    if path.suffix.lower() not in SUFFIXES:
        raise argparse.ArgumentTypeError(
            f"must be a file name in {' or '.join(SUFFIXES)}, got {text!r}"
        )
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {str(path.parent)!r}")
    if find_spec("matplotlib") is None:
        raise argparse.ArgumentTypeError(
            "a picture needs matplotlib: pip install 'aiothrottle-client[plot]'"
        )
    return path

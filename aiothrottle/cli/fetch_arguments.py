"""The arguments of ``aiothrottle fetch``, in groups, and what each may be."""

import argparse
import os
import re
from pathlib import Path

from aiothrottle import __version__
from aiothrottle.cli.arguments import (
    header,
    header_value,
    method,
    rates,
    seconds,
    some_seconds,
    whole_number,
)
from aiothrottle.fetch.store import StoreAddress

__all__ = ["add_arguments"]

_MOST_AT_ONCE = 10_000

_SIZE = re.compile(r"(\d+)([kmg]?)", re.IGNORECASE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add all of them."""
    parser.add_argument("urls", nargs="*", metavar="URL", help="what to fetch; - is standard input")
    parser.add_argument(
        "-i", "--input-file", metavar="FILE", help="a list of URLs; - is standard input"
    )
    _add_limits(parser.add_argument_group("limits"))
    _add_requests(parser.add_argument_group("requests"))
    _add_output(parser.add_argument_group("output"))


def _add_limits(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "--rate",
        type=rates,
        action="extend",
        metavar="RATE",
        help="all requests: 10 (per second), 10/s, 500/min, 1/250ms; several hold at once: "
        "10/s,500/min, or the option more than once",
    )
    group.add_argument(
        "--concurrency",
        type=whole_number(_MOST_AT_ONCE),
        default=10,
        metavar="N",
        help="all requests in flight (default: %(default)s)",
    )
    group.add_argument(
        "--per-host",
        type=rates,
        action="extend",
        metavar="RATE",
        help="the requests to each host; several hold at once",
    )
    group.add_argument(
        "--per-host-concurrency",
        type=whole_number(_MOST_AT_ONCE),
        metavar="N",
        help="the requests in flight to each host",
    )
    group.add_argument(
        "--guard",
        type=seconds,
        metavar="SECONDS",
        help="stretch the periods of all rates, since the network delays one request more than the "
        "next (default: 5%% of the shortest, at most 0.05)",
    )
    group.add_argument(
        "--store",
        type=_store,
        metavar="URL",
        help="count the rates there, together with all who do: redis://HOST:PORT, rediss://, "
        "mongodb://, memcached://",
    )
    group.add_argument(
        "--store-key",
        metavar="NAME",
        help="who names the same one shares the rates (default: fetch)",
    )


def _add_requests(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "-X",
        "--request",
        "--method",
        type=method,
        metavar="METHOD",
        dest="method",
        help="(default: GET, or POST with --data)",
    )
    group.add_argument(
        "-I", "--head", action="store_true", help="ask for the headers only, by HEAD"
    )
    group.add_argument(
        "-H",
        "--header",
        type=header,
        action="append",
        default=[],
        metavar="'NAME: VALUE'",
        help="a header to send; several may be given",
    )
    group.add_argument(
        "-d",
        "--data",
        type=_data,
        metavar="DATA",
        help="a body to send, by POST unless -X says otherwise; @FILE is what is in the file",
    )
    group.add_argument(
        "-A",
        "--user-agent",
        type=header_value,
        default=f"aiothrottle/{__version__}",
        metavar="NAME",
        help="(default: %(default)s)",
    )
    group.add_argument(
        "-L",
        "--location",
        action="store_true",
        help="follow redirects; each step keeps to the limits of its host, and another origin is "
        "sent no body and no header that may be secret",
    )
    group.add_argument(
        "--max-redirs",
        type=whole_number(1000),
        default=50,
        metavar="N",
        help="at most so many for a URL (default: %(default)s)",
    )
    group.add_argument(
        "--retries",
        "--retry",
        type=whole_number(1000, least=0),
        default=4,
        metavar="N",
        help="try again so often (default: %(default)s)",
    )
    group.add_argument(
        "--max-retry-after",
        type=some_seconds,
        default=3600.0,
        metavar="SECONDS",
        help="give up a URL when the server asks for a longer wait (default: %(default)g)",
    )
    group.add_argument(
        "-m",
        "--max-time",
        type=seconds,
        default=300.0,
        metavar="SECONDS",
        help="for one request with its answer, not counting waits; 0: any (default: %(default)g)",
    )
    group.add_argument(
        "--connect-timeout",
        type=seconds,
        default=30.0,
        metavar="SECONDS",
        help="for the connection; 0: any (default: %(default)g)",
    )


def _add_output(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="write the records there, and not to standard output",
    )
    group.add_argument(
        "--output-dir",
        type=Path,
        metavar="FOLDER",
        help="write each body to a file there; the records name it, and are in index.jsonl there "
        "unless -o says otherwise",
    )
    group.add_argument(
        "--resume",
        action="store_true",
        help="go on with the output: what it has a record of, also of a failure, is not "
        "fetched again",
    )
    group.add_argument(
        "--save-header",
        type=str.lower,
        action="append",
        default=[],
        metavar="NAME",
        help="keep that header of the answers; * is all; several may be given",
    )
    group.add_argument(
        "--max-filesize",
        type=_size,
        metavar="BYTES",
        help="a longer body is a failure; 1k, 1m, 1g (default: 16m, and any with --output-dir)",
    )
    group.add_argument(
        "--dashboard",
        action="store_true",
        help="serve a live page of the run, on this machine only; where is told at the start",
    )
    group.add_argument(
        "-s", "--silent", action="store_true", help="no progress, no list of failures, no summary"
    )


def _data(text: str) -> bytes:
    if not text.startswith("@"):
        return os.fsencode(text)
    try:
        return Path(text[1:]).read_bytes()
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text[1:]} cannot be read: {error.strerror}") from None


def _store(text: str) -> StoreAddress:
    try:
        return StoreAddress(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _size(text: str) -> int:
    match = _SIZE.fullmatch(text)
    if match is None or not int(match[1]):
        raise argparse.ArgumentTypeError(f"must be a number of bytes such as 100k, not {text!r}")
    return int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[match[2].lower()]

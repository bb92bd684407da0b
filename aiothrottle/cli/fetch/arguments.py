"""The arguments of ``aiothrottle fetch``, in groups, with their validation."""

import argparse
import os
import re
import ssl
from pathlib import Path

from yarl import URL

from aiothrottle import __version__
from aiothrottle.cli.arguments import (
    header,
    header_value,
    method,
    seconds,
    some_seconds,
    whole_number,
)
from aiothrottle.cli.fetch.sending.cookies import Cookie, read_cookies
from aiothrottle.cli.fetch.sending.profiles import PROFILES
from aiothrottle.cli.fetch.sending.proxies import proxy_of
from aiothrottle.cli.fetch.sending.rates import named_rates
from aiothrottle.cli.fetch.sending.store import StoreAddress

__all__ = ["add_arguments"]

_MOST_AT_ONCE = 10_000

_SIZE = re.compile(r"(\d+)([kmg]?)", re.IGNORECASE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add all arguments."""
    parser.add_argument("urls", nargs="*", metavar="URL", help="what to fetch; - is standard input")
    parser.add_argument(
        "-i",
        "--input-file",
        metavar="FILE",
        help="a list of URLs; of a name that ends in .gz it is decompressed; - is standard input "
        "(default: standard input, if there is no URL and it is no terminal)",
    )
    _add_json_lines(parser.add_argument_group("requests as JSON lines"))
    _add_limits(parser.add_argument_group("limits"))
    _add_requests(parser.add_argument_group("requests"))
    _add_connection(parser.add_argument_group("connection"))
    _add_output(parser.add_argument_group("output"))


def _add_json_lines(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "--requests",
        metavar="FILE",
        help="a list of requests; - is standard input. Each line is a JSON object with url, and "
        "any of method, headers, json or data, cost, key, id; the records have the id, or else "
        "the number of the line",
    )
    group.add_argument(
        "--profile",
        choices=sorted(PROFILES),
        help="charge calls of language models their tokens, settle them by the responses, and "
        "retry them as the SDKs do; needs --rate tokens=200000/min for openai, and rates of "
        "input_tokens and output_tokens for anthropic",
    )


def _add_limits(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "--rate",
        type=named_rates,
        action="extend",
        metavar="RATE",
        help="rate limit of all requests: 10 (per second), 10/s, 500/min, 1/250ms; several are all "
        "kept: 10/s,500/min, or repeat the option; with names, requests=500/min and "
        "tokens=200000/min, a cost names its resources (default: none)",
    )
    group.add_argument(
        "--concurrency",
        type=whole_number(_MOST_AT_ONCE),
        default=10,
        metavar="N",
        help="limit of concurrent requests (default: %(default)s)",
    )
    group.add_argument(
        "--per-host",
        type=named_rates,
        action="extend",
        metavar="RATE",
        help="rate limit of each host, or of each key in a list of requests; several are all kept "
        "(default: none)",
    )
    group.add_argument(
        "--per-host-concurrency",
        type=whole_number(_MOST_AT_ONCE),
        metavar="N",
        help="limit of concurrent requests to each host (default: that of --concurrency)",
    )
    group.add_argument(
        "--burst",
        type=whole_number(1_000_000),
        metavar="N",
        help="how many requests may be sent back to back; after that they are sent evenly, at the "
        "average of the fastest rate (default: as many as the rates allow)",
    )
    group.add_argument(
        "--guard",
        type=seconds,
        metavar="SECONDS",
        help="safety margin added to the periods of all rates, since network delays vary "
        "(default: 5%% of the shortest, at most 0.05)",
    )
    group.add_argument(
        "--store",
        type=_store,
        metavar="URL",
        help="share the rates with other runs through this store: sqlite:FILE for runs on one "
        "machine, redis://HOST:PORT, rediss://, mongodb://, memcached:// (default: this run counts "
        "them itself)",
    )
    group.add_argument(
        "--store-key",
        metavar="NAME",
        help="runs with the same name share their rates (default: fetch)",
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
        "-I", "--head", action="store_true", help="request only the headers, by HEAD"
    )
    group.add_argument(
        "-H",
        "--header",
        type=header,
        action="append",
        default=[],
        metavar="'NAME: VALUE'",
        help="a header to send; may be repeated (default: none)",
    )
    group.add_argument(
        "-d",
        "--data",
        type=_data,
        metavar="DATA",
        help="a body to send, by POST unless -X says otherwise; @FILE sends the content of a file "
        "(default: none)",
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
        help="follow redirects; each step keeps to the limits of its host, and another origin gets "
        "no body and no header that may be secret (default: a redirect is the result)",
    )
    group.add_argument(
        "--max-redirs",
        type=whole_number(1000),
        default=50,
        metavar="N",
        help="maximum number of redirects for a URL (default: %(default)s)",
    )
    group.add_argument(
        "--retries",
        "--retry",
        type=whole_number(1000, least=0),
        default=4,
        metavar="N",
        help="maximum number of retries for a URL: after 408, 429, 5xx (but 501, 505, 510 "
        "and 511), a timeout, a lost connection, or a body that was cut off (default: %(default)s)",
    )
    group.add_argument(
        "--retry-all-methods",
        action="store_true",
        help="retry POST and PATCH like all others, although the server may have executed them "
        "(default: only throttled ones)",
    )
    group.add_argument(
        "--max-retry-after",
        type=some_seconds,
        default=3600.0,
        metavar="SECONDS",
        help="give up a URL if the server asks for a longer wait (default: %(default)g)",
    )
    group.add_argument(
        "-m",
        "--max-time",
        type=seconds,
        default=300.0,
        metavar="SECONDS",
        help="timeout of one request with its response, without waits; 0: none "
        "(default: %(default)g)",
    )
    group.add_argument(
        "--connect-timeout",
        type=seconds,
        default=30.0,
        metavar="SECONDS",
        help="timeout of connecting; 0: none (default: %(default)g)",
    )


def _add_connection(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "-x",
        "--proxy",
        type=_proxy,
        metavar="URL",
        help="send through this proxy, http://[USER:PASSWORD@]HOST:PORT or https:// "
        "(default: that of the environment variable http_proxy, https_proxy or all_proxy)",
    )
    group.add_argument(
        "--noproxy",
        metavar="HOSTS",
        help="hosts without a proxy, separated by commas: names with all subdomains, addresses, "
        "10.0.0.0/8; * is all (default: the environment variable no_proxy)",
    )
    group.add_argument(
        "-k",
        "--insecure",
        action="store_true",
        help="accept any certificate, also that of an attacker (default: it has to be valid)",
    )
    group.add_argument(
        "--cacert",
        type=_authorities,
        metavar="FILE",
        help="trust the certificate authorities in this file, in PEM (default: the system's)",
    )
    group.add_argument(
        "-u",
        "--user",
        type=_user,
        metavar="NAME:PASSWORD",
        help="credentials for every URL without its own; a redirect to another origin does not get "
        "them (default: none)",
    )
    group.add_argument(
        "-b",
        "--cookie",
        type=_cookie,
        action="append",
        default=[],
        metavar="DATA|FILE",
        help="cookies to send: NAME=VALUE; NAME=VALUE to all URLs, or a file in Netscape's format; "
        "with a file, or '', cookies of responses are kept during the run (default: none are sent, "
        "none are kept); may be repeated",
    )


def _add_output(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="write the records to this file (default: standard output)",
    )
    group.add_argument(
        "--output-dir",
        type=Path,
        metavar="FOLDER",
        help="write each body to a file in this folder; the records name it, and are written to "
        "index.jsonl there unless -o is given (default: the records have the bodies)",
    )
    group.add_argument(
        "--resume",
        action="store_true",
        help="continue the output: URLs with a record, failures too, are not fetched again",
    )
    group.add_argument(
        "--save-header",
        type=str.lower,
        action="append",
        default=[],
        metavar="NAME",
        help="keep this header of the responses; * keeps all; may be repeated (default: none)",
    )
    group.add_argument(
        "--max-filesize",
        type=_size,
        metavar="BYTES",
        help="a longer body is a failure; 1k, 1m, 1g (default: 16m, unlimited with --output-dir)",
    )
    group.add_argument(
        "--dashboard",
        action="store_true",
        help="serve a live page of the run, on this machine only; its URL is printed at the start",
    )
    group.add_argument(
        "-q",
        "--quiet",
        "-s",
        "--silent",
        action="store_true",
        help="no progress, no list of failures, no summary; errors that end the run are printed",
    )
    group.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="print each request, response and wait to standard error, without headers",
    )


def _data(text: str) -> bytes:
    if not text.startswith("@"):
        return os.fsencode(text)
    try:
        return Path(text[1:]).read_bytes()
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text[1:]} cannot be read: {error.strerror}") from None


def _proxy(text: str) -> URL:
    try:
        return proxy_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _authorities(text: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=text)
    except ssl.SSLError:
        raise argparse.ArgumentTypeError(f"{text} has no certificate in PEM") from None
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text} cannot be read: {error.strerror}") from None


def _user(text: str) -> str:
    if ":" not in text:
        raise argparse.ArgumentTypeError("must be NAME:PASSWORD, got no colon")
    return text


def _cookie(text: str) -> str | list[Cookie]:
    if "=" in text:  # as curl tells them apart
        try:
            return header_value(text)
        except argparse.ArgumentTypeError:
            wrong = "must be NAME=VALUE, without control characters"
            raise argparse.ArgumentTypeError(wrong) from None
    if not text:
        return []
    try:
        return list(read_cookies(Path(text).read_text(encoding="utf-8")))
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise argparse.ArgumentTypeError(f"{text} is not in UTF-8") from None
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error}") from None


def _store(text: str) -> StoreAddress:
    try:
        return StoreAddress(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _size(text: str) -> int:
    match = _SIZE.fullmatch(text)
    if match is None or not int(match[1]):
        raise argparse.ArgumentTypeError(f"must be a number of bytes such as 100k, got {text!r}")
    return int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[match[2].lower()]

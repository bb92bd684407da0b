"""``aiothrottle probe``: its arguments, its question before the run, and its results."""

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Iterable
from typing import TypeAlias

from yarl import URL

from aiothrottle import __version__
from aiothrottle.cli.arguments import header, header_value, method, some_seconds, whole_number
from aiothrottle.cli.display import Display
from aiothrottle.cli.document import add_json, print_document
from aiothrottle.cli.fetch.reading.addresses import read_address
from aiothrottle.cli.probe.findings import Findings
from aiothrottle.cli.probe.requests import (
    Inquiry,
    NoResponse,
    Sender,
    find_burst,
    is_throttled,
    opened,
)
from aiothrottle.cli.probe.search import Reply, Search, Tried
from aiothrottle.cli.suggestion import Advice, Sighting, reported, seen
from aiothrottle.cli.table import columns_of, paragraph
from aiothrottle.cli.terminal import printable, without_credentials
from aiothrottle.rate import Rate

__all__ = ["execute", "fill"]

_DESCRIPTION = """\
Send one request, and print the limits that the response reports.
With --find-limit, send more until some are throttled, search the rate that
the server admits in the long run, and try the limiter for it.
Nothing is sent before you agree.
"""

_EPILOG = """\
exit status:
  0  the server responded
  1  it did not, or you did not agree
  2  the arguments are invalid; nothing was sent
  130  interrupted, by Ctrl-C; 141: the reader of the output has closed it

examples:
  aiothrottle probe https://api.github.com/
  aiothrottle probe http://127.0.0.1:8080/ --find-limit --yes
  aiothrottle probe https://api.example.org/ -H 'Authorization: Bearer ...'
"""

_MOST = 10_000
_USUAL = 2_000

Tell: TypeAlias = Callable[[Iterable[str]], None]
"""Prints lines, or nothing."""


def fill(parser: argparse.ArgumentParser) -> None:
    """Add the arguments and their help."""
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.usage = "aiothrottle probe [options] URL"
    add_json(parser)
    parser.add_argument("url", type=_url, metavar="URL", help="the URL to request")
    parser.add_argument(
        "-y", "--yes", action="store_true", help="agree in advance: send without a question"
    )
    parser.add_argument(
        "--find-limit",
        action="store_true",
        help="search the limit with at most --max-requests requests; takes up to some minutes",
    )
    parser.add_argument(
        "--max-requests",
        type=whole_number(_MOST),
        metavar="N",
        help=f"maximum number of requests for --find-limit (default: {_USUAL})",
    )
    parser.add_argument(
        "--concurrency",
        type=whole_number(100),
        metavar="N",
        help="number of concurrent requests (default: one after the other)",
    )
    parser.add_argument(
        "-X",
        "--request",
        "--method",
        type=method,
        default="GET",
        metavar="METHOD",
        dest="method",
        help="(default: %(default)s)",
    )
    parser.add_argument(
        "-H",
        "--header",
        type=header,
        action="append",
        default=[],
        metavar="'NAME: VALUE'",
        help="a header to send; may be repeated",
    )
    parser.add_argument(
        "-A",
        "--user-agent",
        type=header_value,
        default=f"aiothrottle/{__version__}",
        metavar="NAME",
        help="(default: %(default)s)",
    )
    parser.add_argument(
        "-m",
        "--max-time",
        type=some_seconds,
        default=30.0,
        metavar="SECONDS",
        help="timeout of one request (default: %(default)g)",
    )


def _url(text: str) -> URL:
    address = read_address(text.encode(errors="surrogateescape"))
    if address is None or address.url is None:
        shown, problem = ("", "is empty") if address is None else (address.shown, address.problem)
        raise argparse.ArgumentTypeError(f"{shown!r} {problem}")
    return address.url


def execute(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Run the command, and return the exit status."""
    if not options.find_limit and (options.max_requests or options.concurrency):
        parser.error("--max-requests and --concurrency are for --find-limit: give it as well")
    inquiry = Inquiry(
        url=options.url,
        method=options.method,
        headers=dict(options.header),
        user_agent=options.user_agent,
        most=options.max_requests or _USUAL,
        at_once=options.concurrency or 1,
        max_time=options.max_time,
    )
    print(_intention(inquiry, find=options.find_limit), file=sys.stderr)
    if not options.yes:
        if not sys.stdin.isatty():
            parser.error(
                "standard input is no terminal, so the question cannot be answered: give --yes"
            )
        if not _agreed():
            print("Nothing was sent.", file=sys.stderr)
            return 1
    return asyncio.run(_probe(inquiry, find=options.find_limit, as_json=options.json))


def _intention(inquiry: Inquiry, *, find: bool) -> str:
    """Return the announcement of the requests."""
    url = printable(without_credentials(str(inquiry.url)))
    one = f"This sends one {inquiry.method} request to {url}"
    if not find:
        return f"{one}."
    pace = "one after the other" if inquiry.at_once == 1 else f"{inquiry.at_once} at once"
    return (
        f"{one},\n"
        f"and then up to {inquiry.most} more, {pace}:\n"
        "as fast as it responds until one is throttled, then evenly\n"
        "and ever faster, and at last with the limiter to print."
    )


def _agreed() -> bool:
    # On the stream of the announcement: the output may be a file.
    print("Go on? [y/N] ", end="", file=sys.stderr, flush=True)
    try:
        return input().strip().lower() in {"y", "yes"}
    except EOFError:
        print(file=sys.stderr)
        return False


async def _probe(inquiry: Inquiry, *, find: bool, as_json: bool) -> int:
    problem: BaseException | None = None
    findings = Findings(inquiry)
    tell: Tell = _silent if as_json else _print
    async with opened(inquiry) as session:
        sender = Sender(inquiry, session)
        try:
            await _investigate(sender, findings, tell, find=find)
        except* NoResponse as group:
            problem = group.exceptions[0]
    if problem is not None:
        when = f" after {sender.answered} responses" if sender.answered else ""
        text = printable(without_credentials(f"{problem}{when}"))
        print(f"aiothrottle probe: {text}", file=sys.stderr)
        return 1
    tell(findings.conclusion())
    if as_json:
        print_document(findings.document())
    return 0


async def _investigate(sender: Sender, findings: Findings, tell: Tell, *, find: bool) -> None:
    """Send what is wanted, and tell each finding as it comes."""
    began_at = time.monotonic()
    findings.answer = answer = await sender.send()
    width = columns_of(sys.stdout)
    tell(findings.announcement(width))
    rates = tuple(reported(answer.limits))
    findings.advice = Advice(rates) if rates else None
    if not find:
        return
    if answer.limits.throttled:
        tell(["The limit was not searched: try again later."])
        return
    findings.burst = burst = await find_burst(sender, began_at, answer.status)
    tell(findings.seen())
    if not burst.throttled:
        return
    display = Display(sys.stderr)

    def show(step: str) -> None:
        display.show([(f"{sender.answered} requests; {step}", "")])

    async def send() -> Reply:
        reply = await sender.send()
        return Reply(is_throttled(reply, answer.status), reply.limits.retry_after)

    search = Search(
        send,
        most=sender.inquiry.most - burst.sent,
        at_once=sender.inquiry.at_once,
        reported=tuple(reported(answer.limits, estimated=False)),
        progress=show,
    )
    with display:
        findings.tried = await search.run(burst)
    tell(findings.outcome(search))
    findings.advice = _better(findings.tried, burst, rates)


def _better(tried: Tried | None, burst: Sighting, rates: tuple[Rate, ...]) -> Advice | None:
    """Return what was tried with success; otherwise what is reported, and what the burst shows."""
    if tried is not None and tried.passed:
        return tried.advice
    rate = seen(burst)
    if rate is not None and all(rate.limit / rate.period < r.limit / r.period for r in rates):
        rates += (rate,)
    return Advice(rates) if rates else None


def _print(lines: Iterable[str]) -> None:
    width = columns_of(sys.stdout)
    for line in lines:
        # An indented line is a row, or code to copy.
        text = printable(line)
        print(text if text.startswith(" ") else paragraph(text, width), flush=True)


def _silent(_: Iterable[str]) -> None:
    pass

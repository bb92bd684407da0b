"""``aiothrottle probe``: its arguments, its question before the run, and its results."""

import argparse
import asyncio
import sys
import time
from collections.abc import Iterable, Iterator

from yarl import URL

from aiothrottle import __version__
from aiothrottle.cli.arguments import header, header_value, method, some_seconds, whole_number
from aiothrottle.cli.display import Display
from aiothrottle.cli.fetch.addresses import read_address
from aiothrottle.cli.probe.requests import (
    Answer,
    Inquiry,
    NoResponse,
    Sender,
    find_burst,
    is_throttled,
    opened,
)
from aiothrottle.cli.probe.search import LONGEST_WAIT, Reply, Search, Tried
from aiothrottle.cli.suggestion import Advice, Sighting, reported, seen
from aiothrottle.cli.terminal import printable, without_credentials
from aiothrottle.headers import Policy, ServerLimits
from aiothrottle.rate import Rate
from aiothrottle.texts import number

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
# The only status of a throttled response here that sessions do not count by themselves.
_FORBIDDEN = 403
# The exit status of a program that SIGPIPE ended.
_BROKEN_PIPE = 141

_MOST = 10_000
_USUAL = 2_000


def fill(parser: argparse.ArgumentParser) -> None:
    """Add the arguments and their help."""
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.usage = "aiothrottle probe [options] URL"
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
    try:
        return asyncio.run(_probe(inquiry, find=options.find_limit))
    except BrokenPipeError:  # the reader closed the output
        return _BROKEN_PIPE


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


async def _probe(inquiry: Inquiry, *, find: bool) -> int:
    problem: BaseException | None = None
    advice: Advice | None = None
    async with opened(inquiry) as session:
        sender = Sender(inquiry, session)
        try:
            advice = await _advice(sender, find=find)
        except* NoResponse as group:
            problem = group.exceptions[0]
    if problem is not None:
        when = f" after {sender.answered} responses" if sender.answered else ""
        text = printable(without_credentials(f"{problem}{when}"))
        print(f"aiothrottle probe: {text}", file=sys.stderr)
        return 1
    _print(_conclusion(advice))
    return 0


async def _advice(sender: Sender, *, find: bool) -> Advice | None:
    """Send what is wanted, print what is found, and return the limiter for it."""
    began_at = time.monotonic()
    answer = await sender.send()
    _print(_announcement(sender.inquiry, answer))
    rates = tuple(reported(answer.limits))
    advice = Advice(rates) if rates else None
    if not find:
        return advice
    if answer.limits.throttled:
        _print(["The limit was not searched: try again later."])
        return advice
    burst = await find_burst(sender, began_at, answer.status)
    _print(_seen(burst))
    if not burst.refused:
        return advice
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
        tried = await search.run(burst)
    _print(_tried(tried, burst, search))
    return _better(tried, burst, rates)


def _better(tried: Tried | None, burst: Sighting, rates: tuple[Rate, ...]) -> Advice | None:
    """Return what was tried with success; otherwise what is reported, and what the burst shows."""
    if tried is not None and tried.passed:
        return tried.advice
    rate = seen(burst)
    if rate is not None and all(rate.limit / rate.period < r.limit / r.period for r in rates):
        rates += (rate,)
    return Advice(rates) if rates else None


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        print(printable(line), flush=True)


def _announcement(inquiry: Inquiry, answer: Answer) -> Iterator[str]:
    vendor = f", read by the profile of {inquiry.profile.name}" if inquiry.profile else ""
    yield f"Status {answer.status}{vendor}."
    if answer.location is not None:
        target = without_credentials(answer.location)
        yield f"It redirects to {target}: you may want to probe that URL."
    limits = answer.limits
    if limits.throttled:
        when = "" if limits.retry_after is None else f", for {number(limits.retry_after, 6)} s"
        yield f"It throttles requests now{when}."
    policies = limits.policies or _only(limits)
    yield "It reports:" if policies else "It reports no limit."
    yield from (f"  {_words(policy)}" for policy in policies)


def _only(limits: ServerLimits) -> tuple[Policy, ...]:
    """Return the limit without a name, if there is one."""
    numbers = (limits.limit, limits.window, limits.remaining, limits.reset_after)
    if all(number is None for number in numbers):
        return ()
    return (Policy(None, *numbers, limits.unit),)


def _words(policy: Policy) -> str:
    parts: list[str] = []
    if policy.quota is not None:
        parts.append(f"{number(policy.quota)} {policy.unit or 'requests'}")
    if policy.window is not None:
        parts.append(f"in {number(policy.window)} s")
    if policy.remaining is not None:
        parts.append(f"{number(policy.remaining)} remaining")
    if policy.reset_after is not None:
        parts.append(f"reset in {number(policy.reset_after, 6)} s")
    return f"{f'{policy.name}: ' if policy.name else ''}{', '.join(parts)}"


def _seen(sighting: Sighting) -> Iterator[str]:
    many = f"{sighting.admitted} requests in {sighting.seconds:.2f} s"
    if not sighting.refused:
        yield f"It throttled none of {many}:"
        yield "the limit, if there is one, is above that."
        return
    wait = sighting.retry_after
    after = "no Retry-After" if wait is None else f"Retry-After: {number(wait, 6)} s"
    yield f"It admitted {many}, then throttled one ({after})."
    if sighting.status == _FORBIDDEN:
        yield f"By {sighting.status}: a session waits then only if you give it"
        yield f"retry=Retry(throttled_statuses={{{sighting.status}, 429, 503}})."


def _tried(tried: Tried | None, burst: Sighting, search: Search) -> Iterator[str]:
    if tried is not None and tried.passed:
        yield (
            f"With the limiter below it throttled {tried.throttled or 'none'} of "
            f"{tried.sent} requests "
            f"in {tried.seconds:.1f} s."
        )
    elif (burst.retry_after or 0.0) > LONGEST_WAIT:
        yield "The rate was not searched, as that wait is too long."
    elif search.wait > LONGEST_WAIT:
        yield f"No rate was found: it wants pauses of more than {number(LONGEST_WAIT)} s."
    elif search.left <= 0:
        yield "No rate was found that it does not throttle: give more --max-requests."
    else:
        yield "No rate was found that it does not throttle."


def _conclusion(advice: Advice | None) -> Iterator[str]:
    yield ""
    if advice is not None:
        yield "Use:"
        yield f"  {advice.line()}"
    else:
        yield "No limit is known. Start slowly, and read the server's documentation:"
        yield '  RateLimiter("1/s", concurrency_limit=1)'

"""``aiothrottle probe``: its arguments, its question before the run, and its results."""

import argparse
import asyncio
import sys
import time
from collections.abc import Iterator

import aiohttp
from yarl import URL

from aiothrottle import __version__
from aiothrottle.cli.arguments import header, header_value, method, some_seconds, whole_number
from aiothrottle.cli.fetch.addresses import read_address
from aiothrottle.cli.probe.requests import (
    Answer,
    Inquiry,
    ask,
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

_EPILOG = """\
exit status:
  0  the server responded
  1  it did not, or you did not agree
  2  the arguments are invalid; nothing was sent

examples:
  aiothrottle probe https://api.github.com/
  aiothrottle probe https://api.example.org/ -H 'Authorization: Bearer ...' --find-limit --yes
"""

_MOST = 10_000
_USUAL = 1_000


def fill(parser: argparse.ArgumentParser) -> None:
    """Add the arguments and their help."""
    parser.description = (
        "Send one request, and print the limits that the response reports; with --find-limit, "
        "send more until some are throttled, search the rate that the server admits in the long "
        "run, and try the limiter for it. Nothing is sent before you agree."
    )
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
    return asyncio.run(_probe(inquiry, find=options.find_limit))


def _intention(inquiry: Inquiry, *, find: bool) -> str:
    """Return the announcement of the requests."""
    url = printable(without_credentials(str(inquiry.url)))
    one = f"This sends one {inquiry.method} request to {url}"
    if not find:
        return f"{one}."
    pace = "one after the other" if inquiry.at_once == 1 else f"{inquiry.at_once} at once"
    return (
        f"{one},\nand then up to {inquiry.most} more, {pace}: as fast as it responds, "
        "until one is throttled;\nthen ever faster; and then with the limiter that it prints."
    )


def _agreed() -> bool:
    try:
        return input("Go on? [y/N] ").strip().lower() in {"y", "yes"}
    except EOFError:
        return False


async def _probe(inquiry: Inquiry, *, find: bool) -> int:
    async with opened(inquiry) as session:
        began_at = time.monotonic()
        try:
            answer = await ask(inquiry, session)
            _print(_announcement(inquiry, answer))
            rates = tuple(reported(answer.limits))
            advice = Advice(rates) if rates else None
            if find and not answer.limits.throttled:
                burst = await find_burst(inquiry, session, began_at, answer.status)
                _print(_seen(burst))
                if burst.refused:
                    tried = await _search(inquiry, session, burst, answer)
                    _print(_tried(tried, burst))
                    advice = _better(tried, burst, rates)
        except (aiohttp.ClientError, OSError, ValueError, ExceptionGroup) as error:
            if isinstance(error, ExceptionGroup):
                error = error.exceptions[0]
            problem = "no response in time" if isinstance(error, TimeoutError) else str(error)
            print(f"aiothrottle probe: {printable(without_credentials(problem))}", file=sys.stderr)
            return 1
    _print(_conclusion(advice))
    return 0


async def _search(
    inquiry: Inquiry, session: aiohttp.ClientSession, burst: Sighting, first: Answer
) -> Tried | None:
    async def send() -> Reply:
        answer = await ask(inquiry, session)
        return Reply(is_throttled(answer, first.status), answer.limits.retry_after)

    search = Search(
        send,
        most=inquiry.most - burst.sent,
        at_once=inquiry.at_once,
        reported=tuple(reported(first.limits, estimated=False)),
    )
    return await search.run(burst)


def _better(tried: Tried | None, burst: Sighting, rates: tuple[Rate, ...]) -> Advice | None:
    """Return what was tried with success; otherwise what is reported, and what the burst shows."""
    if tried is not None and tried.passed:
        return tried.advice
    rate = seen(burst)
    if rate is not None and all(rate.limit / rate.period < r.limit / r.period for r in rates):
        rates += (rate,)
    return Advice(rates) if rates else None


def _print(lines: Iterator[str]) -> None:
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
        yield f"It throttled none of {many}: the limit, if there is one, is above that."
    elif sighting.retry_after is None:
        yield f"It admitted {many}, then throttled one, without a Retry-After."
    else:
        wait = number(sighting.retry_after, 6)
        yield f"It admitted {many}, then throttled one, with a Retry-After of {wait} s."


def _tried(tried: Tried | None, burst: Sighting) -> Iterator[str]:
    if tried is not None and tried.passed:
        yield (
            f"With the limiter below it throttled none of {tried.sent} requests "
            f"in {tried.seconds:.1f} s."
        )
    elif (burst.retry_after or 0.0) > LONGEST_WAIT:
        yield "The rate was not searched, as that wait is too long."
    else:
        yield "No rate was found that it does not throttle: give more --max-requests."


def _conclusion(advice: Advice | None) -> Iterator[str]:
    yield ""
    if advice is not None:
        yield "Use:"
        yield f"  {advice.line()}"
    else:
        yield "No limit is known. Start slowly, and read the server's documentation:"
        yield '  RateLimiter("1/s", concurrency_limit=1)'

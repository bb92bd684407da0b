"""Ask a server for its limits, and print the limiter that keeps to them.

Send one request, and print the limits that the response reports.
With --find-limit, send more until some are throttled, search the rate that
the server admits in the long run, and try the limiter for it.
Nothing is sent before you agree.

Examples:
  aiothrottle probe https://api.github.com/
  aiothrottle probe http://127.0.0.1:8080/ --find-limit --yes
  aiothrottle probe https://api.example.org/ -H 'Authorization: Bearer ...'

exit status:
  0  the server responded
  1  it did not, or you did not agree
  2  the arguments are invalid; nothing was sent
  130  interrupted, by Ctrl-C; 141: the reader of the output has closed it
"""

import argparse
import asyncio
import math
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

import aiohttp
from yarl import URL

from aiothrottle import __version__
from aiothrottle._checks import number
from aiothrottle._statuses import FORBIDDEN, LEAST_ERROR, MAY_THROTTLE
from aiothrottle.aiohttp.adapter import without_resending
from aiothrottle.cli.addresses import read_address
from aiothrottle.cli.advice import Advice, Sighting, about, policies_of, reported, seen
from aiothrottle.cli.options import (
    Command,
    argument,
    flag,
    header,
    method,
    option,
    positive_duration,
    whole_number,
)
from aiothrottle.cli.output import (
    chosen,
    columns_of,
    described,
    fitted,
    print_document,
    print_texts,
    printable,
    without_credentials,
)
from aiothrottle.cli.progress import Display
from aiothrottle.cli.proxies import headers_through, proxies_of_environment
from aiothrottle.cli.search import LONGEST_WAIT, Reply, Search, Tried
from aiothrottle.headers import Policy, parse_rate_limit, profile_for

_MOST = 2_000
# Seconds. After a rest the server may just be closing an idle connection.
_KEEPALIVE = 1.0
# Limits in the body of an error are at its beginning.
_LONGEST_BODY = 1 << 16


def _url(text: str) -> URL:
    address = read_address(text.encode(errors="surrogateescape"))
    if address is None or address.url is None:
        shown, problem = ("", "is empty") if address is None else (address.shown, address.problem)
        raise argparse.ArgumentTypeError(f"{shown!r} {problem}")
    return address.url


@dataclass(kw_only=True)
class Options:
    """The request of a probe, and how often it may be sent.

    Attributes:
        json: print the results as one JSON document, and nothing else, to standard output
        url: the URL to request
        yes: agree in advance: send without a question
        find_limit: search the limit with at most --max-requests requests; takes up to some minutes
        max_requests: maximum number of requests for --find-limit (default: 2000)
        concurrency: number of concurrent requests (default: one after the other)
        method: (default: %(default)s)
        header: a header to send; may be repeated
        max_time: timeout of one request (default: %(default)g)
    """

    json: bool = flag()
    url: URL = argument("URL", _url)
    yes: bool = flag("-y")
    find_limit: bool = flag()
    max_requests: int | None = option("N", whole_number(10_000))
    concurrency: int | None = option("N", whole_number(100))
    method: str = option("-X --request METHOD", method, "GET")
    header: list[tuple[str, str]] = option("-H 'NAME: VALUE'", header)
    max_time: float = option("-m SECONDS", positive_duration, 30.0)

    def __post_init__(self) -> None:
        """Read the proxy of the URL from the environment, which may be invalid."""
        self.proxy: URL | None = proxies_of_environment().of(self.url)


def _run(parser: argparse.ArgumentParser, options: Options) -> int:
    if not options.find_limit and (options.max_requests or options.concurrency):
        parser.error("--max-requests and --concurrency are for --find-limit: give it as well")
    probe = Probe(options)
    print(probe.intention(), file=sys.stderr)
    if not options.yes:
        if not sys.stdin.isatty():
            parser.error(
                "standard input is no terminal, so the question cannot be answered: give --yes"
            )
        if not _agreed():
            print("Nothing was sent.", file=sys.stderr)
            return 1
    return asyncio.run(probe.run())


def _agreed() -> bool:
    # On the stream of the announcement: the output may be a file.
    print("Go on? [y/N] ", end="", file=sys.stderr, flush=True)
    try:
        return input().strip().lower() in {"y", "yes"}
    except EOFError:
        print(file=sys.stderr)
        return False


class NoResponse(Exception):  # noqa: N818 - what happened
    """A request had no response; the text says why."""


class Probe:
    """One probe: it sends, and prints each finding as it comes, or one document at the end.

    Attributes:
        reply: The response to the first request.
        burst: What was observed until a request was throttled; None: it was not searched.
        tried: The last try of the search; None: there was none.
        advice: The limiter to use; None: no limit is known.
    """

    reply: Reply

    def __init__(self, options: Options) -> None:
        self._options = options
        self._most = options.max_requests or _MOST
        self._at_once = options.concurrency or 1
        self._profile = profile_for(options.url.host or "")
        self._answered = 0
        self.burst: Sighting | None = None
        self.tried: Tried | None = None
        self.advice: Advice | None = None
        self._use = "Use:"

    def intention(self) -> str:
        """Return the announcement of the requests."""
        url = printable(without_credentials(str(self._options.url)))
        one = f"This sends one {self._options.method} request to {url}"
        if not self._options.find_limit:
            return f"{one}."
        pace = "one after the other" if self._at_once == 1 else f"{self._at_once} at once"
        return (
            f"{one},\n"
            f"and then up to {self._most} more, {pace}:\n"
            "as fast as it responds until one is throttled, then evenly\n"
            "and ever faster, and at last with the limiter to print."
        )

    async def run(self) -> int:
        """Send what was announced, and return the exit status."""
        problem: BaseException | None = None
        timeout = aiohttp.ClientTimeout(total=self._options.max_time)
        headers = {"User-Agent": f"aiothrottle/{__version__}"}  # -H may replace it
        connector = aiohttp.TCPConnector(keepalive_timeout=_KEEPALIVE)
        async with without_resending(  # no request is sent twice
            aiohttp.ClientSession(headers=headers, timeout=timeout, connector=connector)
        ) as session:
            try:
                await self._investigate(session)
            except* NoResponse as group:
                problem = group.exceptions[0]
        if problem is not None:
            when = f" after {self._answered} responses" if self._answered else ""
            text = printable(f"{problem}{when}")
            print(f"aiothrottle probe: {text}", file=sys.stderr)
            return 1
        self._tell(self._conclusion())
        if self._options.json:
            print_document(self._document())
        return 0

    def _tell(self, lines: Iterable[str]) -> None:
        if not self._options.json:
            print_texts(lines)

    # ---- the requests

    async def _send(self, session: aiohttp.ClientSession, usual: int | None = None) -> Reply:
        """Send the request once, and parse the limits in the response.

        Args:
            session: Sends it.
            usual: The status of the first request; None: this is the first.

        Raises:
            NoResponse: There is no response, or none in time.
        """
        options, proxy = self._options, self._options.proxy
        headers = headers_through(proxy, options.url, options.header)
        try:
            async with session.request(
                options.method, options.url, headers=headers, allow_redirects=False, proxy=proxy
            ) as response:
                body = await _beginning(response)
        except TimeoutError:
            raise NoResponse(f"no response within {number(options.max_time)} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise NoResponse(described(error)) from error
        self._answered += 1
        limits = parse_rate_limit(
            response.status,
            response.headers,
            datetime.now(UTC),
            body if response.status >= LEAST_ERROR else None,
            self._profile,
        )
        # nginx, Apache and Django throttle with 503 or 403, which mean it if the same request was
        # answered otherwise before.
        throttled = limits.throttled or (
            response.status in MAY_THROTTLE and usual not in {None, response.status}
        )
        location = response.headers.get("Location")
        return Reply(throttled, limits.retry_after, response.status, limits, location)

    async def _investigate(self, session: aiohttp.ClientSession) -> None:
        """Send what is wanted, and tell each finding as it comes."""
        began_at = time.monotonic()
        self.reply = first = await self._send(session)
        self._tell(self._announcement())
        rates = tuple(reported(first.limits))
        self.advice = Advice(rates) if rates else None
        if not self._options.find_limit:
            return
        if first.throttled:
            self._tell(["The limit was not searched: try again later."])
            return
        self.burst = burst = await self._find_burst(session, began_at)
        self._tell(self._seen(burst))
        if not burst.throttled:
            return
        display = Display(sys.stderr)
        search = Search(
            partial(self._send, session, first.status),
            left=self._most - burst.sent,
            at_once=self._at_once,
            reported=tuple(reported(first.limits, estimated=False)),
            progress=lambda step: display.show([(f"{self._answered} requests; {step}", "")]),
        )
        with display.drawing():
            self.tried = tried = await search.run(burst)
        self._tell(self._outcome(search, burst))
        if tried is not None and tried.passed:
            self.advice = tried.advice
            return
        searched = search.left > 0 and (burst.retry_after or 0.0) <= LONGEST_WAIT
        rate = None if searched else seen(burst)  # a guess, which no try has shown to be wrong
        if rate is not None and all(rate.limit / rate.period < r.limit / r.period for r in rates):
            self.advice = Advice((*rates, rate))
            self._use = "Not tried, but what was admitted at first suggests:"

    async def _find_burst(self, session: aiohttp.ClientSession, began_at: float) -> Sighting:
        """Send requests until one is throttled, or as many as were announced.

        Raises:
            ExceptionGroup: Of `NoResponse`.
        """
        sent, throttled, usual = 0, list[Reply](), self.reply.status
        while sent < self._most and not throttled:
            batch = min(self._at_once, self._most - sent)
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._send(session, usual)) for _ in range(batch)]
            sent += batch
            throttled = [reply for task in tasks if (reply := task.result()).throttled]
        waits = [reply.retry_after for reply in throttled]
        by_status = throttled and not throttled[0].limits.throttled
        return Sighting(
            admitted=1 + sent - len(throttled),
            seconds=time.monotonic() - began_at,
            retry_after=max((wait for wait in waits if wait is not None), default=None),
            throttled=bool(throttled),
            sent=sent,
            status=throttled[0].status if by_status else None,
        )

    # ---- the findings as text

    def _announcement(self) -> Iterator[str]:
        """Yield what the first response says."""
        reply, limits = self.reply, self.reply.limits
        vendor = f", read by the profile of {self._profile.name}" if self._profile else ""
        yield f"Status {reply.status}{vendor}."
        if reply.location is not None:
            target = without_credentials(reply.location)
            yield f"It redirects to {target}: you may want to probe that URL."
        if limits.throttled:
            when = "" if limits.retry_after is None else f", for {number(limits.retry_after, 6)} s"
            yield f"It throttles requests now{when}."
        if not (policies := policies_of(limits)):
            yield "It reports no limit."
            return
        yield "It reports:"
        width = columns_of(sys.stdout)
        room = None if width is None else width - 2
        yield from (f"  {line}" for line in fitted(_table(policies), room))

    def _seen(self, burst: Sighting) -> Iterator[str]:
        """Yield what the burst has shown."""
        requests = "request" if burst.admitted == 1 else "requests"
        many = f"{burst.admitted} {requests} in {burst.seconds:.2f} s"
        if not burst.throttled:
            yield f"It throttled none of {many}: the limit, if there is one, is above that."
            return
        wait = burst.retry_after
        after = "no Retry-After" if wait is None else f"Retry-After: {number(wait, 6)} s"
        count = 1 + burst.sent - burst.admitted
        throttled = f"{count}, with {self._at_once} at once" if self._at_once > 1 else "one"
        yield f"It admitted {many}, then throttled {throttled} ({after})."
        if self._at_once > 1:
            yield "If it throttles none with --concurrency 1, it limits only requests at once."
        if burst.status == FORBIDDEN:  # a session counts the others by itself
            yield f"By {burst.status}: a session waits then only if you give it"
            yield f"retry=Retry(throttled_statuses={{{burst.status}, 429, 503}})."

    def _outcome(self, search: Search, burst: Sighting) -> Iterator[str]:
        """Yield the outcome of the search."""
        tried = self.tried
        if tried is not None and tried.passed:
            yield self._measured(tried.advice, burst)
            yield (
                f"With the limiter below it throttled {tried.throttled or 'none'} of "
                f"{tried.sent} requests in {tried.seconds:.1f} s."
            )
        elif (burst.retry_after or 0.0) > LONGEST_WAIT:
            yield "The rate was not searched, as that wait is too long."
        elif search.wait > LONGEST_WAIT:
            yield f"No rate was found: it wants pauses of more than {number(LONGEST_WAIT)} s."
        elif search.left <= 0:
            yield "No rate was found that it does not throttle: give more --max-requests."
        else:
            yield "No rate was found that it does not throttle."

    def _measured(self, advice: Advice, burst: Sighting) -> str:
        """Return what the server admits, in words."""
        rate = min(rate.limit / rate.period for rate in advice.rates)
        size = math.ceil(burst.admitted - rate * burst.seconds)  # a bucket was filled meanwhile
        at_once = "evenly spaced" if advice.spaced else f"bursts of {max(size, 1)}"
        return f"It admits about {about(rate)}, {at_once}."

    def _conclusion(self) -> Iterator[str]:
        """Yield the limiter to use."""
        yield ""
        if self.advice is not None:
            yield self._use
            yield f"  {self.advice.python}"
        else:
            yield "No limit is known. Start slowly, and read the server's documentation:"
            yield '  RateLimiter("1/s", concurrency_limit=1)'

    # ---- the findings as a document

    def _document(self) -> dict[str, object]:
        reply, burst, tried, advice = self.reply, self.burst, self.tried, self.advice
        return {
            "url": without_credentials(str(self._options.url)),
            "status": reply.status,
            "location": reply.location and without_credentials(reply.location),
            "profile": self._profile and self._profile.name,
            **chosen(reply, "throttled", "retry_after"),
            "reported": [chosen(it, *_REPORTED) for it in policies_of(reply.limits)],
            "burst": burst and chosen(burst, "admitted", "seconds", "throttled", "retry_after"),
            "tried": tried and chosen(tried, "passed", "sent", "throttled", "seconds"),
            "limiter": advice and chosen(advice, "rates", "burst", "guard", "python"),
        }


_REPORTED = ("name", "unit", "quota", "window", "remaining", "reset_after")


async def _beginning(response: aiohttp.ClientResponse) -> bytes:
    """Return the body of an error, as far as it is needed; of any other, what has arrived."""
    body = await response.content.read(_LONGEST_BODY)
    if response.status >= LEAST_ERROR:
        while more := await response.content.read(_LONGEST_BODY - len(body)):
            body += more
    return body


def _table(policies: tuple[Policy, ...]) -> list[tuple[str, ...]]:
    """Return the rows of a table, without columns of which nothing is reported."""
    rows = [("limit", "quota", "window", "remaining", "reset in"), *map(_row, policies)]
    columns = list(zip(*rows, strict=True))
    return list(zip(*(column for column in columns if any(column[1:])), strict=True))


def _row(policy: Policy) -> tuple[str, ...]:
    unit = printable(policy.unit or "requests")
    quota = "" if policy.quota is None else f"{number(policy.quota)} {unit}"
    return (
        printable(policy.name or ""),
        quota,
        "" if policy.window is None else f"{number(policy.window)} s",
        "" if policy.remaining is None else number(policy.remaining),
        "" if policy.reset_after is None else f"{number(policy.reset_after, 6)} s",
    )


COMMAND = Command(text=__doc__, usage="[options] URL", options={"": Options}, run=_run)

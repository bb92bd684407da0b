"""A real HTTP server with limits, to test clients against, and its audit of what arrived.

Invariant: the audit has each request as the server saw it, in the order of arrival.
"""

import asyncio
import contextlib
import math
import random
import time
from collections.abc import Iterable
from dataclasses import dataclass
from email.utils import formatdate
from functools import partial
from typing import Literal, Self, TypeAlias, get_args

from aiohttp import web
from aiohttp.typedefs import Handler
from yarl import URL

from aiothrottle._checks import check_choice, check_number, check_whole
from aiothrottle.rate import RateLike, as_rate
from aiothrottle.testing.algorithms import AlgorithmName, ServerAlgorithm, make_algorithm

ThrottledResponse: TypeAlias = Literal["429-seconds", "429-date", "429", "503", "silence"]


@dataclass(slots=True, eq=False)
class RecordedRequest:
    """One request that arrived.

    Attributes:
        arrived_at: When it arrived, on the clock of `time.monotonic`, in seconds.
        method: Its HTTP method.
        path: Its path, decoded and without the query.
        throttled: Whether the server throttled it.
        status: The status of the response; None while there is none, and for ever if the server was
            silent, the client went away, or the server was closed.

    """

    arrived_at: float
    method: str
    path: str
    throttled: bool
    status: int | None = None


def greatest_count(instants: Iterable[float], period: float) -> int:
    """Return the greatest number of instants in any half-open window of `period` seconds.

    Two instants exactly `period` apart are not in one window: `b` is in the window that begins
    with `a` as long as `b < a + period`.

    Args:
        instants: Seconds, in any order.
        period: The length of the window in seconds.

    Raises:
        ValueError: `period` is not greater than zero.

    Example:
        >>> greatest_count([0.0, 0.5, 1.0], period=1.0)
        2

    """
    if not period > 0:
        raise ValueError(f"period must be greater than 0 seconds, not {period!r}")
    ordered = sorted(instants)
    greatest = first = 0
    for last, instant in enumerate(ordered):
        while ordered[first] < instant and ordered[first] + period <= instant:
            first += 1
        greatest = max(greatest, last - first + 1)
    return greatest


class Audit:
    """The requests at a server since its start, or since the last `clear`.

    Attributes:
        requests: Every request that arrived, in the order of arrival.
        greatest_concurrency: The greatest number of exchanges that were open at once, counted
            when a request arrives. An exchange, throttled or not, is open from its arrival until
            the whole response, body included, is written or the client is gone.

    """

    def __init__(self) -> None:
        self.requests: list[RecordedRequest] = []
        self.greatest_concurrency: int = 0

    @property
    def sent(self) -> int:
        """How many requests arrived, throttled or not."""
        return len(self.requests)

    @property
    def throttled(self) -> int:
        """How many requests the server throttled."""
        return sum(request.throttled for request in self.requests)

    @property
    def admitted(self) -> int:
        """How many requests were not throttled, whatever their status."""
        return self.sent - self.throttled

    def greatest_count(self, period: float, *, admitted_only: bool = False) -> int:
        """Return the greatest number of arrivals in any half-open window of `period` seconds.

        All arrivals count, throttled or not: these are what the client sent. Two requests exactly
        `period` apart are not in one window.

        Args:
            period: The length of the window in seconds.
            admitted_only: Count only the requests that were not throttled.

        Raises:
            ValueError: `period` is not greater than zero.

        """
        counted = (r.arrived_at for r in self.requests if not (admitted_only and r.throttled))
        return greatest_count(counted, period)

    def record(self, request: RecordedRequest, open_exchanges: int) -> None:
        """Record an arrival. The server calls this.

        Args:
            request: The request that arrived.
            open_exchanges: The requests without a complete response, this one included.
        """
        self.requests.append(request)
        self.greatest_concurrency = max(self.greatest_concurrency, open_exchanges)

    def clear(self) -> None:
        """Forget all requests so far. Exchanges that are still open still count as open."""
        self.requests.clear()
        self.greatest_concurrency = 0

    def __repr__(self) -> str:
        return (
            f"<Audit: {self.sent} sent, {self.throttled} throttled, "
            f"at most {self.greatest_concurrency} at once>"
        )


class RateLimitedServer:
    """An HTTP server on a free port of 127.0.0.1 that throttles requests beyond its limits.

    Use it as `async with RateLimitedServer(...) as server:`, or call `start` and `close`. A server
    is started once. A throttled request does not count under the algorithm. All durations are in
    seconds.

    Args:
        rate: The rate limit: a number of requests per second, a string such as `"50/s"`, or a
            `Rate`. None is no rate limit.
        algorithm: How the rate is enforced. `"sliding-window-log"`: never more than the limit in
            any window of the period. `"fixed-window"`: consecutive windows, from the start of the
            server on, so up to twice the limit can pass around a boundary. `"token-bucket"`: up to
            `burst` requests at once, in the long run the rate. A window counts whole requests:
            `"2.5/s"` is 3 in 1.2 seconds, and `"0.5/s"` is 1 in two.
        burst: How many requests the token bucket holds; by default the limit of the rate, rounded
            up.
        phase: How far into its first fixed window the server starts; by default at its beginning.
        concurrency_limit: How many exchanges may be open at once. An exchange is open from the
            arrival of a request until the whole response, body included, is written or the client
            is gone; a throttled request does not count. None is no limit.
        throttled_response: The response to a throttled request. `"429-seconds"`: status 429 with
            `Retry-After` in seconds; `"429-date"`: with `Retry-After` as an HTTP date; both rounded
            up to a whole second. `"429"`: no `Retry-After`. `"503"`: status 503 with `Retry-After`
            in seconds. `"silence"`: no response, ever. `Retry-After` is one second for a request
            beyond the concurrency limit, as it is unknown when an exchange will end.
        latency: How long each request travels before the server sees it.
        jitter: The most that it travels longer, at random: the algorithm sees jittered arrivals.
        seed: Of the random jitter. The delays are the same for the same seed.
        handler: An aiohttp handler for the admitted requests; by default it sends a short text at
            once: to see exchanges overlap, give a slow handler.

    Attributes:
        audit: What arrived.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: An argument is out of range, or contradicts another one.

    Example::

        async with (
            RateLimitedServer("50/s", concurrency_limit=8) as server,
            ThrottledSession(RateLimiter(50, concurrency_limit=8, guard=0.1)) as session,
        ):
            async with asyncio.TaskGroup() as group:
                for _ in range(100):
                    group.create_task(session.get(server.url))
            assert server.audit.sent == 100
            assert server.audit.throttled == 0

    """

    def __init__(
        self,
        rate: RateLike | None = None,
        *,
        algorithm: AlgorithmName = "sliding-window-log",
        burst: float | None = None,
        phase: float | None = None,
        concurrency_limit: int | None = None,
        throttled_response: ThrottledResponse = "429-seconds",
        latency: float = 0.0,
        jitter: float = 0.0,
        seed: int = 0,
        handler: Handler | None = None,
    ) -> None:
        check_choice("algorithm", algorithm, get_args(AlgorithmName))
        check_choice("throttled_response", throttled_response, get_args(ThrottledResponse))
        check_whole("concurrency_limit", concurrency_limit, none="None for no limit")
        check_number("latency", latency, "seconds")
        check_number("jitter", jitter, "seconds")
        check_whole("seed", seed, least=-math.inf)
        if handler is not None and not callable(handler):
            raise TypeError(f"handler must be an aiohttp handler, not {handler!r}")
        #: None: there is no rate limit.
        self._algorithm: ServerAlgorithm | None = None
        if rate is not None:
            self._algorithm = make_algorithm(as_rate(rate), algorithm, burst, phase)
        elif burst is not None or phase is not None:
            raise ValueError("burst and phase belong to a rate")
        self._concurrency_limit = concurrency_limit
        self._throttled_response: ThrottledResponse = throttled_response
        self._delay = partial(random.Random(seed).uniform, latency, latency + jitter)
        self._handler = handler or _answer_shortly
        self.audit: Audit = Audit()
        self._started_at = 0.0
        self._url: URL | None = None
        self._runner: web.AppRunner | None = None
        self._open: dict[RecordedRequest, web.Request] = {}

    @property
    def url(self) -> URL:
        """The server's address, such as ``http://127.0.0.1:49152/``.

        Raises:
            RuntimeError: The server has not been started.

        """
        if self._url is None:
            raise RuntimeError("the server has no address before it is started")
        return self._url

    async def start(self) -> None:
        """Start serving. The algorithm's time begins now.

        Raises:
            RuntimeError: The server has been started before.

        """
        if self._runner is not None:
            raise RuntimeError("a server is started only once: make another one")
        application = web.Application(client_max_size=0)  # a handler may read any upload
        application.router.add_route("*", "/{path:.*}", self._exchange)
        # A connection is cut off after a millisecond; 0 seconds would be for ever.
        self._runner = web.AppRunner(
            application, access_log=None, handler_cancellation=True, shutdown_timeout=1e-3
        )
        await self._runner.setup()
        self._started_at = time.monotonic()
        # There must be room for all connections that a client opens at once: the operating system
        # sends what does not fit again after a second.
        site = web.TCPSite(self._runner, "127.0.0.1", 0, backlog=4096)
        # In a task of its own: asyncio loses a listening socket if it is cancelled just then.
        starting = asyncio.create_task(site.start())
        try:
            await asyncio.shield(starting)
        except BaseException:
            await asyncio.wait([starting])
            await self._runner.cleanup()
            raise
        _, port = self._runner.addresses[0]
        self._url = URL.build(scheme="http", host="127.0.0.1", port=port, path="/")

    async def close(self) -> None:
        """Stop serving at once: open exchanges are cut off. Closing twice does nothing."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _exchange(self, request: web.Request) -> web.StreamResponse:
        # Even without a delay this yields to the event loop, which a client needs that hangs up and
        # at once sends its next request on another connection: asyncio closes a socket one turn
        # late.
        await asyncio.sleep(self._delay())
        # The handlers of clients that are gone are being cancelled, but that takes a few turns of
        # the event loop, and the client's next request may be faster.
        for record, other in list(self._open.items()):
            if other.transport is None or other.transport.is_closing():
                del self._open[record]
        now = time.monotonic()
        wait = self._judge(now - self._started_at)
        record = RecordedRequest(now, request.method, request.path, throttled=wait is not None)
        self._open[record] = request
        self.audit.record(record, len(self._open))
        try:
            response = await (self._handler(request) if wait is None else self._throttle(wait))
            record.status = response.status
            # aiohttp would send it too, but after the handler, unobserved. If the client is gone,
            # aiohttp notices it again and handles it.
            with contextlib.suppress(ConnectionError):
                await response.prepare(request)
                await response.write_eof()
        except Exception as error:
            # aiohttp answers any other error with 500.
            record.status = error.status if isinstance(error, web.HTTPException) else 500
            raise
        finally:
            self._open.pop(record, None)
        return response

    def _judge(self, now: float) -> float | None:
        """Return the seconds to wait if a request is throttled; None: it is admitted."""
        if self._concurrency_limit is not None:
            admitted = sum(not record.throttled for record in self._open)
            if admitted >= self._concurrency_limit:
                return 1.0
        if self._algorithm is not None:
            ready_at = self._algorithm.ready_at()
            if ready_at > now:
                return ready_at - now
            self._algorithm.count(now)
        return None

    async def _throttle(self, wait: float) -> web.StreamResponse:
        kind, headers = self._throttled_response, dict[str, str]()
        if kind == "silence":
            await asyncio.get_running_loop().create_future()
        # RFC 9110 (10.2.3) has whole seconds only. Rounded down, they would be too short.
        if kind == "429-date":
            headers["Retry-After"] = formatdate(math.ceil(time.time() + wait), usegmt=True)
        elif kind != "429":
            headers["Retry-After"] = str(math.ceil(wait))
        status = 503 if kind == "503" else 429
        return web.Response(status=status, text="That was one request too many.\n", headers=headers)


def linked_pages(count: int) -> Handler:
    """Return a handler that serves a small site of `count` HTML pages, for crawlers.

    The pages are `/`, `/1`, `/2` and so on up to `count - 1`. Each links to a few others, always
    the same, so that all can be found from `/`, most of them by several paths. Anything else is
    not found (404).

    Args:
        count: The number of pages.

    Raises:
        TypeError: `count` is not an int.
        ValueError: `count` is less than 1.

    """
    check_whole("count", count, "pages")
    numbers = {"/": 0} | {f"/{number}": number for number in range(1, count)}
    paths = list(numbers)

    async def page(request: web.Request) -> web.StreamResponse:
        number = numbers.get(request.path)
        if number is None:
            raise web.HTTPNotFound
        # The children form a tree of all pages; the others are detours that a crawler must notice.
        children = {child for child in (2 * number + 1, 2 * number + 2) if child < count}
        linked = sorted(children | {0, number // 2, (number * 7 + 3) % count})
        links = "\n".join(f'<a href="{paths[other]}">Page {other}</a>' for other in linked)
        return web.Response(
            text=f"<!doctype html>\n<title>Page {number}</title>\n{links}\n",
            content_type="text/html",
        )

    return page


async def _answer_shortly(_: web.Request) -> web.StreamResponse:
    return web.Response(text="Here you are.\n")

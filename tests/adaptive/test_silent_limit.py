"""A server that limits without a 429: unlike one that is merely broken, and kept to."""

import asyncio
import errno
import math
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import aiohttp
import httpx
import pytest

from aiothrottle import RateLimiter, Retry
from aiothrottle.adaptive.silent_limit import SilentLimit
from aiothrottle.aiohttp import ThrottledSession
from aiothrottle.events import Paused
from aiothrottle.testing import RateLimitedServer
from tests.adaptive.session_in_time import Record, Refusal, run
from tests.integrations.scripted import Script, Step
from tests.support.observing import observed
from tests.support.server_limits import Admits, at_random, envoy, sliding_counter
from tests.support.virtually import virtual

# ---- servers -------------------------------------------------------------------------------------


def blocking(limit: int, seconds: float) -> Admits:
    """Block everything for so many seconds after a request too many, anew with each request."""
    admits_here, until = envoy(limit, 1.0), 0.0

    def admits(now: float) -> bool:
        nonlocal until
        admitted = now >= until and admits_here(now)
        if not admitted:
            until = now + seconds
        return admitted

    return admits


def outage(begin: float, end: float) -> Admits:
    """Admit nothing between two instants, in seconds after the first request."""
    first = math.inf

    def admits(now: float) -> bool:
        nonlocal first
        first = min(first, now)
        return not begin <= now - first < end

    return admits


FORBIDDEN, DROPPED, TARPIT = Refusal(403), Refusal(None, after=2.0), Refusal(500, after=1.0)


@pytest.mark.parametrize(
    ("make", "refusal", "lost", "used"),
    [
        (lambda: envoy(20, 1.0), FORBIDDEN, 0.03, 0.85),
        (lambda: blocking(20, 1.0), FORBIDDEN, 0.03, 0.85),
        (lambda: sliding_counter(200, 10.0), DROPPED, 0.01, 0.8),
        (lambda: sliding_counter(20), DROPPED, 0.01, 0.6),
        (lambda: sliding_counter(20), TARPIT, 0.06, 0.7),
    ],
)
def test_silent_limit_is_kept_to_without_a_rate(
    make: Callable[[], Admits], refusal: Refusal, lost: float, used: float
) -> None:
    for seed in range(2):
        limiter = RateLimiter(concurrency_limit=8)
        record = run(make(), 60.0, seed=seed, limiter=limiter, refusal=refusal)
        assert record.lost <= lost * record.ended
        assert record.used(0.0, 60.0, 20.0) >= used
        assert limiter.statistics().throttled > 0


@pytest.mark.parametrize(
    ("failure", "pauses"),
    [(500, True), (403, True), ((403, {"X-RateLimit-Remaining": "5"}), False)],
)
@virtual
async def test_requests_that_started_on_credit_count_as_successes(
    failure: Step, pauses: bool
) -> None:
    """A response that reports a quota with tokens left says itself that it is not throttled."""
    limiter = RateLimiter(concurrency_limit=5)
    async with Script(*[200] * 100, failure).client(limiter, retry=Retry(attempts=1)) as client:
        for _ in range(110):
            await client.get("http://a/")
            await asyncio.sleep(0.01)
    assert (limiter.statistics().pauses > 0) == pauses


@pytest.mark.parametrize("minutes", [1, 10])
@virtual
async def test_limit_that_was_seen_long_ago_is_forgotten(minutes: int) -> None:
    limiter = RateLimiter(concurrency_limit=5)
    answers = Script(*[200] * 100, *[500] * 8, *[200] * 10, *[500] * 4)
    async with answers.client(limiter, retry=Retry(attempts=1)) as client:
        for number in range(122):
            if number == 110:
                await asyncio.sleep(60 * minutes)
            await client.get("http://a/")
            await asyncio.sleep(0.01)
    assert (limiter.statistics().pauses > 1) == (minutes == 1)


class Connections:
    """The sockets of aiohttp: so many, then there are too many open files."""

    def __init__(self, most: int) -> None:
        self.most = most

    def __call__(self, address: tuple[Any, ...]) -> socket.socket:
        family, kind, protocol, *_ = address
        self.most -= 1
        if self.most < 0:
            raise OSError(errno.EMFILE, "Too many open files")
        return socket.socket(family, kind, protocol)


async def test_lack_of_files_is_no_limit_of_the_server() -> None:
    for_aiohttp, for_httpx = (RateLimiter(concurrency_limit=5) for _ in range(2))
    connector = aiohttp.TCPConnector(force_close=True, socket_factory=Connections(40))
    options: Any = {"retry": Retry(attempts=1), "queue_timeout": 0.5}
    async with RateLimitedServer(None) as server:
        async with ThrottledSession(for_aiohttp, connector=connector, **options) as session:
            for _ in range(60):
                with suppress(aiohttp.ClientConnectorError):
                    await (await session.get(server.url)).read()
        assert server.audit.admitted == 40
    error = httpx.ConnectError("all connection attempts failed")
    error.__cause__ = OSError(errno.EMFILE, "Too many open files")
    async with Script(*[200] * 40, error).client(for_httpx, **options) as client:
        for _ in range(60):
            with suppress(httpx.ConnectError):
                await client.get("http://a/")
    assert (for_aiohttp.statistics().pauses, for_httpx.statistics().pauses) == (0, 0)


@pytest.mark.parametrize(
    ("refusal", "part"),
    [
        (FORBIDDEN, 0.1),
        (FORBIDDEN, 0.6),
        (TARPIT, 0.02),
        (Refusal(500), 0.3),
        (DROPPED, 0.05),
    ],
)
def test_broken_server_slows_nobody_down(refusal: Refusal, part: float) -> None:
    def send(*, learns: bool) -> Record:
        limiter = RateLimiter(concurrency_limit=2, learn_rate=learns)
        record = run(at_random(part), 60.0, workers=4, limiter=limiter, refusal=refusal, takes=0.1)
        assert limiter.statistics().throttled == 0
        return record

    # It begins with one slot, and opens the other with the first answer.
    assert len(send(learns=True).admitted) >= 0.97 * len(send(learns=False).admitted)


def test_requests_flow_again_soon_after_an_outage() -> None:
    for refusal in (Refusal(500), FORBIDDEN, DROPPED):
        limiter = RateLimiter("20/s", concurrency_limit=8)
        record = run(outage(5.0, 15.0), 60.0, limiter=limiter, refusal=refusal)
        assert not any(6.0 < at < 15.0 for at in record.admitted)
        assert min(at for at in record.admitted if at > 15.0) < 22.0
        assert record.used(22.0, 60.0, 20.0) >= 0.9


def test_outage_says_nothing_about_a_known_rate() -> None:
    for refusal in (Refusal(500), FORBIDDEN):
        limiter = RateLimiter("20/s", concurrency_limit=8)
        record = run(outage(5.0, 35.0), 90.0, limiter=limiter, refusal=refusal)
        assert record.used(45.0, 90.0, 20.0) >= 0.97


def test_pause_is_no_longer_than_the_policy_allows() -> None:
    limiter, retry = RateLimiter(concurrency_limit=8), Retry(max_pause=3.0)
    pauses = observed(limiter, Paused)
    record = run(outage(1.0, 40.0), 40.0, limiter=limiter, refusal=FORBIDDEN, retry=retry)
    assert len(pauses) > 5
    assert max(it.seconds for it in pauses) <= 3.0
    assert {it.reason for it in pauses} == {"failures"}
    assert len(record.throttled) < 40


# ---- its events ----------------------------------------------------------------------------------


def fail(limit: SilentLimit, number: int, now: float = 10.0) -> list[float | None]:
    return [limit.failed(now + 0.01 * i, now - 0.1) for i in range(number)]


def test_run_after_many_successes_is_an_event() -> None:
    assert fail(SilentLimit(16), 9) == [*[None] * 7, 1.0, 1.0]
    assert fail(SilentLimit(15), 50) == [None] * 50
    limit = SilentLimit(15)
    limit.succeeded(9.0)
    assert fail(limit, 8)[-1] == 1.0


def test_success_ends_a_run_by_the_order_of_sending() -> None:
    limit = SilentLimit(100)
    fail(limit, 7)  # sent at 9.9
    limit.succeeded(9.8)
    assert limit.failed(10.1, 9.95) == 1.0
    limit = SilentLimit(100)
    fail(limit, 7)
    limit.succeeded(9.94)
    assert limit.failed(10.1, 9.95) is None
    assert limit.needed == 9, "each run that was interrupted makes the next one longer"
    limit = SilentLimit(100)
    fail(limit, 7)
    limit.succeeded(10.05)  # whose answer is faster than this failure
    assert limit.failed(12.0, 9.95) == 1.0


def test_pauses_double_until_one_request_succeeds() -> None:
    limit = SilentLimit(100)
    fail(limit, 8)
    pauses = [limit.failed(now, now - 0.01) for now in (11.2, 13.4)]
    assert pauses == [2.0, 4.0]
    limit.succeeded(13.3)  # sent before the pause
    assert limit.failed(17.6, 17.5) == 8.0
    limit.succeeded(25.7)
    assert limit.needed == 2
    fail(limit, 1, now=26.0)
    assert limit.failed(26.1, 26.0) == 1.0, "it may have been an outage"
    assert limit.failed(27.3, 27.2) == 2.0
    limit.succeeded(29.4)
    assert limit.needed == 1, "two within a minute"
    assert limit.failed(30.0, 29.9) == 2.0, "as long as the pause that was enough"


def test_event_halves_what_interrupted_runs_have_added() -> None:
    limit = SilentLimit(100)
    for sent_at in (1.0, 2.0, 3.0):
        limit.failed(sent_at + 0.1, sent_at)
        limit.succeeded(sent_at + 0.5)
    assert fail(limit, 8 + 3)[-2:] == [None, 1.0]
    limit.succeeded(12.0)
    assert limit.needed == 2 + 1


def test_outage_is_left_alone_after_a_minute() -> None:
    limit = SilentLimit(100)
    fail(limit, 8)
    assert limit.failed(69.9, 69.0) == 2.0
    assert limit.failed(71.0, 70.5) is None
    assert limit.needed == 80
    assert limit.failed(71.1, 70.6) is None


def test_failures_are_forgotten() -> None:
    limit = SilentLimit(100)
    fail(limit, 1)
    assert not limit.is_over(309.9)
    assert limit.is_over(310.1)

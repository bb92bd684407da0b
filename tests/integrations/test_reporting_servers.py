"""How a limiter does in front of servers that report their quota, in virtual time."""

import asyncio
import math
import random
from collections import Counter
from collections.abc import Callable
from datetime import datetime, tzinfo
from functools import partial
from typing import Any, Self

import httpx
import pytest

from aiothrottle import RateLimiter, TokenBucket
from aiothrottle._http import origins
from aiothrottle.headers import Profile, parse_rate_limit, profile_for
from aiothrottle.httpx import ThrottledTransport
from aiothrottle.retry import Retry
from tests.adaptive.session_in_time import empty_response
from tests.integrations.clients import ONCE, always
from tests.integrations.scripted import Script
from tests.support.reading import NOW
from tests.support.reporting_servers import (
    LIMIT,
    REPORTING,
    Bucket,
    Log,
    Nest,
    Report,
    Server,
    Windows,
    envoy,
    express_legacy,
    fields,
    gcra,
)
from tests.support.virtually import now, virtual, visit, work_for

EPOCH = 1_800_000_000.0
SECONDS, WORKERS, SLOTS = 12.0, 24, 8


class VirtualDate(datetime):
    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Self:
        return cls.fromtimestamp(EPOCH + now(), tz)


@pytest.fixture(autouse=True)
def _virtual_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(origins, "datetime", VirtualDate)


class Load(httpx.AsyncBaseTransport):
    """Sends requests by many workers, and counts the answers of the server.

    Without a client, which would take most of the time of a test.

    Args:
        ahead: Seconds by which the clock of the server is ahead.
        latency: The shortest and the longest seconds of each way to the server and back.
    """

    def __init__(
        self, server: Server, *, ahead: float = 0.0, latency: tuple[float, float] = (0.004, 0.008)
    ) -> None:
        self.admitted: list[float] = []
        self.throttled: list[float] = []
        #: What the callers got.
        self.finals: Counter[int] = Counter()
        self._server, self._ahead, self._latency = server, ahead, latency
        self._random = random.Random(1)

    async def run(
        self, limiter: RateLimiter, seconds: float = SECONDS, *, retry: Retry = ONCE, **options: Any
    ) -> None:
        request = httpx.Request("GET", "http://ours/")
        async with ThrottledTransport(limiter, transport=self, retry=retry, **options) as transport:

            async def work() -> None:
                while True:
                    response = await transport.handle_async_request(request)
                    await response.aread()
                    self.finals[response.status_code] += 1

            await work_for(seconds, (work() for _ in range(WORKERS)))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:  # noqa: ARG002
        await asyncio.sleep(self._random.uniform(*self._latency))
        status, headers = self._server.answer(EPOCH + self._ahead + now())
        (self.admitted if status == 200 else self.throttled).append(now())
        await asyncio.sleep(self._random.uniform(*self._latency))
        return empty_response(status, headers)

    def used(self, begin: float = 0.0, end: float = SECONDS, rate: float = LIMIT) -> float:
        """The part of the server's limit that was used."""
        return sum(begin <= at < end for at in self.admitted) / (end - begin) / rate

    @property
    def part_throttled(self) -> float:
        return len(self.throttled) / (len(self.throttled) + len(self.admitted))


@pytest.mark.parametrize("name", REPORTING)
@virtual
async def test_limit_is_used_whatever_is_reported(name: str) -> None:
    """Whether it is known or has to be found."""
    for ahead, rate, part in ((0.37, LIMIT, 0.97), (-3600.5, "server", 0.85), (0.0, None, 0.85)):
        load, begin = Load(REPORTING[name](), ahead=ahead), now()
        await load.run(RateLimiter(rate, concurrency_limit=SLOTS))
        assert load.part_throttled <= (0.01 if rate == "server" else 0)
        assert load.used(begin, begin + SECONDS) >= part


@virtual
async def test_update_to_the_same_rate_stalls_no_request() -> None:
    load = Load(REPORTING["slowapi"]())  # of which the resets are rounded
    limiter = RateLimiter(LIMIT, concurrency_limit=SLOTS)
    for at in range(2, 12):
        asyncio.get_running_loop().call_later(at, partial(limiter.update, rate_limit=LIMIT))
    await load.run(limiter)
    assert load.used() >= 0.97


NAMED = {"short": (3, 1.0), "medium": (20, 10.0), "long": (100, 60.0)}
# What the reset of each means is another thing than the end of a window. The rates that hold over
# a minute, and the limits as a user would write them.
MISLEADING: dict[str, tuple[Callable[[], Server], float, dict[str, Any]]] = {
    "Envoy": (partial(envoy, 5, 10.0), 10.0, {"rate_limit": "10/s", "burst": 5}),
    "GCRA": (
        partial(gcra, 10, 5.0), 5.0, {"rate_limit": "5/s", "algorithm": TokenBucket(burst=10)}
    ),
    "NestJS, named": (
        partial(Nest, **NAMED), 100 / 60, {"rate_limit": ["3/s", "20/10s", "100/min"]}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISLEADING)
@pytest.mark.parametrize("known", ["nothing", "server", "limits"])
@virtual
async def test_answers_count_more_than_a_reset_that_misleads(name: str, known: str) -> None:
    make, rate, limits = MISLEADING[name]
    arguments: dict[str, Any] = limits if known == "limits" else {}
    if known == "server":
        arguments = {"rate_limit": "server"}
    load = Load(make())
    await load.run(RateLimiter(**arguments, concurrency_limit=SLOTS), 60.0)
    assert sum(at > 10.0 for at in load.throttled) == 0
    assert load.part_throttled <= 0.03
    assert load.used(10.0, 60.0, rate) >= 0.9


of_30 = partial(fields, "RateLimit-", 30)
IN_SECONDS: dict[str, Report] = {
    "whole": lambda now, at, left: of_30(left, math.ceil(at - now)),
    "exact": lambda now, at, left: of_30(left, f"{at - now:.3f}"),
}


@pytest.mark.parametrize(
    ("report", "period", "latency"),
    [("whole", 1.0, 0.005), ("exact", 1.0, 0.1), ("whole", 5.0, 0.1), ("exact", 60.0, 0.005)],
)
@virtual
async def test_quota_that_is_true_is_kept_to(report: str, period: float, latency: float) -> None:
    reports = IN_SECONDS[report]
    for server in (
        Windows(reports, lambda now, at: f"{at - now}", limit=30, period=period),
        Log(reports, limit=30, period=period),
    ):
        for limiter in (RateLimiter(concurrency_limit=SLOTS), RateLimiter("server")):
            load = Load(server, latency=(latency / 2, latency))
            await load.run(limiter, 2.0 * period + 6.0)
            # A spread above 4 % of the period is guarded against once it has shown.
            assert len(load.throttled) <= (latency > 0.04 * period)
            await asyncio.sleep(period)


@virtual
async def test_reset_that_is_rounded_down_is_taken_for_later_once_that_has_shown() -> None:
    """It is up to a second early: what is sent then is throttled, and says nothing of a burst."""
    server = Windows(
        lambda now, at, left: of_30(left, int(at - now - 1e-6)),
        lambda now, at: str(int(at - now)),
        limit=30,
        period=30.0,
    )
    load = Load(server)
    await load.run(RateLimiter("50/s", concurrency_limit=SLOTS), 300.0)
    assert 0 < len(load.throttled) <= 2 * SLOTS
    assert max(load.throttled) < 70.0
    assert len(load.admitted) == 300


@virtual
async def test_reset_that_is_always_zero_tells_no_window() -> None:
    """It would be one of a second at the most: the limiter finds a rate by itself."""
    load = Load(Log(lambda _, at, left: of_30(left, 0), limit=30, period=10.0))  # noqa: ARG005
    await load.run(RateLimiter(concurrency_limit=SLOTS), 200.0)
    assert sum(at > 100.0 for at in load.throttled) <= 3
    assert load.used(100.0, 200.0, 3.0) >= 0.85


@virtual
async def test_reported_rate_is_followed_where_none_is_given() -> None:
    """The reset of a log that slides is that of its oldest request: no time to wait for."""
    policy = {"RateLimit-Policy": "30;w=3"}
    server = Log(
        lambda now, at, left: policy | of_30(left, math.ceil(at - now)), limit=30, period=3.0
    )
    load, limiter = Load(server, latency=(0.05, 0.1)), RateLimiter(concurrency_limit=SLOTS)
    await load.run(limiter, 60.0)
    assert load.throttled == []
    assert load.used(10.0, 60.0, 10.0) >= 0.9
    assert limiter.statistics().rate_limit == 10.0


@virtual
async def test_longer_window_is_found_soon() -> None:
    load = Load(express_legacy(5 * LIMIT, 5.0), ahead=0.37)
    await load.run(RateLimiter("server", concurrency_limit=SLOTS), 40.0)
    assert sum(at > 20 for at in load.throttled) == 0
    assert load.part_throttled <= 0.01
    assert load.used(20.0, 40.0) >= 0.85


@virtual
async def test_requests_before_the_rate_is_known_are_no_burst() -> None:
    """The first window began before the first request, so only the second one tells the rate."""
    server = express_legacy(300, 60.0)
    server.answer(EPOCH - 40.0)
    load = Load(server, latency=(0.02, 0.04))
    await load.run(RateLimiter(concurrency_limit=SLOTS), 80.0)
    assert load.throttled == []
    assert len(load.admitted) > 1.5 * 300


@pytest.mark.parametrize(
    ("name", "rate"),
    [("Flask-Limiter", None), ("Quart", "20/s"), ("express, draft 6", "server")],
)
@virtual
async def test_several_clients_use_a_quota_of_short_windows(name: str, rate: str | None) -> None:
    random.seed(0)  # of the jitter of pauses: at Quart one has less than a tenth with some seeds
    load = Load(REPORTING[name]())
    limiters = [RateLimiter(rate, concurrency_limit=SLOTS) for _ in range(3)]
    await asyncio.gather(*(load.run(each, 45.0, retry=Retry()) for each in limiters))
    throttled = sum(at >= 15.0 for at in load.throttled)
    assert throttled <= 0.025 * sum(at >= 15.0 for at in load.admitted)
    assert load.used(15.0, 45.0) >= 0.85
    # None of them takes all.
    granted = [it.statistics().granted for it in limiters]
    assert min(granted) >= 0.1 * max(granted)


@pytest.mark.parametrize(("left", "spread"), [(0, True), (10, False)])
@virtual
async def test_quota_is_spread_once_others_left_nothing_of_it(left: int, *, spread: bool) -> None:
    limiter = RateLimiter(concurrency_limit=SLOTS)
    for status, remaining in ((200, 9), (429, left), (200, 18)):
        async with limiter.throttle() as permit:
            permit.report(status, fields("RateLimit-", 20, remaining, 1))
    waits = list[float]()
    for _ in range(4):
        async with limiter.throttle() as permit:
            waits.append(permit.waited)
    assert waits[1:] == pytest.approx([1 / 18] * 3 if spread else [0.0] * 3, abs=0.01)


@virtual
async def test_client_ahead_of_others_learns_a_rate_without_a_second_429() -> None:
    limiter = RateLimiter(concurrency_limit=1)
    ThrottledTransport(limiter)  # by which it expects outcomes
    remaining = iter((*range(19, -1, -1), 0, 19, 17, *range(15, 8, -1), 2, 1))
    for status in (*[200] * 20, 429, *[200] * 11):
        async with limiter.throttle() as permit:
            await asyncio.sleep(0.12)
            permit.report(status, fields("RateLimit-", 20, next(remaining), 1))
    assert limiter.statistics().rate_limit == 5.0  # a quarter of 20/s


# ---- servers with a token bucket -----------------------------------------------------------------


TOKENS, MINUTES, CALL = 30_000, 6, 400


@virtual
async def test_report_is_followed_however_late() -> None:
    limiter = RateLimiter("server", concurrency_limit=SLOTS)
    await Load(Bucket(math.inf, 0.0, nothing)).run(limiter, 2.0)
    load = Load(REPORTING["express, draft 6"]())
    await load.run(limiter, 10.0)
    assert load.used(4.0, 12.0) >= 0.97
    assert sum(at > 3.0 for at in load.throttled) == 0


@pytest.mark.parametrize(("others", "latency"), [(0.0, 0.3), (0.0, 15.0), (0.5, 2.0)])
@virtual
async def test_refilled_quota_is_used_whole(others: float, latency: float) -> None:
    """Other programs use a part of what trickles in."""
    rate = TOKENS / 60

    def headers(_: int, left: float) -> dict[str, str]:
        return {
            "x-ratelimit-limit-tokens": f"{TOKENS}",
            "x-ratelimit-remaining-tokens": f"{left:.0f}",
            "x-ratelimit-reset-tokens": f"{(TOKENS - left) / rate:.3f}s",
        }

    server = Bucket(TOKENS, rate * (1 - others), headers, cost=CALL)
    load = Load(server, latency=(0.0, latency))
    await load.run(
        RateLimiter({"tokens": f"{TOKENS}/min"}, algorithm=TokenBucket, guard=0.0),
        60 * MINUTES,
        retry=Retry(),
        profiles=[Profile("ours", ("ours",), refills=True)],
        cost=always({"tokens": CALL}),
    )
    left_by_others = TOKENS + (1 - others) * TOKENS * MINUTES
    assert len(load.admitted) * CALL > 0.97 * left_by_others
    assert len(load.throttled) < 0.1 * len(load.admitted)


def wait_of(status: int, left: float) -> dict[str, str]:
    """Return the headers of Traefik: the wait of this one request, a few milliseconds."""
    return {} if status == 200 else {"Retry-After": "0", "X-Retry-In": f"{50 * (1 - left):.6f}ms"}


def nothing(*_: float) -> dict[str, str]:
    return {}


@pytest.mark.parametrize(
    ("status", "reports", "burst", "rate"),
    [(429, True, 20, None), (429, True, 5, "20/s"), (429, False, 20, None), (503, False, 20, None)],
)
@virtual
async def test_gateway_with_a_bucket_uses_up_no_attempts(
    status: int, reports: bool, burst: int, rate: str | None
) -> None:
    load = Load(Bucket(burst, 20, wait_of if reports else nothing, status=status))
    await load.run(RateLimiter(rate, concurrency_limit=SLOTS), 20, retry=Retry())
    assert set(load.finals) == {200}
    assert len(load.admitted) >= (0.4 if reports else 0.95) * 20 * 20
    assert len(load.throttled) < (1.5 if reports else 0.8) * len(load.admitted)


@pytest.mark.parametrize("host", ["api.openai.com", "api.anthropic.com", "api.groq.com"])
def test_profiles_of_model_servers_are_refilled(host: str) -> None:
    headers = {"x-ratelimit-remaining-tokens": "1"}
    assert parse_rate_limit(200, headers, NOW, profile=profile_for(host)).refills
    assert not parse_rate_limit(200, headers, NOW).refills


@virtual
async def test_following_limiter_keeps_to_a_refilled_quota() -> None:
    def headers(remaining: int, reset: str) -> dict[str, str]:
        values = fields("x-ratelimit-", 500, remaining, reset)
        return {f"{name}-requests": value for name, value in values.items()}

    full, limiter = RateLimiter("server"), RateLimiter("server", concurrency_limit=5)
    for each, reported in ((full, headers(499, "0s")), (limiter, headers(0, "60.0s"))):
        async with Script((200, reported)).client(each) as client:
            assert (await client.get("https://api.openai.com/")).status_code == 200
    # The reset is when it is full, and tells no window.
    starts = [await visit(limiter) for _ in range(3)]
    assert starts == pytest.approx([0.48, 0.96, 1.44])

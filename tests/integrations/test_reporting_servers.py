"""How a limiter does in front of the frameworks that report their quota, in virtual time.

A known limit is used as if nothing was reported; ``rate_limit="server"`` finds the limit, and keeps
to it.
"""

import asyncio
import random
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from aiothrottle import RateLimiter
from aiothrottle._http.quotas import ServerQuotas
from aiothrottle.events import Event, QuotaMissing
from aiothrottle.headers.parse import parse_response
from aiothrottle.headers.server_clock import ServerClock
from tests.reporting_servers import LIMIT, REPORTING, Server, Silent, express_legacy, koa
from tests.virtually import now, virtual

EPOCH = 1_800_000_000.0
SECONDS, WORKERS, SLOTS = 15.0, 24, 8


class Client:
    """Sends requests by many workers, as a session does, and counts the server's answers."""

    def __init__(self, limiter: RateLimiter, server: Server, *, ahead: float, seed: int) -> None:
        self.limiter = limiter
        self.admitted: list[float] = []
        self.throttled: list[float] = []
        self._server = server
        self._ahead = ahead
        self._clock = ServerClock()
        self._quotas = ServerQuotas("at once", (), 120.0)
        self._random = random.Random(seed)

    async def run(self, seconds: float = SECONDS) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(WORKERS):
                group.create_task(self._work(now() + seconds))

    async def _work(self, ends_at: float) -> None:
        while now() < ends_at:
            async with self.limiter.throttle() as permit:
                if now() >= ends_at:
                    return
                await self._travel()
                arrived = now()
                status, headers = self._server.answer(EPOCH + self._ahead + arrived)
                (self.admitted if status == 200 else self.throttled).append(arrived)
                await self._travel()
                received = datetime.fromtimestamp(EPOCH + now(), UTC)
                limits = parse_response(status, headers, received, server=self._clock)
                self._quotas.apply(self.limiter, permit, limits)
                if limits.throttled:
                    permit.report_throttled(limits.retry_after)
                else:
                    permit.report_success()

    async def _travel(self) -> None:
        await asyncio.sleep(0.004 + 0.004 * self._random.random())

    def used(self, begin: float = 0.0, end: float = SECONDS) -> float:
        """The part of the server's limit that was used."""
        return sum(begin <= at < end for at in self.admitted) / (end - begin) / LIMIT

    @property
    def part_throttled(self) -> float:
        return len(self.throttled) / (len(self.throttled) + len(self.admitted))


CASES = pytest.mark.parametrize(
    ("name", "ahead"), [(name, ahead) for name in REPORTING for ahead in (0.0, 0.37, -3600.5)]
)


@CASES
@virtual
async def test_known_limit_is_used_whatever_is_reported(name: str, ahead: float) -> None:
    limiter = RateLimiter(LIMIT, concurrency_limit=SLOTS)
    client = Client(limiter, REPORTING[name](), ahead=ahead, seed=1)
    await client.run()
    assert client.throttled == []
    assert client.used() >= 0.97


@CASES
@virtual
async def test_reported_limit_is_found_and_kept(name: str, ahead: float) -> None:
    limiter = RateLimiter("server", concurrency_limit=SLOTS)
    client = Client(limiter, REPORTING[name](), ahead=ahead, seed=2)
    await client.run()
    assert client.part_throttled <= 0.01
    assert client.used() >= 0.85


@pytest.mark.parametrize("make", [express_legacy, koa])
@pytest.mark.parametrize("period", [2.0, 5.0, 10.0])
@pytest.mark.parametrize("slots", [SLOTS, WORKERS])
@virtual
async def test_longer_window_is_found_soon(
    make: Callable[[int, float], Server], period: float, slots: int
) -> None:
    limiter = RateLimiter("server", concurrency_limit=slots)
    client = Client(limiter, make(int(LIMIT * period), period), ahead=0.37, seed=3)
    await client.run(60.0)
    assert sum(at > 20 for at in client.throttled) == 0
    assert client.part_throttled <= 0.01
    assert client.used(20.0, 60.0) >= 0.85


@virtual
async def test_limit_that_another_client_uses_too_is_shared() -> None:
    """Half of a minute's requests are gone: what remains is used, and not exceeded."""
    server = express_legacy(100, 60.0)
    for _ in range(50):
        server.answer(EPOCH)
    client = Client(RateLimiter("100/min", concurrency_limit=SLOTS), server, ahead=0.0, seed=4)
    await client.run(59.0)
    assert client.throttled == []
    assert len(client.admitted) == 50


# ---- servers that report nothing -----------------------------------------------------------------


@virtual
async def test_silent_server_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    limiter = RateLimiter("server", concurrency_limit=SLOTS)
    events: list[Event] = []
    limiter.observe(events.append)
    client = Client(limiter, Silent(), ahead=0.0, seed=5)
    await client.run(5.0)
    assert [event for event in events if isinstance(event, QuotaMissing)] == [
        QuotaMissing(None, 20)
    ]
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "reports no limit in 20 answers" in record.getMessage()
    assert limiter.statistics().concurrency_limit == SLOTS
    # Eight at a time from the 21st on, each of 12 ms.
    assert len(client.admitted) > 5.0 / 0.013 * SLOTS / 2


@virtual
async def test_without_slots_a_silent_server_gets_one_request_at_a_time() -> None:
    limiter = RateLimiter("server")
    client = Client(limiter, Silent(), ahead=0.0, seed=6)
    await client.run(2.0)
    assert limiter.statistics().concurrency_limit == 1
    assert 2.0 / 0.016 <= len(client.admitted) <= 2.0 / 0.008


@virtual
async def test_late_report_is_followed_after_the_warning() -> None:
    limiter = RateLimiter("server", concurrency_limit=SLOTS)
    silent, reporting = Silent(), REPORTING["express, draft 6"]()
    client = Client(limiter, silent, ahead=0.0, seed=7)
    await client.run(1.0)
    later = Client(limiter, reporting, ahead=0.0, seed=8)
    await later.run(10.0)
    assert later.used(2.0, 11.0) >= 0.97
    assert sum(at > 2.0 for at in later.throttled) == 0

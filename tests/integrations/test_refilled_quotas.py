"""Quotas that a server refills steadily, with a reset at which they are full: used whole."""

import asyncio

import pytest

from aiothrottle import RateLimiter, TokenBucket
from aiothrottle._http.quotas import ServerQuotas
from aiothrottle.headers import Profile, parse_rate_limit, profile_for
from aiothrottle.permit import Permit
from tests.reading import NOW
from tests.reporting_servers import Answer
from tests.virtually import now, virtual, visit

LIMIT, MINUTES = 30_000, 10


class Refilled:
    """A server with tokens per minute that trickle in, and other programs that use a part."""

    def __init__(self, others: float) -> None:
        self.used = self.throttled = 0
        self._rate = LIMIT / 60
        self._others = others
        self._left, self._at = float(LIMIT), now()

    def answer(self, tokens: int) -> Answer:
        gained = self._rate * (1 - self._others) * (now() - self._at)
        self._left, self._at = min(LIMIT, self._left + gained), now()
        admitted = self._left >= tokens
        if admitted:
            self._left -= tokens
            self.used += tokens
        else:
            self.throttled += 1
        return 200 if admitted else 429, {
            "x-ratelimit-limit-tokens": f"{LIMIT}",
            "x-ratelimit-remaining-tokens": f"{self._left:.0f}",
            "x-ratelimit-reset-tokens": f"{(LIMIT - self._left) / self._rate:.3f}s",
        }

    @property
    def part(self) -> float:
        """The part that was used of the tokens that others left."""
        return self.used / (LIMIT + (1 - self._others) * LIMIT * MINUTES)


def report(quotas: ServerQuotas, limiter: RateLimiter, permit: Permit, answer: Answer) -> None:
    limits = quotas.parse("ours", *answer)
    quotas.apply(limiter, permit, limits)
    if limits.throttled:
        permit.report_throttled(limits.retry_after)
    else:
        permit.report_success()


async def use(server: Refilled, latency: float) -> None:
    """Have 30 workers use the server for some minutes, whose limit is known."""
    quotas = ServerQuotas("at once", (Profile("ours", ("ours",), refills=True),), 120.0)
    limiter = RateLimiter({"tokens": f"{LIMIT}/min"}, algorithm=TokenBucket, guard=0.0)

    async def work() -> None:
        while True:
            async with limiter.throttle({"tokens": 400}) as permit:
                answer = server.answer(400)
                await asyncio.sleep(latency)
                report(quotas, limiter, permit, answer)

    workers = [asyncio.create_task(work()) for _ in range(30)]
    await asyncio.sleep(60 * MINUTES)
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)


@pytest.mark.parametrize("latency", [0.3, 2.0, 15.0])
@pytest.mark.parametrize("others", [0.0, 0.5])
@virtual
async def test_refilled_quota_is_used_whole(others: float, latency: float) -> None:
    server = Refilled(others)
    await use(server, latency)
    assert server.part > 0.97
    assert server.throttled * 400 < 0.1 * server.used


@pytest.mark.parametrize("host", ["api.openai.com", "api.anthropic.com", "api.groq.com"])
def test_profiles_of_model_servers_are_refilled(host: str) -> None:
    headers = {"x-ratelimit-remaining-tokens": "1"}
    assert parse_rate_limit(200, headers, NOW, profile=profile_for(host)).refills
    assert not parse_rate_limit(200, headers, NOW).refills


@virtual
async def test_following_limiter_keeps_to_a_refilled_quota() -> None:
    quotas = ServerQuotas("at once", (), 120.0)
    limiter = RateLimiter("server", concurrency_limit=5)
    async with limiter.throttle() as permit:
        headers = {
            "x-ratelimit-limit-requests": "500",
            "x-ratelimit-remaining-requests": "0",
            "x-ratelimit-reset-requests": "60.0s",
        }
        quotas.apply(limiter, permit, quotas.parse("api.openai.com", 200, headers))
    assert not limiter._engine.limits.server_rates  # the reset tells no window
    starts = [await visit(limiter) for _ in range(3)]
    assert starts == pytest.approx([0.48, 0.96, 1.44])

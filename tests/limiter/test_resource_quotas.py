"""Specifies the quotas that a server reports: each holds for its resource alone."""

import asyncio

import pytest

from aiothrottle import KeyedRateLimiter, Permit, Rate, RateLimiter
from aiothrottle.events import QuotaUpdated
from tests.limiter.common import left_of_each, queued, together
from tests.support.observing import observed
from tests.support.virtually import visit

BOTH = {"requests": "100/s", "tokens": "10000/s"}


async def sent(limiter: RateLimiter, tokens: float, **quota: float | bool) -> Permit:
    await asyncio.sleep(0.01)  # one is sent after another
    permit = await limiter.acquire({"tokens": tokens})
    if quota:
        permit.update_quota(resource="tokens", **quota)  # type: ignore[arg-type]
    return permit


async def tokens_left(limiter: RateLimiter) -> float:
    return (await left_of_each(limiter))["tokens"]


async def test_each_quota_lasts_until_its_own_reset() -> None:
    limiter = RateLimiter(BOTH, guard=0.0)
    seen = observed(limiter)
    permit = await limiter.acquire({"tokens": 5})
    permit.update_quota(2, reset_after=60)
    permit.update_quota(30, reset_after=20, resource="tokens")
    assert seen[-2:] == [
        QuotaUpdated(None, 2, 60.0, (), "requests"),
        QuotaUpdated(None, 30, 20.0, (), "tokens"),
    ]
    assert QuotaUpdated(None, None, None, (Rate(1),)).resource == "requests"
    assert await left_of_each(limiter) == {"requests": 2, "tokens": 30}
    assert limiter.statistics().quota_remaining == 2
    assert await visit(limiter, {"requests": 0, "tokens": 15}) == 0
    assert await visit(limiter, {"tokens": 15}) == 0
    assert await visit(limiter, {"tokens": 1}) == 20
    assert await visit(limiter, {"tokens": 1}) == 60
    assert limiter.statistics().quota_remaining is None
    (await limiter.acquire({"tokens": 5})).update_quota(0, reset_after=20, resource="tokens")
    assert await visit(limiter) == 60  # without tokens it ignores their quota
    (first,) = await queued(limiter, 1, {"tokens": 1})
    assert await visit(limiter) == await first == 80  # behind one that needs tokens
    plain = RateLimiter("2/s", guard=0.0)
    permit = await plain.acquire(2)
    waiting = await queued(plain, 2)
    permit.update_quota(1, reset_after=30)
    assert await together(*waiting) == [81, 110]


async def test_tokens_sent_since_count_against_the_quota() -> None:
    limiter = RateLimiter(BOTH, guard=0.0)
    await sent(limiter, 0, remaining=1000, reset_after=60)
    permits = [await sent(limiter, tokens) for tokens in (10, 200, 30)]
    assert await tokens_left(limiter) == 760
    permits[0].update_quota(990, reset_after=59, resource="tokens")  # two were sent after it
    assert await tokens_left(limiter) == 760
    permits[1].update_quota(500, reset_after=59, resource="tokens")
    assert await tokens_left(limiter) == 470
    permits[2].update_quota(900, reset_after=58, resource="tokens")
    waiting = await sent(limiter, 300)
    await sent(limiter, 0, remaining=800, reset_after=57)  # answers no other: not of the 300
    assert await tokens_left(limiter) == 600
    waiting.update_quota(500, reset_after=57, resource="tokens")
    assert await tokens_left(limiter) == 500


async def test_first_quota_excludes_tokens_in_flight() -> None:
    limiter, plain = RateLimiter(BOTH, guard=0.0), RateLimiter("100/s", guard=0.0)
    permits = [await sent(limiter, 100) for _ in range(3)]
    permits[0].update_quota(1000, reset_after=60, resource="tokens")
    assert await tokens_left(limiter) == 800
    for tokens in (300, 0):  # whether the server gives them back is not known
        permits[0].settle({"tokens": tokens})
        assert await tokens_left(limiter) == 600
    held = [await plain.acquire() for _ in range(4)]
    held[0].release()
    held[0].update_quota(10, reset_after=60)
    assert (await plain.peek()).remaining == 7


async def test_quota_that_the_own_rate_keeps_changes_nothing() -> None:
    limiter = RateLimiter({"requests": "100/min", "tokens": "1000/min"}, guard=0.0)
    await sent(limiter, 900, remaining=100, reset_after=50)
    assert await visit(limiter, {"tokens": 100}) < 1
    assert (await limiter.peek({"tokens": 900})).retry_after == pytest.approx(60)
    await sent(limiter, 0, remaining=100, reset_after=90)
    assert (await limiter.peek({"tokens": 900})).retry_after == pytest.approx(90)


async def test_quota_that_the_own_rate_exceeds_holds_to_the_latest_reset() -> None:
    headers = {"Date": "Fri, 20 Nov 2026 12:00:00 GMT", "X-RateLimit-Limit": "60"}
    for rate, wait in (("500/s", 1.0), ("60/min", 0.0)):
        limiter = RateLimiter(rate, guard=0.0)
        for before, left, reset in ((0, 59, 60), (58, 1, 2)):
            await asyncio.sleep(before)
            permit = await limiter.acquire()
            reported = {
                "X-RateLimit-Remaining": f"{left}",
                "X-RateLimit-Reset": f"{1795176000 + reset}",
            }
            permit.report(200, headers | reported)
        await asyncio.sleep(1)
        started = await visit(limiter)
        assert await visit(limiter) - started == wait


async def test_quota_counts_without_an_own_limit_of_requests() -> None:
    limiter = RateLimiter({"tokens": "1000/s"})
    async with limiter.throttle({"tokens": 5}) as permit:
        permit.update_quota(2, reset_after=60)
    assert [await visit(limiter, {"tokens": 1}) for _ in range(3)] == [0, 0, 60]
    limiter = RateLimiter(BOTH, guard=0.0)
    limiter.update(rate_limit=None)
    async with limiter.throttle({"tokens": 5}) as permit:
        permit.update_quota(3, reset_after=60)
    assert await visit(limiter, {"tokens": 5}) == 60
    left = limiter.statistics().quota_remaining
    assert (type(left), left) == (float, 2)
    await limiter.record({"requests": 3, "tokens": 5})  # a debt
    assert await visit(limiter, {"requests": 0, "tokens": 5}) == 60
    assert await visit(limiter, {"tokens": 5}) == 120


async def test_quotas_stay_with_another_rate_and_after_a_reset() -> None:
    limiter = RateLimiter(BOTH, guard=0.0)
    permit = await sent(limiter, 5, remaining=3, reset_after=60)
    permit.update_quota(7, reset_after=60)
    limiter.update(rate_limit={"requests": "200/s", "tokens": "2000/s"})
    await limiter.reset()
    assert await left_of_each(limiter) == {"requests": 7, "tokens": 3}


async def test_quota_is_of_its_limiter_and_its_parent_alone() -> None:
    parent = RateLimiter(BOTH, guard=0.0)
    limiter = RateLimiter(parent=parent)
    permit = await limiter.acquire({"tokens": 5})
    permit.update_quota(30, reset_after=20, resource="tokens")
    assert await visit(limiter, {"tokens": 30}) == 0
    assert await visit(parent, {"tokens": 30}) == 0
    assert await visit(limiter, {"tokens": 1}) == 20
    keyed = KeyedRateLimiter(BOTH, guard=0.0)
    await sent(keyed["a"], 5, remaining=0, reset_after=60)
    assert not await keyed.peek("a", {"tokens": 1})
    assert await keyed.peek("b", {"tokens": 1})


async def test_wrong_quota_is_rejected() -> None:
    limiter, plain = RateLimiter(BOTH), RateLimiter("5/s")
    permit = await sent(limiter, 5)
    for resource in ("token", "", None):
        with pytest.raises(ValueError, match="requests or tokens, got"):
            permit.update_quota(1, 1, resource=resource)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"requests, got 'tokens'"):
        (await plain.acquire()).update_quota(1, 1, resource="tokens")
    for remaining, after, name in ((-1, 1, "remaining"), (1, -1, "reset_after")):
        with pytest.raises(ValueError, match=f"{name} must be"):
            permit.update_quota(remaining, after)
    with pytest.raises(ValueError, match="evenly must be one of True, False, got 'no'"):
        permit.update_quota(1, 1, evenly="no")  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="not held yet: no server can have reported"):
        plain.throttle().update_quota(1, 1)
    assert limiter.statistics().quota_remaining is None

"""The quotas that a server reports of several resources: each holds for its resource alone."""

import asyncio

import pytest

from aiothrottle import KeyedRateLimiter, Rate, RateLimiter
from aiothrottle.events import Event, QuotaUpdated
from aiothrottle.permit import Permit
from tests.virtually import now, virtual, visit

BOTH = {"requests": "100/s", "tokens": "10000/s"}


def limiter_of() -> RateLimiter:
    return RateLimiter(BOTH, guard=0.0)


def remaining(limiter: RateLimiter) -> dict[str, float]:
    return {name: each.remaining for name, each in limiter.statistics().resources.items()}


async def sent(limiter: RateLimiter, tokens: float) -> Permit:
    await asyncio.sleep(0.01)  # one is sent after another
    return await limiter.acquire({"tokens": tokens})


@virtual
async def test_each_quota_lasts_until_its_own_reset() -> None:
    limiter = limiter_of()
    permit = await limiter.acquire({"tokens": 5})
    permit.update_quota(2, reset_after=60)
    permit.update_quota(30, reset_after=20, resource="tokens")
    assert remaining(limiter) == {"requests": 2, "tokens": 30}
    assert await visit(limiter, {"tokens": 30}) == 0
    assert await visit(limiter, {"tokens": 1}) == 20
    assert await visit(limiter, {"tokens": 1}) == 60


@virtual
async def test_request_without_tokens_ignores_their_quota() -> None:
    limiter = limiter_of()
    permit = await limiter.acquire({"tokens": 5})
    permit.update_quota(0, reset_after=20, resource="tokens")
    assert await visit(limiter) == 0
    first = asyncio.create_task(visit(limiter, {"tokens": 1}))
    await asyncio.sleep(1)
    assert await visit(limiter) == 20  # behind one that needs tokens
    assert await first == 20


@virtual
async def test_tokens_sent_since_count_against_the_quota() -> None:
    limiter = limiter_of()
    permits = [await sent(limiter, 0)]
    permits[0].update_quota(1000, reset_after=60, resource="tokens")
    permits += [await sent(limiter, tokens) for tokens in (10, 200, 30)]
    assert remaining(limiter)["tokens"] == 760
    permits[1].update_quota(990, reset_after=59, resource="tokens")  # two were sent after it
    assert remaining(limiter)["tokens"] == 760
    permits[2].update_quota(500, reset_after=59, resource="tokens")
    assert remaining(limiter)["tokens"] == 470


@virtual
async def test_first_quota_excludes_tokens_in_flight() -> None:
    limiter = limiter_of()
    permits = [await sent(limiter, 100) for _ in range(3)]
    permits[0].update_quota(1000, reset_after=60, resource="tokens")
    assert remaining(limiter)["tokens"] == 800


@virtual
async def test_report_of_a_request_without_tokens_answers_no_other() -> None:
    limiter = limiter_of()
    (await sent(limiter, 0)).update_quota(900, reset_after=60, resource="tokens")
    waiting, other = await sent(limiter, 300), await sent(limiter, 0)
    other.update_quota(800, reset_after=59, resource="tokens")  # may not count the 300
    assert remaining(limiter)["tokens"] == 600
    waiting.update_quota(500, reset_after=59, resource="tokens")
    assert remaining(limiter)["tokens"] == 500


@virtual
async def test_settled_tokens_count_against_the_quota() -> None:
    limiter = limiter_of()
    permit = await sent(limiter, 100)
    permit.update_quota(1000, reset_after=60, resource="tokens")
    permit.settle({"tokens": 300})
    assert remaining(limiter)["tokens"] == 800
    permit.settle({"tokens": 0})  # whether the server gives them back is not known
    assert remaining(limiter)["tokens"] == 800


@virtual
async def test_even_use_spreads_tokens() -> None:
    limiter = limiter_of()
    permit = await sent(limiter, 0)
    permit.update_quota(60, reset_after=30, resource="tokens", evenly=True)
    began_at = now()
    starts = [await visit(limiter, {"tokens": 20}) - began_at for _ in range(4)]
    assert starts == pytest.approx([0, 10, 20, 30], abs=0.01)


@virtual
async def test_quota_that_the_own_rate_keeps_changes_nothing() -> None:
    limiter = RateLimiter({"requests": "100/min", "tokens": "1000/min"}, guard=0.0)
    permit = await sent(limiter, 900)
    permit.update_quota(100, reset_after=50, resource="tokens")
    assert await visit(limiter, {"tokens": 100}) < 1
    assert (await limiter.peek({"tokens": 900})).retry_after == pytest.approx(60)
    (await sent(limiter, 0)).update_quota(100, reset_after=90, resource="tokens")
    assert (await limiter.peek({"tokens": 900})).retry_after == pytest.approx(90)


@virtual
async def test_quotas_stay_with_another_rate_and_after_a_reset() -> None:
    limiter = limiter_of()
    permit = await sent(limiter, 5)
    permit.update_quota(3, reset_after=60, resource="tokens")
    permit.update_quota(7, reset_after=60)
    limiter.update(rate_limit={"requests": "200/s", "tokens": "2000/s"})
    await limiter.reset()
    assert remaining(limiter) == {"requests": 7, "tokens": 3}


@virtual
async def test_limiter_below_one_with_resources_keeps_their_quota() -> None:
    parent = limiter_of()
    limiter = RateLimiter(parent=parent)
    permit = await limiter.acquire({"tokens": 5})
    permit.update_quota(30, reset_after=20, resource="tokens")
    assert await visit(limiter, {"tokens": 30}) == 0
    assert await visit(parent, {"tokens": 30}) == 0
    assert await visit(limiter, {"tokens": 1}) == 20


@virtual
async def test_quota_of_one_key_is_not_that_of_another() -> None:
    limiter = KeyedRateLimiter(BOTH, guard=0.0)
    async with limiter.throttle("a", {"tokens": 5}) as permit:
        permit.update_quota(0, reset_after=60, resource="tokens")
    assert not await limiter.peek("a", {"tokens": 1})
    assert await limiter.peek("b", {"tokens": 1})


@virtual
async def test_event_names_the_resource() -> None:
    limiter, events = limiter_of(), list[Event]()
    limiter.observe(events.append)
    permit = await sent(limiter, 5)
    permit.update_quota(7, 30.0)
    permit.update_quota(90, 20.0, resource="tokens")
    assert events[-2:] == [
        QuotaUpdated(None, 7, 30.0, (), "requests"),
        QuotaUpdated(None, 90, 20.0, (), "tokens"),
    ]
    assert QuotaUpdated(None, None, None, (Rate(1),)).resource == "requests"


@pytest.mark.parametrize("resource", ["token", "", None])
@virtual
async def test_quota_of_an_unknown_resource_is_rejected(resource: str) -> None:
    limiter = limiter_of()
    permit = await sent(limiter, 5)
    with pytest.raises(ValueError, match="requests or tokens, got"):
        permit.update_quota(1, 1, resource=resource)
    plain = await RateLimiter("5/s").acquire()
    with pytest.raises(ValueError, match=r"requests, got 'tokens'"):
        plain.update_quota(1, 1, resource="tokens")
    assert limiter.statistics().quota_remaining is None

"""Servers that report several kinds of quota: each counts for the resource of its name."""

from typing import Any

import pytest

from aiothrottle import KeyedRateLimiter, RateLimiter
from aiothrottle._http.options import ServerQuotaUse
from aiothrottle.stores import MemoryStore
from tests.integrations.clients import ONCE, Feature, Integration, every
from tests.serving import Handler, answer

LIMITS = Feature.LIMITS

BOTH = {"requests": "5000/min", "tokens": "300000/min"}


def openai(requests: int, tokens: int, seconds: float = 60.5) -> Handler:
    return answer(
        x_ratelimit_limit_requests="5000",
        x_ratelimit_remaining_requests=str(requests),
        x_ratelimit_reset_requests=f"{seconds}s",
        x_ratelimit_limit_tokens="300000",
        x_ratelimit_remaining_tokens=str(tokens),
        x_ratelimit_reset_tokens=f"{seconds}s",
    )


def anthropic(**remaining: int) -> Handler:
    headers: dict[str, str] = {}
    for kind, left in remaining.items():
        headers |= {
            f"anthropic_ratelimit_{kind}_limit": "300000",
            f"anthropic_ratelimit_{kind}_remaining": str(left),
            f"anthropic_ratelimit_{kind}_reset": "60.5",
        }
    return answer(200, **headers)


async def send(
    integration: Integration,
    limiter: Any,  # noqa: ANN401 - with and without keys
    *script: Handler,
    **options: Any,  # noqa: ANN401 - those of the integration
) -> None:
    async with integration.serve(*script, limiter=limiter, retry=ONCE, **options) as at:
        for _ in script:
            await at.send()


def remaining(limiter: RateLimiter) -> dict[str, float]:
    return {name: each.remaining for name, each in limiter.statistics().resources.items()}


@every(LIMITS)
async def test_few_tokens_do_not_slow_requests(integration: Integration) -> None:
    limiter = RateLimiter("100/s", guard=0.0)
    await send(integration, limiter, openai(4999, 0))
    assert limiter.statistics().quota_remaining == 4999
    assert await limiter.try_acquire()


@every(LIMITS)
async def test_each_quota_counts_for_its_resource(integration: Integration) -> None:
    limiter = RateLimiter(BOTH, guard=0.0)
    await send(integration, limiter, openai(90, 700))
    assert remaining(limiter) == {"requests": 90, "tokens": 700}
    assert await limiter.try_acquire({"tokens": 700})
    assert 50 < (await limiter.try_acquire({"tokens": 1})).retry_after < 61
    assert await limiter.try_acquire()
    assert remaining(limiter) == {"requests": 88, "tokens": 0}


@every(LIMITS)
async def test_lower_report_of_a_window_counts(integration: Integration) -> None:
    limiter = RateLimiter(BOTH, guard=0.0)
    await send(integration, limiter, openai(90, 700), openai(89, 100))
    assert remaining(limiter) == {"requests": 89, "tokens": 100}


@every(LIMITS)
async def test_input_and_output_tokens_are_resources(integration: Integration) -> None:
    limits = {"requests": "50/min", "input_tokens": "30000/min", "output_tokens": "8000/min"}
    limiter = RateLimiter(limits, guard=0.0)
    report = anthropic(requests=40, tokens=3, input_tokens=500, output_tokens=60)
    await send(integration, limiter, report)
    assert remaining(limiter) == {"requests": 40, "input_tokens": 500, "output_tokens": 60}


@every(LIMITS)
async def test_quota_without_a_resource_has_no_effect(integration: Integration) -> None:
    limiter = RateLimiter({"requests": "5000/min", "images": "5/min"}, guard=0.0)
    await send(integration, limiter, openai(90, 0))
    assert remaining(limiter) == {"requests": 90, "images": 5}
    unlimited = RateLimiter()
    await send(integration, unlimited, anthropic(tokens=0))
    assert unlimited.statistics().quota_remaining is None


@pytest.mark.parametrize(("use", "tokens"), [("evenly", True), (None, False)])
@every(LIMITS)
async def test_option_of_quotas_holds_for_each(
    integration: Integration, use: ServerQuotaUse, tokens: bool
) -> None:
    limiter = RateLimiter(BOTH, guard=0.0)
    await send(integration, limiter, openai(1000, 60), server_quota=use)
    assert await limiter.try_acquire({"tokens": 1})
    wait = (await limiter.try_acquire({"tokens": 1})).retry_after
    assert (0.5 < wait < 1.5) if tokens else wait == 0.0


@every(LIMITS)
async def test_quota_of_tokens_counts_no_longer_than_a_pause(integration: Integration) -> None:
    limiter = RateLimiter(BOTH, guard=0.0)
    await send(integration, limiter, openai(5000, 0, seconds=86400.5))
    assert 115 < (await limiter.try_acquire({"tokens": 1})).retry_after <= 120


@every(LIMITS)
async def test_throttled_response_with_a_wait_sets_no_quota(integration: Integration) -> None:
    limiter = RateLimiter(BOTH, guard=0.0)
    headers = {"x_ratelimit_remaining_tokens": "0", "x_ratelimit_reset_tokens": "60.5s"}
    await send(integration, limiter, answer(429, Retry_After="1", **headers))
    assert remaining(limiter)["tokens"] == 300_000


@every(LIMITS)
async def test_each_key_has_its_quotas(integration: Integration) -> None:
    limiter = KeyedRateLimiter(BOTH, guard=0.0)
    async with integration.serve(openai(90, 700), limiter=limiter, retry=ONCE) as at:
        await at.send()
        (key,) = limiter
    assert remaining(limiter[key]) == {"requests": 90, "tokens": 700}
    assert remaining(limiter["other"]) == {"requests": 5000, "tokens": 300_000}


@every(LIMITS)
async def test_quotas_hold_beside_a_parent_with_the_resource(integration: Integration) -> None:
    parent = RateLimiter(BOTH, guard=0.0)
    limiter = RateLimiter(concurrency_limit=2, parent=parent)
    await send(integration, limiter, openai(90, 700))
    assert await limiter.try_acquire({"tokens": 700})
    assert not await limiter.try_acquire({"tokens": 1})
    assert remaining(parent) == {"requests": 4998, "tokens": 299_300}


@every(LIMITS)
async def test_quotas_hold_beside_a_shared_limit(integration: Integration) -> None:
    async with RateLimiter(BOTH, guard=0.0, store=MemoryStore(), key="model") as limiter:
        await send(integration, limiter, openai(90, 700))
        assert remaining(limiter) == {"requests": 90, "tokens": 700}


@every(LIMITS)
async def test_following_limiter_ignores_the_quota_of_tokens(integration: Integration) -> None:
    limiter = RateLimiter("server", concurrency_limit=5)
    windows = {"x_ratelimit_renewalperiod_requests": "10", "x_ratelimit_renewalperiod_tokens": "60"}
    limits = {"x_ratelimit_limit_requests": "50", "x_ratelimit_limit_tokens": "7"}
    await send(integration, limiter, answer(200, **windows, **limits))
    assert "limit=50" in repr(limiter)
    assert "limit=7" not in repr(limiter)

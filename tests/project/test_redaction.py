"""No error message shows a password of a wrong argument."""

from collections.abc import Callable
from typing import Any

import pytest

from aiothrottle import KeyedRateLimiter, RateLimiter, SharedConcurrency
from aiothrottle.aiohttp import Retry, RetryMiddleware, ThrottledSession, ThrottleMiddleware
from aiothrottle.algorithms import SlidingWindowLog
from aiothrottle.httpx import ThrottledTransport
from aiothrottle.metrics.opentelemetry import OpenTelemetryMetrics
from aiothrottle.metrics.prometheus import PrometheusMetrics
from aiothrottle.redact import redact, shown
from aiothrottle.stores import MemoryStore
from aiothrottle.stores.mongo import MongoStore
from aiothrottle.stores.redis import RedisStore
from tests.servers import imported

# Some should have been escaped in an address, and were not.
PASSWORDS = [
    "sesame",
    "ses/ame",
    "ses?ame",
    "ses#ame",
    "ses@ame",
    "ses:ame",
    "ses ame",
    "s://ame",
    "[ame",
    "ame]",
]
ADDRESSES = [
    "redis://:{}@localhost:6379/0",
    "redis://ann:{}@localhost",
    "redis://ann:{}@",
    "redis://:{}@",
    "redis://{}:x@localhost",
    "rediss://:{}@[::1]:6379",
    "mongodb://ann:{}@one:1,two:2/admin?x=y",
    "redis://localhost/0?password={}",
    "redis://localhost/0?password={}@x",
    "unix://ann:{}@/run/redis.sock",
    "ann:{}@localhost",
    ":{}@localhost:6379",
    "localhost:6379,password={}",
]
SECRET = "redis://ann:sesame@localhost"


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("password", PASSWORDS)
def test_message_shows_no_part_of_a_password(address: str, password: str) -> None:
    for text in (redact(address.format(password)), shown(address.format(password))):
        assert "ses" not in text
        assert "ame" not in text


@pytest.mark.parametrize(
    "value", [None, 5, "evenly", "10/s", ["a", 1], SlidingWindowLog("10/s")], ids=repr
)
def test_harmless_value_is_shown_unchanged(value: object) -> None:
    assert shown(value) == repr(value)


def test_other_secretive_value_shows_its_type() -> None:
    assert shown({"password": "sesame"}) == "a dict"
    assert shown([SECRET]) == "a list"
    assert shown(SECRET.encode()) == "a bytes"


CONSTRUCTORS: list[Callable[[Any], object]] = [
    RateLimiter,
    RedisStore,
    MongoStore,
    lambda secret: imported("aiothrottle.stores.memcached").MemcachedStore(secret),
    lambda secret: RateLimiter("1/s", store=secret),
    lambda secret: RateLimiter("1/s", concurrency_limit=SharedConcurrency(1), store=secret),
    lambda secret: RateLimiter("1/s", concurrency_limit=secret),
    lambda secret: RateLimiter("1/s", parent=secret),
    lambda secret: RateLimiter("1/s", burst=secret),
    lambda secret: RateLimiter("1/s", guard=secret),
    lambda secret: RateLimiter("1/s", algorithm=secret),
    lambda secret: RateLimiter("1/s", max_queue=secret),
    lambda secret: RateLimiter("1/s", store=MemoryStore(), key="k", on_store_error=secret),
    lambda secret: RateLimiter("1/s", store=MemoryStore(), key="k", max_reservation=secret),
    lambda secret: KeyedRateLimiter("1/s", store=secret),
    lambda secret: KeyedRateLimiter("1/s", overrides=secret),
    lambda secret: KeyedRateLimiter("1/s", overrides={"key": secret}),
    SharedConcurrency,
    lambda secret: ThrottledSession(RateLimiter("1/s"), session=secret),
    ThrottledSession,
    ThrottleMiddleware,
    RetryMiddleware,
    lambda secret: Retry(statuses=secret),
    lambda secret: Retry(budget=secret),
    lambda secret: Retry(should_retry=secret),
    lambda secret: Retry(attempts=secret),
    ThrottledTransport,
    lambda secret: ThrottledTransport(RateLimiter("1/s"), transport=secret),
    lambda secret: PrometheusMetrics(registry=secret),
    OpenTelemetryMetrics,
]


@pytest.mark.parametrize("make", CONSTRUCTORS)
async def test_no_constructor_shows_a_password(make: Callable[[Any], object]) -> None:
    for secret in (SECRET, {"url": SECRET}, [SECRET]):
        with pytest.raises((TypeError, ValueError)) as caught:
            make(secret)
        assert "sesame" not in str(caught.value)


def test_message_shows_the_host() -> None:
    with pytest.raises(TypeError, match=r"not 'redis://localhost'$"):
        RedisStore(SECRET)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]

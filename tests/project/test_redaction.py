"""No error about a wrong argument shows a secret: of an address it keeps scheme and hosts."""

import ast
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiothrottle import KeyedRateLimiter, RateLimiter, SharedConcurrency
from aiothrottle.aiohttp import Retry, RetryMiddleware, ThrottledSession, ThrottleMiddleware
from aiothrottle.httpx import ThrottledTransport
from aiothrottle.metrics.opentelemetry import OpenTelemetryMetrics
from aiothrottle.metrics.prometheus import PrometheusMetrics
from aiothrottle.stores import MemoryStore
from aiothrottle.stores.mongo import MongoStore
from aiothrottle.stores.redis import RedisStore
from tests.support.servers import imported

SECRET = "redis://ann:sesame@localhost"

SOUND = {
    "redis://h": "redis://h",
    "redis://h:6379/0": "redis://h:6379",
    "rediss://me:secret@h:6379/0?password=secret": "rediss://h:6379",
    "redis://h?password=secret": "redis://h",
    "redis://h#secret": "redis://h",
    "redis://:secret@[::1]:6379": "redis://[::1]:6379",
    "redis://:sec@ret@h": "redis://h",
    "mongodb://me:secret@a:1,b:2/db": "mongodb://a:1,b:2",
    "mongodb+srv://me:secret@a.example.org": "mongodb+srv://a.example.org",
    "redis:///0": "redis://",
    "unix://ann:secret@/run/redis.sock": "unix://",
    "redis://:secret@": "redis://",
    "nonsense://x": "nonsense://x",
    "nowhere": "nowhere",
    "localhost:6379": "localhost:6379",
}
IN_DOUBT = [
    *(":sec/ret@h", ":sec?ret@h", "me:12/secret@h", ":sec ret@h", ":secret", "me:secret/0"),
    *("[sec/ret@h", "\nsecret@h", "h:6379\nsecret", "h,:secret@h/@", ":sec#ret@h"),
]
BARE = ["me:sesame@h", "sesame@h", "me:secret", "h:6379,password=x"]


def shown(address: str) -> str:
    """Return the address as the error of a store shows it that was given text for a client."""
    with pytest.raises(TypeError) as caught:
        RedisStore(address)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    return str(ast.literal_eval(str(caught.value).rpartition(", not ")[2]))


def test_address_is_shown_without_its_secrets() -> None:
    assert {address: shown(address) for address in SOUND} == SOUND
    assert {shown(f"redis://{rest}") for rest in IN_DOUBT} == {"redis://***"}
    assert {shown(text) for text in BARE} == {"***"}


parts = st.text("s/?#@:[]%, .1", max_size=6)


@given(st.sampled_from(["redis://", "mongodb://", ""]), parts, parts, parts, parts)
def test_truncated_password_is_never_shown(
    scheme: str, user: str, before: str, after: str, tail: str
) -> None:
    assert "SECRET" not in shown(f"{scheme}{user}:{before}SECRET{after}@host{tail}")


def calls(secret: Any) -> Iterator[Callable[[], object]]:
    """Yield each call that may be given the secret in place of an argument."""
    memcached = imported("aiothrottle.stores.memcached").MemcachedStore
    for kind in (RateLimiter, SharedConcurrency, RedisStore, MongoStore, memcached):
        yield partial(kind, secret)
    for kind in (ThrottledSession, ThrottledTransport, ThrottleMiddleware, RetryMiddleware):
        yield partial(kind, secret)
    for name in ("store", "parent", "burst", "guard", "algorithm", "max_queue"):
        yield partial(RateLimiter, "1/s", **{name: secret})
    yield partial(RateLimiter, "1/s", concurrency_limit=secret)
    yield partial(RateLimiter, "1/s", concurrency_limit=SharedConcurrency(1), store=secret)
    for name in ("on_store_error", "max_reservation"):
        yield partial(RateLimiter, "1/s", store=MemoryStore(), key="k", **{name: secret})
    yield partial(KeyedRateLimiter, "1/s", store=secret)
    for overrides in (secret, {"key": secret}):
        yield partial(KeyedRateLimiter, "1/s", overrides=overrides)
    for name in ("statuses", "budget", "should_retry", "attempts"):
        yield partial(Retry, **{name: secret})
    yield partial(ThrottledSession, RateLimiter("1/s"), session=secret)
    yield partial(ThrottledTransport, RateLimiter("1/s"), transport=secret)
    yield partial(PrometheusMetrics, registry=secret)
    yield partial(OpenTelemetryMetrics, secret)


async def test_no_constructor_shows_a_password() -> None:
    secrets = (SECRET, {"url": SECRET}, [SECRET])
    for call in (call for secret in secrets for call in calls(secret)):
        with pytest.raises((TypeError, ValueError)) as caught:
            call()
        assert "sesame" not in str(caught.value)

"""Wrong arguments, methods and copies: an error at once, which says what to write instead."""

import copy
import importlib
import inspect
import math
import pickle
import re
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import httpx
import pytest

from aiothrottle import (
    AdaptiveRate,
    Cooldown,
    KeyedRateLimiter,
    Rate,
    RateLimiter,
    Retry,
    SlidingWindowLog,
    TokenBucket,
    WaitUntil,
)
from aiothrottle.aiohttp import ThrottledSession, throttled_session
from aiothrottle.httpx import ThrottledTransport
from aiothrottle.keyed import LimiterOptions
from aiothrottle.stores import MemoryStore
from tests.limiter.common import Unchecked
from tests.support.virtually import counts

LIMITER = RateLimiter(5)
BOTH = {"requests": "3/s", "tokens": "10/s"}

V, T = ValueError, TypeError

WRONG_LIMITS: list[tuple[Unchecked, type[Exception], str]] = [
    *(({"rate_limit": each}, V, "rate") for each in ("fast", ["10/s", "x"])),
    *(({"rate_limit": each}, T, "rate") for each in (b"10/s", {"10/s"})),
    *(({"rate_limit": ["10/s", each]}, T, "rate") for each in (None, True)),
    ({"rate_limit": []}, V, "empty list"),
    ({"rate_limit": "-1/s"}, V, "a rate must be above zero, without a sign"),
    *(({"concurrency_limit": each}, V, "concurrency_limit must be a whole") for each in (0, -1)),
    *(({"concurrency_limit": each}, T, "concurrency_limit") for each in (1.5, 2.0, True, "10")),
    *(({"rate_limit": 10, "guard": each}, V, "guard must be") for each in (-0.1, math.nan)),
    *(({"rate_limit": 10, "guard": each}, T, "guard must be") for each in (True, "1")),
    *(({"guard": each}, V, "guard .*say.? how a rate_limit is used") for each in (0.1, "auto")),
    ({"rate_limit": "10/min", "guard": 61}, V, "at most the period of the rate, 60 s"),
    ({"rate_limit": ["10/min", "1/s"], "guard": 2}, V, "period of the rate, 1 s, got 2"),
    ({"rate_limit": 10, "max_queue": 0}, V, "max_queue must be a whole number"),
    ({"rate_limit": 10, "clock": 5}, T, "clock must be a function that returns seconds, got 5"),
    ({"rate_limit": 10, "parent": "10/s"}, T, "parent must be a RateLimiter, got '10/s'"),
    # The burst
    ({"rate_limit": "10/s", "burst": 20}, V, r"burst=20 .*algorithm=TokenBucket\(burst=20\)"),
    ({"rate_limit": ["10/s", "20/min"], "burst": 15}, V, "burst=15"),
    *(({"rate_limit": 10, "burst": each}, V, "burst") for each in (0, 0.5, -1, math.nan)),
    *(({"rate_limit": 10, "burst": each}, T, "burst") for each in ("5", True, {"tokens": 2})),
    ({"rate_limit": 9, "algorithm": TokenBucket(burst=8), "burst": 5}, V, "two bursts: burst=5"),
    ({"burst": 5}, V, "burst"),
    ({"rate_limit": "server", "burst": 0}, V, "burst"),
    ({"rate_limit": "server", "burst": "1"}, T, "burst"),
    # The algorithm
    ({"algorithm": SlidingWindowLog}, V, "rate_limit"),
    ({"algorithm": TokenBucket(burst=3)}, V, "rate"),
    ({"rate_limit": 10, "algorithm": SlidingWindowLog(5)}, V, "two rates"),
    ({"rate_limit": ["1/s", "2/s"], "algorithm": TokenBucket(5)}, V, "two rates"),
    ({"rate_limit": "1/s", "algorithm": Cooldown(3, 60)}, V, "rate"),
    *(({"rate_limit": 10, "algorithm": each}, T, "algorithm") for each in ("bucket", int, 3)),
    ({"algorithm": "TokenBucket"}, T, "`from aiothrottle import TokenBucket`, not a name"),
    ({"rate_limit": 10, "algorithm": WaitUntil}, T, "give an instance, and no rate_limit"),
    ({"rate_limit": "server", "guard": -1}, V, "guard"),
    ({"rate_limit": "server", "guard": "Auto"}, T, "guard"),
    ({"rate_limit": "server", "algorithm": WaitUntil(1, 2, 3)}, V, "two rates"),
    ({"rate_limit": "server", "algorithm": SlidingWindowLog(20)}, V, "rates: rate_limit and"),
    ({"rate_limit": "server", "algorithm": Cooldown}, T, "give an instance"),
    *(
        ({"rate_limit": AdaptiveRate(10, 1, 100), **each}, V, "algorithm of its own")
        for each in ({"burst": 1}, {"guard": 0.1}, {"guard": "auto"}, {"algorithm": TokenBucket})
    ),
    # Resources
    ({"rate_limit": {}}, V, "rate_limit is an empty mapping; write a rate for each"),
    ({"rate_limit": {1: "3/s"}}, T, "a resource must have a name, a text, got 1"),
    ({"rate_limit": {1: "3/s"}, "burst": 2}, T, "a resource must have a name, a text, got 1"),
    ({"rate_limit": {"": "3/s"}}, T, "a resource must have a name, a text, got ''"),
    ({"rate_limit": {"a": "3 rpx"}}, V, "the resource 'a': "),
    ({"rate_limit": {"a": None}}, T, "the resource 'a': None is not a rate"),
    ({"rate_limit": {"a": []}}, V, "the resource 'a': rate_limit is an empty list"),
    ({"rate_limit": {"a": (1, 2)}}, T, "a rate is not a tuple"),
    ({"rate_limit": {"a": AdaptiveRate(1, 1, 2)}}, T, "the resource 'a': .*is not a rate"),
    ({"rate_limit": BOTH, "burst": 2}, T, "burst must be a mapping of the resources"),
    ({"rate_limit": BOTH, "burst": {"b": 2}}, V, "burst may have the resources"),
    ({"rate_limit": BOTH, "burst": {"tokens": 0}}, V, "the burst of 'tokens' must"),
    ({"rate_limit": BOTH, "burst": {"tokens": 20}}, V, "the resource 'tokens': burst"),
    ({"rate_limit": 1, "store": MemoryStore(), "key": 7}, T, "a key is a text, .*not 7"),
    ({"rate_limit": 1, "store": MemoryStore(), "key": ()}, T, "a key is a text, .*not .."),
]


@pytest.mark.parametrize(("arguments", "error", "named"), WRONG_LIMITS)
@pytest.mark.parametrize("kind", [RateLimiter, KeyedRateLimiter])
def test_wrong_limit_is_named(
    kind: Callable[..., object], arguments: Unchecked, error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named):
        kind(**arguments)


@pytest.mark.parametrize(
    ("overrides", "error", "message"),
    [
        ({"a": {"rate_limit": "slow"}}, V, "of 'a': cannot read 'slow'"),
        ({"a": {"rate_limit": 3, "burst": "x"}}, T, "of 'a': burst"),
        ({"a": {"rates": 1}}, T, "unknown argument 'rates' in the override of 'a': a RateLimiter"),
        *((each, T, "overrid") for each in ({"a": "10/s"}, {"a": None}, ["a"])),
    ],
)
def test_wrong_override_is_named(
    overrides: Unchecked, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        KeyedRateLimiter("1/s", overrides=overrides)


def test_tuple_is_rejected_as_a_rate_limit() -> None:
    for given, write in (
        ((0.5, 2.5), "'0.5/2.5s'"),
        (("10/s", "100/min"), "['10/s', '100/min']"),
        ((10, 60, 3600), "[10, 60, 3600]"),
        ((), "[]"),
    ):
        for kind in (RateLimiter, KeyedRateLimiter, LIMITER.update):
            call: Unchecked = kind
            with pytest.raises(TypeError, match=re.escape(f"got {given!r}; write {write} ")):
                call(rate_limit=given)


session = partial(ThrottledSession, LIMITER)
make_session = partial(throttled_session, LIMITER)
transport = partial(ThrottledTransport, LIMITER)


@pytest.mark.parametrize(
    ("make", "positional", "arguments", "message"),
    [
        (RateLimiter, (10, 60), {}, "got 60 as well: write RateLimiter('10/60s') or concurrency_l"),
        (RateLimiter, ("10/s", 5), {}, "got 5 as well: write concurrency_limit=5"),
        (RateLimiter, (10, 60, None), {}, "got 60, None as well: write RateLimiter('10/60s')"),
        # The names of other libraries: those of `hints.toml` are read alike.
        (RateLimiter, (), {"max_rate": 10, "time_period": 60}, "write RateLimiter('10/60s')"),
        (RateLimiter, (10,), {"time_period": 0.5}, "write RateLimiter('10/0.5s')"),
        (RateLimiter, (), {"max_rate": 10}, "write RateLimiter(10) for 10 per second, or "),
        (RateLimiter, ("10/s",), {"period": 60}, "write the period into the rate, such as "),
        (RateLimiter, (), {"rate": "10/s"}, "has no argument 'rate'; write rate_limit="),
        (RateLimiter, (), {"rate_limit": 10, "period": 60}, "write RateLimiter('10/60s')"),
        (RateLimiter, (Rate(9), Rate(5)), {}, "RateLimiter([Rate(limit=9, period=1.0), Rate(lim"),
        (RateLimiter, ("9/min", "100/h"), {}, "write RateLimiter(['9/min', '100/h'])"),
        (RateLimiter, (), {"quotas": []}, "write rate_limit={'requests': '60/min',"),
        (KeyedRateLimiter, (), {"per_second": 5}, "write rate_limit=, such as '5/s'"),
        (session, (), {"retry_options": Retry()}, "write retry=Retry(attempts=3)"),
        (Retry, (3,), {"start_timeout": 0.1}, "write backoff=, in seconds"),
        (transport, (), {"timeout": 5}, "write AsyncClient(timeout=...)"),
        (session, (), {"rate_limit": "10/s"}, "write it into the limiter, such as RateLimiter("),
        # all keys of a limiter, other names, and slips of the pen
        (KeyedRateLimiter, (10, 60), {}, "write KeyedRateLimiter('10/60s') or"),
        (RateLimiter, (10,), {"concurency_limit": 5}, "did you mean 'concurrency_limit'?"),
        (RateLimiter, (10,), {"zzz": 5}, "RateLimiter has no argument 'zzz'"),
        (KeyedRateLimiter, (10,), {"speed": 5}, "no argument 'speed'"),
        (Retry, (), {"atempts": 5}, "did you mean 'attempts'?"),
        (Rate, ("10/s",), {}, "write Rate.parse('10/s')"),
        (session, (), {"timout": 5}, "ClientSession has none either; did you mean 'timeout'?"),
        (session, (), {"colour": 5}, "'colour', and aiohttp.ClientSession has none either"),
        (make_session, (), {"timout": 5}, "throttled_session has no argument 'timout', and aioh"),
    ],
)
def test_error_says_what_to_write_instead(
    make: Unchecked, positional: tuple[object, ...], arguments: Unchecked, message: str
) -> None:
    with pytest.raises(TypeError) as caught:
        make(*positional, **arguments)
    assert message in str(caught.value)


def test_type_checker_knows_the_arguments_of_all_keys() -> None:
    arguments = inspect.signature(RateLimiter).parameters
    own = {"rate_limit", "positional", "concurrency_limit", "parent"}
    assert [*LimiterOptions.__annotations__] == [it for it in arguments if it not in own]
    with pytest.raises(TypeError, match="max_queue"):
        KeyedRateLimiter("1/s", max_queue="9")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="did you mean 'max_queue'"):
        KeyedRateLimiter("1/s", max_que=9)  # type: ignore[call-arg]


async def test_method_of_another_library_leads_to_ours() -> None:
    for name, message in (
        ("has_capacity", "; write await limiter.peek(cost)"),  # aiolimiter
        ("try_acquire_async", "; write await limiter.acquire(), or "),  # pyrate-limiter
        ("release", "; write permit.release(), of the permit that "),  # asyncio.Semaphore
        ("close", "; write await limiter.aclose()"),  # the article
        ("report", "; write permit.report(status, headers)"),  # of a permit here
    ):
        with pytest.raises(AttributeError, match=re.escape(message)):
            getattr(LIMITER, name)
    wrong: Any = LIMITER
    async with httpx.AsyncClient(transport=wrong) as client:
        with pytest.raises(AttributeError, match="write transport=ThrottledTransport"):
            await client.get("http://127.0.0.1/")


async def test_name_in_place_of_a_cost_leads_to_keys() -> None:
    wrong: Any = "books"
    with pytest.raises(TypeError, match="got 'books'; for a limit of each name: KeyedRateLimiter"):
        await LIMITER.try_acquire(wrong)


def test_misspelt_method_is_still_corrected_by_the_traceback() -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(LIMITER, "throtle")  # noqa: B009 - type checkers know better
    assert str(caught.value) == "'RateLimiter' object has no attribute 'throtle'"
    # From these a traceback has its "Did you mean: 'throttle'?".
    assert (caught.value.name, caught.value.obj) == ("throtle", LIMITER)
    assert "concurrency_limit" in inspect.signature(RateLimiter).parameters
    assert "attempts" in inspect.signature(Retry).parameters
    assert pickle.loads(pickle.dumps(Retry(attempts=3))) == Retry(attempts=3)


def test_missing_driver_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, driver, extra in (
        ("httpx", "httpx", "httpx"),
        ("httpx2", "httpx2", "httpx2"),
        ("stores.redis", "redis.asyncio", "redis"),
        ("stores.mongo", "pymongo", "mongodb"),
        ("stores.memcached", "emcache", "memcached"),
    ):
        monkeypatch.delitem(sys.modules, f"aiothrottle.{module}", raising=False)
        monkeypatch.setitem(sys.modules, driver, None)
        message = rf"pip install 'aiothrottle-client\[{extra}\]'"
        with pytest.raises(ModuleNotFoundError, match=message) as raised:
            importlib.import_module(f"aiothrottle.{module}")
        assert raised.value.name == driver.partition(".")[0]
        monkeypatch.undo()


def test_plain_with_raises() -> None:
    limiters: list[Unchecked] = [LIMITER, KeyedRateLimiter(1), ThrottledSession("1/s")]
    for made in limiters:
        kind = type(made).__name__
        name = "session" if kind == "ThrottledSession" else "limiter"
        write = f"write `async with {kind}(...) as {name}:`"
        with pytest.raises(TypeError, match=re.escape(write)), made:
            pass


async def test_copy_is_rejected_and_points_to_stores() -> None:
    limiter, keyed = RateLimiter("10/s", concurrency_limit=2), KeyedRateLimiter("10/s")
    with_store = RateLimiter("10/s", store=MemoryStore(), key="a")
    pickles = [partial(pickle.dumps, protocol=n) for n in range(pickle.HIGHEST_PROTOCOL + 1)]
    copies: list[Callable[[Any], object]] = [copy.copy, copy.deepcopy, *pickles]
    async with limiter.throttle() as permit, limiter.throttle(2, timeout=5) as other:
        for make_copy in copies:
            for each in (limiter, RateLimiter(parent=limiter), with_store, keyed, keyed["a"]):
                kind = type(each).__name__
                with pytest.raises(TypeError, match=rf"^a {kind} cannot be .* store= and key= .*"):
                    make_copy(each)
            for held in (permit, other):
                with pytest.raises(TypeError, match=r"^a Permit cannot be"):
                    make_copy(held)
        assert counts(limiter) == (2, 0)
    assert counts(limiter) == (0, 0)

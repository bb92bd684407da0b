"""The limits of a run: their options, and the limiters and the store that are made of them."""

import argparse
import asyncio
import math
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final, NamedTuple, TypeAlias, cast
from urllib.parse import urlsplit

from aiothrottle import llm
from aiothrottle._checks import number, redact
from aiothrottle._http.options import Options
from aiothrottle.algorithms import SlidingWindowLog, TokenBucket
from aiothrottle.amounts import REQUESTS
from aiothrottle.cli.advice import usual_guard
from aiothrottle.cli.options import duration, filled, option, rate, whole_number
from aiothrottle.headers import PROFILES as VENDORS
from aiothrottle.headers import Profile
from aiothrottle.keyed import AnyLimiter, KeyedRateLimiter
from aiothrottle.limiter import RateLimiter
from aiothrottle.rate import Rate, split_rates
from aiothrottle.retry import Retry
from aiothrottle.stores import SQLiteStore, Store

Rates: TypeAlias = Sequence[Rate] | Mapping[str, Sequence[Rate]]
"""The rates of a limiter, or of each of its resources."""

_MOST_AT_ONCE = 10_000
# URLs read ahead while others wait for their host.
_AHEAD = 1000
_ALL, _HOSTS = "all requests", "each host"
_RESOURCE = re.compile(r"\w[\w.-]*")
# Tokens that are reserved for an output of unknown length.
_OUTPUT = 1000
# Seconds in which a store has to close its connection.
_CLOSING = 1.0


class _Profile(NamedTuple):
    """An API whose requests are charged and settled by their tokens, whatever the host is."""

    #: How the headers are parsed.
    headers: Profile
    options: Callable[..., llm.LLMOptions]
    #: The resources in which requests are charged: that of the input, and that of the output.
    resources: tuple[str, ...]


_PROFILES = {
    "anthropic": _Profile(VENDORS["Anthropic"], llm.anthropic, ("input_tokens", "output_tokens")),
    "openai": _Profile(VENDORS["OpenAI"], llm.openai, ("tokens",)),
}


NamedRate: TypeAlias = tuple[str | None, Rate]
"""A rate, after the resource that it limits; None: requests, and there are no others."""


def _named_rates(text: str) -> list[NamedRate]:
    """Parse one rate or several, separated by commas or semicolons, each with or without a name."""
    return [_named_rate(part) for part in split_rates(text)]


def _named_rate(text: str) -> NamedRate:
    name, equals, rest = text.rpartition("=")
    if not equals:
        return None, rate(text)
    name = name.strip()
    if not _RESOURCE.fullmatch(name):
        raise argparse.ArgumentTypeError(
            f"must be a rate such as 10/s, or with its resource, tokens=200000/min, got {text!r}"
        )
    return name, rate(rest)


def _by_resource(option_: str, given: Iterable[NamedRate]) -> Rates:
    """Return the rates of each resource, or a list if none is named."""
    named: dict[str, list[Rate]] = {}
    unnamed: list[Rate] = []
    for resource, each in given:
        (unnamed if resource is None else named.setdefault(resource, [])).append(each)
    if named and unnamed:
        first = next(iter(named))
        raise ValueError(
            f"only some of the rates of {option_} name a resource, such as {first!r}: name that of "
            "each, such as requests=500/min"
        )
    return named or unnamed


def of_requests(rates: Rates) -> Sequence[Rate]:
    """Return the rates of requests, without those of other resources."""
    return rates.get(REQUESTS, ()) if isinstance(rates, Mapping) else rates


@dataclass(frozen=True, slots=True, repr=False)
class StoreAddress:
    """The address of a store, and its beginning, which tells the store."""

    url: str
    prefix: str

    def __str__(self) -> str:
        """Return the address without its secrets."""
        return self.url if self.prefix == _FILE else redact(self.url)

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Store]:
        """Connect, check that the store responds, yield it, and close it.

        Raises:
            ImportError: The driver is not installed.
            StoreUnavailable: The store does not respond.
            ValueError: The driver cannot read the URL.
        """
        async with _OPENERS[self.prefix](self.url) as store:
            await store.peek("aiothrottle fetch", SlidingWindowLog(1))
            yield store


def _address(text: str) -> StoreAddress:
    """Parse the address of a store: ``sqlite:FILE``, or a URL with the options of its driver."""
    prefix = next((it for it in _OPENERS if text.lower().startswith(it)), "")
    address = StoreAddress(text, prefix)
    if not prefix:
        raise argparse.ArgumentTypeError(
            f"the URL of a store must begin with one of {', '.join(_OPENERS)}, got {str(address)!r}"
        )
    if text.lower().startswith("sqlite://"):
        raise argparse.ArgumentTypeError(
            f"{address} cannot be read: write sqlite:FILE, such as sqlite:limits.db"
        )
    if str(address).endswith("***"):
        # A driver would take a part of the password for the host, and show it in its error.
        raise argparse.ArgumentTypeError(
            f"{address} cannot be read: write {prefix}USER:PASSWORD@HOST:PORT, "
            "with / ? # @ in the password as %2F %3F %23 %40"
        )
    return address


class Limiters(NamedTuple):
    """The limiters of a run: the one that each request acquires, and all by name."""

    to_wait_for: AnyLimiter
    named: dict[str, AnyLimiter]


@dataclass(kw_only=True)
class Limits:
    """The limits of a run.

    Attributes:
        rate: rate limit of all requests: 10 (per second), 10/s, 500/min, 1/250ms; several are all
            kept: 10/s,500/min, or repeat the option; with names, requests=500/min and
            tokens=200000/min, a cost names its resources (default: none)
        concurrency: limit of concurrent requests (default: %(default)s)
        per_host: rate limit of each host, or of each key in a list of requests; several are all
            kept (default: none)
        per_host_concurrency: limit of concurrent requests to each host (default: that of
            --concurrency)
        burst: how many requests may be sent back to back; after that they are sent evenly, at the
            average of the fastest rate (default: as many as the rates allow)
        guard: safety margin added to the periods of all rates, since network delays vary (default:
            5% of the shortest, at most 0.05)
        store: share the rates with other runs through this store: sqlite:FILE for runs on one
            machine, redis://HOST:PORT, rediss://, mongodb://, memcached:// (default: this run
            counts them itself)
        store_key: runs with the same name share their rates (default: fetch)
        profile: charge calls of language models their tokens, settle them by the responses, and
            retry them as the SDKs do; needs --rate tokens=200000/min for openai, and rates of
            input_tokens and output_tokens for anthropic

    Raises:
        ValueError: They contradict each other, or one has no effect.
    """

    rate: list[list[NamedRate]] = option("RATE", _named_rates)
    concurrency: int = option("N", whole_number(_MOST_AT_ONCE), 10)
    per_host: list[list[NamedRate]] = option("RATE", _named_rates)
    per_host_concurrency: int | None = option("N", whole_number(_MOST_AT_ONCE))
    burst: int | None = option("N", whole_number(1_000_000))
    guard: float | None = option("SECONDS", duration)
    store: StoreAddress | None = option("URL", _address)
    store_key: str | None = option("NAME", filled)
    profile: str | None = option("", choices=[*_PROFILES])

    def __post_init__(self) -> None:
        """Reject limits without effect, and impossible combinations."""
        self.rates: Rates = _by_resource("--rate", chain(*self.rate))
        self.host_rates: Rates = _by_resource("--per-host", chain(*self.per_host))
        for given, why in (
            (self.guard, "--guard stretches the period of a rate"),
            (self.burst, "--burst bounds the use of a rate"),
            (self.store, "--store counts a rate"),
        ):
            if given is not None and not (self.rates or self.host_rates):
                raise ValueError(f"{why}: give --rate or --per-host")
        if self.store is None and self.store_key is not None:
            raise ValueError("--store-key names the limits in a store: give --store")
        if self.store is not None and self.rates and self.keyed:
            raise ValueError(
                "a store counts either all requests or those of each host: "
                "give either --rate or --per-host"
            )
        named = isinstance(self.rates, Mapping)
        if named and self.host_rates and not isinstance(self.host_rates, Mapping):
            raise ValueError(
                "the rates of --rate name resources, and those of --per-host do not: name them "
                "too, such as --per-host requests=5/s"
            )
        self._check_burst()
        if self.guard is None:
            self.guard = usual_guard(each for _, each in chain(*self.rate, *self.per_host))
        self._make(None)  # which checks the rest

    def _check_burst(self) -> None:
        """Reject a burst that a rate never admits, or that no rate bounds."""
        for option_, rates in (("--rate", self.rates), ("--per-host", self.host_rates)):
            if self.burst is None or not rates:
                continue
            if not of_requests(rates):
                raise ValueError(f"--burst bounds requests: give {option_} requests=10/s")
            least = min(of_requests(rates), key=lambda rate: rate.limit)
            if self.burst > least.limit:
                raise ValueError(
                    f"--burst {self.burst} is more than {option_} {least} admits at once: give "
                    f"{number(least.limit)} at the most"
                )

    @property
    def keyed(self) -> bool:
        """Whether each host has limits of its own."""
        return bool(self.per_host) or self.per_host_concurrency is not None

    @property
    def resources(self) -> dict[str, float]:
        """The resources of the rates, with the least limit of each; none: requests alone count."""
        least: dict[str, float] = {}
        for rates in (self.rates, self.host_rates):
            for name, each in rates.items() if isinstance(rates, Mapping) else ():
                least[name] = min(least.get(name, math.inf), *(rate.limit for rate in each))
        return least

    @property
    def workers(self) -> int:
        """The number of workers, each with one URL."""
        # With a store the hosts have no parent limiter: the number of workers is the limit then.
        ahead = self.keyed and self.store is None
        return max(self.concurrency, _AHEAD) if ahead else self.concurrency

    def options(self, base: Retry) -> Options:
        """Return the options of the integration that sends, by the profile.

        Args:
            base: Its attempts and waits are kept; what is retried is up to the profile.

        Raises:
            ValueError: A resource of the profile has no limit.
        """
        if self.profile is None:
            return Options(retry=base)
        headers, make, resources = _PROFILES[self.profile]
        limits = self.resources
        if not limits.keys() >= {*resources}:
            wanted = " ".join(f"--rate {resource}=200000/min" for resource in resources)
            raise ValueError(
                f"--profile {self.profile} charges {' and '.join(resources)}: give their limits, "
                f"such as --rate requests=500/min {wanted}"
            )
        # No request is charged more than the least limit before its response.
        most = [max(1, int(limits[resource])) for resource in resources]
        own = make(most_tokens=most[0], default_output=min(_OUTPUT, most[-1]))
        retry = replace(own["retry"], attempts=base.attempts, max_retry_after=base.max_retry_after)
        profiles = [replace(headers, hosts=("*",))]
        return Options(cost=own["cost"], settle=own["settle"], retry=retry, profiles=profiles)

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Limiters]:
        """Open the limiters with their store, yield them, and close them.

        Raises:
            StoreUnavailable: The store does not respond.
        """
        async with AsyncExitStack() as stack:
            store = None
            if self.store is not None:
                store = await stack.enter_async_context(self.store.open())
            limiters = self._make(store)
            for limiter in limiters.named.values():
                await stack.enter_async_context(limiter)
            yield limiters

    def _make(self, store: Store | None) -> Limiters:
        shared: dict[str, Any] = {}
        if store is not None:
            shared = {"store": store, "key": self.store_key or "fetch"}
        of_hosts = self._rated(self.host_rates)
        of_hosts["concurrency_limit"] = self.per_host_concurrency
        if shared and self.keyed:
            hosts = KeyedRateLimiter(**of_hosts, **shared)
            return Limiters(hosts, {_HOSTS: hosts})
        everything = RateLimiter(
            **self._rated(self.rates), concurrency_limit=self.concurrency, **shared
        )
        if not self.keyed:
            return Limiters(everything, {_ALL: everything})
        hosts = KeyedRateLimiter(**of_hosts, parent=everything)
        return Limiters(hosts, {_ALL: everything, _HOSTS: hosts})

    def _rated(self, rates: Rates) -> dict[str, Any]:
        """Return the arguments of a limiter about its rates."""
        if not rates:
            return {"guard": 0.0}
        # The budgets of language models trickle back all the time.
        algorithm = None if self.profile is None else TokenBucket
        bounds_requests = isinstance(rates, Mapping) and self.burst is not None
        burst = {REQUESTS: self.burst} if bounds_requests else self.burst
        return {"rate_limit": rates, "burst": burst, "guard": self.guard, "algorithm": algorithm}


# ---- stores --------------------------------------------------------------------------------------


@asynccontextmanager
async def _redis(url: str) -> AsyncGenerator[Store]:
    from aiothrottle.stores.redis import RedisStore  # first: its error says what to install

    # isort: split
    from redis.asyncio import Redis
    from redis.exceptions import RedisError

    try:
        client: Redis = cast("Any", Redis).from_url(url)  # partly untyped
    except RedisError as error:
        raise ValueError(str(error)) from error
    async with client:
        yield RedisStore(client)


@asynccontextmanager
async def _mongo(url: str) -> AsyncGenerator[Store]:
    from aiothrottle.stores.mongo import MongoStore  # first

    # isort: split
    from pymongo import AsyncMongoClient
    from pymongo.errors import ConfigurationError, InvalidURI

    try:
        client = AsyncMongoClient[dict[str, object]](url, retryWrites=False)
    except (ConfigurationError, InvalidURI) as error:
        raise ValueError(str(error)) from error
    async with client:
        yield MongoStore(client)


@asynccontextmanager
async def _memcached(url: str) -> AsyncGenerator[Store]:
    from aiothrottle.stores.memcached import MemcachedStore  # first

    # isort: split
    import emcache

    parts = urlsplit(url)
    address = emcache.MemcachedHostAddress(parts.hostname or "localhost", parts.port or 11211)
    client = await emcache.create_client([address])
    try:
        yield MemcachedStore(client)
    finally:
        # A task of emcache 1.3 that connects may lose its cancellation. `close` waits for it, and
        # may lose its own: hence not `asyncio.wait_for`, which would wait on, and more than one.
        closing = asyncio.create_task(client.close())
        try:
            await asyncio.wait({closing}, timeout=_CLOSING)
            while not closing.done():
                closing.cancel()
                await asyncio.wait({closing}, timeout=_CLOSING / 10)
        finally:
            closing.cancel()  # its error, too, is of no use any more


_FILE: Final = "sqlite:"
_OPENERS: Final[dict[str, Callable[[str], AbstractAsyncContextManager[Store]]]] = {
    _FILE: lambda url: aclosing(SQLiteStore(url[len(_FILE) :])),
    "redis://": _redis,
    "rediss://": _redis,
    "mongodb://": _mongo,
    "mongodb+srv://": _mongo,
    "memcached://": _memcached,
}

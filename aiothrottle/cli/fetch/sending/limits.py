"""The limits of a run, and the store through which several runs share them."""

import math
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from aiothrottle._http.admission import AnyLimiter
from aiothrottle.algorithms import TokenBucket
from aiothrottle.amounts import REQUESTS
from aiothrottle.cli.fetch.sending.rates import Rates
from aiothrottle.cli.fetch.sending.store import StoreAddress
from aiothrottle.keyed import KeyedRateLimiter
from aiothrottle.limiter import RateLimiter
from aiothrottle.rate import Rate
from aiothrottle.stores import Store

__all__ = ["Limiters", "Limits"]

# URLs read ahead while others wait for their host.
_AHEAD = 1000
_ALL, _HOSTS = "all requests", "each host"


class Limiters(NamedTuple):
    """The limiters of a run: the one that each request acquires, and all by name."""

    to_wait_for: AnyLimiter
    named: dict[str, AnyLimiter]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a run.

    Attributes:
        rates: Rate limits of all requests.
        concurrency: The limit of concurrent requests.
        per_host: Rate limits of each host.
        per_host_concurrency: The limit of concurrent requests to each host; None: none.
        burst: How many requests may be sent back to back, of all and of each host; None: as many as
            their rates allow.
        guard: Seconds added to all periods, a safety margin for network jitter.
        store: The store that counts the rates; None: this process does.
        key: The name of the limits in the store.
        algorithm: How the rates are enforced; None: as by default.

    Raises:
        ValueError: The burst is more than a rate ever admits.
    """

    rates: Rates = ()
    concurrency: int = 10
    per_host: Rates = ()
    per_host_concurrency: int | None = None
    burst: int | None = None
    guard: float = 0.0
    store: StoreAddress | None = None
    key: str = "fetch"
    algorithm: type[TokenBucket] | None = None

    def __post_init__(self) -> None:
        """Validate the burst, before anything is opened."""
        if self.burst is not None:
            self._make(None)

    @property
    def of_requests(self) -> Sequence[Rate]:
        """The rate limits of all requests, without those of other resources."""
        return self.rates.get(REQUESTS, ()) if isinstance(self.rates, Mapping) else self.rates

    @property
    def keyed(self) -> bool:
        """Whether each host has limits of its own."""
        return bool(self.per_host) or self.per_host_concurrency is not None

    @property
    def resources(self) -> dict[str, float]:
        """The resources of the rates, with the least limit of each; none: requests alone count."""
        least: dict[str, float] = {}
        for rates in (self.rates, self.per_host):
            for name, each in rates.items() if isinstance(rates, Mapping) else ():
                least[name] = min(least.get(name, math.inf), *(rate.limit for rate in each))
        return least

    @property
    def workers(self) -> int:
        """The number of workers, each with one URL."""
        # With a store the hosts have no parent limiter: the number of workers is the limit then.
        ahead = self.keyed and self.store is None
        return max(self.concurrency, _AHEAD) if ahead else self.concurrency

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
        shared: dict[str, Any] = {} if store is None else {"store": store, "key": self.key}
        if shared and self.keyed:
            hosts = KeyedRateLimiter(
                **self._rated(self.per_host),
                concurrency_limit=self.per_host_concurrency,
                **shared,
            )
            return Limiters(hosts, {_HOSTS: hosts})
        everything = RateLimiter(
            **self._rated(self.rates), concurrency_limit=self.concurrency, **shared
        )
        if not self.keyed:
            return Limiters(everything, {_ALL: everything})
        hosts = KeyedRateLimiter(
            **self._rated(self.per_host),
            concurrency_limit=self.per_host_concurrency,
            parent=everything,
        )
        return Limiters(hosts, {_ALL: everything, _HOSTS: hosts})

    def _rated(self, rates: Rates) -> dict[str, Any]:
        """Return the arguments of a limiter about its rates."""
        if not rates:
            return {"guard": 0.0}
        arguments = {"guard": self.guard, "burst": self.burst, "algorithm": self.algorithm}
        if not isinstance(rates, Mapping):
            return {**arguments, "rate_limit": list(rates)}
        burst = None if self.burst is None else {REQUESTS: self.burst}
        return {**arguments, "rate_limit": {**rates}, "burst": burst}

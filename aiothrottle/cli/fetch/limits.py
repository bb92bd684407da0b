"""The limits of a run, and the store through which several runs share them."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from aiothrottle._http.admission import AnyLimiter
from aiothrottle.cli.fetch.store import StoreAddress
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

    Raises:
        ValueError: The burst is more than a rate ever admits.
    """

    rates: Sequence[Rate] = ()
    concurrency: int = 10
    per_host: Sequence[Rate] = ()
    per_host_concurrency: int | None = None
    burst: int | None = None
    guard: float = 0.0
    store: StoreAddress | None = None
    key: str = "fetch"

    def __post_init__(self) -> None:
        """Validate the burst, before anything is opened."""
        if self.burst is not None:
            self._make(None)

    @property
    def keyed(self) -> bool:
        """Whether each host has limits of its own."""
        return bool(self.per_host) or self.per_host_concurrency is not None

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
                list(self.per_host),
                concurrency_limit=self.per_host_concurrency,
                burst=self.burst,
                guard=self.guard,
                **shared,
            )
            return Limiters(hosts, {_HOSTS: hosts})
        everything = RateLimiter(
            list(self.rates) or None,
            concurrency_limit=self.concurrency,
            burst=self.burst if self.rates else None,
            guard=self.guard if self.rates else 0.0,
            **shared,
        )
        if not self.keyed:
            return Limiters(everything, {_ALL: everything})
        hosts = KeyedRateLimiter(
            list(self.per_host) or None,
            concurrency_limit=self.per_host_concurrency,
            burst=self.burst if self.per_host else None,
            guard=self.guard if self.per_host else 0.0,
            parent=everything,
        )
        return Limiters(hosts, {_ALL: everything, _HOSTS: hosts})

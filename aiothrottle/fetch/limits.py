"""The limits of a run, and the store in which several runs count together."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiothrottle.admission import AnyLimiter
from aiothrottle.fetch.store import StoreAddress
from aiothrottle.keyed import KeyedRateLimiter
from aiothrottle.limiter import RateLimiter
from aiothrottle.rate import Rate
from aiothrottle.stores import Store

__all__ = ["Limits"]

# So many URLs are looked at ahead, if some of them wait for their host.
_AHEAD = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a run keeps to.

    Attributes:
        rates: Of all requests.
        concurrency: All requests in flight.
        per_host: Rates of each host.
        per_host_concurrency: The requests in flight to each host; None: any.
        guard: Seconds by which all periods are stretched.
        store: Where the rates are counted; None: in this process.
        key: Names the limits in the store.
    """

    rates: Sequence[Rate] = ()
    concurrency: int = 10
    per_host: Sequence[Rate] = ()
    per_host_concurrency: int | None = None
    guard: float = 0.0
    store: StoreAddress | None = None
    key: str = "fetch"

    @property
    def keyed(self) -> bool:
        """Whether each host has limits of its own."""
        return bool(self.per_host) or self.per_host_concurrency is not None

    @property
    def workers(self) -> int:
        """How many URLs are looked at ahead."""
        # With a store the hosts have no limiter over them: so many workers are the limit then.
        ahead = self.keyed and self.store is None
        return max(self.concurrency, _AHEAD) if ahead else self.concurrency

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[AnyLimiter]:
        """Give the limiter, with its store, and close both.

        Raises:
            StoreUnavailable: The store does not answer.
        """
        if self.store is None:
            async with self._limiter(None) as limiter:
                yield limiter
            return
        async with self.store.open() as store, self._limiter(store) as limiter:
            yield limiter

    def _limiter(self, store: Store | None) -> AnyLimiter:
        if store is not None and self.keyed:
            return KeyedRateLimiter(
                list(self.per_host),
                self.per_host_concurrency,
                guard=self.guard,
                store=store,
                key=self.key,
            )
        everything = RateLimiter(
            list(self.rates) or None,
            self.concurrency,
            guard=self.guard if self.rates else 0.0,
            store=store,
            key=self.key,
        )
        if not self.keyed:
            return everything
        return KeyedRateLimiter(
            list(self.per_host) or None,
            self.per_host_concurrency,
            guard=self.guard if self.per_host else 0.0,
            parent=everything,
        )

"""A throttled httpx client whose network is a script, for tests in virtual time."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import httpx

from aiothrottle import KeyedRateLimiter, RateLimiter
from aiothrottle.httpx import ThrottledTransport
from tests.support.virtually import now

#: A status, with headers or without; or what is raised in place of a response.
Step: TypeAlias = int | tuple[int, Mapping[str, str]] | Exception


def client_of(
    limiter: RateLimiter | KeyedRateLimiter, respond: Callable[[httpx.Request], Any], **options: Any
) -> httpx.AsyncClient:
    """Return a throttled client whose requests a function answers."""
    network = httpx.MockTransport(respond)
    return httpx.AsyncClient(transport=ThrottledTransport(limiter, transport=network, **options))


class Script(httpx.AsyncBaseTransport):
    """Answers the requests by the steps, the last one for ever."""

    def __init__(self, *steps: Step) -> None:
        self._steps = steps
        #: When each attempt began, and its URL.
        self.times: list[float] = []
        self.urls: list[str] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.times.append(now())
        self.urls.append(str(request.url))
        step = self._steps[min(len(self.times), len(self._steps)) - 1]
        if isinstance(step, Exception):
            raise step
        if isinstance(step, int):
            return httpx.Response(step)
        status, headers = step
        return httpx.Response(status, headers=headers)

    def client(
        self, limiter: RateLimiter | KeyedRateLimiter | None = None, **options: Any
    ) -> httpx.AsyncClient:
        limiter = RateLimiter(concurrency_limit=1) if limiter is None else limiter
        return httpx.AsyncClient(transport=ThrottledTransport(limiter, transport=self, **options))

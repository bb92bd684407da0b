"""Read two long lists from a JSON API at once, under one limit, page by page.

The API, which this program serves itself, admits 20 requests per second and 4 at once. Like many
it returns its lists in pages, each with the address of the next one, and now and then it fails for
a short time.
"""

import asyncio
import itertools
import sys
from collections.abc import AsyncIterator
from typing import TypedDict

from aiohttp import web
from aiohttp.typedefs import Handler
from yarl import URL

from aiothrottle import RateLimiter, Retry
from aiothrottle.aiohttp import ThrottledSession
from aiothrottle.testing import RateLimitedServer


class Page(TypedDict):
    """A page of the API."""

    items: list[str]
    next: str | None


async def all_items(session: ThrottledSession, url: URL) -> AsyncIterator[str]:
    """Yield the items of a list, one by one, over all its pages."""
    while True:
        async with session.get(url) as response:
            response.raise_for_status()
            page: Page = await response.json()
        for item in page["items"]:
            yield item
        if page["next"] is None:
            return
        url = url.join(URL(page["next"]))


async def count(session: ThrottledSession, url: URL) -> int:
    """Count the items of a list."""
    number = 0
    async for _ in all_items(session, url):
        number += 1
    return number


async def main() -> None:
    """Read both lists."""
    async with RateLimitedServer("20/s", concurrency_limit=4, handler=make_api()) as server:
        # All requests of this session share its limit. Requests that fail temporarily are
        # retried.
        limiter = RateLimiter("20/s", concurrency_limit=4)
        async with ThrottledSession(limiter, retry=Retry(attempts=5, backoff=0.1)) as session:
            books, authors = await asyncio.gather(
                count(session, server.url / "books"), count(session, server.url / "authors")
            )
        failed = sum(request.status == 503 for request in server.audit.requests)
        print(f"{books} books and {authors} authors")
        print(f"{server.audit.sent} requests, {failed} failed, {server.audit.throttled} throttled")


# ---- the API ---------------------------------------------------------------------------------

LISTS = {"/books": 250, "/authors": 90}
PER_PAGE = 10


def make_api() -> Handler:
    """Return the handler of an API that fails at every tenth request."""
    numbers = itertools.count(1)

    async def api(request: web.Request) -> web.StreamResponse:
        if next(numbers) % 10 == 0:
            raise web.HTTPServiceUnavailable
        first = int(request.query.get("first", "0"))
        end = min(first + PER_PAGE, LISTS[request.path])
        items = [f"{request.path} {number}" for number in range(first, end)]
        following = None if end == LISTS[request.path] else f"{request.path}?first={end}"
        return web.json_response(Page(items=items, next=following))

    return api


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        sys.exit(130)

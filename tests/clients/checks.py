"""The recipes of docs/servers/works-with*.md, and what each has to keep in front of its server."""

import ast
import asyncio
import gc
import inspect
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

import pytest
from aiohttp import web

from aiothrottle import RateLimiter
from aiothrottle.testing import RateLimitedServer
from tests.integrations.clients import Clock
from tests.support.serving import Handler, hang_up, until
from tests.support.virtually import counts, turns

_FOLDER = Path(__file__).resolve().parents[2] / "docs" / "servers"
_PAGES = [_FOLDER / "works-with.md", _FOLDER / "works-with-models.md"]
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


async def run_blocks(text: str, name: str) -> dict[str, Any]:
    """Run the Python blocks of a text, and return the names that they define."""
    names: dict[str, Any] = {"__name__": name}
    for block in _BLOCK.findall(text):
        code = compile(block, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        done = eval(code, names)
        if code.co_flags & inspect.CO_COROUTINE:
            await done
    return names


async def run_recipe(heading: str) -> dict[str, Any]:
    """Run the blocks under a second-level heading of one of the pages."""
    texts: dict[str, str] = {}
    for page in _PAGES:
        sections = re.split(r"^## (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
        texts |= dict(zip(sections[1::2], sections[2::2], strict=True))
    return await run_blocks(texts[heading], f"recipe of {heading}")


# ---- what a recipe keeps -------------------------------------------------------------------------

#: Makes one call of a client, of one request; the argument differs in each.
Call: TypeAlias = Callable[[int], Awaitable[Any]]

_RATE, _SLOTS = 3, 2


def json_of(document: object, **options: Any) -> web.Response:
    """Return a response without a charset, in which discord.py reads no JSON."""
    body = json.dumps(document).encode()
    return web.Response(body=body, content_type="application/json", **options)


class API:
    """A fake of a server: hangs up on or throttles some requests, and answers the others.

    Args:
        answer: Answers a request that is neither.
        error: The document of a throttled response.
        headers: More headers of a throttled response.
    """

    def __init__(self, answer: Handler, error: object = "", **headers: str) -> None:
        self.hangs_up = 0
        #: The Retry-After of the next requests; an empty one is not sent.
        self.throttles: list[str] = []
        self.status = 429
        self.server = RateLimitedServer(handler=self._handle)
        self._answer, self._error, self._headers = answer, error, headers

    @property
    def url(self) -> str:
        return str(self.server.url).rstrip("/")

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if self.hangs_up:
            self.hangs_up -= 1
            return await hang_up(request)
        if self.throttles:
            seconds = self.throttles.pop()
            headers = {**self._headers, **({"Retry-After": seconds} if seconds else {})}
            return json_of(self._error, status=self.status, headers=headers)
        return await self._answer(request)


class Recipe(NamedTuple):
    api: API
    names: dict[str, Any]
    limiter: RateLimiter
    call: Call
    #: What a throttled call raises in the end.
    error: type[Exception] = Exception


async def check_limit(recipe: Recipe) -> None:
    """Check that calls beyond the limits wait until they are lifted, and leave no permit."""
    limiter, audit = recipe.limiter, recipe.api.server.audit
    await limiter.reset()
    slots = None if limiter.statistics().concurrency_limit is None else _SLOTS
    limiter.update(rate_limit=f"{_RATE}/h", concurrency_limit=slots)
    audit.clear()
    calls = [asyncio.ensure_future(recipe.call(number)) for number in range(_RATE + 5)]
    await until(lambda: sum(call.done() for call in calls) + counts(limiter)[1] == len(calls))
    # A new session sends evenly at first, so fewer than the limit may be sent at once.
    assert 1 <= audit.sent <= _RATE
    cancelled = next(call for call in calls if not call.done())
    calls.remove(cancelled)
    cancelled.cancel()
    await asyncio.wait([cancelled])
    assert cancelled.cancelled()
    limiter.update(rate_limit=None)
    await asyncio.gather(*calls)
    assert audit.sent == len(calls)
    assert slots is None or audit.greatest_concurrency <= slots
    await until(lambda: counts(limiter) == (0, 0))
    gc.collect()  # an unclosed response warns


async def check_throttled_call(recipe: Recipe, seconds: float = 0.05) -> None:
    """Check that a throttled call waits, and is sent again with a token."""
    granted, audit = recipe.limiter.statistics().granted, recipe.api.server.audit
    audit.clear()
    recipe.api.throttles.append(str(seconds))
    await recipe.call(1)
    first, second = audit.requests
    assert second.arrived_at - first.arrived_at >= seconds
    assert recipe.limiter.statistics().granted - granted == 2
    await until(lambda: counts(recipe.limiter) == (0, 0))


async def check_long_pause(recipe: Recipe, retry_after: str = "3600") -> None:
    """Check that a call ends with an error, and that its pause holds for all calls."""
    recipe.api.server.audit.clear()
    recipe.api.throttles.append(retry_after)
    with pytest.raises(recipe.error):
        await recipe.call(1)
    assert recipe.api.server.audit.sent == 1
    assert (await recipe.limiter.peek()).retry_after > (100 if retry_after else 29)
    assert counts(recipe.limiter) == (0, 0)


async def check_lost_connection(recipe: Recipe, losses: int = 1) -> None:
    recipe.api.hangs_up = losses
    await recipe.call(1)
    assert recipe.api.server.audit.sent == recipe.limiter.statistics().granted == 1 + losses
    await until(lambda: counts(recipe.limiter) == (0, 0))


# ---- time that is moved forward while calls wait -------------------------------------------------

_T = TypeVar("_T")


class StandingClock(Clock):
    """A clock that stands still unless it is moved: requests take no time, on any machine."""

    def time(self) -> float:
        return 1000.0 + self._skipped


async def finish(clock: Clock, limiter: RateLimiter, *calls: Awaitable[_T]) -> list[_T]:
    """Move the time forward, but only while no request is in flight, until all calls have ended."""
    ended = asyncio.gather(*calls)
    while not ended.done():
        await turns()
        if counts(limiter)[0] == 0:
            await clock.skip(0.02)
    return await ended


async def assert_idle(limiter: RateLimiter) -> None:
    await turns()
    gc.collect()  # a socket that is not closed warns, and a warning fails the test
    assert counts(limiter) == (0, 0)


def answering(document: object, **options: Any) -> Handler:
    """Return a handler that always answers with this document."""

    async def handler(_: web.Request) -> web.Response:
        return web.json_response(document, **options)

    return handler


def throttled(seconds: int, body: Any = "") -> Handler:
    """Return a handler that throttles a request for so many seconds."""
    return answering(body, status=429, headers={"Retry-After": str(seconds)})

"""The option `settle`: the final cost from the head or the body of a response: every integration.

A body reader gets each decoded chunk once, when the caller gets it, and then its end once, however
the body is read (`test_replay.py`) or ends (`test_matrix_limits.py`). Without a final cost the
request stays charged.
"""

import asyncio
import gc
import gzip
import json
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from aiohttp import web

from aiothrottle import RateLimiter
from aiothrottle._http.terms import Settlement
from aiothrottle.hooks import Response, WholeBody
from tests.integrations.clients import (
    SESSION,
    Feature,
    Integration,
    Reader,
    Readers,
    Scene,
    always,
    collected,
    every,
    in_chunks,
    pair,
    transports,
)
from tests.support.serving import Handler, answer, never, until

LIMITS, RETRIES = Feature.LIMITS, Feature.RETRIES


async def left(at: Scene) -> float:
    return float(round((await at.limiter.peek()).remaining, 3))


def serve(
    integration: Integration, settle: Callable[[Response], Any], *script: Handler, **options: Any
) -> AbstractAsyncContextManager[Scene]:
    limiter = RateLimiter("100/h", concurrency_limit=1, guard=0.0)
    return integration.serve(*script, limiter=limiter, settle=settle, **options)


# ---- from the head -------------------------------------------------------------------------------


@every(LIMITS)
async def test_cost_from_the_head_is_final(integration: Integration) -> None:
    heads: list[Response] = []

    def settle(response: Response) -> float:
        heads.append(response)
        return 7.5 if len(heads) > 1 else 0

    async with serve(integration, settle, answer(201, X_Cost="7")) as at:
        assert await at.send("path", "POST", body=b"question") == (201, b"body")
        assert await left(at) == 100
        await at.send()
        assert await left(at) == 92.5
    head = heads[0]
    assert (head.status, head.headers["x-cost"]) == (201, "7")
    assert (head.request.method, head.request.content) == ("POST", b"question")


@every(LIMITS, RETRIES)
async def test_each_attempt_is_settled(integration: Integration) -> None:
    """None leaves the second one charged."""
    costs: dict[int, float | None] = {429: 0, 503: None, 200: 3}
    statuses: list[int] = []

    def settle(response: Response) -> float | None:
        statuses.append(response.status)
        return costs[response.status]

    script = answer(429, Retry_After="0"), answer(503, Retry_After="0"), answer()
    async with serve(integration, settle, *script, cost=always(10)) as at:
        assert (await at.send()).status == 200
        assert await left(at) == 100 - 0 - 10 - 3
    assert statuses == [429, 503, 200]


# ---- from the body -------------------------------------------------------------------------------


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("encoding", ["identity", "gzip"])
@every(LIMITS)
async def test_body_is_fed_once_and_ended_once(
    integration: Integration, encoding: str, *, streamed: bool
) -> None:
    for whole in (b"", b"onetwothree", b"0123456789" * 30_000):
        sent = gzip.compress(whole) if encoding == "gzip" else whole
        chunks = [sent[at : at + 500] for at in range(0, len(sent), 500)]
        readers = Readers()
        async with serve(integration, readers, in_chunks(*chunks, Content_Encoding=encoding)) as at:
            async with await at.open() as stream:
                body = await (collected(stream.chunks()) if streamed else stream.read())
            assert (body, readers[0].body, readers.ends) == (whole, whole, [[True]])
            assert await left(at) == 95
        gc.collect(0)
        assert readers.ends == [[True]]


@pair
async def test_whole_body_settles_resources(integration: Integration) -> None:
    body = json.dumps({"usage": {"total_tokens": 37}}).encode()
    resources = RateLimiter({"requests": "100/h", "tokens": "1000/h"}, concurrency_limit=1)

    def settle(_: Response) -> WholeBody:
        return WholeBody(lambda body: {"tokens": json.loads(body)["usage"]["total_tokens"]})

    options: dict[str, Any] = {"cost": always({"tokens": 500}), "settle": settle}
    async with integration.serve(in_chunks(body), limiter=resources, **options) as at:
        assert (await at.send()).body == body
    remaining = {name: round(it.remaining) for name, it in resources.statistics().resources.items()}
    assert remaining == {"requests": 99, "tokens": 963}


def test_whole_body_that_is_too_long_has_no_cost() -> None:
    reader, costs = WholeBody(len, longest=5), list[Any]()
    for chunk in (b"123", b"45", b"6"):
        reader.feed(chunk)
        costs.append(reader.end(complete=True))
    assert costs == [3, 5, None]


@every(LIMITS, RETRIES)
async def test_discarded_body_ends_before_the_retry(integration: Integration) -> None:
    """A short one is read to its end."""
    readers = Readers()

    async def last(_: web.Request) -> web.Response:
        assert readers.ends == [[False], [True]]
        return web.Response(body=b"last")

    long = in_chunks(b"x" * 100_000, status=429, then=never, Retry_After="0")
    async with serve(integration, readers, long, answer(429, Retry_After="0"), last) as at:
        assert (await at.send()).body == b"last"
        assert (readers.ends, readers.statuses) == ([[False], [True], [True]], [429, 429, 200])
        assert (readers[1].body, await left(at)) == (b"body", 89)


# ---- errors --------------------------------------------------------------------------------------


async def later(_: Response) -> int:
    return 1


def raises(_: Response) -> float:
    raise LookupError("no such price")


WRONG: list[tuple[Any, type[Exception], str]] = [
    (raises, LookupError, "no such price"),
    (later, TypeError, "settle= must be a plain function"),
    (always("5"), TypeError, "settle= must return the final cost, .* got '5'"),
    (always(True), TypeError, "settle= must return the final cost, .* got True"),
    (always(WholeBody), TypeError, "settle= must return the final cost"),
    (always(-1), ValueError, "a cost must be .* got -1"),
    (always({"tokens": 1}), TypeError, "a cost must be a finite number"),
]


@pytest.mark.parametrize(
    "handler", [answer(), in_chunks(b"first", then=never)], ids=["short", "long"]
)
@every(LIMITS)
async def test_wrong_settle_closes_the_response(integration: Integration, handler: Handler) -> None:
    wrong = [settle for settle, *_ in WRONG]

    def settle(head: Response) -> object:
        return wrong.pop(0)(head)

    async with serve(integration, settle, handler) as at:
        for number, (_, error, text) in enumerate(WRONG, 1):  # with one connection and one slot
            with pytest.raises(error, match=text):
                await at.send()
            await until(lambda: not at.held)
            assert await left(at) == 100 - number


class Failing(Reader):
    def __init__(self, place: str) -> None:
        super().__init__()
        self.place = place

    def feed(self, chunk: bytes, /) -> None:
        super().feed(chunk)
        if self.place == "feed":
            raise LookupError

    def end(self, *, complete: bool) -> Any:
        super().end(complete=complete)
        return {"cost": -1, "resource": {"tokens": 1}}[self.place]  # or a KeyError


@pytest.mark.parametrize("place", ["feed", "end", "cost", "resource"])
@pair
async def test_failing_reader_breaks_no_reading(integration: Integration, place: str) -> None:
    reader = Failing(place)
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    async with serve(integration, always(reader), in_chunks(b"one", b"two")) as at:
        assert (await at.send()).body == b"onetwo"
        assert await left(at) == 99
    (context,) = reported
    assert "settle=" in context["message"]
    assert isinstance(context["exception"], LookupError | ValueError | TypeError)
    assert len(reader.ends) == (place != "feed")


async def test_raised_status_is_settled_too() -> None:
    readers = Readers()
    settles: list[tuple[Any, str]] = [(readers, "400"), (raises, "no such price")]
    for settle, error in settles:
        async with serve(SESSION, settle, answer(400), raise_for_status=True) as at:
            with pytest.raises(Exception, match=error):
                await at.send()
    assert (readers.statuses, readers.ends) == ([400], [[False]])


BOMB = gzip.compress(bytes(1 << 22))
#: The encoding, the body as it is sent, the size of what is decoded, and whether that is all.
ENCODED: dict[str, tuple[str, bytes, int, bool]] = {
    "two": ("gzip, deflate", zlib.compress(gzip.compress(b"x" * 1000, mtime=0)), 1000, True),
    "unknown": ("unknown", b"x" * 1000, 1000, True),
    "no ASCII": ("é", b"x" * 1000, 1000, True),
    "wrong": ("gzip, deflate", b"x" * 1000, 0, False),
    "long": ("unknown", b"x" * (1 << 21), 0, False),
    "large": ("gzip", BOMB, 1 << 22, True),
    "zlib": ("deflate", zlib.compress(b"x" * 1000), 1000, True),
    "raw": ("deflate", zlib.compress(b"x" * 1000, wbits=-zlib.MAX_WBITS), 1000, True),
    "cut off": ("gzip", BOMB[:-4], 1 << 22, False),
    "more": ("gzip", gzip.compress(b"x") + b"rubbish" * 1000, 1, True),
    "empty": ("deflate", b"", 0, True),
}


@pytest.mark.parametrize("name", ENCODED)
@transports
async def test_encoded_body_is_decoded_in_pieces(integration: Integration, name: str) -> None:
    encoding, body, size, complete = ENCODED[name]

    async def pieces() -> AsyncIterator[bytes]:
        for at in range(0, len(body), 4096):
            yield body[at : at + 4096]

    def respond(_: object) -> Any:
        headers = {"Content-Encoding": encoding.encode()}
        return integration.library.Response(200, headers=headers, content=pieces())

    readers = Readers()
    async with integration.mock(respond, settle=readers) as at, await at.open() as stream:
        assert await collected(stream.raw.aiter_raw()) == body
    assert (len(readers[0].body), readers.ends) == (size, [[complete]])
    assert max(map(len, readers[0].chunks), default=0) <= 1 << 16


@pytest.mark.parametrize("is_finalizing", [True, False])
async def test_reader_of_garbage_ends_unless_the_interpreter_does(*, is_finalizing: bool) -> None:
    reader = Reader()
    Settlement(reader, await RateLimiter(9).acquire()).abandon(is_finalizing=lambda: is_finalizing)
    await asyncio.sleep(0)
    assert reader.ends == ([] if is_finalizing else [False])


def test_reader_of_garbage_ends_at_once_after_its_loop() -> None:
    reader = Reader()

    async def settle() -> Settlement:
        return Settlement(reader, await RateLimiter(9).acquire())

    asyncio.run(settle()).abandon()
    assert reader.ends == [False]

"""A body that the retry loop or `should_retry` has read is read once more by the caller."""

import asyncio
import contextlib
import gzip
import itertools
import json
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import ClientResponse, StreamReader

from aiothrottle import RateLimiter
from aiothrottle.aiohttp import Retry
from tests.integrations.clients import (
    INTEGRATIONS,
    SESSION,
    Integration,
    Readers,
    body_of,
    collected,
    in_form,
    transports,
)
from tests.support.serving import Handler, cut, in_chunks, never

SHORT = json.dumps({"message": ["nope"] * 5}, indent=1).encode()
LONG = json.dumps({str(row): "." * 90 for row in range(1000)}, indent=1).encode()  # some 100 kB


def answer(status: int, form: str, body: bytes) -> Handler:
    return in_form(body, form, status, Content_Type="application/json")


Judge = Callable[[Any], Awaitable[None]] | None
Read = Callable[[Any], Awaitable[bytes]]


def once(judge: Judge) -> Retry:
    return Retry(attempts=1, max_backoff=0.001, should_retry=judge)


async def in_pieces(content: StreamReader) -> bytes:
    first = await content.readexactly(3)
    return first + await content.readuntil() + await content.read()


async def without_waiting(content: StreamReader) -> bytes:
    await content.wait_eof()
    assert content.is_eof()
    return content.read_nowait()


async def lines_of(response: Any) -> bytes:
    return "\n".join([line async for line in response.aiter_lines()]).encode()


async def read_twice(response: Any) -> bytes:
    body: bytes = await response.aread()
    assert response.read() == response.content == await response.aread() == body
    return body


async def as_sent(response: Any) -> bytes:
    found = await collected(response.aiter_raw())
    return gzip.decompress(found) if "Content-Encoding" in response.headers else found


async def put_back(response: ClientResponse) -> bytes:
    start = await response.content.read(9)
    with pytest.deprecated_call():  # the multipart reader of aiohttp does it
        response.content.unread_data(start[2:])
    return start[:2] + await response.content.read()


OF_AIOHTTP: list[Read] = [
    lambda it: it.read(),
    put_back,
    lambda it: in_pieces(it.content),
    lambda it: collected(aiter(it.content)),
    lambda it: without_waiting(it.content),
]
OF_HTTPX: list[Read] = [read_twice, lambda it: collected(it.aiter_bytes(700)), lines_of, as_sent]

# ---- how `should_retry` reads --------------------------------------------------------------------


async def reads(response: Any) -> None:
    assert await body_of(response) == await body_of(response)


async def reads_a_line(response: ClientResponse) -> None:
    assert await response.content.readline()


async def reads_a_chunk(response: ClientResponse) -> None:
    await response.content.wait_eof()
    assert len(await anext(aiter(response.content.iter_chunked(5)))) == 5
    assert response.content.read_nowait(3)
    assert await response.content.readchunk() != (b"", False)


async def begins_and_closes(response: Any) -> None:
    async with contextlib.aclosing(response.aiter_raw()) as chunks:
        assert await anext(chunks)
    await response.aclose()


async def puts_back(response: ClientResponse) -> None:
    assert await put_back(response)


BY_AIOHTTP: list[Judge] = [None, reads, reads_a_line, reads_a_chunk, puts_back]
BY_HTTPX: list[Judge] = [None, reads, begins_and_closes]
FORMS = [*itertools.product(("sized", "gzip", "chunked"), (SHORT, LONG))]
# In turns, as a run of 403s after many successes would be a silent limit.
STATUSES = 200, 403, 429


@pytest.mark.parametrize(
    ("integration", "judge"),
    [
        *((SESSION, judge) for judge in BY_AIOHTTP),
        *((each, judge) for each in INTEGRATIONS[3:] for judge in BY_HTTPX),
    ],
    ids=lambda it: getattr(it, "name", None) or getattr(it, "__name__", "unread"),
)
async def test_body_that_was_read_is_read_whole(integration: Integration, judge: Judge) -> None:
    """And a reader of `settle` gets it once."""
    readers = Readers()
    judges, ways = (BY_AIOHTTP, OF_AIOHTTP) if integration.library is None else (BY_HTTPX, OF_HTTPX)
    cases = [(*form, way) for form in FORMS for way in (*ways, None)]
    # Each case has each status with some judge.
    statuses = itertools.islice(itertools.cycle(STATUSES), judges.index(judge), None)
    tries = [*zip(statuses, cases, strict=False)]
    script = [answer(status, form, body) for status, (form, body, _) in tries]
    limiter = RateLimiter(concurrency_limit=1, learn_rate=False)  # the many 429s slow nothing down
    options: dict[str, Any] = {"retry": once(judge), "settle": readers}
    async with integration.serve(*script, limiter=limiter, **options) as at:
        for number, (status, (form, body, way)) in enumerate(tries):
            case = f"{status}, {form}, {len(body)} bytes, case {number}"
            async with await at.open() as stream:
                if way is not None:
                    assert (stream.status, await way(stream.raw)) == (status, body), case
                    assert (readers[-1].body, readers[-1].ends) == (body, [True]), case
            assert at.held == 0, case


@pytest.mark.parametrize("by_judge", [False, True])
@pytest.mark.parametrize("end", ["release", "close"])
async def test_ended_response_is_not_read(end: str, by_judge: bool) -> None:
    async def judge(response: ClientResponse) -> None:
        await reads_a_line(response)
        if by_judge:
            getattr(response, end)()

    async with SESSION.serve(answer(429, "sized", SHORT), retry=once(judge)) as at:
        response = await at.client.raw.get(at.url)
        getattr(response, end)()
        assert (response.closed, at.held) == (True, 0)
        with pytest.raises(aiohttp.ClientConnectionError, match="Connection closed"):
            await response.content.read()


async def test_response_without_a_body_is_judged() -> None:
    async def ends(response: ClientResponse) -> None:
        assert not await response.content.readline()
        response.release()

    async with SESSION.serve(in_chunks(status=204), retry=once(ends)) as at:
        assert await at.send() == (204, b"")


async def gives_up(response: Any) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.03):
            await (response.aread() if hasattr(response, "aread") else response.content.read())


@pytest.mark.uvloop
@pytest.mark.parametrize("judge", [gives_up, reads_a_line])
async def test_read_part_of_a_stream_is_put_back(judge: Judge) -> None:
    go, rest = asyncio.Event(), b"third\n" + bytes(2 << 20)  # more than aiohttp takes in unread
    script = in_chunks(b"first\nsecond\n", go, rest)
    async with SESSION.serve(script, retry=once(judge)) as at, await at.open() as opened:
        content = opened.raw.content
        assert [await content.readline(), await content.readline()] == [b"first\n", b"second\n"]
        go.set()
        assert await content.read() == rest
        assert at.held == 0


@transports
async def test_body_whose_reading_failed_raises_again(integration: Integration) -> None:
    error = integration.library.RemoteProtocolError

    async def tries(response: Any) -> None:
        with pytest.raises(error):
            await response.aread()

    script = in_chunks(b"x" * 10, then=cut, Content_Length="1000")
    async with integration.serve(script, retry=once(tries)) as at, await at.open() as stream:
        chunks = stream.chunks()
        assert await anext(chunks) == b"x" * 10
        with pytest.raises(error):
            await anext(chunks)
    script = in_chunks(b"first", then=never)
    async with integration.serve(script, retry=once(gives_up)) as at, await at.open() as stream:
        with pytest.raises(integration.library.ReadError, match="given up"):
            await stream.read()


@transports
async def test_request_whose_body_stalls_is_retried(integration: Integration) -> None:
    async def is_stalled(response: Any) -> bool:
        await gives_up(response)
        return bool(response.status_code == 201)

    stall = in_chunks(b"x", status=201, then=never, Content_Length="9")
    retry = Retry(backoff=0.001, pause_jitter=0, should_retry=is_stalled)
    async with integration.serve(stall, answer(200, "sized", SHORT), retry=retry) as at:
        assert await at.send() == (200, SHORT)

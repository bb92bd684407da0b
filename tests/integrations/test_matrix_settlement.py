"""The option `settle`: the final cost from the head or the body of a response: every integration.

A body reader gets each decoded chunk once, when the caller gets it, and then its end once, however
the body ends. Without a final cost the request stays charged as it was.
"""

import asyncio
import gc
import gzip
import json
import zlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import httpx2
import pytest
from aiohttp import web

import aiothrottle.httpx
from aiothrottle import RateLimiter, Retry
from aiothrottle.aiohttp import ThrottledSession
from aiothrottle.headers import Profile
from aiothrottle.hooks import Response, WholeBody
from aiothrottle.transport.decoding import DecodedBody
from tests.integrations.clients import (
    BODY_ERRORS,
    ONCE,
    Clock,
    Feature,
    Integration,
    cut_off,
    every,
)
from tests.serving import Handler, answer, never, serving, until
from tests.virtually import turns

LIMITS, RETRIES = Feature.LIMITS, Feature.RETRIES

PROFILE = Profile(
    "ours",
    hosts=("127.0.0.1",),
    body_statuses=frozenset({200}),
    body_header="X-Ours",
    marks=("spent",),
)


def always(value: object) -> Callable[[object], Any]:
    """Make a hook that returns the value."""
    return lambda _: value


class Reader:
    """A body reader that records what it gets, and returns a cost at the end of the whole body."""

    def __init__(self, cost: Any = 5) -> None:  # noqa: ANN401 - or nonsense
        self.cost = cost
        self.chunks: list[bytes] = []
        self.ends: list[bool] = []

    def feed(self, chunk: bytes, /) -> None:
        assert not self.ends
        self.chunks.append(chunk)

    def end(self, *, complete: bool) -> Any:  # noqa: ANN401
        self.ends.append(complete)
        return self.cost if complete else None

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)


class Readers(list[Reader]):
    """A `settle` that has a reader for each response."""

    def __call__(self, response: Response) -> Reader:
        self.append(Reader())
        self.statuses.append(response.status)
        return self[-1]

    def __init__(self) -> None:
        super().__init__()
        self.statuses: list[int] = []

    @property
    def ends(self) -> list[list[bool]]:
        return [each.ends for each in self]


def limiter(rate: str = "100/h") -> RateLimiter:
    return RateLimiter(rate, concurrency_limit=1, guard=0.0)


async def left(limiter: RateLimiter) -> float:
    return round((await limiter.peek()).remaining, 3)


def in_chunks(*chunks: bytes, **headers: str) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
            await asyncio.sleep(0)
        await response.write_eof()
        return response

    return handle


# ---- from the head -------------------------------------------------------------------------------


@pytest.mark.parametrize("cost", [0, 1, 7.5])
@every(LIMITS)
async def test_cost_from_the_head_is_final(integration: Integration, cost: float) -> None:
    heads: list[Response] = []

    def settle(response: Response) -> float:
        heads.append(response)
        return cost

    handler = answer(201, X_Cost="7")
    async with integration.serve(handler, limiter=limiter(), settle=settle) as at:
        assert await at.send("path", "POST", body=b"question") == (201, b"body")
        assert await left(at.limiter) == 100 - cost
    (head,) = heads
    assert (head.status, head.headers["x-cost"]) == (201, "7")
    assert (head.request.method, head.request.content) == ("POST", b"question")


@every(LIMITS)
async def test_none_leaves_the_request_charged(integration: Integration) -> None:
    options: dict[str, Any] = {"cost": always(9), "settle": always(None)}
    async with integration.serve(answer(), limiter=limiter(), **options) as at:
        await at.send()
        assert await left(at.limiter) == 91


@every(LIMITS, RETRIES)
async def test_each_attempt_is_settled(integration: Integration) -> None:
    statuses: list[int] = []

    def settle(response: Response) -> float | None:
        statuses.append(response.status)
        return 0 if response.status == 429 else 3

    script = answer(429, Retry_After="0"), answer(429, Retry_After="0"), answer()
    options: dict[str, Any] = {"cost": always(10), "settle": settle}
    async with integration.serve(*script, limiter=limiter(), **options) as at:
        assert (await at.send()).status == 200
        assert await left(at.limiter) == 97
    assert statuses == [429, 429, 200]


# ---- from the body -------------------------------------------------------------------------------


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    "chunks", [(b"all at once",), (b"one", b"two", b"three"), (b"x" * 300_000,)]
)
@every(LIMITS)
async def test_body_is_fed_once_and_ended_once(
    integration: Integration, chunks: tuple[bytes, ...], *, streamed: bool
) -> None:
    readers = Readers()
    async with integration.serve(in_chunks(*chunks), limiter=limiter(), settle=readers) as at:
        async with await at.open() as stream:
            if streamed:
                body = b"".join([chunk async for chunk in stream.chunks()])
            else:
                body = await stream.read()
        assert (body, readers[0].body) == (b"".join(chunks), b"".join(chunks))
        assert readers.ends == [[True]]
        assert await left(at.limiter) == 95
    gc.collect()
    assert readers.ends == [[True]]


@every(LIMITS)
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


@every(LIMITS)
async def test_reader_delays_no_chunk(integration: Integration) -> None:
    readers, turn = Readers(), asyncio.Event()

    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for number in range(3):
            await response.write(b"data: %d\n\n" % number)
            await turn.wait()  # until the caller has this one
            turn.clear()
        return response

    async with (
        integration.serve(handle, limiter=limiter(), settle=readers) as at,
        await at.open() as stream,
    ):
        number = 0
        async for chunk in stream.chunks():
            assert chunk == b"data: %d\n\n" % number
            assert (readers[0].chunks[-1], readers.ends) == (chunk, [[]])
            number += 1
            turn.set()
        assert (number, readers.ends) == (3, [[True]])


def raw_deflate(body: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return compressor.compress(body) + compressor.flush()


@pytest.mark.parametrize(
    ("encoding", "encode"),
    [
        ("gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("deflate", raw_deflate),
        ("identity", bytes),
    ],
    ids=["gzip", "zlib", "deflate", "identity"],
)
@pytest.mark.parametrize("size", [0, 100, 500_000])
@every(LIMITS)
async def test_reader_gets_the_decoded_body(
    integration: Integration, encoding: str, encode: Callable[[bytes], bytes], size: int
) -> None:
    body = b"0123456789" * (size // 10)
    sent = encode(body)
    pieces = [sent[at : at + 100] for at in range(0, len(sent), 100)]
    readers, handler = Readers(), in_chunks(*pieces, **{"Content-Encoding": encoding})
    async with integration.serve(handler, limiter=limiter(), settle=readers) as at:
        assert (await at.send()).body == body
    assert (readers[0].body, readers.ends) == (body, [[True]])


@pytest.mark.parametrize("method", ["HEAD", "GET"])
@every(LIMITS)
async def test_response_without_a_body_is_complete(integration: Integration, method: str) -> None:
    readers = Readers()
    handler = answer(204 if method == "GET" else 200, Content_Encoding="gzip")
    async with integration.serve(handler, limiter=limiter(), settle=readers) as at:
        await at.send(method=method)
        assert await left(at.limiter) == 95
    assert (readers[0].chunks, readers.ends) == ([], [[True]])


# ---- bodies that do not come to their end --------------------------------------------------------


async def first_then_never(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b"first")
    await never(request)
    return response


@every(LIMITS)
async def test_body_closed_early_stays_charged(integration: Integration) -> None:
    readers = Readers()
    async with integration.serve(first_then_never, limiter=limiter(), settle=readers) as at:
        stream = await at.open()
        chunks = stream.chunks()
        assert await anext(chunks) == b"first"
        await stream.close()
        await until(lambda: readers.ends == [[False]])
        assert (readers[0].body, await left(at.limiter)) == (b"first", 99)


@every(LIMITS)
async def test_body_released_unread_stays_charged(integration: Integration) -> None:
    readers = Readers()
    async with integration.serve(answer(), limiter=limiter(), settle=readers) as at:
        async with await at.open():
            pass
        await until(lambda: readers[0].ends)
        assert await left(at.limiter) == 99
    assert readers.ends == [[False]]


@every(LIMITS)
async def test_body_that_is_cut_off_stays_charged(integration: Integration) -> None:
    readers = Readers()
    async with integration.serve(cut_off, limiter=limiter(), settle=readers, retry=ONCE) as at:
        with pytest.raises(BODY_ERRORS):
            await at.send()
        await until(lambda: readers[0].ends)
        assert (readers[0].body, readers.ends) == (b"x" * 10, [[False]])
        assert await left(at.limiter) == 99


@every(LIMITS)
async def test_body_of_a_cancelled_reader_stays_charged(integration: Integration) -> None:
    readers = Readers()
    async with integration.serve(first_then_never, limiter=limiter(), settle=readers) as at:
        task = at.start()
        await until(lambda: readers and readers[0].chunks)
        task.cancel()
        await until(lambda: readers.ends == [[False]] and not at.held)
        assert await left(at.limiter) == 99


@every(LIMITS)
async def test_dropped_body_stays_charged(integration: Integration) -> None:
    readers = Readers()
    async with integration.serve(answer(), limiter=limiter(), settle=readers) as at:
        stream = await at.open()
        del stream
        gc.collect()
        await until(lambda: readers[0].ends)
        assert await left(at.limiter) == 99
    assert readers.ends == [[False]]


@every(LIMITS)
async def test_body_beyond_max_hold_stays_charged(integration: Integration, clock: Clock) -> None:
    readers, own = Readers(), clock.limiter("100/h", guard=0.0)
    options: dict[str, Any] = {"settle": readers, "max_hold": 60}
    async with integration.serve(first_then_never, limiter=own, **options) as at:
        stream = await at.open()
        assert await anext(stream.chunks()) == b"first"
        await clock.skip(61)
        await until(lambda: not at.held and readers[0].ends)
        await stream.close()
    assert readers.ends == [[False]]


@every(LIMITS)
async def test_undecodable_body_stays_charged(integration: Integration) -> None:
    readers, handler = Readers(), in_chunks(b"no gzip at all", **{"Content-Encoding": "gzip"})
    async with integration.serve(handler, limiter=limiter(), settle=readers) as at:
        with pytest.raises(BODY_ERRORS):
            await at.send()
        await until(lambda: readers[0].ends)
        assert (readers[0].chunks, readers.ends) == ([], [[False]])
        assert await left(at.limiter) == 99


# ---- bodies that are read ahead ------------------------------------------------------------------


@pytest.mark.parametrize("chunked", [False, True])
@every(LIMITS)
async def test_body_read_for_a_profile_is_fed_once(
    integration: Integration, *, chunked: bool
) -> None:
    body = json.dumps({"answer": "x" * 20_000}).encode()
    kind = {"Content-Type": "application/json", "X-Ours": "1"}
    sized = {} if chunked else {"Content-Length": str(len(body))}
    handler = in_chunks(body[:5000], body[5000:], **kind, **sized)
    readers = Readers()
    options: dict[str, Any] = {"settle": readers, "profiles": [PROFILE]}
    async with integration.serve(handler, limiter=limiter(), **options) as at:
        assert (await at.send()).body == body
        assert await left(at.limiter) == 95
    assert (readers[0].body, readers.ends) == (body, [[True]])


async def whole(response: Any) -> None:  # noqa: ANN401
    await (response.aread() if hasattr(response, "aread") else response.read())


async def part(response: Any) -> None:  # noqa: ANN401
    chunks: AsyncIterator[bytes] = (
        response.aiter_bytes() if hasattr(response, "aiter_bytes") else response.content.iter_any()
    )
    await anext(chunks)


@pytest.mark.parametrize("read", [whole, part])
@every(LIMITS, RETRIES)
async def test_body_read_by_should_retry_is_fed_once(
    integration: Integration, read: Callable[[Any], Any]
) -> None:
    chunks = [bytes([number]) * 40_000 for number in range(5)]
    readers, retry = Readers(), Retry(should_retry=read)
    options: dict[str, Any] = {"settle": readers, "retry": retry}
    async with integration.serve(in_chunks(*chunks), limiter=limiter(), **options) as at:
        assert (await at.send()).body == b"".join(chunks)
        assert await left(at.limiter) == 95
    assert (readers[0].body, readers.ends) == (b"".join(chunks), [[True]])


@every(LIMITS, RETRIES)
async def test_discarded_body_ends_before_the_retry(integration: Integration) -> None:
    readers = Readers()

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=429, headers={"Retry-After": "0"})
        await response.prepare(request)
        await response.write(b"x" * 100_000)
        await never(request)
        return response

    async def last(_: web.Request) -> web.Response:
        assert readers.ends == [[False]]
        return web.Response(body=b"last")

    async with integration.serve(endless, last, limiter=limiter(), settle=readers) as at:
        assert (await at.send()).body == b"last"
        assert (readers.ends, readers.statuses) == ([[False], [True]], [429, 200])
        assert await left(at.limiter) == 94


@every(LIMITS, RETRIES)
async def test_discarded_short_body_is_read_to_its_end(integration: Integration) -> None:
    readers = Readers()
    script = answer(429, Retry_After="0"), answer()
    async with integration.serve(*script, limiter=limiter(), settle=readers) as at:
        assert (await at.send()).status == 200
    assert [(each.body, each.ends) for each in readers] == [(b"body", [True])] * 2


# ---- errors --------------------------------------------------------------------------------------


async def later(_: Response) -> int:
    return 1


def raises(_: Response) -> float:
    raise LookupError("no such price")


@pytest.mark.parametrize(
    ("settle", "error", "text"),
    [
        (raises, LookupError, "no such price"),
        (later, TypeError, "settle= must be a plain function"),
        (always("5"), TypeError, "settle= must return the final cost, .* got '5'"),
        (always(True), TypeError, "settle= must return the final cost, .* got True"),
        (always(WholeBody), TypeError, "settle= must return the final cost"),
        (always(-1), ValueError, "a cost must be .* got -1"),
        (always(float("nan")), ValueError, "a cost must be .* got nan"),
        (always({"tokens": 1}), TypeError, "a cost must be a finite number"),
    ],
)
@pytest.mark.parametrize("handler", [answer(), first_then_never], ids=["short", "long"])
@every(LIMITS)
async def test_wrong_settle_closes_the_response(
    integration: Integration,
    handler: Handler,
    settle: Any,  # noqa: ANN401 - or nonsense
    error: type[Exception],
    text: str,
) -> None:
    async with integration.serve(handler, limiter=limiter(), settle=settle) as at:
        for attempt in (1, 2):  # with one connection and one slot
            with pytest.raises(error, match=text):
                await at.send()
            await until(lambda: not at.held)
            assert await left(at.limiter) == 100 - attempt


class Failing(Reader):
    def __init__(self, place: str) -> None:
        super().__init__()
        self.place = place

    def feed(self, chunk: bytes, /) -> None:
        super().feed(chunk)
        if self.place == "feed":
            raise LookupError("in feed")

    def end(self, *, complete: bool) -> Any:  # noqa: ANN401
        super().end(complete=complete)
        if self.place == "end":
            raise LookupError("in end")
        return {"cost": -1, "resource": {"tokens": 1}}[self.place]


@pytest.mark.parametrize("place", ["feed", "end", "cost", "resource"])
@every(LIMITS)
async def test_failing_reader_does_not_break_the_callers_reading(
    integration: Integration, place: str
) -> None:
    reader = Failing(place)
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    handler = in_chunks(b"one", b"two")
    async with integration.serve(handler, limiter=limiter(), settle=always(reader)) as at:
        assert (await at.send()).body == b"onetwo"
        assert await left(at.limiter) == 99
    (context,) = reported
    assert "settle=" in context["message"]
    assert isinstance(context["exception"], (LookupError, ValueError, TypeError))
    assert len(reader.ends) == (place != "feed")


async def test_raised_status_is_settled_too() -> None:
    readers, own = Readers(), limiter()
    async with (
        serving(answer(400)) as (url, _),
        ThrottledSession(own, settle=readers, raise_for_status=True) as session,
    ):
        with pytest.raises(Exception, match="400"):
            await session.get(url)
        assert (readers.statuses, readers.ends) == ([400], [[False]])
        assert own.statistics().in_flight == 0


async def test_failing_settle_of_a_raised_status_is_raised() -> None:
    own = limiter()
    async with (
        serving(answer(400)) as (url, _),
        ThrottledSession(own, settle=raises, raise_for_status=True) as session,
    ):
        with pytest.raises(LookupError):
            await session.get(url)
        assert own.statistics().in_flight == 0


async def test_response_of_a_mock_is_settled() -> None:
    readers, own = Readers(), limiter()
    mock = httpx.MockTransport(lambda _: httpx.Response(200, text="cached"))
    transport = aiothrottle.httpx.ThrottledTransport(own, transport=mock, settle=readers)
    async with httpx.AsyncClient(transport=transport) as client:
        assert (await client.get("http://localhost/")).text == "cached"
    assert (readers[0].body, readers.ends, await left(own)) == (b"cached", [[True]], 95)


@pytest.mark.parametrize(
    "read", ["readline", "readexactly", "readchunk", "iter_chunked", "read_nowait", "text"]
)
async def test_every_way_to_read_feeds_the_reader(read: str) -> None:
    readers = Readers()
    body = b"one\ntwo\nthree"

    async def take(response: Any) -> bytes:  # noqa: ANN401
        content = response.content
        match read:
            case "readline":
                return b"".join([line async for line in content])
            case "readexactly":
                return bytes(await content.readexactly(len(body)))
            case "readchunk":
                return b"".join([chunk async for chunk, _ in content.iter_chunks()])
            case "iter_chunked":
                return b"".join([chunk async for chunk in content.iter_chunked(2)])
            case "read_nowait":
                await content.wait_eof()
                return bytes(content.read_nowait())
            case _:
                return str(await response.text()).encode()

    handler = in_chunks(body[:5], body[5:], **{"Content-Length": str(len(body))})
    async with (
        serving(handler) as (url, _),
        ThrottledSession(limiter(), settle=readers) as session,
        session.get(url) as response,
    ):
        assert await take(response) == body
    await turns()
    assert (readers[0].body, readers.ends) == (body, [[True]])


# ---- encodings that the libraries decode ---------------------------------------------------------


class Sink:
    """Records what it gets."""

    def __init__(self) -> None:
        self.size = 0
        self.longest = 0
        self.ends: list[bool] = []

    def feed(self, chunk: bytes, /) -> None:
        self.size += len(chunk)
        self.longest = max(self.longest, len(chunk))

    def end(self, *, complete: bool) -> None:
        self.ends.append(complete)


@pytest.mark.parametrize("library", [httpx, httpx2])
@pytest.mark.parametrize(
    ("encoding", "body", "size", "complete"),
    [
        ("gzip, deflate", zlib.compress(gzip.compress(b"x" * 1000, mtime=0)), 1000, True),
        ("unknown", b"x" * 1000, 1000, True),
        ("gzip, deflate", b"x" * 1000, 0, False),
        ("unknown", b"x" * (1 << 21), 0, False),
        ("gzip", gzip.compress(bytes(1 << 22)), 1 << 22, True),
        ("gzip", gzip.compress(bytes(1 << 22))[:-4], 1 << 22, False),
        ("gzip", gzip.compress(b"x") + b"rubbish" * 1000, 1, True),
        ("deflate", b"", 0, True),
    ],
    ids=["two", "unknown", "wrong", "long", "large", "cut off", "more", "empty"],
)
def test_encoded_body_is_decoded_in_pieces(
    library: Any,  # noqa: ANN401 - a module
    encoding: str,
    body: bytes,
    size: int,
    *,
    complete: bool,
) -> None:
    sink = Sink()
    decoded = DecodedBody(sink, encoding, library)
    for at in range(0, len(body), 4096):
        decoded.feed(body[at : at + 4096])
    decoded.end(complete=True)
    decoded.end(complete=False)
    assert (sink.size, sink.ends) == (size, [complete])
    assert sink.longest <= 1 << 16

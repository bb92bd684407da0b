"""The options `key`, `cost`, `priority` and `settle`, and what one request overrides.

However a body is read (`test_replay.py`) or ends (`test_matrix_limits.py`), a reader gets each
decoded chunk once, and then its end once.
"""

import asyncio
import gzip
import io
import math
import zlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any
from unittest.mock import Mock

import aiohttp
import pytest
from aiohttp import FormData, web

from aiothrottle import CostTooHigh, KeyedRateLimiter, RateLimiter, ThrottleTimeout
from aiothrottle._http.terms import Settlement
from aiothrottle.hooks import Request, Response, WholeBody
from aiothrottle.retry import Retry
from tests.integrations.clients import (
    ONCE,
    SESSION,
    Clock,
    Feature,
    Integration,
    Reader,
    Readers,
    Scene,
    always,
    collected,
    every,
    pair,
    transports,
)
from tests.support.serving import Handler, answer, generated, in_chunks, never, until

OVERRIDES = Feature.OVERRIDES


# ---- what a hook sees ----------------------------------------------------------------------------


@every()
async def test_hook_sees_the_request_once(integration: Integration) -> None:
    seen: list[Request] = []
    async with integration.serve(answer(), cost=seen.append) as at:
        url = at.url / "path"
        await at.send("path", "POST", body=b'{"model": "small"}', headers={"X-Team": "blue"})
        await at.send(method="POST", json={"max_tokens": 5})
        await at.send()
        await at.send(method="POST", body=generated(b"one", b"two"))  # which is not consumed
        assert at.seen[-1] == ("POST", b"onetwo")
    request, of_json, empty, single_use = seen
    assert (request.method, str(request.url)) == ("POST", str(url))
    assert request.headers["x-team"] == "blue"
    assert (request.content, request.json()) == (b'{"model": "small"}', {"model": "small"})
    assert of_json.json() == {"max_tokens": 5}
    assert (empty.content, empty.json(), single_use.content) == (None, None, None)


def rest_of(content: bytes, at: int) -> io.BytesIO:
    file = io.BytesIO(content)
    file.seek(at)
    return file


BODIES: list[tuple[Callable[[], Any], bytes | None]] = [
    (lambda: "bücher", "bücher".encode()),
    (lambda: bytearray(b"abc"), b"abc"),
    (lambda: rest_of(b"0123", 1), b"123"),
    (lambda: {"a": "1", "b": "x y"}, b"a=1&b=x+y"),
    (lambda: [("a", "1"), ("a", "2")], b"a=1&a=2"),
    (lambda: aiohttp.BytesPayload(b"\xff\x00"), b"\xff\x00"),
    (lambda: FormData({"file": io.BytesIO(b"x")}), None),
    (lambda: io.BufferedReader(io.BytesIO(b"file")), None),
]


async def test_session_shows_a_body_in_memory_its_headers_and_the_query() -> None:
    seen: list[Request] = []
    async with SESSION.serve(
        answer(), cost=seen.append, headers={"X-One": "1", "X-Two": "1"}
    ) as at:
        for make, content in BODIES:
            await at.send(method="POST", body=make())
            assert seen[-1].content == content
            assert content is None or at.seen[-1] == ("POST", content)
        document = {"max_tokens": 5}
        await at.send(method="POST", json=document)
        assert seen[-1].json() is document
        await at.client.raw.get(at.url, params={"q": "1"}, headers=iter([("x-two", "2")]))
        assert seen[-1].url == at.url.with_query("q=1")
        assert (seen[-1].headers["x-one"], seen[-1].headers["X-Two"]) == ("1", "2")
        assert at.client.raw.headers["X-Two"] == "1"  # for the other requests


@every()
async def test_hooks_are_called_once_for_all_attempts(integration: Integration) -> None:
    values = {"key": "us", "cost": 2, "priority": 1}
    hooks: dict[str, Any] = {name: Mock(return_value=value) for name, value in values.items()}
    limiter = KeyedRateLimiter("100/h", guard=0.0)
    throttled, failed = answer(429, Retry_After="0"), answer(503)
    async with integration.serve(failed, throttled, answer(), limiter=limiter, **hooks) as at:
        assert (await at.send()).status == 200
    assert [hook.call_count for hook in hooks.values()] == [1, 1, 1]
    assert (limiter.statistics("us").granted, list(limiter)) == (3, ["us"])
    assert (await limiter.peek("us")).remaining == 94


async def later(_: object) -> int:
    return 1


def fails(request: Request) -> float:
    raise LookupError(f"no account for {request.method}")


WRONG: list[tuple[str, Any, type[Exception], str]] = [
    ("cost", fails, LookupError, "no account for GET"),
    ("cost", always("1"), TypeError, "a cost must be tokens, .* got '1'"),
    ("cost", always(True), TypeError, "a cost must be tokens, .* got True"),
    ("cost", always(-1), ValueError, "a cost must be .* got -1"),
    ("cost", always(1000), CostTooHigh, "1000"),
    ("cost", later, TypeError, "cost= must be a plain function, got the asynchronous"),
    ("priority", always("high"), TypeError, "priority must be a finite number, got 'high'"),
    ("priority", always(math.inf), ValueError, "priority must be a finite number, got inf"),
    ("key", always(["us"]), TypeError, "a key has to be hashable, not list"),
]


@pair
async def test_wrong_result_or_override_is_named_and_takes_nothing(
    integration: Integration,
) -> None:
    for option, hook, error, text in WRONG:
        limiter = KeyedRateLimiter("10/h", concurrency_limit=1)
        async with integration.serve(answer(), limiter=limiter, **{option: hook}) as at:
            with pytest.raises(error, match=text):
                await at.send()
            assert at.seen == []
        # A limiter that has the key is the one that rejects a cost.
        assert len(limiter) <= (error in (ValueError, CostTooHigh))
        for key in limiter:
            statistics = limiter.statistics(key)
            assert (statistics.granted, statistics.in_flight, statistics.waiting) == (0, 0, 0)
    plain = RateLimiter("10/h", concurrency_limit=1)
    async with integration.serve(answer(), limiter=plain) as at:
        for throttle, error, text in WRONG_OVERRIDES:
            with pytest.raises(error, match=text):
                await at.send(throttle=throttle)
        assert at.seen == []
    assert (plain.statistics().granted, (await plain.peek()).remaining) == (0, 10)


# ---- overrides -----------------------------------------------------------------------------------


@every(OVERRIDES)
async def test_request_overrides_the_hooks(integration: Integration) -> None:
    limiter = KeyedRateLimiter("10/h", guard=0.0)
    hooks: dict[str, Any] = {"key": fails, "cost": fails, "priority": fails}
    async with integration.serve(answer(), limiter=limiter, **hooks) as at:
        await at.send(throttle={"key": "ours", "cost": 3, "priority": 1, "timeout": 5})
    assert list(limiter) == ["ours"]
    assert (await limiter.peek("ours")).remaining == 7
    resources = RateLimiter({"requests": "100/h", "tokens": "1000/h"})
    async with integration.serve(answer(), limiter=resources) as at:
        for throttle in ({"cost": {"tokens": 300}}, {}, {"cost": None}):
            await at.send(throttle=throttle)
    left = {name: round(it.remaining) for name, it in resources.statistics().resources.items()}
    assert left == {"requests": 97, "tokens": 700}


@every(OVERRIDES)
async def test_request_overrides_the_timeout(integration: Integration, clock: Clock) -> None:
    async with integration.serve(answer(), limiter=clock.limiter(), queue_timeout=60) as at:
        async with at.limiter.throttle():
            patient = at.start(throttle={"timeout": None})
            impatient = at.start(throttle={"timeout": 5})
            await until(lambda: at.waiting == 2)
            await clock.skip(6)
            with pytest.raises(ThrottleTimeout):
                await impatient
            await clock.skip(60)
            assert not patient.done()
        assert (await patient).status == 200


WRONG_OVERRIDES: list[tuple[Any, type[Exception], str]] = [
    ({"costs": 3}, TypeError, "throttle has no argument 'costs'; did you mean 'cost'"),
    (3, TypeError, r"throttle must be a mapping, such as \{\"cost\": 3\}, got 3"),
    ({"cost": "3"}, TypeError, "a cost must be tokens"),
    ({"cost": 11}, CostTooHigh, "11"),
    ({"priority": "1"}, TypeError, "priority must be a finite number"),
    ({"timeout": -1}, ValueError, "timeout of throttle must be .* got -1"),
    ({"timeout": "1"}, TypeError, "timeout of throttle must be .* got '1'"),
    ({"key": "us"}, ValueError, "key 'us' of throttle needs a KeyedRateLimiter"),
]


async def test_websocket_overrides_its_cost() -> None:
    seen: list[Response] = []
    options: dict[str, Any] = {"settle": seen.append, "retry": ONCE}
    async with SESSION.misbehave(RateLimiter("10/h"), **options) as (server, at):
        seen_too: dict[str, Any] = {"headers": {"X-Team": "blue"}, "params": {"q": "1"}}
        connect = at.client.raw.ws_connect
        async with connect(server.url / "websocket", throttle={"cost": 4}, **seen_too):
            pass
        assert (await at.limiter.peek()).remaining == 6
    request = seen[0].request
    assert (request.method, request.headers["X-Team"]) == ("GET", "blue")
    assert request.url.query_string == "q=1"


async def left(at: Scene) -> float:
    return float(round((await at.limiter.peek()).remaining, 3))


def serve(
    integration: Integration, settle: Callable[[Response], Any], *script: Handler, **options: Any
) -> AbstractAsyncContextManager[Scene]:
    limiter = RateLimiter("100/h", concurrency_limit=1, guard=0.0)
    return integration.serve(*script, limiter=limiter, settle=settle, **options)


# ---- from the head -------------------------------------------------------------------------------


@every()
async def test_cost_from_the_head_is_final(integration: Integration) -> None:
    heads: list[Response] = []

    def settle(response: Response) -> float:
        heads.append(response)
        return 7.5 if len(heads) > 1 else 0

    async with serve(integration, settle, answer(201, X_Cost="7")) as at:
        assert await at.send(method="POST", body=b"question") == (201, b"body")
        assert await left(at) == 100
        await at.send()
        assert await left(at) == 92.5
    head = heads[0]
    assert (head.status, head.headers["x-cost"]) == (201, "7")
    assert head.request.content == b"question"


# ---- from the body -------------------------------------------------------------------------------


def test_whole_body_that_is_too_long_has_no_cost() -> None:
    reader, costs = WholeBody(len, longest=5), list[Any]()
    for chunk in (b"123", b"45", b"6"):
        reader.feed(chunk)
        costs.append(reader.end(complete=True))
    assert costs == [3, 5, None]
    with pytest.raises(TypeError, match="function must be a function of a body, got None"):
        WholeBody(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"longest must be a whole number of bytes.* got '1m'"):
        WholeBody(len, longest="1m")  # type: ignore[arg-type]


@every()
async def test_discarded_body_ends_before_the_retry(integration: Integration) -> None:
    """A short one is read to its end."""
    readers = Readers()

    async def last(_: web.Request) -> web.Response:
        assert readers.ends == [[False], [True]]
        return web.Response(body=b"last")

    long = in_chunks(b"x" * 100_000, status=429, then=never, Retry_After="0")
    async with serve(integration, readers, long, answer(429, Retry_After="0"), last) as at:
        assert (await at.send()).body == b"last"
        assert readers.ends == [[False], [True], [True]]
        assert (readers[1].body, await left(at)) == (b"body", 89)


# ---- errors --------------------------------------------------------------------------------------


def has_no_price(_: object) -> None:
    raise LookupError("no such price")


WRONG_COSTS: list[tuple[Any, type[Exception], str]] = [
    (has_no_price, LookupError, "no such price"),
    (later, TypeError, "settle= must be a plain function"),
    (always("5"), TypeError, "settle= must return the final cost, .* got '5'"),
    (always(True), TypeError, "settle= must return the final cost, .* got True"),
    (always(WholeBody), TypeError, "settle= must return the final cost"),
    (always({"tokens": 1}), TypeError, "a cost by resource needs a limiter with these"),
]


@pytest.mark.parametrize(
    "handler", [answer(), in_chunks(b"first", then=never)], ids=["short", "long"]
)
@every()
async def test_wrong_settle_closes_the_response(integration: Integration, handler: Handler) -> None:
    wrong = [settle for settle, *_ in WRONG_COSTS]

    def settle(head: Response) -> object:
        return wrong.pop(0)(head)

    async with serve(integration, settle, handler) as at:
        for number, (_, error, text) in enumerate(WRONG_COSTS, 1):
            with pytest.raises(error, match=text):
                await at.send()
            await until(lambda: not at.held)
            assert await left(at) == 100 - number


RAISING: dict[str, dict[str, Any]] = {
    "settle": {"settle": has_no_price},
    "should_retry": {"retry": Retry(backoff=0.001, pause_jitter=0, should_retry=has_no_price)},
}


@pytest.mark.parametrize("options", RAISING.values(), ids=RAISING)
@every()
async def test_429_is_reported_although_a_hook_raises(
    integration: Integration, options: dict[str, Any]
) -> None:
    async with integration.serve(answer(429), **options) as at:
        sends: list[Any] = [at.client.raw.get]
        if integration is SESSION and "settle" in options:  # the other is no hook of a handshake
            sends.append(at.client.raw.ws_connect)
        for number, send in enumerate(sends, 1):
            with pytest.raises(LookupError, match="no such price"):
                await send(str(at.url))
            statistics = at.limiter.statistics()
            assert (statistics.throttled, statistics.pauses, at.held) == (number, number, 0)


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


async def test_reader_goes_on_when_a_wait_for_a_chunk_has_timed_out() -> None:
    go, readers = asyncio.Event(), Readers()
    script = in_chunks(b"first ", go, b"last")
    async with SESSION.serve(script, settle=readers) as at, at.client.raw.get(at.url) as response:
        assert await response.content.readany() == b"first "
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await response.content.readany()
        go.set()
        assert await response.read() == b"last"
    assert (readers[0].body, readers.ends) == (b"first last", [[True]])


async def test_raised_status_is_settled_too() -> None:
    readers = Readers()
    settles: list[tuple[Any, str]] = [(readers, "400"), (has_no_price, "no such price")]
    for settle, error in settles:
        async with serve(SESSION, settle, answer(400), raise_for_status=True) as at:
            with pytest.raises(Exception, match=error):
                await at.send()
    async with serve(SESSION, readers, answer(400)) as at:
        with pytest.raises(aiohttp.WSServerHandshakeError):
            await at.client.raw.ws_connect(at.url)
    assert readers.ends == [[False], [False]]


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
    "wrong deflate": ("deflate", b"x" * 1000, 0, False),
    "odd name": (" X-GZIP ", gzip.compress(b"x" * 1000), 1000, True),
}


@pytest.mark.parametrize("name", ENCODED)
@transports
async def test_encoded_body_is_decoded_in_pieces(integration: Integration, name: str) -> None:
    encoding, body, size, complete = ENCODED[name]
    pieces = [body[at : at + 4096] for at in range(0, len(body), 4096)]

    def respond(_: object) -> Any:
        headers = {"Content-Encoding": encoding.encode()}
        return integration.library.Response(200, headers=headers, content=generated(*pieces))

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

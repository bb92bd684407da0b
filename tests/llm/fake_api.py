"""Fakes of the APIs of OpenAI and Anthropic, with limits of requests and of tokens.

Each limit is a bucket into which tokens trickle. A call is admitted if there is room for what it is
estimated to use. At its end the estimate is corrected by what it used, unless the fake counts
`reserved` tokens for good, as OpenAI documents it. Time is that of the event loop, so a fake runs
in virtual time through `transport`, and over sockets through `serve`.
"""

import asyncio
import json
import math
import random
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple, cast

from aiohttp import web

from aiothrottle.testing import RateLimitedServer

Json = dict[str, Any]
#: A status; or the connection is lost in the middle of the body.
Failure = int | Literal["cut"]


class Answer(NamedTuple):
    """A response, and the delays between the chunks of its body."""

    status: int
    headers: Mapping[str, str]
    chunks: AsyncGenerator[bytes]


class Bucket:
    """A limit: so many at once, which trickle back within the period."""

    def __init__(self, limit: float, period: float) -> None:
        self.limit = limit
        self.rate = limit / period
        self._left = float(limit)
        self._at = now()

    @property
    def left(self) -> float:
        at = now()
        self._left = min(self.limit, self._left + (at - self._at) * self.rate)
        self._at = at
        return self._left

    def take(self, tokens: float) -> None:
        self._left = min(self.limit, self.left - tokens)

    def wait(self, tokens: float) -> float:
        """Return the seconds until there are so many."""
        return max(0.0, (tokens - self.left) / self.rate)


class Call(NamedTuple):
    """A call of a model, and the tokens that it is going to write."""

    path: str
    document: Json
    output: int


class Use(NamedTuple):
    """What a call uses of each limit: before it, and in the end."""

    estimate: Mapping[str, float]
    final: Mapping[str, float]


class FakeAPI:
    """What both fakes share.

    Args:
        limits: The limit of each resource.
        period: Seconds to which the limits apply.
        latency: Seconds until the head of a response, and the same until its end.
        reserved: Whether the estimate of a call is never corrected.
        failures: How the first requests fail, in the order of their arrival; None: they do not.
    """

    #: The name of a header about a limit.
    header = ""

    def __init__(
        self,
        limits: Mapping[str, float],
        *,
        period: float = 60.0,
        latency: float = 0.5,
        reserved: bool = False,
        failures: tuple[Failure | None, ...] = (),
    ) -> None:
        self.buckets = {name: Bucket(limit, period) for name, limit in limits.items()}
        self.requests = self.throttled = 0
        self.used = dict.fromkeys(limits, 0.0)
        #: What a failure says about retries.
        self.advice = ""
        self._latency = latency
        self._reserved = reserved
        self._failures = list(failures)
        self._random = random.Random(20)
        self._first: float | None = None
        self._last = 0.0

    def share(self, resource: str) -> float:
        """Return the part of a limit that was used, up to the last call that was admitted."""
        assert self._first is not None
        bucket = self.buckets[resource]
        return self.used[resource] / (bucket.limit + bucket.rate * (self._last - self._first))

    # ---- one request -----------------------------------------------------------------------------

    async def answer(self, method: str, path: str, body: bytes) -> Answer:
        self.requests += 1
        failure = self._failures.pop(0) if self._failures else None
        if isinstance(failure, int):
            advice = {"x-should-retry": self.advice} if self.advice else {}
            return self._error(failure, advice, "broken")
        if method != "POST":
            return self._document({"object": "list", "data": []}, {})
        document: Json = json.loads(body)
        output = round(self._random.uniform(0.4, 1.0) * self.bound(document))
        call = Call(path, document, output)
        use = self.use(call)
        lacking = [n for n, tokens in use.estimate.items() if self.buckets[n].left < tokens]
        if lacking:
            self.throttled += 1
            wait = max(self.buckets[name].wait(use.estimate[name]) for name in lacking)
            return self._error(429, self.retry_after(wait), f"too many {lacking[0]}")
        self._last = now()
        self._first = self._last if self._first is None else self._first
        for name, tokens in use.estimate.items():
            self.buckets[name].take(tokens)
        headers = self.headers()
        await asyncio.sleep(self._latency)
        if document.get("stream"):
            parts = list(self.events(call))
            headers["Content-Type"] = "text/event-stream; charset=utf-8"
        else:
            parts = [json.dumps(self.document(call)).encode()]
            headers["Content-Type"] = "application/json"
        return Answer(200, headers, self._body(parts, use, cut=failure == "cut"))

    async def _body(self, parts: list[bytes], use: Use, *, cut: bool) -> AsyncGenerator[bytes]:
        try:
            for part in parts:
                await asyncio.sleep(self._latency / len(parts))
                if cut:
                    yield part[: len(part) // 2]
                    raise ConnectionResetError("the connection is lost")
                yield part
        finally:
            for name, tokens in use.final.items():
                self.used[name] += tokens
                if not self._reserved:
                    self.buckets[name].take(tokens - use.estimate[name])

    def _document(self, document: Json, headers: Mapping[str, str], status: int = 200) -> Answer:
        async def chunks() -> AsyncGenerator[bytes]:
            yield json.dumps(document).encode()

        headers = {**self.headers(), "Content-Type": "application/json", **headers}
        return Answer(status, headers, chunks())

    def _error(self, status: int, headers: Mapping[str, str], message: str) -> Answer:
        error = {"type": "error", "error": {"type": "error", "message": message}}
        return self._document(error, headers, status)

    def headers(self) -> dict[str, str]:
        """Return the headers about the limits."""
        found = {"x-request-id": f"{self.requests}", "request-id": f"{self.requests}"}
        for name, bucket in self.buckets.items():
            for what, value in (
                ("limit", f"{bucket.limit:.0f}"),
                ("remaining", f"{max(0, math.floor(bucket.left))}"),
                ("reset", self.reset(bucket.wait(bucket.limit))),
            ):
                found[self.header.format(name=name.replace("_", "-"), what=what)] = value
        return found

    def retry_after(self, seconds: float) -> dict[str, str]:
        """Return the headers by which a throttled client learns how long to wait."""
        return {"retry-after": f"{math.ceil(seconds)}"}

    # ---- what differs ----------------------------------------------------------------------------

    def bound(self, document: Json) -> int:
        """Return the tokens that the output may have."""
        raise NotImplementedError

    def use(self, call: Call) -> Use:
        """Return what a call uses."""
        raise NotImplementedError

    def document(self, call: Call) -> Json:
        """Return the body of a plain response."""
        raise NotImplementedError

    def events(self, call: Call) -> Iterator[bytes]:
        """Return the events of a streamed response."""
        raise NotImplementedError

    def reset(self, seconds: float) -> str:
        """Return the value of a header about when a limit is unused."""
        raise NotImplementedError

    # ---- its two faces ---------------------------------------------------------------------------

    def transport(self, library: Any) -> Any:
        """Return a transport of httpx or httpx2 that asks the fake without a socket."""

        async def handle(request: Any) -> Any:
            answer = await self.answer(request.method, request.url.path, await request.aread())

            async def chunks() -> AsyncIterator[bytes]:
                async with aclosing(answer.chunks):
                    try:
                        async for chunk in answer.chunks:
                            yield chunk
                    except ConnectionResetError as error:
                        raise library.ReadError(str(error)) from error

            return library.Response(answer.status, headers=answer.headers, content=chunks())

        return library.MockTransport(handle)

    @asynccontextmanager
    async def serve(self) -> AsyncGenerator[str]:
        """Serve the fake on a port of this machine, and give its URL."""

        async def handle(request: web.Request) -> web.StreamResponse:
            answer = await self.answer(request.method, request.path, await request.read())
            response = web.StreamResponse(status=answer.status, headers=answer.headers)
            await response.prepare(request)
            async for chunk in answer.chunks:
                await response.write(chunk)
            return response

        async with RateLimitedServer(handler=handle) as server:
            yield str(server.url).rstrip("/")


class FakeOpenAI(FakeAPI):
    """The API of OpenAI: chat completions, responses, embeddings, and lists of other things."""

    header = "x-ratelimit-{what}-{name}"

    def __init__(self, requests: float = 500, tokens: float = 30_000, **options: Any) -> None:
        super().__init__({"requests": requests, "tokens": tokens}, **options)

    def bound(self, document: Json) -> int:
        if "input" in document and "max_output_tokens" not in document:
            return 0
        names = ("max_completion_tokens", "max_tokens", "max_output_tokens")
        return next((document[name] for name in names if name in document), 1000)

    def use(self, call: Call) -> Use:
        document = call.document
        texts = list(texts_of(document.get("messages") or document["input"]))
        # As OpenAI documents it: by characters, and the higher of input and bound.
        read = sum(map(len, texts)) // 4
        bound = self.bound(document)
        estimate = max(read, bound) if self._reserved else read + bound
        final = estimate if self._reserved else tokens_of(texts) + call.output
        return Use({"requests": 1, "tokens": estimate}, {"requests": 1, "tokens": final})

    def document(self, call: Call) -> Json:
        path, document, output = call
        model, usage = document["model"], usage_of(document, output)
        if path.endswith("/embeddings"):
            vector = {"object": "embedding", "index": 0, "embedding": [0.5] * 3}
            del usage["completion_tokens"]
            return {"object": "list", "data": [vector], "model": model, "usage": usage}
        if path.endswith("/responses"):
            return response_of(document, "completed", output)
        message = {"role": "assistant", "content": "word " * output, "refusal": None}
        choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
        head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1_700_000_000}
        return {**head, "model": model, "choices": [choice], "usage": usage}

    def events(self, call: Call) -> Iterator[bytes]:
        path, document, output = call
        if path.endswith("/responses"):
            started = response_of(document, "in_progress", None)
            yield event("response.created", {"response": started, "sequence_number": 0})
            completed = response_of(document, "completed", output)
            yield event("response.completed", {"response": completed, "sequence_number": 1})
            return
        head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_700_000_000}
        chunk = {**head, "model": document["model"]}
        for index in range(4):
            delta = {"content": "wörd " * (output // 4)}
            choice = {"index": 0, "delta": delta, "finish_reason": "stop" if index == 3 else None}
            yield event(None, {**chunk, "choices": [choice], "usage": None})
        if document.get("stream_options", {}).get("include_usage"):
            yield event(None, {**chunk, "choices": [], "usage": usage_of(document, output)})
        yield b"data: [DONE]\n\n"

    def reset(self, seconds: float) -> str:
        """Return a duration as OpenAI writes it: 120ms, 1.5s, 6m0s."""
        if seconds < 1:
            return f"{math.ceil(seconds * 1000)}ms"
        minutes, rest = divmod(seconds, 60)
        return f"{minutes:.0f}m{rest:.3g}s" if minutes else f"{rest:.4g}s"

    def retry_after(self, seconds: float) -> dict[str, str]:
        return {"retry-after-ms": f"{math.ceil(seconds * 1000)}", **super().retry_after(seconds)}


class FakeAnthropic(FakeAPI):
    """The API of Anthropic: messages. Its output counts as it was written, whatever its bound."""

    header = "anthropic-ratelimit-{name}-{what}"

    def __init__(
        self,
        requests: float = 50,
        input_tokens: float = 30_000,
        output_tokens: float = 8_000,
        **options: Any,
    ) -> None:
        tokens = {"input_tokens": input_tokens, "output_tokens": output_tokens}
        super().__init__({"requests": requests, **tokens}, **options)

    def bound(self, document: Json) -> int:
        return min(500, int(document["max_tokens"]))

    def use(self, call: Call) -> Use:
        texts = list(texts_of([call.document.get("system"), call.document["messages"]]))
        estimate = sum(map(len, texts)) // 4
        read = tokens_of(texts)
        return Use(
            {"requests": 1, "input_tokens": estimate, "output_tokens": 0},
            {"requests": 1, "input_tokens": read, "output_tokens": call.output},
        )

    def document(self, call: Call) -> Json:
        head = {"id": "msg_1", "type": "message", "role": "assistant"}
        content = [{"type": "text", "text": "word " * call.output}]
        ended = {"stop_reason": "end_turn", "stop_sequence": None}
        usage = {
            "input_tokens": self.use(call).final["input_tokens"],
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": call.output,
        }
        model = call.document["model"]
        return {**head, "model": model, "content": content, **ended, "usage": usage}

    def events(self, call: Call) -> Iterator[bytes]:
        message = self.document(call)
        message |= {"content": [], "stop_reason": None}
        message["usage"]["output_tokens"] = 1
        yield event("message_start", {"message": message})
        yield event("ping", {})
        block = {"type": "text", "text": ""}
        yield event("content_block_start", {"index": 0, "content_block": block})
        delta = {"type": "text_delta", "text": "wörd " * call.output}
        yield event("content_block_delta", {"index": 0, "delta": delta})
        yield event("content_block_stop", {"index": 0})
        ended = {"stop_reason": "end_turn", "stop_sequence": None}
        yield event("message_delta", {"delta": ended, "usage": {"output_tokens": call.output}})
        yield event("message_stop", {})

    def reset(self, seconds: float) -> str:
        at = datetime.now(UTC) + timedelta(seconds=seconds)
        return at.isoformat(timespec="seconds").replace("+00:00", "Z")


# ---- bodies --------------------------------------------------------------------------------------


def texts_of(value: object) -> Iterator[str]:
    """Yield the texts of a prompt."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        part = cast("Json", value)
        yield from texts_of([part.get("content"), part.get("text")])
    elif isinstance(value, list):
        for each in cast("list[object]", value):
            yield from texts_of(each)


def tokens_of(texts: list[str]) -> int:
    """Count as a tokenizer might: by words, and otherwise than by characters."""
    return sum(4 + math.ceil(1.3 * len(text.split())) for text in texts)


def usage_of(document: Json, output: int) -> Json:
    read = tokens_of(list(texts_of(document.get("messages") or document["input"])))
    return {"prompt_tokens": read, "completion_tokens": output, "total_tokens": read + output}


def response_of(document: Json, status: str, output: int | None) -> Json:
    """Return the object of the Responses API; without a usage as long as it is in progress."""
    usage: Json | None = None
    if output is not None:
        read, written, total = usage_of(document, output).values()
        usage = {"input_tokens": read, "output_tokens": written, "total_tokens": total}
        usage["input_tokens_details"] = {"cached_tokens": 0}
        usage["output_tokens_details"] = {"reasoning_tokens": 0}
    head = {"id": "resp_1", "object": "response", "created_at": 1_700_000_000, "status": status}
    tools: Json = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    return {**head, "model": document["model"], "output": [], **tools, "usage": usage}


def event(name: str | None, data: Json) -> bytes:
    if name is None:
        return f"data: {json.dumps(data)}\n\n".encode()
    text = json.dumps({"type": name, **data}, ensure_ascii=False)
    return f"event: {name}\ndata: {text}\n\n".encode()


def now() -> float:
    return asyncio.get_running_loop().time()

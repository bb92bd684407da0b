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
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple

from aiohttp import web

from aiothrottle.testing import RateLimitedServer
from tests.support.virtually import now

Json = dict[str, Any]
Tokens = dict[str, float]
#: A status; or the connection is lost in the middle of the body.
Failure = int | Literal["cut"]


class Answer(NamedTuple):
    """A response, whose chunks come with delays in between."""

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
        return max(0.0, (tokens - self.left) / self.rate)


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
        failures: Sequence[Failure | None] = (),
    ) -> None:
        self.buckets = {name: Bucket(limit, period) for name, limit in limits.items()}
        self.requests = self.throttled = 0
        self.used = dict.fromkeys(limits, 0.0)
        self.reserved = reserved
        self._latency = latency
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

    async def answer(
        self, method: str, path: str, body: bytes, lost: type[Exception] = ConnectionResetError
    ) -> Answer:
        """Answer a request; where the connection is cut, the body raises `lost`."""
        self.requests += 1
        failure = self._failures.pop(0) if self._failures else None
        if isinstance(failure, int):
            return self._error(failure, {})
        if method != "POST":
            return Answer(200, self.headers(), in_parts([b'{"object": "list", "data": []}']))
        asked: Json = json.loads(body)
        output = round(self._random.uniform(0.4, 1.0) * self.bound(asked))
        estimate, final = self.use(asked, output)
        lacking = [name for name, it in estimate.items() if self.buckets[name].left < it]
        if lacking:
            self.throttled += 1
            wait = max(self.buckets[name].wait(estimate[name]) for name in lacking)
            return self._error(429, self.retry_after(wait))
        self._last = now()
        self._first = self._last if self._first is None else self._first
        for name, tokens in estimate.items():
            self.buckets[name].take(tokens)
        headers = self.headers()
        await asyncio.sleep(self._latency)
        if asked.get("stream"):
            parts = list(self.events(path, asked, output))
            headers["Content-Type"] = "text/event-stream; charset=utf-8"
        else:
            parts = [json.dumps(self.document(path, asked, output)).encode()]

        async def chunks() -> AsyncGenerator[bytes]:
            try:
                async for part in in_parts(parts, self._latency):
                    if failure == "cut":
                        yield part[: len(part) // 2]
                        raise lost("the connection is lost")
                    yield part
            finally:
                for name, tokens in final.items():
                    self.used[name] += tokens
                    self.buckets[name].take(0 if self.reserved else tokens - estimate[name])

        return Answer(200, headers, chunks())

    def _error(self, status: int, headers: dict[str, str]) -> Answer:
        error = {"type": "error", "error": {"type": "error", "message": "broken"}}
        return Answer(status, self.headers() | headers, in_parts([json.dumps(error).encode()]))

    def headers(self) -> dict[str, str]:
        found = {"Content-Type": "application/json"}
        for name, bucket in self.buckets.items():
            for what, value in (
                ("limit", f"{bucket.limit:.0f}"),
                ("remaining", f"{max(0, math.floor(bucket.left))}"),
                ("reset", self.reset(bucket.wait(bucket.limit))),
            ):
                found[self.header.format(name=name.replace("_", "-"), what=what)] = value
        return found

    def retry_after(self, seconds: float) -> dict[str, str]:
        return {"retry-after": f"{math.ceil(seconds)}"}

    # ---- what differs ----------------------------------------------------------------------------

    def bound(self, asked: Json) -> int:
        raise NotImplementedError

    def use(self, asked: Json, output: int) -> tuple[Tokens, Tokens]:
        """Return what a call is estimated to use of each limit, and what it uses in the end."""
        raise NotImplementedError

    def document(self, path: str, asked: Json, output: int) -> Json:
        raise NotImplementedError

    def events(self, path: str, asked: Json, output: int) -> Iterator[bytes]:
        raise NotImplementedError

    def reset(self, seconds: float) -> str:
        raise NotImplementedError

    # ---- its two faces ---------------------------------------------------------------------------

    def transport(self, library: Any) -> Any:
        """Return a transport of httpx or httpx2 that asks the fake without a socket."""

        async def handle(request: Any) -> Any:
            sent = request.method, request.url.path, await request.aread()
            status, headers, chunks = await self.answer(*sent, library.ReadError)
            return library.Response(status, headers=headers, content=chunks)

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

    def bound(self, asked: Json) -> int:
        if "input" in asked and "max_output_tokens" not in asked:
            return 0
        names = ("max_completion_tokens", "max_tokens", "max_output_tokens")
        return next((asked[name] for name in names if name in asked), 1000)

    def use(self, asked: Json, output: int) -> tuple[Tokens, Tokens]:
        # As OpenAI documents it: by characters, and the higher of input and bound.
        both = len(prompt(asked)) // 4, self.bound(asked)
        estimate = max(both) if self.reserved else sum(both)
        final = estimate if self.reserved else tokens_of(asked) + output
        return {"requests": 1, "tokens": estimate}, {"requests": 1, "tokens": final}

    def document(self, path: str, asked: Json, output: int) -> Json:
        read, model = tokens_of(asked), asked["model"]
        if path.endswith("/responses"):
            usage = {"input_tokens": read, "output_tokens": output, "total_tokens": read + output}
            head: Json = {"id": "resp_1", "object": "response", "status": "completed", "output": []}
            return {**head, "model": model, "usage": usage}
        usage = {"prompt_tokens": read, "total_tokens": read + output}
        if path.endswith("/embeddings"):
            vector = {"object": "embedding", "index": 0, "embedding": [0.5] * 3}
            return {"object": "list", "data": [vector], "model": model, "usage": usage}
        message = {"role": "assistant", "content": "word " * output}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage["completion_tokens"] = output
        return {"id": "chatcmpl-1", "model": model, "choices": [choice], "usage": usage}

    def events(self, path: str, asked: Json, output: int) -> Iterator[bytes]:
        whole = self.document(path, asked, output)
        if path.endswith("/responses"):
            started = {**whole, "status": "in_progress", "usage": None}
            yield event("response.created", {"response": started})
            yield event("response.completed", {"response": whole})
            return
        chunk = {**whole, "object": "chat.completion.chunk"}
        for index in range(4):
            delta = {"content": "wörd " * (output // 4)}
            choice = {"index": 0, "delta": delta, "finish_reason": "stop" if index == 3 else None}
            yield event(None, {**chunk, "choices": [choice], "usage": None})
        if asked.get("stream_options", {}).get("include_usage"):
            yield event(None, {**chunk, "choices": []})
        yield b"data: [DONE]\n\n"

    def reset(self, seconds: float) -> str:
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

    def bound(self, asked: Json) -> int:
        return min(500, int(asked["max_tokens"]))

    def use(self, asked: Json, output: int) -> tuple[Tokens, Tokens]:
        estimate: Tokens = {"requests": 1, "input_tokens": len(prompt(asked)) // 4}
        final: Tokens = {"requests": 1, "input_tokens": tokens_of(asked)}
        return estimate | {"output_tokens": 0}, final | {"output_tokens": output}

    def document(self, path: str, asked: Json, output: int) -> Json:  # noqa: ARG002
        usage = {"input_tokens": tokens_of(asked), "output_tokens": output}
        usage |= {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
        content = [{"type": "text", "text": "word " * output}]
        head = {"id": "msg_1", "type": "message", "role": "assistant", "model": asked["model"]}
        return {**head, "content": content, "stop_reason": "end_turn", "usage": usage}

    def events(self, path: str, asked: Json, output: int) -> Iterator[bytes]:
        message = self.document(path, asked, output)
        message |= {"content": [], "stop_reason": None}
        message["usage"]["output_tokens"] = 1
        yield event("message_start", {"message": message})
        yield event("ping", {})
        block = {"type": "text", "text": ""}
        yield event("content_block_start", {"index": 0, "content_block": block})
        delta = {"type": "text_delta", "text": "wörd " * output}
        yield event("content_block_delta", {"index": 0, "delta": delta})
        yield event("content_block_stop", {"index": 0})
        ended = {"stop_reason": "end_turn", "stop_sequence": None}
        yield event("message_delta", {"delta": ended, "usage": {"output_tokens": output}})
        yield event("message_stop", {})

    def reset(self, seconds: float) -> str:
        at = datetime.now(UTC) + timedelta(seconds=seconds)
        return at.isoformat(timespec="seconds").replace("+00:00", "Z")


# ---- bodies --------------------------------------------------------------------------------------


def prompt(asked: Json) -> str:
    contents = [message["content"] for message in asked.get("messages", [])]
    return " ".join(str(it) for it in (asked.get("system"), asked.get("input"), *contents) if it)


def tokens_of(asked: Json) -> int:
    """Count as a tokenizer might: by words, and otherwise than by characters."""
    return 4 + math.ceil(1.3 * len(prompt(asked).split()))


def event(name: str | None, data: Json) -> bytes:
    if name is None:
        return f"data: {json.dumps(data)}\n\n".encode()
    text = json.dumps({"type": name, **data}, ensure_ascii=False)
    return f"event: {name}\ndata: {text}\n\n".encode()


async def in_parts(parts: list[bytes], seconds: float = 0.0) -> AsyncGenerator[bytes]:
    """Yield the parts, which take so many seconds together."""
    for part in parts:
        await asyncio.sleep(seconds / len(parts))
        yield part

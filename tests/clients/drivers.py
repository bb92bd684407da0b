"""The recipes of docs/servers/works-with*.md, each in front of a fake of its server."""

import hashlib
import hmac
import json
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias

import pytest
from aiohttp import web

from tests.clients.checks import API, Call, Recipe, answering, json_of, run_recipe
from tests.clients.s3 import CREDENTIALS, s3

Driver: TypeAlias = Callable[[pytest.MonkeyPatch], AbstractAsyncContextManager[Recipe]]
Opened: TypeAlias = AsyncGenerator[Recipe]
#: By the name of the package. A driver skips the test if the package is not installed.
DRIVERS: dict[str, Driver] = {}


def driver(function: Callable[[pytest.MonkeyPatch], Opened]) -> Driver:
    opened = DRIVERS[function.__name__] = asynccontextmanager(function)
    return opened


async def text(request: web.Request) -> web.Response:
    return web.Response(text=f"body of {request.path_qs}")


@driver
async def aiogram(_: pytest.MonkeyPatch) -> Opened:
    telegram: Any = pytest.importorskip("aiogram.client.telegram")
    exceptions: Any = pytest.importorskip("aiogram.exceptions")

    async def answer(request: web.Request) -> web.Response:
        message = {"message_id": 1, "date": 1, "chat": {"id": 1, "type": "private"}}
        sent = request.path.endswith("/sendMessage")
        return json_of({"ok": True, "result": message if sent else []})

    names = await run_recipe("aiogram")
    error = {"ok": False, "error_code": 429, "description": "Too Many Requests: retry after 30"}
    api, bot = API(answer, {**error, "parameters": {"retry_after": 30}}), names["bot"]
    async with api.server:
        bot.session.api = telegram.TelegramAPIServer.from_base(api.url)
        try:
            call: Call = lambda number: bot.send_message(1, f"message {number}")  # noqa: E731
            yield Recipe(api, names, names["chats"][1], call, exceptions.TelegramRetryAfter)
        finally:
            await bot.session.close()


@driver
async def aiobotocore(_: pytest.MonkeyPatch) -> Opened:
    pytest.importorskip("aiobotocore")
    names, api = await run_recipe("aiobotocore"), API(s3)
    async with api.server:
        options = {**CREDENTIALS, "endpoint_url": api.url}
        async with names["session"].create_client("s3", **options) as client:

            async def read(_: int) -> None:
                response = await client.get_object(Bucket="bucket", Key="key")
                async with response["Body"] as body:
                    assert await body.read() == b"object /bucket/key"

            yield Recipe(api, names, names["limiter"], read)


@driver
async def aiohttp_client_cache(_: pytest.MonkeyPatch) -> Opened:
    for package in ("aiohttp_client_cache", "aiosqlite"):
        pytest.importorskip(package)
    names, api = await run_recipe("aiohttp-client-cache"), API(text)
    async with api.server, names["session"] as session:

        async def get(number: int) -> None:
            async with session.get(f"{api.url}/{number}") as response:
                assert await response.text() == f"body of /{number}"

        yield Recipe(api, names, names["limiter"], get)


class Binance:
    """The API, which checks signatures. Its clock, in milliseconds, is set by hand."""

    VALID_FOR = 2000
    now = 1_700_000_000_000

    async def answer(self, request: web.Request) -> web.Response:
        if request.path.endswith("/account"):
            signed, _, signature = request.query_string.rpartition("&signature=")
            expected = hmac.new(b"SECRET", signed.encode(), hashlib.sha256).hexdigest()
            assert signature == expected
            if self.now - int(request.query["timestamp"]) > self.VALID_FOR:
                error = {"code": -1021, "msg": "Timestamp is outside of the recvWindow."}
                return web.json_response(error, status=400)
        return web.json_response({"balances": []})


@driver
async def ccxt(_: pytest.MonkeyPatch) -> Opened:
    package: Any = pytest.importorskip("ccxt.async_support")
    fake, names = Binance(), await run_recipe("ccxt")
    api, exchange = (
        API(fake.answer, {"code": -1003, "msg": "Too many requests."}),
        names["exchange"],
    )
    async with api.server:
        exchange.urls["api"] = dict.fromkeys(exchange.urls["api"], api.url)
        exchange.milliseconds = lambda: fake.now
        exchange.timeout_on_exit = 0
        weighs_one: Call = lambda _: exchange.public_get_depth({"limit": 100})  # noqa: E731
        try:
            names["fake"] = fake
            yield Recipe(api, names, names["limiter"], weighs_one, package.DDoSProtection)
        finally:
            await exchange.close()


@driver
async def discord(patch: pytest.MonkeyPatch) -> Opened:
    http: Any = pytest.importorskip("discord.http")
    user = {"id": "42", "username": "bot", "discriminator": "0", "avatar": None}
    application: dict[str, object] = {**user, "name": "bot", "description": "", "icon": None}
    application |= {"verify_key": "", "owner": user, "bot_require_code_grant": False}

    async def answer(request: web.Request) -> web.Response:
        name = request.path.rpartition("/")[2]
        channel = {"id": name, "type": 1, "recipients": [user]}
        return json_of(channel if name.isdigit() else {**application, "bot_public": True})

    names = await run_recipe("discord.py")
    # Without a Via, discord.py takes a 429 for a ban of its address.
    headers = {"Via": "1.1 google", "X-RateLimit-Scope": "global"}
    api = API(answer, {"message": "too many", "retry_after": 0.05, "global": True}, **headers)
    async with api.server:
        patch.setattr(http.Route, "BASE", api.url)
        async with names["client"] as client:
            await client.login("TOKEN")
            # Of each channel discord.py sends one request at a time, until it knows its limit.
            call: Call = lambda number: client.fetch_channel(1000 + number)  # noqa: E731
            yield Recipe(api, names, names["limiter"], call)


@driver
async def elasticsearch(_: pytest.MonkeyPatch) -> Opened:
    package: Any = pytest.importorskip("elasticsearch")
    product = {"X-Elastic-Product": "Elasticsearch"}  # the client asks for no other
    names, api = await run_recipe("elasticsearch"), API(answering({"count": 7}, headers=product))
    await names["client"].close()
    async with api.server:
        options = {"node_class": names["ThrottledNode"], "retry_on_timeout": False}
        async with package.AsyncElasticsearch(api.url, **options) as client:
            call: Call = lambda _: client.count()  # noqa: E731
            yield Recipe(api, names, names["limiter"], call)


@driver
async def fsspec(_: pytest.MonkeyPatch) -> Opened:
    package: Any = pytest.importorskip("fsspec")
    names, api = await run_recipe("fsspec"), API(text)
    # Unlike that of the recipe it is on the loop of the test.
    options = {"get_client": names["get_client"], "skip_instance_cache": True}
    files = package.filesystem("http", asynchronous=True, **options)
    session = await files.set_session()
    async with api.server:
        call: Call = lambda number: files._cat_file(f"{api.url}/{number}")  # noqa: E731
        yield Recipe(api, names, names["limiter"], call, FileNotFoundError)
        await session.close()


@driver
async def gidgethub(_: pytest.MonkeyPatch) -> Opened:
    package: Any = pytest.importorskip("gidgethub")
    names = await run_recipe("gidgethub")
    answer = answering({"stars": 1}, headers={"X-RateLimit-Limit": "5000"})
    api = API(answer, {"message": "You have exceeded a secondary rate limit"})
    async with api.server, names["session"] as session:
        github = names["github"]
        github.base_url = api.url
        call: Call = lambda number: github.getitem(f"/repos/python/{number}")  # noqa: E731
        yield Recipe(api, names, session.limiter, call, package.HTTPException)


@driver
async def google_genai(patch: pytest.MonkeyPatch) -> Opened:
    errors: Any = pytest.importorskip("google.genai.errors")
    part = {"candidates": [{"content": {"role": "model", "parts": [{"text": "Hello."}]}}]}

    async def answer(request: web.Request) -> web.StreamResponse:
        if "streamGenerateContent" not in request.path:
            return web.json_response(part)
        events = [f"data: {json.dumps(part)}\r\n\r\n"] * 3
        return web.Response(text="".join(events), content_type="text/event-stream")

    error = {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": "Quota"}
    api = API(answer, {"error": error})
    async with api.server:
        patch.setenv("GOOGLE_GEMINI_BASE_URL", api.url)
        names = await run_recipe("google-genai")

        async def ask(_: int) -> None:
            models = names["client"].aio.models
            reply = await models.generate_content(model="gemini-2.5-flash", contents="Hello?")
            assert reply.text == "Hello."

        async with names["client"].aio:
            yield Recipe(api, names, names["transport"].limiter, ask, errors.ClientError)


@driver
async def gql(_: pytest.MonkeyPatch) -> Opened:
    package: Any = pytest.importorskip("gql")
    exceptions: Any = pytest.importorskip("gql.transport.exceptions")
    names, api = await run_recipe("gql"), API(answering({"data": {"hello": "you"}}))
    async with api.server:
        names["transport"].url = f"{api.url}/graphql"
        async with names["client"] as session:
            query = package.gql("{ hello }")
            call: Call = lambda _: session.execute(query)  # noqa: E731
            yield Recipe(api, names, names["limiter"], call, exceptions.TransportError)


@driver
async def huggingface_hub(_: pytest.MonkeyPatch) -> Opened:
    package: Any = pytest.importorskip("huggingface_hub")
    http: Any = pytest.importorskip("huggingface_hub.utils._http")
    question = [{"role": "user", "content": "How are you?"}]

    async def answer(request: web.Request) -> web.StreamResponse:
        says = {"role": "assistant", "content": "Fine."}
        if not (await request.json()).get("stream"):
            head = {"id": "1", "created": 1, "model": "small", "object": "chat.completion"}
            return web.json_response({**head, "choices": [{"index": 0, "message": says}]})
        return event_stream(*[{"choices": [{"index": 0, "delta": says}]}] * 3)

    names, api = await run_recipe("huggingface_hub"), API(answer)
    await names["client"].close()
    try:
        async with api.server:
            url = f"{api.url}/v1"
            names["clients"] = [package.AsyncInferenceClient(base_url=url) for _ in range(2)]

            async def ask(number: int) -> None:
                reply = await names["clients"][number % 2].chat_completion(question)
                assert reply.choices[0].message.content == "Fine."

            async with names["clients"][0], names["clients"][1]:
                yield Recipe(api, names, names["limiter"], ask)
    finally:
        package.set_async_client_factory(http.default_async_client_factory)


def event_stream(*documents: object) -> web.Response:
    """Return the events of a streamed answer of OpenAI."""
    events = "".join(f"data: {json.dumps(document)}\n\n" for document in documents)
    return web.Response(text=events + "data: [DONE]\n\n", content_type="text/event-stream")


async def answer_litellm(request: web.Request) -> web.StreamResponse:
    """Answer as OpenAI or Anthropic does."""
    said = {"role": "assistant", "content": "Hi."}
    if not request.path.endswith("/chat/completions"):
        message = {"id": "1", "type": "message", "role": "assistant", "stop_reason": "end_turn"}
        usage = {"input_tokens": 5, "output_tokens": 2}
        content = [{"type": "text", "text": "Hi."}]
        return web.json_response({**message, "model": "claude", "content": content, "usage": usage})
    head = {"id": "1", "object": "chat.completion", "created": 1, "model": "gpt-4o"}
    if not (await request.json()).get("stream"):
        usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
        choice = {"index": 0, "finish_reason": "stop", "message": said}
        return web.json_response({**head, "choices": [choice], "usage": usage})
    says = {"index": 0, "delta": {"role": "assistant", "content": "H"}}
    ends = {"index": 0, "delta": {"content": "i."}, "finish_reason": "stop"}
    head["object"] = "chat.completion.chunk"
    return event_stream(*({**head, "choices": [choice]} for choice in (says, ends)))


async def litellm_of(model: str, patch: pytest.MonkeyPatch) -> Opened:
    """Open the recipe of litellm for a model; `names` has `ask`, whose answer may be a stream."""
    # Else it would fetch a list of prices.
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    litellm: Any = pytest.importorskip("litellm")
    error = {"error": {"type": "rate_limit_error", "message": "too many"}}
    api = API(answer_litellm, error)
    patch.setattr(litellm, "aclient_session", None)
    async with api.server:
        for name in ("OPENAI", "ANTHROPIC"):
            patch.setenv(f"{name}_API_BASE", f"{api.url}/")
            patch.setenv(f"{name}_API_KEY", "KEY")
        names = await run_recipe("litellm")

        async def ask(**options: Any) -> Any:
            if not model.startswith("openai/"):
                options["client"] = names["client"]
            return await litellm.acompletion(model, [{"role": "user", "content": "Hi?"}], **options)

        async def call(_: int) -> None:
            answer = await ask(max_retries=names.get("max_retries"))
            assert answer.choices[0].message.content == "Hi."

        names["ask"] = ask
        limiter = names["limiters"][api.url.removeprefix("http://")]
        async with names["session"]:
            yield Recipe(api, names, limiter, call, litellm.RateLimitError)
        litellm.in_memory_llm_clients_cache.flush_cache()


@driver
def litellm_openai(patch: pytest.MonkeyPatch) -> Opened:
    return litellm_of("openai/gpt-4o", patch)


@driver
def litellm_anthropic(patch: pytest.MonkeyPatch) -> Opened:
    return litellm_of("anthropic/claude-sonnet-4-5", patch)


def s3_files(names: dict[str, Any], url: object, **options: Any) -> Any:
    """Return a file system with the session of the recipe of s3fs."""
    return pytest.importorskip("s3fs").S3FileSystem(
        session=names["session"],
        endpoint_url=str(url),
        key=CREDENTIALS["aws_access_key_id"],
        secret=CREDENTIALS["aws_secret_access_key"],
        client_kwargs={"region_name": CREDENTIALS["region_name"]},
        skip_instance_cache=True,
        **options,
    )


@driver
async def s3fs(_: pytest.MonkeyPatch) -> Opened:
    pytest.importorskip("s3fs")
    names, api = await run_recipe("s3fs"), API(s3)
    async with api.server:
        # Unlike that of the recipe it is on the loop of the test.
        files = s3_files(names, api.url, asynchronous=True)
        session = await files.set_session()

        async def read(_: int) -> None:
            found = await files._cat_file("bucket/key", start=0, end=99)
            assert found == b"object /bucket/key"

        yield Recipe(api, names, names["limiter"], read)
        await session.close()


@driver
async def slack_sdk(_: pytest.MonkeyPatch) -> Opened:
    errors: Any = pytest.importorskip("slack_sdk.errors")
    names = await run_recipe("slack_sdk")
    api = API(answering({"ok": True}), {"ok": False, "error": "ratelimited"})
    async with api.server, names["session"] as session:
        client = names["client"]
        client.base_url = f"{api.url}/api/"
        call: Call = lambda number: client.users_info(user=f"U{number}")  # noqa: E731
        yield Recipe(api, names, session.limiter["/api/users.info"], call, errors.SlackApiError)

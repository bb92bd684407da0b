"""The recipes of docs/servers/works-with*.md, each in front of a fake of its server."""

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias

import pytest
from aiohttp import web

from tests.clients.checks import API, Call, Recipe, json_of, run_recipe
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

    async def answer(_: web.Request) -> web.Response:
        product = {"X-Elastic-Product": "Elasticsearch"}  # the client asks for no other
        return web.json_response({"count": 7}, headers=product)

    names, api = await run_recipe("elasticsearch"), API(answer)
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

    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"stars": 1}, headers={"X-RateLimit-Limit": "5000"})

    names = await run_recipe("gidgethub")
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

    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"data": {"hello": "you"}})

    names, api = await run_recipe("gql"), API(answer)
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
        event = f"data: {json.dumps({'choices': [{'index': 0, 'delta': says}]})}\n\n"
        return web.Response(text=event * 3 + "data: [DONE]\n\n", content_type="text/event-stream")

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

    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"ok": True})

    names = await run_recipe("slack_sdk")
    api = API(answer, {"ok": False, "error": "ratelimited"})
    async with api.server, names["session"] as session:
        client = names["client"]
        client.base_url = f"{api.url}/api/"
        call: Call = lambda number: client.users_info(user=f"U{number}")  # noqa: E731
        yield Recipe(api, names, session.limiter["/api/users.info"], call, errors.SlackApiError)

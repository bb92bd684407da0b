"""The recipe of huggingface_hub: inference keeps the limit, and a 429 pauses all of it."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from aiohttp import web

from tests.clients.limits import assert_idle, assert_limit_is_kept, finish, limited, throttled
from tests.clients.recipes import run_recipe
from tests.integrations.clients import Clock
from tests.serving import serving, until
from tests.virtually import counts

hub = pytest.importorskip("huggingface_hub")

QUESTION = [{"role": "user", "content": "How are you?"}]


@pytest.fixture(autouse=True)
def factory() -> Iterator[None]:
    yield
    hub.set_async_client_factory(
        pytest.importorskip("huggingface_hub.utils._http").default_async_client_factory
    )


async def answer(request: web.Request) -> web.StreamResponse:
    asked = await request.json()
    chunk = {"id": "1", "created": 1, "model": "small", "object": "chat.completion"}
    if not asked.get("stream"):
        message = {"index": 0, "message": {"role": "assistant", "content": "Fine."}}
        return web.json_response({**chunk, "choices": [message]})
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for word in ("Fi", "ne", "."):
        delta = f'{{"index": 0, "delta": {{"role": "assistant", "content": "{word}"}}}}'
        await response.write(f'data: {{"choices": [{delta}]}}\n\n'.encode())
    await response.write(b"data: [DONE]\n\n")
    return response


async def recipe(url: object) -> tuple[dict[str, Any], Any]:
    names = await run_recipe("huggingface_hub")
    await names["client"].close()
    return names, hub.AsyncInferenceClient(base_url=f"{url}v1", api_key="secret")


async def ask(client: Any) -> str:
    reply = await client.chat_completion(QUESTION)
    content: str = reply.choices[0].message.content
    return content


async def test_requests_of_several_clients_keep_the_limit(clock: Clock) -> None:
    async with limited(answer) as server:
        names, client = await recipe(server.url)
        async with client, hub.AsyncInferenceClient(base_url=f"{server.url}v1") as other:
            clients = iter([client, other] * 10)
            replies = await assert_limit_is_kept(
                clock, names["limiter"], server, lambda: ask(next(clients))
            )
    assert set(replies) == {"Fine."}
    await assert_idle(names["limiter"])


async def test_throttled_request_pauses_the_limiter_and_is_retried(clock: Clock) -> None:
    async with serving(throttled(30), answer) as (url, seen):
        names, client = await recipe(url)
        began = clock.time()
        async with client:
            assert await finish(clock, names["limiter"], ask(client)) == ["Fine."]
    assert len(seen) == 2
    assert 30 <= clock.time() - began < 60
    await assert_idle(names["limiter"])


async def test_streamed_answer_holds_its_slot_to_its_end(clock: Clock) -> None:
    async with serving(answer) as (url, _):
        names, client = await recipe(url)
        async with client:
            [stream] = await finish(
                clock, names["limiter"], client.chat_completion(QUESTION, stream=True)
            )
            assert counts(names["limiter"]) == (1, 0)
            assert await text_of(stream) == "Fine."
            await until(lambda: counts(names["limiter"]) == (0, 0))
    await assert_idle(names["limiter"])


async def text_of(stream: AsyncIterator[Any]) -> str:
    return "".join([chunk.choices[0].delta.content async for chunk in stream])

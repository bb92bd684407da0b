"""The SDK of OpenAI in front of a fake of the API: what is throttled, what is used, what fails.

Run it with ``python benchmarks/llm.py``; it needs openai, and takes a minute. The limits are those
of the lowest tier, 500 requests and 30,000 tokens, but in a fifth of a minute. Half of the 300
calls are streamed, all are started at once, and each is answered over a socket.
"""

import asyncio
import importlib
import sys
import time
from pathlib import Path
from typing import Any

from aiothrottle import RateLimiter, TokenBucket, llm
from aiothrottle.headers import Profile
from aiothrottle.httpx2 import ThrottledTransport

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.llm.calling import outcomes, prompt_of
from tests.llm.fake_api import FakeOpenAI

openai: Any = importlib.import_module("openai")  # of the dependency group clients

# As of api.openai.com: tokens trickle back, and the reset is when all are there.
_PROFILE = Profile("fake", hosts=("127.0.0.1",), refills=True)
_CALLS, _PERIOD, _LATENCY = 300, 12.0, 0.1


async def _call(client: Any, number: int) -> None:  # noqa: ANN401 - of the SDK
    asked: Any = {"model": "small", "messages": prompt_of(number), "max_tokens": 500}
    if number % 2 == 0:
        await client.chat.completions.create(**asked)
        return
    asked |= {"stream": True, "stream_options": {"include_usage": True}}
    async for _ in await client.chat.completions.create(**asked):
        pass


async def _measure(name: str, *, throttled: bool) -> None:
    fake = FakeOpenAI(period=_PERIOD, latency=_LATENCY)
    rates = {"requests": f"500/{_PERIOD:g}s", "tokens": f"30000/{_PERIOD:g}s"}
    async with fake.serve() as url, RateLimiter(rates, algorithm=TokenBucket) as limiter:
        http_client = None
        if throttled:
            options = llm.openai(most_tokens=30_000)
            transport = ThrottledTransport(limiter, profiles=[_PROFILE], **options)
            http_client = openai.DefaultAsyncHttpx2Client(transport=transport)
        base = f"{url}/v1"
        client = openai.AsyncOpenAI(api_key="key", base_url=base, http_client=http_client)
        started = time.perf_counter()
        async with client:
            succeeded, _ = await outcomes(lambda number: _call(client, number), _CALLS)
        seconds = time.perf_counter() - started
    print(
        f"{name:12} {succeeded / _CALLS:8.1%} {fake.throttled / fake.requests:10.1%} "
        f"{fake.share('tokens'):8.1%} {seconds:8.1f} s"
    )


async def _main() -> None:
    print(f"{_CALLS} calls{'':3} {'ok':>8} {'throttled':>10} {'used':>8}")
    await _measure("bare SDK", throttled=False)
    await _measure("aiothrottle", throttled=True)


if __name__ == "__main__":
    asyncio.run(_main())

"""Send a JSONL file of prompts to OpenAI, within its limits of requests and of tokens.

    python examples/openai_batch.py                       # against a fake API, without a network
    OPENAI_API_KEY=... python examples/openai_batch.py prompts.jsonl > answers.jsonl

A line of the file is ``{"id": 1, "prompt": "Say hello."}``. For each a line is written as soon as
its answer is there, with the same id and either an "answer" or an "error". Options give the model
and your account's limits, which OpenAI shows under Settings, Limits.

Needs ``pip install openai httpx2``.
"""

import argparse
import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Handler
from openai import AsyncOpenAI, DefaultAsyncHttpx2Client, OpenAIError

from aiothrottle import RateLimiter, TokenBucket, llm
from aiothrottle.httpx2 import ThrottledTransport
from aiothrottle.testing import RateLimitedServer

TASKS = 50  # prompts in progress, however long the file is
MOST_OUTPUT = 1000  # tokens


async def run(lines: Iterable[str], options: argparse.Namespace, base_url: str | None) -> None:
    """Send all prompts; write a line for each."""
    limits = {"requests": f"{options.requests}/min", "tokens": f"{options.tokens}/min"}
    limiter = RateLimiter(limits, algorithm=TokenBucket)
    # A call waits for a request and for its estimated tokens. The usage in its response replaces
    # the estimate. The transport retries what OpenAI throttles.
    transport = ThrottledTransport(limiter, **llm.openai(most_tokens=options.tokens))
    events: Counter[str] = Counter()
    limiter.observe(lambda event: events.update([type(event).__name__]))
    remaining = iter(lines)
    tokens = 0

    async def work(client: AsyncOpenAI) -> None:
        nonlocal tokens
        for line in remaining:  # shared: each task takes the next line
            prompt = json.loads(line)
            try:
                completion = await client.chat.completions.create(
                    model=options.model,
                    messages=[{"role": "user", "content": prompt["prompt"]}],
                    max_completion_tokens=MOST_OUTPUT,
                )
                answer = {"answer": completion.choices[0].message.content}
                tokens += completion.usage.total_tokens if completion.usage else 0
            except OpenAIError as error:
                answer = {"error": str(error)}
            print(json.dumps({"id": prompt["id"]} | answer), flush=True)

    http_client = DefaultAsyncHttpx2Client(transport=transport)
    async with (
        AsyncOpenAI(base_url=base_url, http_client=http_client) as client,
        asyncio.TaskGroup() as group,
    ):
        for _ in range(TASKS):
            group.create_task(work(client))
    granted = limiter.statistics().granted
    print(f"{granted} requests, {tokens} tokens, {events['Throttled']} throttled", file=sys.stderr)


async def run_offline(options: argparse.Namespace) -> None:
    """Send prompts to a fake API, which has the same limits."""
    os.environ["OPENAI_API_KEY"] = "of no account"
    lines = (json.dumps({"id": number, "prompt": f"Count to {number}."}) for number in range(100))
    async with RateLimitedServer(handler=fake_api(options.requests, options.tokens)) as server:
        await run(lines, options, f"{server.url}v1")


def fake_api(requests: int, tokens: int) -> Handler:
    """Return a handler that admits so many requests and tokens per minute."""
    limits = {"requests": f"{requests}/min", "tokens": f"{tokens}/min"}
    limiter = RateLimiter(limits, algorithm=TokenBucket)

    async def chat(request: web.Request) -> web.Response:
        call = await request.json()
        read = len(call["messages"][0]["content"]) // 4
        decision = await limiter.try_acquire({"tokens": read + call["max_completion_tokens"]})
        if decision.permit is None:
            headers = {"retry-after-ms": str(int(1000 * decision.retry_after) + 1)}
            error = {"message": "Rate limit reached", "type": "tokens"}
            return web.json_response({"error": error}, status=429, headers=headers)
        await asyncio.sleep(0.2)
        written = 500
        decision.permit.settle({"tokens": read + written})
        usage = {"prompt_tokens": read, "completion_tokens": written}
        message = {"role": "assistant", "content": "1, 2, 3"}
        return web.json_response(
            {
                "id": "chatcmpl-1",
                "object": "chat.completion",
                "created": 1_700_000_000,
                "model": call["model"],
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                "usage": usage | {"total_tokens": read + written},
            }
        )

    return chat


def read_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Send a JSONL file of prompts to OpenAI.")
    parser.add_argument("prompts", nargs="?", type=Path, help="a file of prompts, for the real API")
    parser.add_argument("--model", default="gpt-4o-mini", help="gpt-4o-mini")
    parser.add_argument("--requests", type=int, default=500, help="per minute (500)")
    parser.add_argument("--tokens", type=int, default=60_000, help="per minute (60000)")
    options = parser.parse_args()
    if options.prompts is not None and "OPENAI_API_KEY" not in os.environ:
        parser.error("set OPENAI_API_KEY to a key of the real API, or leave out the file")
    return options


def main() -> None:
    """Send the prompts of the file, or some to the fake API."""
    options = read_options()
    if options.prompts is None:
        asyncio.run(run_offline(options))
    else:
        with options.prompts.open(encoding="utf-8") as lines:
            asyncio.run(run(lines, options, None))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)

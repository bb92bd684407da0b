"""The program of README.md runs as printed, at a server on this machine."""

import asyncio
import re
import sys
from pathlib import Path

import pytest
from aiohttp import web

from aiothrottle.testing import RateLimitedServer

PAGE = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
[PROGRAM] = re.findall(r"(?ms)^```python\n(.*?)^```$", PAGE)
URL = "https://httpbin.org/status/200,200,429"


async def run(url: str) -> tuple[str, str]:
    """Run the program with another URL, and return its output and its errors."""
    assert URL in PROGRAM
    program = PROGRAM.replace(URL, url)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await process.communicate()
    return output.decode(), errors.decode()


@pytest.mark.slow
async def test_program_of_the_readme_prints_what_it_says() -> None:
    sent = 0

    async def throttle_one_in_three(_: web.Request) -> web.Response:
        nonlocal sent
        sent += 1
        return web.Response(status=429 if sent % 3 == 0 and sent < 10 else 200)

    async with RateLimitedServer(handler=throttle_one_in_three) as server:
        output, errors = await run(str(server.url))
        assert (output, errors) == (f"{[200] * 20}\n", "")
        assert server.audit.sent == 23
        assert server.audit.greatest_concurrency <= 4


@pytest.mark.slow
async def test_program_of_the_readme_names_a_server_that_is_down(unused_tcp_port: int) -> None:
    output, errors = await run(f"http://127.0.0.1:{unused_tcp_port}/")
    assert output == ""
    last = errors.strip().splitlines()[-1]
    assert last.startswith("aiohttp.client_exceptions.ClientConnectorError: Cannot connect to host")
    assert f"127.0.0.1:{unused_tcp_port}" in last

"""Answers each request after some seconds: `slow.py PORT SECONDS`."""

import asyncio
import sys

from aiohttp import web


async def answer(_: web.Request) -> web.Response:
    """Answer late."""
    await asyncio.sleep(float(sys.argv[2]))
    return web.Response(text="Here you are.\n")


app = web.Application()
app.router.add_get("/", answer)
web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None)

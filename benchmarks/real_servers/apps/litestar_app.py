"""Litestar with its own middleware: a sliding log of timestamps."""

from counting import serve_asgi
from litestar import Litestar, get
from litestar.middleware.rate_limit import RateLimitConfig


@get("/")
async def page() -> str:
    """Answer."""
    return "Here you are.\n"


serve_asgi(Litestar([page], middleware=[RateLimitConfig(("second", 20)).middleware]))

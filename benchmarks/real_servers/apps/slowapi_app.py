"""Starlette with slowapi: a fixed window of the calendar."""

from counting import serve_asgi
from slowapi import Limiter, _rate_limit_exceeded_handler
from slowapi.errors import RateLimitExceeded
from slowapi.util import get_remote_address
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

limiter = Limiter(get_remote_address, headers_enabled=True)


@limiter.limit("20/second")
async def page(request: Request) -> Response:
    """Answer."""
    return PlainTextResponse("Here you are.\n")


app = Starlette(routes=[Route("/", page)])
app.state.limiter = limiter
app.add_exception_handler(RateLimitExceeded, _rate_limit_exceeded_handler)
serve_asgi(app)

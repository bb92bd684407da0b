"""Quart with quart-rate-limiter: GCRA."""

from datetime import timedelta

from counting import serve_asgi
from quart import Quart
from quart_rate_limiter import RateLimit, RateLimiter

app = Quart(__name__)
RateLimiter(app, default_limits=[RateLimit(20, timedelta(seconds=1))])


@app.get("/")
async def page() -> str:
    """Answer."""
    return "Here you are.\n"


serve_asgi(app)

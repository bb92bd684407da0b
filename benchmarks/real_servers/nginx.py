"""nginx: `limit_req` without delay, a leaky bucket, and `limit_conn`, which counts slots."""

from collections.abc import Callable, Sequence
from functools import partial

from real_servers.backend import LATENCY, backend
from real_servers.install import debian, libraries
from real_servers.server import Command, Place, Server

__all__ = ["SERVERS"]

_CONF = """\
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log crit;
events {{ }}
http {{
    {temporary}
    log_format counted '$msec $status';
    access_log {log} counted;
    limit_req_zone $binary_remote_addr zone=rate:1m rate=20r/s;
    limit_conn_zone $binary_remote_addr zone=slots:1m;
    server {{
        listen 127.0.0.1:{port};
        location / {{
            {limit}
            {content}
        }}
    }}
}}
"""
_TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


def _commands(limit: str, place: Place, *, slow: bool = False) -> Sequence[Command]:
    root = debian("nginx")
    behind, content = [], "empty_gif;"
    if slow:
        command, port = backend()
        behind, content = [command], f"proxy_pass http://127.0.0.1:{port};"
    conf = _CONF.format(
        folder=place.folder,
        log=place.log,
        port=place.port,
        limit=limit,
        content=content,
        temporary=" ".join(f"{it}_temp_path {place.folder}/{it};" for it in _TEMPORARY),
    )
    argv = [str(root / "usr/sbin/nginx"), "-p", str(place.folder)]
    return [Command([*argv, "-c", place.write("nginx.conf", conf)], libraries(root)), *behind]


def _limited(limit: str, *, slow: bool = False) -> Callable[[Place], Sequence[Command]]:
    return partial(_commands, limit, slow=slow)


SERVERS = [
    Server(
        "nginx burst=20, 429",
        _limited("limit_req zone=rate burst=20 nodelay; limit_req_status 429;"),
    ),
    Server("nginx burst=20, 503", _limited("limit_req zone=rate burst=20 nodelay;")),
    Server("nginx burst=5", _limited("limit_req zone=rate burst=5 nodelay; limit_req_status 429;")),
    Server("nginx no burst", _limited("limit_req zone=rate; limit_req_status 429;")),
    Server(
        "nginx limit_conn, 429",
        _limited("limit_conn slots 8; limit_conn_status 429;", slow=True),
        slots=8,
        latency=LATENCY,
    ),
    Server(
        "nginx limit_conn, 503",
        _limited("limit_conn slots 8;", slow=True),
        slots=8,
        latency=LATENCY,
    ),
]

"""nginx: `limit_req` without delay, a leaky bucket, and `limit_conn`, which counts slots."""

from collections.abc import Sequence
from functools import partial

from real_servers.backend import LATENCY, backend
from real_servers.install import debian, libraries
from real_servers.server import BURST_5, KNOWN, NO_BURST, SLOTS, Command, Place, Server

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


def _rate(name: str, limit: str, line: str = KNOWN) -> Server:
    return Server(name, partial(_commands, f"limit_req zone=rate {limit}"), line=line)


def _slots(name: str, limit: str) -> Server:
    commands = partial(_commands, f"limit_conn slots 8; {limit}", slow=True)
    return Server(name, commands, slots=8, latency=LATENCY, line=SLOTS)


SERVERS = [
    _rate("nginx burst=20, 429", "burst=20 nodelay; limit_req_status 429;"),
    _rate("nginx burst=20, 503", "burst=20 nodelay;"),
    _rate("nginx burst=5", "burst=5 nodelay; limit_req_status 429;", BURST_5),
    _rate("nginx no burst", "; limit_req_status 429;", NO_BURST),
    _slots("nginx limit_conn, 429", "limit_conn_status 429;"),
    _slots("nginx limit_conn, 503", ""),
]

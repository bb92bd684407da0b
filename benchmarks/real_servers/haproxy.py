"""HAProxy: a sliding counter, which counts what it denies too."""

from collections.abc import Sequence

from real_servers.install import debian, libraries
from real_servers.server import BURST_5, Answer, Command, Place, Server

__all__ = ["SERVERS"]

_CONF = """\
global
    nbthread 1
    log stdout format raw daemon
defaults
    mode http
    timeout client 30s
    timeout connect 5s
    timeout server 30s
frontend limited
    bind 127.0.0.1:{port}
    log global
    log-format "%[date(0,ms)] %ST"
    stick-table type ip size 1k expire 60s store http_req_rate(1s)
    http-request track-sc0 src
    http-request deny deny_status {status} if {{ sc_http_req_rate(0) gt 20 }}
    http-request return status 200 content-type text/plain string "Here you are."
"""


def _commands(place: Place, status: int = 429) -> Sequence[Command]:
    root = debian("haproxy")
    conf = place.write("haproxy.cfg", _CONF.format(port=place.port, status=status))
    argv = [str(root / "usr/sbin/haproxy"), "-db", "-f", conf]
    return [Command(argv, libraries(root), logs=True)]


def _parse(line: str) -> Answer:
    milliseconds, status = line.split()
    return Answer(float(milliseconds) / 1000, int(status))


SERVERS = [Server("HAProxy http_req_rate(1s)", _commands, _parse, line=BURST_5)]

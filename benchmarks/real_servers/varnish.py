"""Varnish: vsthrottle, a token bucket; what it denies is answered with a fixed `Retry-After: 5`."""

from collections.abc import Sequence

from real_servers.install import debian, libraries
from real_servers.server import Command, Place, Server

__all__ = ["SERVERS"]

_VCL = """\
vcl 4.1;
import vsthrottle;
backend default none;
sub vcl_recv {
    if (vsthrottle.is_denied("all", 20, 1s)) {
        return (synth(429));
    }
    return (synth(200));
}
sub vcl_synth {
    if (resp.status == 429) {
        set resp.http.Retry-After = "5";
    }
    return (deliver);
}
"""


def _commands(place: Place) -> Sequence[Command]:
    root = debian("varnish", "varnish-modules")
    env = libraries(root)
    modules = ":".join(str(it) for it in root.glob("usr/lib/*/varnish/vmods"))
    working = ["-n", str(place.folder / "work")]
    server = [str(root / "usr/sbin/varnishd"), "-F", "-j", "none", *working]
    server += ["-a", f"127.0.0.1:{place.port}", "-f", place.write("limited.vcl", _VCL)]
    server += ["-p", f"vmod_path={modules}"]
    # It waits for the server (-t), which keeps its log in memory only.
    log = [str(root / "usr/bin/varnishncsa"), *working, "-t", "30"]
    log += ["-F", "%{VSL:Timestamp:Start[1]}x %s"]
    return [Command(server, env), Command(log, env, logs=True)]


# With a guard of its own the limiter does not begin evenly spaced: evenly spaced requests refill
# less than whole tokens, which are lost.
_LINE = 'RateLimiter("20/s", guard=0.05, concurrency_limit=8)'

SERVERS = [Server("Varnish vsthrottle", _commands, line=_LINE)]

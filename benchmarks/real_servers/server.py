"""A server of the table, its process, and its access log.

A server runs only inside `watch`: when that returns, its processes have ended.
"""

import contextlib
import os
import random
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeVar

__all__ = [
    "BURST_5",
    "KNOWN",
    "NO_BURST",
    "SLOTS",
    "THROTTLES_BY_403",
    "Answer",
    "Command",
    "Place",
    "Server",
    "free_port",
    "watch",
]

#: The arguments of a session for a server with 20 requests a second, and with fewer in a burst.
KNOWN = 'RateLimiter("20/s", concurrency_limit=8)'
BURST_5 = 'RateLimiter("20/s", burst=5, concurrency_limit=8)'
NO_BURST = 'RateLimiter("20/s", burst=1, concurrency_limit=8)'
#: For a server with an unknown limit that answers 403 beyond it.
THROTTLES_BY_403 = (
    'RateLimiter(AdaptiveRate("100/s", 1, 1000), concurrency_limit=8), '
    "retry=Retry(throttled_statuses={403, 429, 503})"
)
#: And for a server with 8 slots.
SLOTS = "RateLimiter(concurrency_limit=8)"

Result = TypeVar("Result")

_PATIENCE = 30.0  # seconds until a server answers
_REST = 1.5  # seconds after the first answer, in which the limit is restored
_LOGGED = 0.2  # seconds: a response is logged after it was sent
_PORTS = 20_000, 32_000  # below those of outgoing connections
_FIRST = frozenset("0123456789{")  # of a line that is about a request


class Answer(NamedTuple):
    """A line of an access log: Unix time in seconds, and the status."""

    at: float
    status: int


class Place(NamedTuple):
    """Where a server runs."""

    folder: Path
    port: int

    @property
    def log(self) -> Path:
        """The access log."""
        return self.folder / "access.log"

    @property
    def output(self) -> Path:
        """What else its processes print."""
        return self.folder / "output"

    def write(self, name: str, text: str) -> str:
        """Write a file of configuration and return its path."""
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return str(path)


@dataclass(frozen=True)
class Command:
    """A process to start; `logs`: what it prints is the access log."""

    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    logs: bool = False


def split(line: str) -> Answer:
    """Parse a line "1700000000.123 200"."""
    at, status = line.split()
    return Answer(float(at), int(status))


@dataclass(frozen=True)
class Server:
    """A server with a limit: requests per second, or `slots` at once with `latency` seconds each.

    `commands` installs it, writes its configuration, and returns its processes; the first one
    listens. A status of 400 or more is a throttled request: nothing else can go wrong there.
    """

    name: str
    commands: Callable[[Place], Sequence[Command]]
    parse: Callable[[str], Answer] = split
    limit: float = 20.0
    slots: int | None = None
    latency: float = 0.0
    #: Whether its responses report the quota.
    reports: bool = False
    #: The arguments of the session that docs/servers/your-server.md advises.
    line: str = KNOWN

    @property
    def family(self) -> str:
        """The first word of the name."""
        return self.name.partition(" ")[0]


def free_port() -> int:
    """Return a port of loopback that nobody uses, and that no client gets by chance."""
    while True:
        port = random.randrange(*_PORTS)
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


def watch(server: Server, drive: Callable[[str], Result]) -> tuple[Result, list[Answer]]:
    """Start a server, call `drive` with its URL, stop the server, and read its access log.

    Returns:
        What `drive` returned, and the answers since its call.

    Raises:
        InstallError: The server cannot be installed.
        RuntimeError: The server does not answer.
    """
    with tempfile.TemporaryDirectory(prefix="aiothrottle-") as folder:
        place = Place(Path(folder), free_port())
        place.log.touch()
        with ExitStack() as stack:
            for command in server.commands(place):
                stack.enter_context(_process(command, place))
            url = f"http://127.0.0.1:{place.port}/"
            _wait_for(url, server, place)
            time.sleep(_REST)
            begun = time.time()
            result = drive(url)
            time.sleep(_LOGGED)
        # Only now: some servers write what is left of the log when they end.
        lines = place.log.read_text(encoding="utf-8", errors="replace").splitlines()
        answers = [server.parse(line) for line in lines if line[:1] in _FIRST]
        return result, [it for it in answers if it.at >= begun]


@contextmanager
def _process(command: Command, place: Place) -> Generator[None]:
    with place.output.open("ab") as output, place.log.open("ab") as log:
        process = subprocess.Popen(  # noqa: S603 - ours
            command.argv,
            cwd=place.folder,
            env={**os.environ, **command.env},
            stdin=subprocess.DEVNULL,
            stdout=log if command.logs else output,
            stderr=output,
        )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for(url: str, server: Server, place: Place) -> None:
    end = time.monotonic() + _PATIENCE
    problem = ""
    while time.monotonic() < end:
        try:
            urllib.request.urlopen(url, timeout=1).close()  # noqa: S310 - loopback
        except OSError as error:
            problem = str(error)
            time.sleep(0.2)
        else:
            return
    output = place.output.read_text(encoding="utf-8", errors="replace")[-2000:]
    raise RuntimeError(f"{server.name} does not answer: {problem}\n{output}")

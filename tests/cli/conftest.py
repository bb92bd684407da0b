"""The command in this process: its exit status, what it prints, and the records that it writes."""

import contextlib
import functools
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from aiothrottle import Retry
from aiothrottle.cli import main
from aiothrottle.cli.fetch import requests
from aiothrottle.testing import RateLimitedServer
from tests.support.background import background
from tests.support.serving import Handler

Record: TypeAlias = dict[str, Any]


@dataclass
class Ended:
    """A command that has ended.

    Attributes:
        status: Its exit status.
        printed: Its standard output.
        messages: Its standard error.
        seconds: Its duration. A busy machine makes it longer, never shorter.
        records: The records in the file of `fetch`.
    """

    status: int
    printed: str
    messages: str
    seconds: float = 0.0
    records: list[Record] = field(default_factory=list[Record])

    def by(self, name: str) -> dict[Any, Record]:
        """Return the records by a field of theirs."""
        found = {record[name]: record for record in self.records}
        assert len(found) == len(self.records), "a record is there twice"
        return found

    @property
    def record(self) -> Record:
        (record,) = self.records
        return record

    @property
    def document(self) -> dict[str, Any]:
        """The JSON document on its standard output."""
        return dict(json.loads(self.printed))


Command: TypeAlias = Callable[..., Ended]
Jobs: TypeAlias = Callable[..., Path]
Serve: TypeAlias = Callable[..., RateLimitedServer]


def records_of(path: Path) -> list[Record]:
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Return a function that starts a server on loopback, which ends with the test."""
    with contextlib.ExitStack() as stack:

        def run(
            handler: Handler | None = None,
            rate: str | None = None,
            throttled_response: str = "429-seconds",
        ) -> RateLimitedServer:
            return stack.enter_context(
                background(rate, handler=handler, throttled_response=throttled_response)
            )

        yield run


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Return a function that runs the command with arguments."""
    # How long retries wait is specified in tests/integrations.
    monkeypatch.setattr(requests, "Retry", functools.partial(Retry, backoff=0.05))

    def run(*arguments: object) -> Ended:
        began = time.perf_counter()
        try:
            status = main([str(each) for each in arguments])
        except SystemExit as ended:
            status = int(ended.code or 0)
        seconds = time.perf_counter() - began
        printed, messages = capfd.readouterr()
        return Ended(status, printed, messages, seconds)

    return run


@pytest.fixture
def fetch(command: Command, out: Path) -> Command:
    """Return a function that runs `fetch` with an output that is new, but for --resume."""

    def run(*arguments: object) -> Ended:
        if "--resume" not in arguments:
            out.unlink(missing_ok=True)
        ended = command("fetch", *arguments, "-o", out)
        ended.records = records_of(out)
        return ended

    return run


@pytest.fixture
def jobs(tmp_path: Path) -> Jobs:
    """Return a function that writes a list for --requests."""

    def write(*lines: Record | str) -> Path:
        path = tmp_path / "jobs.jsonl"
        texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
        path.write_text("".join(f"{text}\n" for text in texts))
        return path

    return write

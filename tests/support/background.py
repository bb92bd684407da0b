"""A server in a thread, for code that runs its own loop; and `aiothrottle` as a process."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import aiothrottle
from aiothrottle.testing import RateLimitedServer

# A shell that starts the tests in the background switches Ctrl-C off for all of them.
# Messages about slow callbacks on a busy machine are not the program's.
COMMAND = (
    "import logging; logging.getLogger('asyncio').addFilter(lambda r: ' took ' not in r.msg); "
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from aiothrottle.cli import main; sys.exit(main(sys.argv[1:]))"
)
STRICT = ("-W", "error", "-X", "dev")
ENVIRONMENT = os.environ | {
    # Processes import the package from the same place as this one, installed or not.
    "PYTHONPATH": str(Path(aiothrottle.__file__).parent.parent),
    # `-X dev` would check the memory of extension modules, of which the package has none: a tenth
    # of the time of a process.
    "PYTHONMALLOC": "pymalloc",
}

_Served = TypeVar("_Served")


@contextmanager
def in_thread(
    make: Callable[[], AbstractAsyncContextManager[_Served]],
) -> Generator[_Served, None, None]:
    """Enter the context that `make` returns on a loop in a thread, while the block runs."""
    loop = asyncio.new_event_loop()
    started, ended = threading.Event(), asyncio.Event()
    entered: list[_Served] = []

    async def serve() -> None:
        async with make() as served:
            entered.append(served)
            started.set()
            await ended.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert started.wait(10)
        yield entered[0]
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()


def background(
    rate: str | None = None, **options: Any
) -> AbstractContextManager[RateLimitedServer]:
    return in_thread(lambda: RateLimitedServer(rate, **options))


def run_program(*command: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run a program to its end, with these environment variables besides."""
    environment = ENVIRONMENT | variables
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def start(*arguments: str, flags: Sequence[str] = STRICT) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *flags, "-c", COMMAND, *arguments],
        env=ENVIRONMENT,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )

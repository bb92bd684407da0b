"""One trial: a client sends requests to a server for some seconds; the server's log is the result.

What counts as throttled or admitted is what the server logged. The client only counts the errors
that it got back in the end.
"""

import asyncio
import dataclasses
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

import aiohttp
from measure import jain

from aiothrottle.aiohttp import ThrottledSession
from real_servers.clients import session_of
from real_servers.peers import Peer
from real_servers.server import Answer, Server, watch

__all__ = ["SETTLED", "Trial", "run_trial", "trial_of"]

WORKERS = 24
SETTLED = 10.0  # seconds after which a client should have adapted


@dataclass(frozen=True)
class Trial:
    """The result of a trial: shares of 1, and the number of errors that the caller got.

    `fairness` is Jain's index of what each session got after the first ten seconds.
    """

    throttled: float
    throttled_later: float
    used: float
    used_later: float
    failures: int
    requests: int
    fairness: float = 1.0


def run_trial(server: Server, line: str, seconds: float, sessions: int = 1) -> Trial:
    """Run a trial of sessions with such arguments, against a server that is started for it.

    Raises:
        InstallError: The server cannot be installed.
        RuntimeError: The server does not answer.
    """
    (failures, got), answers = watch(
        server, lambda url: asyncio.run(_send(line, url, seconds, sessions))
    )
    trial = trial_of(server, answers, failures, seconds)
    return dataclasses.replace(trial, fairness=jain(got) if any(got) else 0.0)


def trial_of(server: Server, answers: Sequence[Answer], failures: int, seconds: float) -> Trial:
    """Count the answers of a server, from the first one on."""
    if not answers:
        raise RuntimeError(f"{server.name} logged no request")
    begun = min(it.at for it in answers)
    answers = [it for it in answers if it.at < begun + seconds]
    later = [it for it in answers if it.at >= begun + SETTLED]
    limit = server.limit if server.slots is None else server.slots / server.latency
    rest = seconds - SETTLED
    return Trial(
        _throttled(answers),
        _throttled(later),
        _admitted(answers) / (limit * seconds),
        _admitted(later) / (limit * rest) if rest > 0 else 0.0,
        failures,
        len(answers),
    )


def _admitted(answers: Sequence[Answer]) -> int:
    return sum(it.status < 400 for it in answers)


def _throttled(answers: Sequence[Answer]) -> float:
    return 1 - _admitted(answers) / len(answers) if answers else 0.0


async def _send(line: str, url: str, seconds: float, sessions: int) -> tuple[int, list[int]]:
    """Return the errors, and what each session got once it should have adapted."""
    failures, got = 0, [0] * sessions
    settled_at = time.monotonic() + (SETTLED if seconds > SETTLED else 0.0)

    async def work(number: int) -> None:
        nonlocal failures
        while True:
            try:
                async with made[number].get(url) as response:
                    await response.read()
                    failures += response.status >= 400
                    got[number] += response.status < 400 and time.monotonic() >= settled_at
            except (aiohttp.ClientError, TimeoutError):
                failures += 1

    async with AsyncExitStack() as stack:
        made: list[ThrottledSession | Peer] = [session_of(line) for _ in range(sessions)]
        for session in made:
            await stack.enter_async_context(session)
        workers = [asyncio.create_task(work(i % sessions)) for i in range(WORKERS)]
        # A worker ends only by an error that is neither the server's nor the network's.
        done, _ = await asyncio.wait(workers, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        for worker in done:
            worker.result()
    return failures, got

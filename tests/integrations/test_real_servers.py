"""Sessions in front of nginx, Express and Starlette with their own rate limiters.

`.ci/run` installs the servers, into the folder that AIOTHROTTLE_REAL_SERVERS names; without it the
tests are skipped. What is asserted holds on a busy machine too: exact results are the business of
benchmarks/real_servers.
"""

import asyncio
import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import pytest

import aiothrottle
from aiothrottle.cli import main
from aiothrottle.headers import parse_rate_limit
from tests.support.servers import need

if TYPE_CHECKING:
    from real_servers.server import Server

pytestmark = [
    pytest.mark.timeout(400),  # the first test of a server installs it
    pytest.mark.skipif(
        "AIOTHROTTLE_REAL_SERVERS" not in os.environ, reason="AIOTHROTTLE_REAL_SERVERS is not set"
    ),
]

FOLDER = Path(aiothrottle.__file__).parent.parent / "benchmarks"
#: A header of each server; nginx, which has none, is used with the limiter of a probe.
HEADERS = {"express-rate-limit legacy": "X-RateLimit-Remaining", "slowapi": "X-RateLimit-Remaining"}


@pytest.fixture
def server(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> "Server":
    monkeypatch.setattr(sys, "path", [*sys.path, str(FOLDER)])
    from real_servers.command import SERVERS
    from real_servers.install import InstallError
    from real_servers.server import Place

    found = next(it for it in SERVERS if it.name == request.param)
    try:
        found.commands(Place(tmp_path, 1))
    except InstallError as error:
        need(found.family, str(error))
    return found


@pytest.mark.parametrize("server", HEADERS, indirect=True)
def test_advised_line_causes_no_final_failure(server: "Server") -> None:
    from real_servers.trial import run_trial

    trial = run_trial(server, server.line, 3.0)
    assert trial.failures == 0
    assert trial.throttled <= 0.2
    assert trial.used >= 0.3


@pytest.mark.parametrize("server", ["nginx burst=5"], indirect=True)
def test_printed_limiter_holds_in_front_of_nginx(
    server: "Server", capsys: pytest.CaptureFixture[str]
) -> None:
    from real_servers.server import watch
    from real_servers.trial import run_trial

    assert watch(server, lambda url: main(["probe", url, "--yes", "--find-limit"]))[0] == 0
    printed = capsys.readouterr().out
    assert "It admitted 6 requests in " in printed
    trial = run_trial(server, printed.splitlines()[-1].strip(), 3.0)
    assert trial.failures == 0
    assert trial.throttled <= 0.05
    assert trial.used >= 0.4


async def first_headers(url: str) -> Mapping[str, str]:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.headers


@pytest.mark.parametrize("server", HEADERS, indirect=True)
def test_headers_of_the_server_are_understood(server: "Server") -> None:
    from real_servers.server import watch

    headers, answers = watch(server, lambda url: asyncio.run(first_headers(url)))
    assert HEADERS[server.name] in headers
    limits = parse_rate_limit(200, headers, datetime.now(UTC))
    assert (limits.limit, limits.remaining) == (20, 19)
    assert limits.reset_after is not None
    # slowapi adds a second, and a Date has no fractions; uvicorn's may be a second old.
    assert 0.0 <= limits.reset_after <= 4.0
    assert [it.status for it in answers] == [200]

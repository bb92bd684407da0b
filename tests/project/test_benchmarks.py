"""The counts of the benchmarks, where they are more than a sum."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import aiothrottle
from aiothrottle.aiohttp import ThrottledSession

FOLDER = Path(aiothrottle.__file__).parent.parent / "benchmarks"
pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="the benchmarks are not there: a built package"
)


def test_store_share_is_counted_during_full_demand() -> None:
    """Grants to requests that still wait when the demand ends are no part of the rate."""
    pytest.importorskip("redis")
    bursts = [float(second) for second in range(15)]  # ten of demand, and five to drain
    instants = [[100.0 + burst for burst in bursts for _ in range(10)] for _ in range(2)]
    code = (
        "import json, sys; import stores; "
        "print(json.dumps(stores.granted_within(json.loads(sys.argv[1]), 9)))"
    )
    command = [sys.executable, "-c", code, json.dumps(instants)]
    printed = subprocess.check_output(command, cwd=FOLDER, text=True)
    assert json.loads(printed) == [90, 90], "20 per second of both, over 9 seconds"


@pytest.fixture
def real_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(FOLDER)])


@pytest.mark.usefixtures("real_servers")
async def test_every_line_of_your_server_makes_a_session() -> None:
    from real_servers.clients import clients_of, session_of
    from real_servers.command import SERVERS

    lines = {client.line for server in SERVERS for client in clients_of(server)}
    assert {server.line for server in SERVERS} <= lines
    for line in lines:
        session = session_of(line)
        if isinstance(session, ThrottledSession):  # a peer may not be installed
            await session.close()
    page = (FOLDER.parent / "docs" / "servers" / "your-server.md").read_text(encoding="utf-8")
    words = "".join(page.split())  # the page may wrap a line
    assert [it.line for it in SERVERS if "".join(it.line.split()) not in words] == []


@pytest.mark.usefixtures("real_servers")
def test_shares_of_a_trial_are_counted_from_the_log() -> None:
    from real_servers.probing import HEAD, Probed, cells
    from real_servers.server import Answer, Server
    from real_servers.trial import Trial, trial_of

    server = Server("a server", lambda _: [], limit=2.0)
    log = [Answer(100.0 + 0.5 * i, 429 if i in {1, 25} else 200) for i in range(100)]
    trial = trial_of(server, log, failures=3, seconds=15.0)
    assert (trial.requests, trial.failures) == (30, 3)
    throttled, used = (trial.throttled, trial.throttled_later), (trial.used, trial.used_later)
    assert throttled == pytest.approx((2 / 30, 1 / 10))
    assert used == pytest.approx((28 / 30, 9 / 10))
    # The row of a limiter that `probe` has printed.
    line, trial = 'RateLimiter("20/s", guard=0.05)', Trial(0.004, 0.0, 0.96, 0.95, 0, 290)
    row = cells(Probed(line, 28.4, 337, 12, trial))
    assert row == [f"`{line}`", "0.4 (0.0)", "96", "28", "337", "12"]
    assert len(row) + 1 == len(HEAD)

"""The clock of a server from its Dates: never ahead of the server's, and soon hardly behind it."""

import math
import random
from datetime import UTC, datetime

import pytest

from aiothrottle.headers.parse import parse_response
from aiothrottle.headers.values import ServerClock
from tests.support.reporting_servers import express_legacy

AHEAD = [0.0, 0.37, -3600.5, 7200.9]


def dates(ahead: float, seconds: float, latency: float = 0.02) -> list[tuple[float, float, float]]:
    """Return server time, Date and local time of responses, ten a second."""
    chance = random.Random(1)
    found: list[tuple[float, float, float]] = []
    now = 1_800_000_000.2
    while now < 1_800_000_000.2 + seconds:
        now += 0.2 * chance.random()
        arrived = now + latency * chance.random()
        found.append((now + ahead, math.floor(now + ahead), arrived))
    return found


@pytest.mark.parametrize("ahead", AHEAD)
def test_clock_is_never_ahead_of_the_server_and_soon_exact(ahead: float) -> None:
    clock = ServerClock()
    found = dates(ahead, 600.0)
    behind = [arrived + ahead - clock.earliest(date, arrived) for _, date, arrived in found]
    assert min(behind) >= 0.0
    assert max(behind[:5]) > 0.1
    assert max(behind[300:]) < 0.05


@pytest.mark.parametrize("step", [-3600.0, -5.0, 5.0, 3600.0])
def test_clock_that_is_set_is_followed(step: float) -> None:
    clock = ServerClock()
    for _, date, arrived in dates(0.0, 10.0):
        clock.earliest(date, arrived)
    for _, date, arrived in dates(step, 10.0):
        behind = arrived + step - clock.earliest(date, arrived)
        assert 0.0 <= behind <= 1.03


def test_epoch_reset_becomes_exact() -> None:
    clock, server = ServerClock(), express_legacy()
    errors: list[float] = []
    for now, _, arrived in dates(0.37, 30.0):
        _, headers = server.answer(now)
        limits = parse_response(200, headers, datetime.fromtimestamp(arrived, UTC), server=clock)
        assert limits.reset_after is not None
        assert limits.reset_error == 3.0
        errors.append(limits.reset_after - (float(headers["X-RateLimit-Reset"]) - arrived - 0.37))
    assert min(errors) >= 0.0
    assert max(errors[150:]) < 0.05

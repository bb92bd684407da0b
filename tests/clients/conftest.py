"""Fixtures of the tests of recipes."""

import inspect

import pytest

from aiothrottle import RateLimiter
from tests.clients.checks import StandingClock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> StandingClock:
    """The time of the loop, of servers and of the limiters of recipes, to move forward."""
    clock = StandingClock(monkeypatch)
    # A recipe names no clock.
    defaults = inspect.unwrap(RateLimiter.__init__).__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "clock", clock.time)
    return clock

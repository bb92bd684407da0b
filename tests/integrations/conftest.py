"""Fixtures of the integrations' tests."""

import pytest

from tests.integrations.clients import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock to move forward; give its `time` to limiters. Not for uvloop, which has its own."""
    return Clock(monkeypatch)

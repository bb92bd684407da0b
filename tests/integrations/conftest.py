"""Fixtures of the integrations' tests."""

import gc
from collections.abc import Iterator

import pytest

from tests.integrations.clients import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    """A clock to move forward; give its `time` to limiters. Not for uvloop, which has its own.

    Limiters collect no garbage meanwhile: they count how long that takes, and time goes back here.
    """
    gc.disable()
    yield Clock(monkeypatch)
    gc.enable()

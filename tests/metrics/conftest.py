"""Virtual time, but for the tests with a real page."""

import asyncio
from collections.abc import Callable

import pytest

from aiothrottle.testing import VirtualTimeLoop


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]] | None:
    return None if item.path.stem == "test_dashboard" else {"virtual": VirtualTimeLoop}

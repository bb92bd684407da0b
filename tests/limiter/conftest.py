"""All async tests of this folder run on virtual time: time jumps, and is exact."""

import asyncio
from collections.abc import Callable

from aiothrottle.testing import VirtualTimeLoop


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"virtual": VirtualTimeLoop}

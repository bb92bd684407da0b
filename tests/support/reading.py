"""Read a response in a test, at a fixed time."""

from datetime import UTC, datetime
from typing import Any

from aiothrottle.headers import Profile, ServerLimits, parse_rate_limit

NOW = datetime(2026, 11, 20, 12, 0, 0, tzinfo=UTC)
EPOCH = int(NOW.timestamp())


def read(
    *headers: tuple[str, str], status: int = 200, body: Any = None, profile: Profile | None = None
) -> ServerLimits:
    return parse_rate_limit(status, headers, NOW, body, profile)

"""Tools to test code that must stay under the limits of other people's servers.

`RateLimitedServer` is a real server with a limit, whose `Audit` records what arrived;
`VirtualTimeLoop` is an event loop on which an hour of waiting takes no time.
"""

from aiothrottle.testing.server import (
    Audit,
    RateLimitedServer,
    RecordedRequest,
    greatest_count,
    linked_pages,
)
from aiothrottle.testing.virtual_time import VirtualTimeLoop

__all__ = [
    "Audit",
    "RateLimitedServer",
    "RecordedRequest",
    "VirtualTimeLoop",
    "greatest_count",
    "linked_pages",
]

"""What the transports for httpx and for httpx2 share, which is nearly all; neither is imported."""

from aiothrottle.transport.hold import HeldStream
from aiothrottle.transport.transport import Transport

__all__ = ["HeldStream", "Transport"]

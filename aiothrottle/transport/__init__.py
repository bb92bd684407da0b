"""What the transports for httpx and for httpx2 share; neither library is imported here."""

from aiothrottle.transport.hold import HeldStream
from aiothrottle.transport.transport import Transport

__all__ = ["HeldStream", "Transport"]

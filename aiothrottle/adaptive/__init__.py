"""Limits that adapt to the server's responses: pure controllers, with time as an argument."""

from aiothrottle.adaptive.concurrency import AdaptiveConcurrency
from aiothrottle.adaptive.guard import SelfTuningGuard
from aiothrottle.adaptive.rate import AdaptiveRate
from aiothrottle.adaptive.throttling import AdaptiveThrottling

__all__ = ["AdaptiveConcurrency", "AdaptiveRate", "AdaptiveThrottling", "SelfTuningGuard"]

"""Limits that are found by trying: pure controllers, to which time is an argument."""

from aiothrottle.adaptive.concurrency import AdaptiveConcurrency
from aiothrottle.adaptive.guard import SelfTuningGuard
from aiothrottle.adaptive.overload import ClientThrottling
from aiothrottle.adaptive.rate import AdaptiveRate

__all__ = ["AdaptiveConcurrency", "AdaptiveRate", "ClientThrottling", "SelfTuningGuard"]

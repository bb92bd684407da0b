"""Limits that adapt to the server's responses: pure controllers, with time as an argument."""

from typing import TYPE_CHECKING

from aiothrottle._lazy import lazily

if TYPE_CHECKING:
    from aiothrottle.adaptive.concurrency import AdaptiveConcurrency as AdaptiveConcurrency
    from aiothrottle.adaptive.guard import SelfTuningGuard as SelfTuningGuard
    from aiothrottle.adaptive.rate import AdaptiveRate as AdaptiveRate
    from aiothrottle.adaptive.throttling import AdaptiveThrottling as AdaptiveThrottling
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "concurrency": "AdaptiveConcurrency",
            "guard": "SelfTuningGuard",
            "rate": "AdaptiveRate",
            "throttling": "AdaptiveThrottling",
        },
    )

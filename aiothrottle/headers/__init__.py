"""Parses the limits that a server reports in a response. Pure: the time is an argument."""

from typing import TYPE_CHECKING

from aiothrottle._lazy import lazily

if TYPE_CHECKING:
    from aiothrottle.headers.limits import Policy, ServerLimits
    from aiothrottle.headers.parse import parse_rate_limit
    from aiothrottle.headers.profile import Items, Json, Limit, Profile
    from aiothrottle.headers.values import parse_http_date, parse_retry_after
    from aiothrottle.headers.vendors import PROFILES, profile_for
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "limits": "Policy ServerLimits",
            "parse": "parse_rate_limit",
            "profile": "Items Json Limit Profile",
            "values": "parse_http_date parse_retry_after",
            "vendors": "PROFILES profile_for",
        },
    )

__all__ = [
    "PROFILES",
    "Items",
    "Json",
    "Limit",
    "Policy",
    "Profile",
    "ServerLimits",
    "parse_http_date",
    "parse_rate_limit",
    "parse_retry_after",
    "profile_for",
]

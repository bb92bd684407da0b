"""Parses the limits that a server reports in a response. Pure: the time is an argument."""

from typing import TYPE_CHECKING

from aiothrottle._lazy import lazily

if TYPE_CHECKING:
    from aiothrottle.headers.limits import Policy as Policy
    from aiothrottle.headers.limits import ServerLimits as ServerLimits
    from aiothrottle.headers.parse import parse_rate_limit as parse_rate_limit
    from aiothrottle.headers.profile import Items as Items
    from aiothrottle.headers.profile import Json as Json
    from aiothrottle.headers.profile import Limit as Limit
    from aiothrottle.headers.profile import Profile as Profile
    from aiothrottle.headers.values import parse_http_date as parse_http_date
    from aiothrottle.headers.values import parse_retry_after as parse_retry_after
    from aiothrottle.headers.vendors import PROFILES as PROFILES
    from aiothrottle.headers.vendors import profile_for as profile_for
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

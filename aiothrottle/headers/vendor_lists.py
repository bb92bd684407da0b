"""Vendors that say several limits in one header, or any in JSON: data."""

from functools import partial

from aiothrottle.headers.profile import Items, Json, Limit, Profile

__all__ = ["LISTS"]

_MINUTE, _DAY = 60.0, 86400.0
# What is no number keeps its place in a list.
_OTHER = r"[^, \t][^,]*"
_vendor = partial(Profile, read="2026-11-20")
# Those that came later.
_LATER = "2026-11-22"

LISTS = (
    _vendor(
        "Basecamp",
        hosts=("basecamp.com", "*.basecamp.com", "*.basecampapi.com"),
        note="JSON in X-RateLimit",
        source="https://github.com/basecamp/bcx-api/issues/212",
        limits=(
            Json(
                "",
                header="X-RateLimit",
                name="{name}",
                limit="limit",
                remaining="remaining",
                reset="until",
                window="period",
            ),
        ),
    ),
    _vendor(
        "Binance",
        hosts=("*.binance.com", "*.binance.us", "*.binance.vision"),
        note="tells what was used of limits that it does not tell; 418 is a ban",
        source="https://github.com/binance/binance-spot-api-docs/blob/master/rest-api.md",
        limits=(Items(r"x-(?:mbx|sapi)-(?P<name>[a-z-]+-(?P<window>[0-9]{1,9}[smhd]))", ".+"),),
        refusals=frozenset({418}),
    ),
    _vendor(
        "Brave Search",
        read=_LATER,
        hosts=("api.search.brave.com",),
        note="two limits by position, of a second and of a month",
        source="https://api-dashboard.search.brave.com/app/documentation/web-search/response-headers",
        limits=tuple(
            Items(f"x-ratelimit-{header}", rf"{item}|{_OTHER}", name=("second", "month"))
            for header, item in (
                ("limit", "(?P<limit>[0-9]{1,18})"),
                ("remaining", "(?P<remaining>[0-9]{1,18})"),
                ("reset", "(?P<reset>[0-9]{1,18})"),
                ("policy", "(?P<limit>[0-9]{1,18});w=(?P<window>[0-9]{1,18})"),
            )
        ),
    ),
    _vendor(
        "eBay",
        hosts=("api.ebay.com", "api.sandbox.ebay.com"),
        note="the limits are a resource of their own: the body of getRateLimits",
        source="https://developer.ebay.com, getRateLimits",
        limits=(
            Json(
                "rateLimits.*.resources.*.rates.*",
                name="{name}",
                limit="limit",
                remaining="remaining",
                reset="reset",
                window="timeWindow",
            ),
        ),
    ),
    _vendor(
        "Hugging Face",
        hosts=("huggingface.co", "*.huggingface.co", "hf.co"),
        note="its RateLimit-Policy is no structured field",
        source="https://github.com/huggingface/huggingface_hub, utils/_http.py",
        limits=(
            Items(
                "ratelimit-policy",
                r'"(?P<name>[^"]*)"[ \t]*;[ \t]*q=(?P<limit>[0-9]{1,15})'
                r"[ \t]*;[ \t]*w=(?P<window>[0-9]{1,15})",
            ),
        ),
        aliases=("Hugging Face Hub", "HuggingFace"),
    ),
    _vendor(
        "Meta",
        hosts=("graph.facebook.com", "graph.instagram.com"),
        note="percentages of limits that it does not tell; the wait is in minutes",
        source="https://developers.facebook.com/docs/graph-api/overview/rate-limiting/",
        limits=(
            Json(
                "*.*",
                header="X-Business-Use-Case-Usage",
                name="{0}:{type}",
                limit=100,
                used=("call_count", "total_cputime", "total_time"),
                wait="estimated_time_to_regain_access",
                wait_unit=_MINUTE,
            ),
            Json(
                "",
                header="X-App-Usage",
                name="app",
                limit=100,
                used=("call_count", "total_cputime", "total_time"),
            ),
        ),
        aliases=("Meta Graph API", "Meta Marketing API", "Facebook", "Instagram"),
    ),
    _vendor(
        "Riot Games",
        hosts=("*.api.riotgames.com",),
        note="one list of quotas and one of counts, joined by window",
        source="https://hextechdocs.dev/rate-limiting",
        limits=(
            Items(
                "x-(?P<scope>app|method)-rate-limit",
                "(?P<limit>[0-9]+):(?P<window>[0-9]+)",
                name="{scope}:{window}",
            ),
            Items(
                "x-(?P<scope>app|method)-rate-limit-count",
                "(?P<used>[0-9]+):(?P<window>[0-9]+)",
                name="{scope}:{window}",
            ),
        ),
    ),
    _vendor(
        "Salesforce",
        hosts=("*.salesforce.com", "*.force.com"),
        note="used/limit of a rolling day",
        source="https://github.com/simple-salesforce/simple-salesforce, simple_salesforce/api.py",
        limits=(
            Items(
                "sforce-limit-info",
                r"(?P<name>[A-Za-z0-9_-]{1,64})=(?P<used>[0-9]{1,18})/(?P<limit>[0-9]{1,18})",
            ),
        ),
    ),
    _vendor(
        "Sentry",
        hosts=("sentry.io", "*.sentry.io"),
        note="categories that are used up, and for how long",
        source="https://github.com/getsentry/sentry-python, sentry_sdk/transport.py",
        limits=(
            Items(
                "x-sentry-rate-limits",
                r"(?P<reset>[0-9]{1,18}(?:\.[0-9]{1,18})?):(?P<name>[^:,]*)(?::[^,]*)?",
                remaining=0,
            ),
        ),
    ),
    _vendor(
        "Shopify",
        hosts=("*.myshopify.com",),
        note="used/size of a bucket; GraphQL says it in the body, and when the query can be paid",
        source="https://shopify.dev/docs/api/usage/limits",
        limits=(
            Items(
                "x-shopify-shop-api-call-limit",
                "(?P<used>[0-9]{1,18})/(?P<limit>[0-9]{1,18})",
                name=None,
            ),
            Json(
                "extensions.cost.throttleStatus",
                limit="maximumAvailable",
                remaining="currentlyAvailable",
                cost="requestedQueryCost",
                rate="restoreRate",
            ),
        ),
        aliases=("Shopify REST", "Shopify GraphQL"),
    ),
    _vendor(
        "Stack Exchange",
        read=_LATER,
        hosts=("api.stackexchange.com",),
        note="in every body; backoff asks to wait before the same method is called again",
        source="https://api.stackexchange.com/docs/throttle",
        limits=(Json("", limit="quota_max", remaining="quota_remaining", wait="backoff"),),
    ),
    _vendor(
        "Strava",
        hosts=("www.strava.com", "strava.com"),
        note="two limits by position; windows end with the quarter of an hour and the day, UTC",
        source="https://developers.strava.com/docs/rate-limits",
        limits=tuple(
            Items(
                f"x-ratelimit-{header}",
                rf"(?P<{field}>[0-9]{{1,18}})|{_OTHER}",
                name=("15min", "daily"),
                window=(900.0, _DAY),
                aligned=True,
            )
            for header, field in (("limit", "limit"), ("usage", "used"))
        ),
    ),
    _vendor(
        "Zendesk",
        hosts=("*.zendesk.com",),
        source="https://developer.zendesk.com, best practices for avoiding rate limiting",
        limits=(
            Limit(
                "account",
                limit="RateLimit-Limit",
                remaining="RateLimit-Remaining",
                reset="RateLimit-Reset",
            ),
            Items(
                "zendesk-ratelimit-(?P<name>.+)",
                r"(?=(?:.*?\btotal=(?P<limit>[0-9]{1,18}))?)"
                r"(?=(?:.*?\bremaining=(?P<remaining>[0-9]{1,18}))?)"
                r"(?=(?:.*?\bresets=(?P<reset>[0-9]{1,18}))?).+",
            ),
            Limit(None, limit="X-Rate-Limit", remaining="X-Rate-Limit-Remaining"),
        ),
    ),
)

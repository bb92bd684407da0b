"""Vendors that say other things, or say them otherwise, than the values tell: data only."""

from functools import partial

from aiothrottle.headers.profile import Items, Json, Limit, Profile

__all__ = ["SPEAKERS"]

_MINUTE, _DAY = 60.0, 86400.0
_vendor = partial(Profile, read="2026-11-20")


def _trio(prefix: str, name: str | None = None) -> Limit:
    return Limit(name, f"{prefix}Limit", f"{prefix}Remaining", reset=f"{prefix}Reset")


SPEAKERS = (
    _vendor(
        "Amazon SP-API",
        hosts=tuple(f"sellingpartnerapi-{region}.amazon.com" for region in ("na", "eu", "fe")),
        note="the limit is a rate per second, and no wait is ever said",
        source="https://developer-docs.amazon.com/sp-api/docs/usage-plans-and-rate-limits",
        limits=(
            Limit("rate", limit="x-amzn-RateLimit-Limit", window=1),
            Limit(None, limit="x-amzn-RateLimit-Limit", window=1),
        ),
    ),
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
        "Brevo",
        hosts=("api.brevo.com", "api.sendinblue.com"),
        source="https://developers.brevo.com/docs/limit-headers",
        limits=(_trio("x-sib-ratelimit-"),),
    ),
    _vendor(
        "Bybit",
        hosts=("api.bybit.com", "api.bytick.com", "api-testnet.bybit.com"),
        note="Limit-Status is what remains",
        source="https://bybit-exchange.github.io/docs/v5/rate-limit",
        limits=(
            Limit(
                None,
                limit="X-Bapi-Limit",
                remaining="X-Bapi-Limit-Status",
                reset="X-Bapi-Limit-Reset-Timestamp",
            ),
        ),
    ),
    _vendor(
        "Cohere",
        hosts=("api.cohere.com", "api.cohere.ai"),
        note="says its limits on success only",
        source="https://github.com/Nathanon717/freecode, docs/ideas/retry-handling.md",
        limits=(
            Limit(
                "trial",
                limit="x-trial-endpoint-call-limit",
                remaining="x-trial-endpoint-call-remaining",
            ),
            Limit(
                "month",
                limit="x-endpoint-monthly-call-limit",
                remaining="x-endpoint-monthly-call-remaining",
            ),
        ),
    ),
    _vendor(
        "Coinbase",
        hosts=("*.coinbase.com",),
        note="from the code of clients only",
        limits=(_trio("CB-RATELIMIT-"),),
    ),
    _vendor(
        "Composio",
        hosts=("backend.composio.dev",),
        source="https://docs.composio.dev/reference/rate-limits",
        limits=(
            Limit(
                None,
                limit="X-RateLimit",
                remaining="X-RateLimit-Remaining",
                reset="X-RateLimit-Reset",
                window="X-RateLimit-Window-Size",
            ),
        ),
    ),
    _vendor(
        "Dataverse",
        hosts=("*.dynamics.com",),
        note="only Retry-After is meant for control",
        source="https://learn.microsoft.com/en-us/power-apps/developer/data-platform/api-limits",
        limits=(Limit(None, remaining="x-ms-ratelimit-burst-remaining-xrm-requests"),),
    ),
    _vendor(
        "Discord (API v6)",
        note="Retry-After in milliseconds, in old webhooks too; since v8 in seconds",
        source="https://github.com/discord/discord-api-docs/pull/2360",
        milliseconds=frozenset({"Retry-After"}),
        aliases=("Discord API v6",),
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
        "Etsy",
        hosts=("openapi.etsy.com", "api.etsy.com"),
        source="https://developers.etsy.com/documentation/essentials/rate-limits",
        limits=(
            Limit(
                "second",
                limit="X-Limit-Per-Second",
                remaining="X-Remaining-This-Second",
                window=1,
            ),
            Limit("day", limit="X-Limit-Per-Day", remaining="X-Remaining-Today", window=_DAY),
        ),
    ),
    _vendor(
        "Fastly",
        hosts=("api.fastly.com",),
        note="on what is no read only",
        source="https://docs.fastly.com/api/",
        limits=(_trio("Fastly-RateLimit-"),),
        aliases=("Fastly API",),
    ),
    _vendor(
        "GoHighLevel",
        hosts=("services.leadconnectorhq.com", "rest.gohighlevel.com"),
        source="https://marketplace.gohighlevel.com/docs/other/rate-limits.md",
        limits=(
            Limit(
                "interval",
                limit="X-RateLimit-Max",
                remaining="X-RateLimit-Remaining",
                window="X-RateLimit-Interval-Milliseconds",
            ),
            Limit(
                "daily",
                limit="X-RateLimit-Limit-Daily",
                remaining="X-RateLimit-Daily-Remaining",
                window=_DAY,
            ),
        ),
    ),
    _vendor(
        "Groq",
        hosts=("api.groq.com",),
        note="requests are of a day and tokens of a minute; the limit that refuses is in no header",
        source="https://console.groq.com/docs/rate-limits",
        windows=(("requests", _DAY), ("tokens", _MINUTE)),
    ),
    _vendor(
        "HubSpot",
        hosts=("api.hubapi.com", "api.hubspot.com"),
        source="https://developers.hubspot.com/docs/api/usage-details",
        limits=(
            Limit(
                "interval",
                limit="X-HubSpot-RateLimit-Max",
                remaining="X-HubSpot-RateLimit-Remaining",
                window="X-HubSpot-RateLimit-Interval-Milliseconds",
            ),
            Limit(
                "daily",
                limit="X-HubSpot-RateLimit-Daily",
                remaining="X-HubSpot-RateLimit-Daily-Remaining",
                window=_DAY,
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
        aliases=("Hugging Face Hub",),
    ),
    _vendor(
        "Imgur",
        hosts=("api.imgur.com",),
        note="the resets are seconds, although the documentation says timestamps",
        source="captured responses",
        limits=(
            _trio("X-RateLimit-User", "user"),
            _trio("X-RateLimit-Client", "client"),
            _trio("X-Post-Rate-Limit-", "post"),
        ),
    ),
    _vendor(
        "Jira/Confluence Data Center",
        note="a token bucket: the limit is its size, and refills by FillRate per interval",
        source="https://confluence.atlassian.com/conf87/_ratelimiting_httpheaders-1333822054.html",
        limits=(
            _trio("X-RateLimit-"),
            Limit("refill", limit="X-RateLimit-FillRate", window="X-RateLimit-Interval-Seconds"),
        ),
        aliases=("Jira Data Center", "Confluence Data Center", "Jira, Confluence Data Center"),
    ),
    _vendor(
        "KuCoin",
        hosts=("*.kucoin.com",),
        note="from the code of clients only; the reset is in milliseconds",
        limits=(_trio("gw-ratelimit-"),),
        milliseconds=frozenset({"gw-ratelimit-reset"}),
    ),
    _vendor(
        "Lark/Feishu",
        hosts=("open.larksuite.com", "open.feishu.cn"),
        source="https://open.feishu.cn/document/server-docs/api-call-guide/frequency-control",
        limits=(_trio("x-ogw-ratelimit-"),),
        aliases=("Lark", "Feishu"),
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
        aliases=("Meta Graph API",),
    ),
    _vendor(
        "Mistral",
        hosts=("api.mistral.ai",),
        note="windows end with the minute of the clock; nothing on streamed answers",
        source="captured responses",
        limits=(
            Limit(
                "tokens-minute",
                limit="x-ratelimitbysize-limit-minute",
                remaining="x-ratelimitbysize-remaining-minute",
                reset="ratelimitbysize-reset",
                window=_MINUTE,
            ),
            Limit(
                "tokens-month",
                limit="x-ratelimitbysize-limit-month",
                remaining="x-ratelimitbysize-remaining-month",
            ),
        ),
        aliases=("Mistral (older)", "Mistral (newer)"),
    ),
    _vendor(
        "Prisjakt",
        note="X-Rate-Limit-Reset in milliseconds",
        source="https://developer.prisjakt.nu/docs/sections/rate-limit",
        milliseconds=frozenset({"X-Rate-Limit-Reset"}),
    ),
    _vendor(
        "Revolt",
        hosts=("api.revolt.chat",),
        note="X-RateLimit-Reset-After in milliseconds",
        source="https://github.com/caronc/apprise, apprise/plugins/revolt.py",
        milliseconds=frozenset({"X-RateLimit-Reset-After"}),
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
                r"(?:^|,)[ \t]*(?P<reset>[0-9]{1,18}(?:\.[0-9]+)?):(?P<name>[^:,]*)",
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
        "Spring Cloud Gateway",
        note="a token bucket: its size, and what it gains each second",
        source="https://github.com/spring-cloud/spring-cloud-gateway, RedisRateLimiter.java",
        limits=(
            Limit(
                None,
                limit="X-RateLimit-Burst-Capacity",
                remaining="X-RateLimit-Remaining",
                reset="X-RateLimit-Reset",
            ),
            Limit("refill", limit="X-RateLimit-Replenish-Rate", window=1),
        ),
    ),
    _vendor(
        "Strava",
        hosts=("www.strava.com", "strava.com"),
        note="two limits by position; windows end with the quarter of an hour and the day, UTC",
        source="https://developers.strava.com/docs/rate-limits",
        limits=tuple(
            Items(
                f"x-ratelimit-{header}",
                f"(?P<{field}>[0-9]{{1,18}})",
                name=("15min", "daily"),
                window=(900.0, _DAY),
                aligned=True,
            )
            for header, field in (("limit", "limit"), ("usage", "used"))
        ),
    ),
    _vendor(
        "Tiendanube",
        hosts=("api.tiendanube.com", "api.nuvemshop.com.br"),
        note="X-Rate-Limit-Reset in milliseconds",
        source="https://tiendanube.github.io/api-documentation/intro",
        milliseconds=frozenset({"X-Rate-Limit-Reset"}),
        aliases=("Nuvemshop",),
    ),
    _vendor(
        "Xero",
        hosts=("api.xero.com",),
        note="only what remains; 60 a minute, 5000 a day and 10000 a minute per app",
        source="https://developer.xero.com/faq/limits",
        limits=(
            Limit("minute", remaining="X-MinLimit-Remaining", window=_MINUTE),
            Limit("day", remaining="X-DayLimit-Remaining", window=_DAY),
            Limit("app-minute", remaining="X-AppMinLimit-Remaining", window=_MINUTE),
        ),
        binds="X-Rate-Limit-Problem",
    ),
    _vendor(
        "Yelp",
        hosts=("api.yelp.com",),
        source="https://docs.developer.yelp.com/docs/places-rate-limiting",
        limits=(
            Limit(
                "daily",
                limit="RateLimit-DailyLimit",
                remaining="RateLimit-Remaining",
                reset="RateLimit-ResetTime",
                window=_DAY,
            ),
            Limit(
                "resource-daily",
                limit="RateLimit-ResourceDailyLimit",
                remaining="RateLimit-ResourceRemaining",
                reset="RateLimit-ResetTime",
                window=_DAY,
            ),
        ),
    ),
    _vendor(
        "Zendesk",
        hosts=("*.zendesk.com",),
        source="https://developer.zendesk.com, best practices for avoiding rate limiting",
        limits=(
            _trio("RateLimit-", "account"),
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

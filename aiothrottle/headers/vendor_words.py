"""Vendors with names of their own for what anybody says, or that count in milliseconds: data."""

from functools import partial

from aiothrottle.headers.profile import Limit, Profile

__all__ = ["WORDS"]

_MINUTE, _DAY = 60.0, 86400.0
_vendor = partial(Profile, read="2026-11-20")
# Those that came later.
_LATER = "2026-11-22"


def _trio(prefix: str, name: str | None = None) -> Limit:
    return Limit(name, f"{prefix}Limit", f"{prefix}Remaining", reset=f"{prefix}Reset")


WORDS = (
    _vendor(
        "Amazon SP-API",
        hosts=tuple(f"sellingpartnerapi-{region}.amazon.com" for region in ("na", "eu", "fe")),
        note="the limit is a rate per second, and no wait is ever said",
        source="https://developer-docs.amazon.com/sp-api/docs/usage-plans-and-rate-limits",
        limits=(
            Limit("rate", limit="x-amzn-RateLimit-Limit", window=1),
            Limit(None, limit="x-amzn-RateLimit-Limit", window=1),
        ),
        aliases=("SP-API", "Amazon Selling Partner API"),
    ),
    _vendor(
        "BigCommerce",
        read=_LATER,
        hosts=("api.bigcommerce.com",),
        note="window and reset in milliseconds",
        source="https://docs.bigcommerce.com/developer/docs/overview/api-fundamentals/rate-limits",
        limits=(
            Limit(
                None,
                limit="X-Rate-Limit-Requests-Quota",
                remaining="X-Rate-Limit-Requests-Left",
                reset="X-Rate-Limit-Time-Reset-Ms",
                window="X-Rate-Limit-Time-Window-Ms",
            ),
        ),
        milliseconds=frozenset({"X-Rate-Limit-Time-Reset-Ms"}),
    ),
    _vendor(
        "Brevo",
        hosts=("api.brevo.com", "api.sendinblue.com"),
        source="https://developers.brevo.com/docs/limit-headers",
        limits=(_trio("x-sib-ratelimit-"),),
        aliases=("Sendinblue",),
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
        "Contentful",
        read=_LATER,
        hosts=("*.contentful.com",),
        note="the reset is when the next request may go",
        source="https://www.contentful.com/developers/api-changes/"
        "content-delivery-api-and-graphql-api-response-header/",
        limits=(
            Limit(
                "second",
                limit="X-Contentful-RateLimit-Second-Limit",
                remaining="X-Contentful-RateLimit-Second-Remaining",
                reset="X-Contentful-RateLimit-Reset",
                window=1,
            ),
            Limit(
                "hour",
                limit="X-Contentful-RateLimit-Hour-Limit",
                remaining="X-Contentful-RateLimit-Hour-Remaining",
                window=3600,
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
        "Discogs",
        read=_LATER,
        hosts=("api.discogs.com",),
        note="requests of the last minute; no reset",
        source="https://github.com/bartve/disconnect/issues/35",
        limits=(
            Limit(None, limit="X-Discogs-Ratelimit", remaining="X-Discogs-Ratelimit-Remaining"),
        ),
    ),
    _vendor(
        "Discord (API v6)",
        note="Retry-After in milliseconds, in old webhooks too; since v8 in seconds",
        source="https://github.com/discord/discord-api-docs/pull/2360",
        milliseconds=frozenset({"Retry-After"}),
        aliases=("Discord API v6", "Discord (old webhooks)", "Discord webhooks"),
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
        "Freshdesk",
        read=_LATER,
        hosts=("*.freshdesk.com", "*.freshservice.com"),
        note="the limit is called Total; by plan, of a minute",
        source="https://docs.exalate.com/docs/freshservice-rate-limits",
        limits=(Limit(None, limit="X-RateLimit-Total", remaining="X-RateLimit-Remaining"),),
        aliases=("Freshservice",),
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
        aliases=("HighLevel", "LeadConnector"),
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
        aliases=("Mistral (older)", "Mistral (newer)", "Mistral AI", "Mistral (old)"),
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
        "SkuVault",
        read=_LATER,
        hosts=("app.skuvault.com",),
        note="X-RateLimit-Reset in milliseconds",
        source="https://dev.skuvault.com/docs",
        milliseconds=frozenset({"X-RateLimit-Reset"}),
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
        "Tiendanube",
        hosts=("api.tiendanube.com", "api.nuvemshop.com.br"),
        note="X-Rate-Limit-Reset in milliseconds",
        source="https://tiendanube.github.io/api-documentation/intro",
        milliseconds=frozenset({"X-Rate-Limit-Reset"}),
        aliases=("Nuvemshop",),
    ),
    _vendor(
        "Trello",
        read=_LATER,
        hosts=("api.trello.com",),
        note="one limit of the key, and one of the token",
        source="https://community.developer.atlassian.com/t/30353",
        limits=tuple(
            Limit(
                f"api-{of}",
                limit=f"x-rate-limit-api-{of}-max",
                remaining=f"x-rate-limit-api-{of}-remaining",
                window=f"x-rate-limit-api-{of}-interval-ms",
            )
            for of in ("token", "key")
        ),
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
        aliases=("Yelp Fusion",),
    ),
)

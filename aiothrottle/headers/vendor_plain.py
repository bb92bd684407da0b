"""Vendors whose headers any parser can read: their hosts, and what is not in the headers."""

from functools import partial

from aiothrottle.headers.profile import Profile

__all__ = ["PLAIN"]

_vendor = partial(Profile, read="2026-11-20")
# Those that came later.
_LATER = "2026-11-22"

PLAIN = (
    _vendor(
        "Anthropic",
        hosts=("api.anthropic.com",),
        note="a limit for each kind of token; 529 is overload, and nobody's quota",
        source="https://platform.claude.com/docs/en/api/rate-limits",
    ),
    _vendor(
        "Atlassian Cloud",
        hosts=("*.atlassian.net", "api.atlassian.com"),
        note="the Beta- headers are not enforced, and not read",
        source="https://developer.atlassian.com/cloud/jira/platform/rate-limiting",
        aliases=("Atlassian", "Jira Cloud", "Confluence Cloud"),
    ),
    _vendor(
        "Auth0",
        hosts=("*.auth0.com",),
        source="https://github.com/auth0/ruby-auth0, lib/auth0/exception.rb",
    ),
    _vendor(
        "AWS",
        hosts=("*.amazonaws.com",),
        note="refuses with 400 or 503 and an error type; mostly without a wait",
        source="https://github.com/boto/botocore, botocore/retries/standard.py",
    ),
    _vendor(
        "Azure Cosmos DB",
        hosts=("*.documents.azure.com",),
        source="https://github.com/Azure/azure-sdk-for-python, azure-core _utils.py",
    ),
    _vendor(
        "Azure DevOps",
        hosts=("dev.azure.com", "*.visualstudio.com"),
        note="asks to slow down on success: Retry-After there is no refusal",
        source="https://learn.microsoft.com/azure/devops/integrate/concepts/rate-limits",
    ),
    _vendor(
        "Azure OpenAI",
        hosts=("*.openai.azure.com", "*.cognitiveservices.azure.com"),
        note="-1 stands for a limit that there is not",
        source="https://github.com/openai/openai-dotnet/issues/838",
        aliases=("Azure", "Azure AI"),
    ),
    _vendor(
        "Bluesky",
        hosts=("bsky.social", "*.bsky.network"),
        source="https://github.com/caronc/apprise, apprise/plugins/bluesky.py",
    ),
    _vendor(
        "Bungie",
        hosts=("www.bungie.net",),
        note="refuses in the body of a success",
        source="https://github.com/Bungie-net/api",
        aliases=("Bungie.net",),
    ),
    _vendor(
        "Cerebras",
        hosts=("api.cerebras.ai",),
        note="says its limits on success only",
        source="https://github.com/Nathanon717/freecode, docs/ideas/retry-handling.md",
    ),
    _vendor(
        "Cloudflare",
        hosts=("api.cloudflare.com",),
        source="https://developers.cloudflare.com/fundamentals/api/reference/limits/",
        aliases=("Cloudflare API",),
    ),
    _vendor(
        "Crossref",
        hosts=("api.crossref.org",),
        note="a limit of concurrency beside the rate",
        source="https://github.com/CrossRef/rest-api-doc, README.md",
    ),
    _vendor(
        "Datadog",
        hosts=("api.datadoghq.com", "*.datadoghq.com", "api.datadoghq.eu"),
        source="https://docs.datadoghq.com/api/latest/rate-limits",
    ),
    _vendor(
        "DigitalOcean",
        hosts=("api.digitalocean.com",),
        note="the reset is when the oldest request of the last hour expires",
        source="https://github.com/digitalocean/openapi, specification/description.yml",
    ),
    _vendor(
        "Discord",
        hosts=("discord.com", "discordapp.com", "canary.discord.com", "ptb.discord.com"),
        note="scope says for whom; a 429 without Via bans the address",
        source="https://discord.com/developers/docs/topics/rate-limits",
    ),
    _vendor(
        "Docker Hub",
        hosts=("hub.docker.com", "registry-1.docker.io", "auth.docker.io"),
        note="before 2025 X-Retry-After was an epoch; the registry says no reset",
        source="https://docs.docker.com/docker-hub/usage/pulls/",
        aliases=("Docker Hub registry", "Docker Hub API", "Docker Hub API before 2025"),
    ),
    _vendor(
        "Figma",
        hosts=("api.figma.com",),
        note="waits may last for days",
        source="https://developers.figma.com/docs/rest-api/rate-limits/",
    ),
    _vendor(
        "GitHub",
        hosts=("api.github.com", "uploads.github.com"),
        note="a secondary limit may refuse while much remains: wait for 60 s if no wait is said",
        source="https://docs.github.com/rest/using-the-rest-api/rate-limits-for-the-rest-api",
    ),
    _vendor(
        "GitHub Models",
        hosts=("models.github.ai", "models.inference.ai.azure.com"),
        note="refuses at fewer than it says: concurrency is limited too",
        source="https://github.com/Nathanon717/freecode, docs/ideas/retry-handling.md",
    ),
    _vendor(
        "GitLab",
        hosts=("gitlab.com",),
        note="a refusal may show the numbers of another limit",
        source="https://docs.gitlab.com/administration/settings/user_and_ip_rate_limits/",
    ),
    _vendor(
        "Google",
        hosts=("*.googleapis.com",),
        note="only in the body, and 403 as well as 429; the wait of a daily quota is useless",
        source="https://github.com/google-gemini/gemini-cli/issues/10925",
        aliases=("Google Gemini API", "Google Workspace APIs", "Gemini"),
    ),
    _vendor(
        "Gusto",
        read=_LATER,
        hosts=("api.gusto.com", "api.gusto-demo.com"),
        note="the reset is a local time with its offset",
        source="https://docs.gusto.com/embedded-payroll/changelog/added-rate-limit-headers",
    ),
    _vendor(
        "Intercom",
        read=_LATER,
        hosts=("api.intercom.io", "*.intercom.io"),
        note="a minute's limit is dealt out in windows of ten seconds",
        source="https://developers.intercom.com/docs/references/2.17/rest-api/errors/rate-limiting",
    ),
    _vendor(
        "Klaviyo",
        read=_LATER,
        hosts=("a.klaviyo.com",),
        note="tells of the minute only; the second is limited too",
        source="https://developers.klaviyo.com/en/docs/rate_limits_and_error_handling",
    ),
    _vendor(
        "Kraken",
        hosts=("api.kraken.com",),
        note="refuses in the body of a success",
        source="https://docs.kraken.com/api/docs/guides/spot-errors",
    ),
    _vendor(
        "Linear",
        hosts=("api.linear.app",),
        note="refuses with 400",
        source="https://linear.app/developers/rate-limiting",
    ),
    _vendor(
        "Microsoft Graph",
        hosts=("graph.microsoft.com",),
        note="two layers may each set Retry-After: the longer one counts",
        source="https://github.com/microsoftgraph/msgraph-sdk-python/issues/1159",
    ),
    _vendor(
        "monday.com",
        read=_LATER,
        hosts=("api.monday.com",),
        note="a budget of complexity, refused in the body too",
        source="https://developer.monday.com/api-reference/docs/rate-limits",
    ),
    _vendor(
        "Notion",
        hosts=("api.notion.com",),
        note="529 is overload",
        source="https://github.com/makenotion/notion-sdk-js",
    ),
    _vendor(
        "Okta",
        hosts=("*.okta.com", "*.oktapreview.com"),
        source="https://developer.okta.com/docs/reference/rl-best-practices/",
    ),
    _vendor(
        "OpenAI",
        hosts=("api.openai.com",),
        note="a reset is when all is there again; insufficient_quota is not cured by waiting",
        source="https://platform.openai.com/docs/guides/rate-limits",
    ),
    _vendor(
        "OpenAlex",
        hosts=("api.openalex.org",),
        source="https://docs.openalex.org/how-to-use-the-api/rate-limits-and-authentication",
    ),
    _vendor(
        "OpenRouter",
        hosts=("openrouter.ai",),
        note="passes the headers of others on in its body",
        source="https://github.com/Gitlawb/openclaude/issues/936",
    ),
    _vendor(
        "Podio",
        read=_LATER,
        hosts=("api.podio.com",),
        note="refuses with 420; no reset",
        source="https://developers.podio.com/index/limits",
    ),
    _vendor(
        "Reddit",
        hosts=("oauth.reddit.com", "www.reddit.com"),
        note="no limit, but what was used and what remains",
        source="https://github.com/reddit-archive/reddit/wiki/API",
    ),
    _vendor(
        "Resend",
        read=_LATER,
        hosts=("api.resend.com",),
        source="https://resend.com/docs/api-reference/rate-limit",
    ),
    _vendor(
        "SEC EDGAR",
        hosts=("www.sec.gov", "data.sec.gov", "efts.sec.gov"),
        note="no header at all; 403 for a missing contact as well",
        source="https://www.sec.gov/os/accessing-edgar-data",
    ),
    _vendor(
        "SharePoint Online",
        hosts=("*.sharepoint.com",),
        note="the greater of Retry-After and reset",
        source="https://github.com/SharePoint/sp-dev-docs, "
        "how-to-avoid-getting-throttled-or-blocked-in-sharepoint-online.md",
    ),
    _vendor(
        "Slack",
        hosts=("slack.com",),
        note="Retry-After only; limits are per method and workspace",
        source="https://docs.slack.dev/apis/web-api/rate-limits",
    ),
    _vendor(
        "Smartsheet",
        read=_LATER,
        hosts=("api.smartsheet.com", "api.smartsheet.eu"),
        source="https://developers.smartsheet.com/api/resource_management/getting-started/"
        "throttling-and-rate-limiting",
    ),
    _vendor(
        "Spotify",
        hosts=("api.spotify.com",),
        note="waits may last for hours",
        source="https://github.com/spotipy-dev/spotipy/issues/1158",
    ),
    _vendor(
        "Stripe",
        hosts=("api.stripe.com",),
        note="only the reason: configure a rate",
        source="https://docs.stripe.com/rate-limits",
    ),
    _vendor(
        "Telegram",
        hosts=("api.telegram.org",),
        note="only in the body",
        source="https://github.com/python-telegram-bot/python-telegram-bot, _baserequest.py",
        aliases=("Telegram Bot API",),
    ),
    _vendor(
        "Tomorrow.io",
        read=_LATER,
        hosts=("api.tomorrow.io",),
        source="https://docs.tomorrow.io/reference/rate-limiting",
    ),
    _vendor(
        "Twilio",
        hosts=("api.twilio.com",),
        note="no limit in headers: configure one",
        source="https://www.twilio.com/docs/usage/rest-api-best-practices",
    ),
    _vendor(
        "Twitch",
        hosts=("api.twitch.tv",),
        note="an epoch under the IETF's name",
        source="https://dev.twitch.tv/docs/api/guide/",
    ),
    _vendor(
        "Wikimedia",
        hosts=("*.wikipedia.org", "*.wikimedia.org", "www.wikidata.org"),
        note="maxlag refuses in the body of a success",
        source="https://www.mediawiki.org/wiki/Manual:Maxlag_parameter",
        aliases=("MediaWiki",),
    ),
    _vendor(
        "X",
        hosts=("api.x.com", "api.twitter.com"),
        source="https://github.com/tweepy/tweepy, tweepy/api.py",
        aliases=("X (Twitter)", "Twitter"),
    ),
)

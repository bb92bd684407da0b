"""The statuses of HTTP by which responses are judged, each set once for the whole package."""

SWITCHING_PROTOCOLS = 101
FORBIDDEN = 403
TOO_MANY_REQUESTS, SERVICE_UNAVAILABLE = 429, 503
LEAST_ERROR, LEAST_FAILURE = 400, 500
#: Throttled: RFC 6585; old Twitter and its imitators; the overload of Anthropic and Notion.
THROTTLED = frozenset({420, 429, 529})
#: Throttled if the rest of the response, or most responses of the server, say so.
AMBIGUOUS = frozenset({FORBIDDEN, SERVICE_UNAVAILABLE})
MAY_THROTTLE = THROTTLED | AMBIGUOUS

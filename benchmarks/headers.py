"""The cost of parsing the limits in the headers of a response: `uv run benchmarks/headers.py`.

Each response has fifteen ordinary headers and the headers of its kind, in aiohttp's multidict.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from measure import Report, arguments, interleave, machine, show
from multidict import CIMultiDict, CIMultiDictProxy

from aiothrottle.headers import Profile, parse_rate_limit, profile_for

__all__ = ["report"]

NOW = datetime(2026, 11, 20, 12, 0, 1, tzinfo=UTC)
ORDINARY = {
    "Date": "Fri, 20 Nov 2026 12:00:00 GMT",
    "Content-Type": "application/json; charset=utf-8",
    "Content-Length": "1234",
    "Content-Encoding": "gzip",
    "Connection": "keep-alive",
    "Server": "nginx",
    "Cache-Control": "private, max-age=60, s-maxage=60",
    "ETag": 'W/"0123456789abcdef"',
    "Vary": "Accept, Authorization, Cookie",
    "Strict-Transport-Security": "max-age=31536000; includeSubdomains; preload",
    "X-Request-Id": "0123:4567:89AB:CDEF",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "deny",
    "Referrer-Policy": "origin-when-cross-origin",
    "Via": "1.1 varnish",
}
KINDS: dict[str, tuple[str, dict[str, str]]] = {
    "nothing": ("", {}),
    "nothing, with a profile": ("x.myshopify.com", {}),
    "Retry-After": ("", {"Retry-After": "30"}),
    "GitHub": (
        "api.github.com",
        {
            "X-RateLimit-Limit": "5000",
            "X-RateLimit-Remaining": "4999",
            "X-RateLimit-Reset": "1795177200",
            "X-RateLimit-Used": "1",
            "X-RateLimit-Resource": "core",
        },
    ),
    "OpenAI": (
        "api.openai.com",
        {
            "x-ratelimit-limit-requests": "60",
            "x-ratelimit-limit-tokens": "150000",
            "x-ratelimit-remaining-requests": "59",
            "x-ratelimit-remaining-tokens": "149984",
            "x-ratelimit-reset-requests": "1s",
            "x-ratelimit-reset-tokens": "6m0s",
        },
    ),
    "IETF draft 06": (
        "",
        {
            "RateLimit-Limit": "100",
            "RateLimit-Remaining": "50",
            "RateLimit-Reset": "30",
            "RateLimit-Policy": "100;w=60",
        },
    ),
    "IETF draft 10": (
        "",
        {"RateLimit": '"default";r=50;t=30', "RateLimit-Policy": '"default";q=100;w=60'},
    ),
    "Shopify, with its profile": (
        "x.myshopify.com",
        {"X-Shopify-Shop-Api-Call-Limit": "32/40"},
    ),
}


def reader(host: str, reported: dict[str, str], repeat: int) -> Callable[[], Awaitable[None]]:
    """Return a function that parses such a response `repeat` times."""
    headers = CIMultiDictProxy(CIMultiDict(ORDINARY | reported))
    profile: Profile | None = profile_for(host)

    async def read() -> None:
        for _ in range(repeat):
            parse_rate_limit(200, headers, NOW, None, profile)

    return read


def report(rounds: int = 25, repeat: int = 2_000) -> Report:
    """Measure, and compare the results with the targets."""
    found = Report("Reading headers")
    readers = {kind: reader(host, reported, repeat) for kind, (host, reported) in KINDS.items()}
    medians = asyncio.run(interleave(readers, rounds=rounds, per_round=repeat))
    rows = [["one response", "µs"]]
    rows += [[kind, f"{nanoseconds / 1000:.1f}"] for kind, nanoseconds in medians.items()]
    found.add(f"Median of {rounds} interleaved rounds of {repeat:,} responses.", rows)
    for kind in ("GitHub", "OpenAI"):
        found.want(f"headers like those of {kind}", medians[kind] / 1000, 15, " µs")
    for kind in ("nothing", "nothing, with a profile"):
        found.want(kind, medians[kind] / 1000, 2, " µs")
    return found


def main() -> None:
    """Measure and print."""
    options = arguments(__doc__, rounds=(25, "rounds"), repeat=(2_000, "responses a round"))
    print(machine())
    show(report(options.rounds, options.repeat))


if __name__ == "__main__":
    main()

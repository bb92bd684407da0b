"""Every container of header lines is read pair by pair, repeated names included."""

from collections.abc import Callable
from email.message import Message
from types import ModuleType
from typing import Any

import aiohttp
import httpx
import httpx2
import pytest
from aiohttp import web
from multidict import CIMultiDict, CIMultiDictProxy, MultiDict

from aiothrottle import RateLimiter
from aiothrottle.aiohttp import ThrottledSession
from aiothrottle.events import Event, QuotaUpdated
from aiothrottle.headers import Profile, parse_rate_limit
from aiothrottle.headers.fields import Headers
from aiothrottle.httpx import ThrottledTransport
from aiothrottle.httpx2 import ThrottledTransport as Throttled2Transport
from tests.reading import NOW
from tests.serving import Handler, serving

Pairs = list[tuple[str, str]]

PROXIES: Pairs = [
    ("Set-Cookie", "a=1"),
    ("Set-Cookie", "b=2"),
    ("Via", "1.1 one"),
    ("Set-Cookie", "c=3"),
    ("Via", "1.1 two"),
]
TRIO: Pairs = [
    ("X-RateLimit-Limit", "10"),
    ("X-RateLimit-Remaining", "3"),
    ("X-RateLimit-Reset", "30"),
]


class CaseInsensitiveDict(dict[str, str]):
    """Repeated lines joined with commas under the first spelling of the name, as requests does."""

    def __init__(self, pairs: Pairs) -> None:
        super().__init__()
        spellings: dict[str, str] = {}
        for name, value in pairs:
            spelling = spellings.setdefault(name.lower(), name)
            self[spelling] = f"{self[spelling]}, {value}" if spelling in self else value


def message(pairs: Pairs) -> Message:
    made = Message()
    for name, value in pairs:
        made[name] = value  # adds a line, and does not replace one
    return made


KEEPS_LINES: dict[str, Callable[[Pairs], Any]] = {
    "list": list,
    "tuple": tuple,
    "iterator": iter,
    "MultiDict": MultiDict,
    "CIMultiDict": CIMultiDict,
    "CIMultiDictProxy": lambda pairs: CIMultiDictProxy(CIMultiDict(pairs)),
    "httpx.Headers": httpx.Headers,
    "httpx2.Headers": httpx2.Headers,
    "email.message.Message": message,
}
CONTAINERS = {**KEEPS_LINES, "dict": dict, "requests": CaseInsensitiveDict}
every_container = pytest.mark.parametrize("container", CONTAINERS.values(), ids=CONTAINERS)


@every_container
@pytest.mark.parametrize("around", ["before", "after", "between"])
def test_repeated_lines_shift_no_values(container: Callable[[Pairs], Any], around: str) -> None:
    pairs = {
        "before": PROXIES + TRIO,
        "after": TRIO + PROXIES,
        "between": [*PROXIES[:2], TRIO[0], *PROXIES[2:4], *TRIO[1:], PROXIES[4]],
    }[around]
    found = parse_rate_limit(200, container(pairs), NOW)
    assert (found.limit, found.remaining, found.reset_after) == (10, 3, 30)


@every_container
def test_repeated_lines_do_not_break_milliseconds(container: Callable[[Pairs], Any]) -> None:
    pairs = [*PROXIES, *TRIO[:2], ("X-RateLimit-Reset", "30000")]
    found = parse_rate_limit(200, container(pairs), NOW, profile="SkuVault")
    assert (found.limit, found.remaining, found.reset_after) == (10, 3, 30)


@pytest.mark.parametrize("container", KEEPS_LINES.values(), ids=KEEPS_LINES)
def test_every_line_of_a_repeated_name_counts(container: Callable[[Pairs], Any]) -> None:
    other = [
        ("x-ratelimit-limit", "5"),
        ("X-RATELIMIT-REMAINING", "1"),
        ("X-RateLimit-Reset", "60"),
    ]
    found = parse_rate_limit(200, container([*TRIO, *PROXIES, *other]), NOW)
    assert (found.limit, found.remaining, found.reset_after) == (5, 1, 60)


@every_container
def test_empty_headers_report_nothing(container: Callable[[Pairs], Any]) -> None:
    assert parse_rate_limit(200, container([]), NOW) == parse_rate_limit(200, (), NOW)


@pytest.mark.parametrize("headers", [5, [1], ["ab", "c"], [("a", "b", "c")], "text"])
def test_other_objects_are_rejected(headers: Headers) -> None:
    with pytest.raises(TypeError, match="headers must be a mapping or pairs of str, got "):
        parse_rate_limit(200, headers, NOW)


# ---- over HTTP -------------------------------------------------------------------------------


def answering(reset: str) -> Handler:
    async def handle(_: web.Request) -> web.Response:
        lines = CIMultiDict([*PROXIES, *TRIO[:2], ("X-RateLimit-Reset", reset)])
        return web.Response(text="body", headers=lines)

    return handle


IN_MILLISECONDS = Profile(
    "Acme", hosts=("127.0.0.1",), milliseconds=frozenset({"X-RateLimit-Reset"})
)
each_unit = pytest.mark.parametrize(
    ("reset", "profile"), [("30", None), ("30000", IN_MILLISECONDS)], ids=["s", "ms"]
)


@each_unit
async def test_aiohttp_headers_are_parsed(reset: str, profile: Profile | None) -> None:
    async with (
        serving(answering(reset)) as (url, _),
        aiohttp.ClientSession() as session,
        session.get(url) as response,
    ):
        assert len(response.headers.getall("Set-Cookie")) == 3
        assert len(response.headers.getall("Via")) == 2
        found = parse_rate_limit(200, response.headers, NOW, profile=profile)
    assert (found.limit, found.remaining, found.reset_after) == (10, 3, 30)


@each_unit
async def test_session_reports_the_quota(reset: str, profile: Profile | None) -> None:
    events: list[Event] = []
    limiter = RateLimiter("1000/s")
    limiter.observe(events.append)
    profiles = [profile] if profile else []
    async with (
        serving(answering(reset)) as (url, _),
        ThrottledSession(limiter, profiles=profiles) as session,
        session.get(url) as response,
    ):
        await response.read()
    assert quotas(events) == [(3, 30)]


@pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"])
@each_unit
async def test_transport_reports_the_quota(
    reset: str, profile: Profile | None, library: ModuleType
) -> None:
    events: list[Event] = []
    limiter = RateLimiter("1000/s")
    limiter.observe(events.append)
    transport = {httpx: ThrottledTransport, httpx2: Throttled2Transport}[library]
    profiles = [profile] if profile else []
    async with (
        serving(answering(reset)) as (url, _),
        library.AsyncClient(transport=transport(limiter, profiles=profiles)) as client,
    ):
        response = await client.get(str(url))
        found = parse_rate_limit(200, response.headers, NOW, profile=profile)
    assert quotas(events) == [(3, 30)]
    assert (found.limit, found.remaining, found.reset_after) == (10, 3, 30)


def quotas(events: list[Event]) -> list[tuple[float | None, float | None]]:
    return [
        (event.remaining, event.reset_after) for event in events if isinstance(event, QuotaUpdated)
    ]

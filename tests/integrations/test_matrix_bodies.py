"""Throttled requests that only a body reports, to hosts whose profile says so: every integration.

The body stays readable by the caller, and other responses are not read.
"""

import asyncio
import gzip
import json
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from aiothrottle import RateLimiter
from aiothrottle._http.adapter import SHORT_BODY
from aiothrottle._http.backoff import Backoff
from aiothrottle._http.quotas import ServerQuotas
from aiothrottle.headers import Profile, ServerLimits
from tests.integrations.clients import ONCE, QUICK, Feature, Integration, every
from tests.serving import Handler, until
from tests.virtually import turns

LIMITS, RETRIES = Feature.LIMITS, Feature.RETRIES

PROFILE = Profile(
    "ours",
    hosts=("127.0.0.1",),
    body_statuses=frozenset({200, 400, 403}),
    body_header="X-Ours",
    marks=("Our budget is spent",),
)
OTHER = Profile(
    "other", hosts=("other.example",), body_statuses=frozenset({200}), body_header="X-Ours"
)

GRAPHQL = {"errors": [{"message": "Throttled", "extensions": {"code": "THROTTLED"}}]}
DYNAMODB = {"__type": "com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException"}
GITHUB = {"message": "You have exceeded a secondary rate limit. Please wait a few minutes."}
OWN = {"error": "our budget is spent"}
LONG = {"data": ["x" * 100] * (3 * SHORT_BODY // 100)}


def in_json(
    data: object,
    status: int = 200,
    *,
    kind: str = "application/json",
    packed: bool = False,
    chunked: bool = False,
    **headers: str,
) -> Handler:
    """Answer in JSON, with a length or in chunks."""
    body = json.dumps(data).encode()

    async def handle(request: web.Request) -> web.StreamResponse:
        sent = gzip.compress(body) if packed else body
        response = web.StreamResponse(status=status, headers={"X-Ours": "1", **headers})
        response.content_type = kind
        if packed:
            response.headers["Content-Encoding"] = "gzip"
        if chunked:
            response.enable_chunked_encoding()
        else:
            response.content_length = len(sent)
        await response.prepare(request)
        for begin in range(0, len(sent), 5000):
            await response.write(sent[begin : begin + 5000])
        await response.write_eof()
        return response

    return handle


def encoded(data: object) -> bytes:
    return json.dumps(data).encode()


FORMS: dict[str, dict[str, Any]] = {
    "length": {},
    "chunked": {"chunked": True},
    "gzip": {"packed": True},
    "gzip and chunked": {"packed": True, "chunked": True},
    "of GraphQL": {"kind": "application/graphql-response+json"},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("data", "status"),
    [(GRAPHQL, 200), (DYNAMODB, 400), (GITHUB, 403), (OWN, 400)],
    ids=["GraphQL", "DynamoDB", "GitHub", "own mark"],
)
@every(RETRIES)
async def test_throttled_body_is_retried(
    integration: Integration, data: object, status: int, form: str
) -> None:
    throttled = in_json(data, status, **FORMS[form])
    async with integration.serve(throttled, in_json({"data": 1}), profiles=[PROFILE]) as at:
        assert await at.send(method="POST", body=b"query") == (200, encoded({"data": 1}))
        assert at.seen == [("POST", b"query")] * 2
        at.assert_granted(2)


@pytest.mark.parametrize("form", FORMS)
@every(LIMITS)
async def test_throttled_body_pauses_the_limiter_and_is_returned(
    integration: Integration, form: str
) -> None:
    limiter = RateLimiter(1000)
    throttled = in_json(GRAPHQL, **FORMS[form])
    profile = replace(PROFILE, least_backoff=30.0)
    options: dict[str, Any] = {"profiles": [profile], "retry": ONCE}
    async with integration.serve(throttled, limiter=limiter, **options) as at:
        assert await at.send() == (200, encoded(GRAPHQL))
        assert 29 < at.paused_for <= 31


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("data", [{"data": "THROTTLED"}, LONG, []], ids=["short", "long", "empty"])
@every()
async def test_other_body_is_returned_whole(
    integration: Integration, data: object, form: str
) -> None:
    async with integration.serve(in_json(data, **FORMS[form]), profiles=[PROFILE]) as at:
        assert await at.send() == (200, encoded(data))
        async with await at.open() as stream:
            assert b"".join([chunk async for chunk in stream.chunks()]) == encoded(data)
        assert len(at.seen) == 2


class Endless:
    """Sends the begin of a body, and nothing more."""

    def __init__(self, kind: str, **headers: str) -> None:
        self._kind = kind
        self._headers = headers

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers=self._headers)
        response.content_type = self._kind
        await response.prepare(request)
        await response.write(b'data: {"errors": "THROTTLED"}\n\n')
        await asyncio.Event().wait()
        return response


@pytest.mark.parametrize(
    ("handler", "profile"),
    [
        (Endless("text/event-stream", X_Ours="1"), PROFILE),
        (Endless("application/x-ndjson", X_Ours="1"), PROFILE),
        (Endless("application/json"), PROFILE),
        (Endless("application/json", X_Ours="1"), OTHER),
    ],
    ids=["events", "lines", "no header", "another host"],
)
@every()
async def test_stream_and_other_host_are_not_read_ahead(
    integration: Integration, handler: Endless, profile: Profile
) -> None:
    handler._headers = {name.replace("_", "-"): it for name, it in handler._headers.items()}
    async with integration.serve(handler, profiles=[profile]) as at, await at.open() as stream:
        assert stream.status == 200
        await stream.close()


@pytest.mark.parametrize(
    "send",
    ["broken", "cut"],
)
@every(LIMITS)
async def test_failing_body_raises_and_frees_the_slot(integration: Integration, send: str) -> None:
    async def fail(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"X-Ours": "1"})
        response.content_type = "application/json"
        if send == "broken":
            response.headers["Content-Encoding"] = "gzip"
        await response.prepare(request)
        await response.write(b"{no gzip, and no end")
        if send == "cut":
            assert request.transport is not None
            request.transport.abort()
        return response

    async with integration.serve(fail, profiles=[PROFILE], retry=ONCE) as at:
        with pytest.raises(Exception, match=r".+") as raised:
            await at.send()
        assert not isinstance(raised.value, AssertionError)
        await turns(20)
        assert at.held == 0


@every(LIMITS)
async def test_cancelled_reading_frees_the_slot(integration: Integration) -> None:
    handler = Endless("application/json")
    handler._headers = {"X-Ours": "1"}
    async with integration.serve(handler, profiles=[PROFILE]) as at:
        task = at.start()
        await until(lambda: at.seen)
        await turns(50)
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await turns(20)
        assert at.held == 0


# ---- the least backoff ---------------------------------------------------------------------------

GITHUB_HEADERS = {
    "Content-Type": "application/json; charset=utf-8",
    "X-RateLimit-Limit": "5000",
    "X-RateLimit-Remaining": "4987",
    "X-RateLimit-Reset": "1800",
}
AWS, AMAZON_JSON = (
    "dynamodb.eu-west-1.amazonaws.com",
    {"Content-Type": "application/x-amz-json-1.0"},
)


def github(
    headers: dict[str, str] | None = None,
) -> tuple[ServerQuotas, ServerLimits]:
    quotas = ServerQuotas("at once", (), 120.0)
    return quotas, quotas.parse(
        "api.github.com", 403, GITHUB_HEADERS | (headers or {}), json.dumps(GITHUB)
    )


def test_secondary_limit_of_github_waits_a_minute() -> None:
    quotas, limits = github()
    assert (limits.throttled, limits.retry_after) == (True, 60.0)
    # Those that are throttled meanwhile wait no longer.
    again = quotas.parse("api.github.com", 429, GITHUB_HEADERS)
    assert (again.throttled, again.retry_after) == (True, 60.0)


@pytest.mark.parametrize(
    ("headers", "retry_after"),
    [({"Retry-After": "7"}, 7.0), ({"X-RateLimit-Remaining": "0"}, None)],
    ids=["Retry-After", "primary limit"],
)
def test_named_time_replaces_the_least_backoff(
    headers: dict[str, str], retry_after: float | None
) -> None:
    assert github(headers=headers)[1].retry_after == retry_after


@pytest.mark.parametrize(
    ("host", "status", "headers", "reads"),
    [
        ("api.github.com", 403, GITHUB_HEADERS, True),
        ("api.github.com", 403, GITHUB_HEADERS | {"Content-Type": "text/html"}, False),
        ("api.github.com", 200, GITHUB_HEADERS, False),
        ("api.github.com", 403, GITHUB_HEADERS | {"Retry-After": "7"}, False),
        ("example.org", 403, GITHUB_HEADERS, False),
        ("shop.myshopify.com", 200, {"Content-Type": "application/json"}, True),
        (AWS, 400, AMAZON_JSON, True),
        (AWS, 200, AMAZON_JSON, False),
    ],
)  # fmt: skip
def test_bodies_are_read_for_known_hosts(
    host: str, status: int, headers: dict[str, str], reads: bool
) -> None:
    quotas = ServerQuotas("at once", (), 120.0)
    limits = quotas.parse(host, status, headers)
    assert quotas.body_may_report(host, status, headers, limits) is reads


def test_response_without_the_header_takes_the_short_way() -> None:
    quotas = ServerQuotas("at once", (), 120.0)
    assert quotas.has_none(200, ["Content-Type", "Date"])
    assert not quotas.has_none(200, ["Content-Type", "X-Shopify-API-Version"])


def test_waits_in_a_row_double() -> None:
    backoff = Backoff()
    waits = [backoff.wait(now, 60.0) for now in (100.0, 101.0, 161.0, 162.0, 282.0, 1000.0)]
    assert waits == [60.0, 60.0, 120.0, 120.0, 240.0, 60.0]


@every(LIMITS)
async def test_profile_chooses_the_least_pause(integration: Integration) -> None:
    limiter = RateLimiter(1000)
    profile = Profile("ours", hosts=("127.0.0.1",), least_backoff=60.0)
    options: dict[str, Any] = {"profiles": [profile], "retry": QUICK}
    async with integration.serve(in_json({}, 429), limiter=limiter, **options) as at:
        at.start()
        await until(lambda: at.paused_for)
        assert 59 < at.paused_for <= 61
        assert len(at.seen) == 1

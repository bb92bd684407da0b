"""Throttled requests that only a body reports, to hosts whose profile says so: every integration.

The body stays readable by the caller, and other responses are not read.
"""

import json
from dataclasses import replace
from typing import Any

import httpx
import pytest

from aiothrottle import KeyedRateLimiter, RateLimiter, Retry
from aiothrottle.headers import Profile
from aiothrottle.httpx import ThrottledTransport
from tests.integrations.clients import (
    ONCE,
    Clock,
    Feature,
    Integration,
    Readers,
    collected,
    cut,
    every,
    in_chunks,
    in_form,
)
from tests.support.serving import Handler, never
from tests.support.virtually import turns

LIMITS, RETRIES = Feature.LIMITS, Feature.RETRIES

PROFILE = Profile(
    "ours",
    hosts=("127.0.0.1",),
    body_statuses=frozenset({200, 400, 403}),
    body_header="X-Ours",
    marks=("Our budget is spent",),
)
OTHER = replace(PROFILE, name="other", hosts=("other.example",))
OURS: dict[str, Any] = {"Content_Type": "application/json", "X_Ours": "1"}

GRAPHQL = {"errors": [{"message": "Throttled", "extensions": {"code": "THROTTLED"}}]}
DYNAMODB = {"__type": "com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException"}
GITHUB = {"message": "You have exceeded a secondary rate limit. Please wait a few minutes."}
OWN = {"error": "our budget is spent"}
LONG = {"data": ["x" * 100] * 2000}  # longer than what is read ahead


def encoded(data: object) -> bytes:
    return json.dumps(data).encode()


def in_json(data: object, status: int = 200, form: str = "sized") -> Handler:
    kind = "application/graphql-response+json" if "GraphQL" in form else "application/json"
    return in_form(encoded(data), form, status, **OURS | {"Content_Type": kind})


FORMS = ["sized", "chunked", "gzip", "gzip, chunked", "GraphQL"]
OTHERS = {
    "DynamoDB": in_json(DYNAMODB, 400),
    "GitHub": in_json(GITHUB, 403),
    "own mark": in_json(OWN, 400),
    "odd encoding": in_form(encoded(OWN), "sized", 400, **OURS, Content_Encoding="é"),
}
THROTTLED = {form: in_json(GRAPHQL, form=form) for form in FORMS} | OTHERS


@pytest.mark.parametrize("throttled", THROTTLED.values(), ids=THROTTLED)
@every(RETRIES)
async def test_throttled_body_is_retried(integration: Integration, throttled: Handler) -> None:
    async with integration.serve(throttled, in_json({"data": 1}), profiles=[PROFILE]) as at:
        assert await at.send(method="POST", body=b"query") == (200, encoded({"data": 1}))
        assert at.seen == [("POST", b"query")] * 2
        at.assert_granted(2)


@pytest.mark.parametrize("form", ["sized", "chunked", "gzip, chunked"])
@every(RETRIES)
async def test_secondary_limit_of_unknown_host_is_retried(
    integration: Integration, form: str
) -> None:
    """Its headers report the primary limit, of which much remains."""
    headers = {"Content_Type": "application/json"} | {k.replace("-", "_"): RATE[k] for k in RATE}
    throttled = in_form(encoded(GITHUB), form, 403, **headers)
    async with integration.serve(throttled, in_json({"data": 1})) as at:
        assert await at.send() == (200, encoded({"data": 1}))


@every(LIMITS)
async def test_throttled_body_pauses_the_limiter_and_is_returned(integration: Integration) -> None:
    profile = replace(PROFILE, least_backoff=30.0)
    options: dict[str, Any] = {"profiles": [profile], "retry": ONCE, "limiter": RateLimiter(1000)}
    async with integration.serve(in_json(GRAPHQL), **options) as at:
        assert await at.send() == (200, encoded(GRAPHQL))
        assert 29 < at.paused_for <= 31


@pytest.mark.parametrize("form", FORMS)
@every()
async def test_other_body_is_returned_whole(integration: Integration, form: str) -> None:
    """And a reader of `settle` gets it once."""
    bodies: list[object] = [{"data": "THROTTLED"}, LONG, []]
    for data in bodies:
        handler, readers = in_json(data, form=form), Readers()
        settle: dict[str, Any] = {"settle": readers} if integration.has(LIMITS) else {}
        async with integration.serve(handler, profiles=[PROFILE], **settle) as at:
            assert await at.send() == (200, encoded(data))
            async with await at.open() as stream:
                assert await collected(stream.chunks()) == encoded(data)
            assert len(at.seen) == 2
        if settle:
            assert [it.body for it in readers] == [encoded(data)] * 2
            assert readers.ends == [[True]] * 2


@pytest.mark.parametrize(
    ("headers", "profile"),
    [
        (OURS | {"Content_Type": "text/event-stream"}, PROFILE),
        (OURS | {"Content_Type": "application/x-ndjson"}, PROFILE),
        ({"Content_Type": "application/json"}, PROFILE),
        (OURS, OTHER),
    ],
    ids=["events", "lines", "no header", "another host"],
)
@every()
async def test_stream_and_other_host_are_not_read_ahead(
    integration: Integration, headers: dict[str, Any], profile: Profile
) -> None:
    handler = in_chunks(b'data: {"errors": "THROTTLED"}\n\n', then=never, **headers)
    async with integration.serve(handler, profiles=[profile]) as at, await at.open() as stream:
        assert stream.status == 200


@pytest.mark.parametrize("is_cut", [False, True])
@every(LIMITS)
async def test_failing_body_frees_the_slot(integration: Integration, is_cut: bool) -> None:
    end: dict[str, Any] = {"then": cut} if is_cut else {"Content_Encoding": "gzip"}
    handler = in_chunks(b"{no gzip, and no end", **OURS, **end)
    async with integration.serve(handler, profiles=[PROFILE], retry=ONCE) as at:
        with pytest.raises(Exception, match=r".+") as raised:
            await at.send()
        assert not isinstance(raised.value, AssertionError)
        await turns(20)
        assert at.held == 0


JSON = {"Content-Type": "application/json; charset=utf-8"}
AMAZON = {"Content-Type": "application/x-amz-json-1.0"}
RATE = {"X-RateLimit-Limit": "5000", "X-RateLimit-Remaining": "4987", "X-RateLimit-Reset": "1800"}
API, AWS, SHOP = "api.github.com", "dynamodb.eu-west-1.amazonaws.com", "shop.myshopify.com"
Answer = tuple[str, int, dict[str, str], object]


GITHUB_403: Answer = (API, 403, JSON | RATE, GITHUB)
GITHUB_429: Answer = (API, 429, JSON | RATE, {})
#: Seconds before a request, what the server answers, and the seconds of the pause that follows.
KNOWN: list[tuple[float, Answer, float]] = [
    (0, GITHUB_403, 60),
    # What is throttled before a wait has ended shares it; the next wait is twice as long.
    (10, GITHUB_403, 60),
    (51, GITHUB_429, 120),
    (121, GITHUB_403, 240),
    (1000, GITHUB_429, 60),
    (0, (API, 403, JSON | RATE, {}), 0),
    (0, (API, 403, RATE | {"Content-Type": "text/html"}, GITHUB), 60),
    (0, (API, 200, JSON | RATE, GITHUB), 0),
    (0, (API, 403, JSON | RATE | {"Retry-After": "7"}, GITHUB), 7),
    (0, (API, 403, JSON | RATE | {"X-RateLimit-Remaining": "0"}, {}), 1000),
    # GitHub Enterprise, for example.
    (0, ("example.org", 403, JSON | RATE, GITHUB), 5),
    (0, ("example.org", 403, JSON | RATE, {"message": "Forbidden"}), 0),
    (0, ("example.org", 403, RATE | {"Content-Type": "text/html"}, GITHUB), 5),
    (0, (SHOP, 200, JSON | {"X-Shopify-API-Version": "2025-01"}, GRAPHQL), 5),
    (0, (SHOP, 200, JSON, GRAPHQL), 0),  # without the header the body is not looked at
    (0, (AWS, 400, AMAZON, DYNAMODB), 5),
    (0, (AWS, 200, AMAZON, DYNAMODB), 0),
]


async def test_known_servers_throttle_by_their_bodies(clock: Clock) -> None:
    limiter = KeyedRateLimiter(concurrency_limit=2, clock=clock.time)
    script, keys = iter(KNOWN), iter(range(len(KNOWN)))

    def respond(_: httpx.Request) -> httpx.Response:
        status, headers, data = next(script)[1][1:]
        return httpx.Response(status, headers=headers, content=encoded(data))

    transport = ThrottledTransport(
        limiter,
        transport=httpx.MockTransport(respond),
        retry=Retry(attempts=1, pause_jitter=0, max_pause=1000, backoff=5, max_backoff=5),
        key=lambda _: next(keys),
    )
    found: list[float] = []
    async with httpx.AsyncClient(transport=transport) as client:
        for seconds, (host, *_, data), _ in KNOWN:
            await clock.skip(seconds)
            assert (await client.get(f"https://{host}/")).json() == data  # it is still readable
            found.append(limiter[len(found)].statistics().paused_for)
    assert found == pytest.approx([pause for _, _, pause in KNOWN], abs=1)

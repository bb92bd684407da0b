"""What servers report, and what every integration makes of it: pauses and server quotas."""

import gzip
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx
import pytest

from aiothrottle import KeyedRateLimiter, RateLimiter, Retry
from aiothrottle.headers import Profile
from tests.integrations.clients import (
    BODY_ERRORS,
    ONCE,
    Clock,
    Integration,
    Readers,
    collected,
    every,
    in_form,
    pair,
)
from tests.integrations.scripted import client_of
from tests.support.serving import Handler, answer, cut, in_chunks, never, until
from tests.support.virtually import turns

YEAR = 365 * 86400.0


def http_date(seconds: float) -> str:
    return format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)


# ---- pauses ------------------------------------------------------------------------------------


@every()
async def test_throttled_response_pauses_the_limiter(integration: Integration) -> None:
    # The clock of this server is a year behind, and 30 s are 30 s all the same.
    headers = {"Retry_After": http_date(30 - YEAR), "Date": http_date(-YEAR)}
    limiter = RateLimiter(100, concurrency_limit=2, guard=0.0)
    retry = Retry(pause_jitter=0)
    async with integration.serve(answer(429, **headers), limiter=limiter, retry=retry) as at:
        at.start()
        await until(lambda: at.paused_for)
        assert 28 < (await limiter.try_acquire()).retry_after <= 30
        await turns(20)
        at.start()
        await until(lambda: at.waiting)
        await turns(20)
        assert (at.held, len(at.seen)) == (0, 1)


@pytest.mark.parametrize(
    ("scope", "paused"), [("global", ["a", "b"]), ("user", ["a"]), (None, ["a"])]
)
@pair
async def test_scope_of_a_429_decides_which_keys_pause(
    integration: Integration, scope: str | None, paused: list[str]
) -> None:
    limiter = KeyedRateLimiter(1000, parent=RateLimiter())
    headers = {"Retry_After": "30"} | ({} if scope is None else {"X_RateLimit_Scope": scope})
    script = answer(), answer(429, **headers)
    async with integration.serve(*script, limiter=limiter, retry=ONCE) as at:
        statuses = [(await at.send(throttle={"key": key})).status for key in "ba"]
        assert statuses == [200, 429]
        waits = {key: (await limiter.peek(key)).retry_after for key in "ab"}
    assert [key for key, wait in waits.items() if wait >= 29] == paused


# ---- server quotas -----------------------------------------------------------------------------


async def send_once(
    integration: Integration, limiter: RateLimiter, *script: Handler, **options: Any
) -> None:
    async with integration.serve(*script, limiter=limiter, retry=ONCE, **options) as at:
        for _ in script:
            await at.send()


RETRY_INFO = b"""{"error": {"code": 429, "details": [
    {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "9s"}
]}}"""
BY_BODY = in_chunks(
    RETRY_INFO, status=429, Content_Type="application/json", Content_Length=str(len(RETRY_INFO))
)
BY_QUOTA = answer(403, X_RateLimit_Remaining="0", X_RateLimit_Reset="9")
BY_PROFILE = answer(418, Retry_After="9")


@pytest.mark.parametrize("report", ["403", "body", "profile"])
@every()
async def test_headers_body_or_profile_may_throttle(integration: Integration, report: str) -> None:
    limiter, handler = RateLimiter(1000), {"403": BY_QUOTA, "body": BY_BODY}.get(report, BY_PROFILE)
    if report == "profile":
        await send_once(integration, limiter, handler)
        assert limiter.statistics().paused_for == 0
    ours = Profile(name="ours", hosts=("127.0.0.1",), throttled_statuses=frozenset({418}))
    await send_once(integration, limiter, handler, profiles=iter([ours]))
    assert 8 < limiter.statistics().paused_for <= 10


@pair
async def test_headers_in_a_body_report_a_quota(integration: Integration) -> None:
    """As a gateway forwards them."""
    nested = {"X-RateLimit-Remaining": "5", "X-RateLimit-Reset": "30"}
    body = encoded({"error": {"metadata": {"headers": nested}}})
    await send_once(
        integration,
        limiter := RateLimiter(1000),
        in_chunks(body, status=429, Content_Length=str(len(body))),
    )
    assert limiter.statistics().quota_remaining == 5


# ---- quotas of resources -------------------------------------------------------------------------

BOTH = {"requests": "5000/min", "tokens": "300000/min"}


def openai(requests: int, tokens: int, seconds: float = 60.5) -> Handler:
    headers: dict[str, str] = {}
    for kind, limit, left in (("requests", 5000, requests), ("tokens", 300_000, tokens)):
        values = {"limit": limit, "remaining": left, "reset": f"{seconds}s"}
        headers |= {f"x_ratelimit_{name}_{kind}": str(it) for name, it in values.items()}
    return answer(200, **headers)


def remaining(limiter: RateLimiter) -> dict[str, float]:
    return {name: round(it.remaining) for name, it in limiter.statistics().resources.items()}


KINDS = {"requests": "50/min", "input_tokens": "30000/min", "output_tokens": "8000/min"}
INPUT_AND_OUTPUT = {
    f"anthropic_ratelimit_{kind}_tokens_{name}": value
    for kind, left in (("input", "50"), ("output", "6"))
    for name, value in {"limit": "300000", "remaining": left, "reset": "60.5"}.items()
}
SPENT_TOKENS = {"x_ratelimit_remaining_tokens": "0", "x_ratelimit_reset_tokens": "60.5s"}


@pytest.mark.parametrize(
    ("limits", "script", "expected"),
    [
        (BOTH, [openai(90, 700)], (90, 700)),
        (KINDS, [answer(200, **INPUT_AND_OUTPUT)], (49, 50, 6)),
        ({"requests": "5000/min", "images": "5/min"}, [openai(90, 0)], (90, 5)),
        (BOTH, [answer(429, Retry_After="1", **SPENT_TOKENS)], (4999, 300_000)),
    ],
    ids=["both", "input and output", "no such resource", "429 with a wait"],
)
@every()
async def test_resources_keep_to_the_reports(
    integration: Integration,
    limits: dict[str, str],
    script: list[Handler],
    expected: tuple[int, ...],
) -> None:
    limiter = RateLimiter(limits, guard=0.0)
    await send_once(integration, limiter, *script)
    assert tuple(remaining(limiter).values()) == expected


@pytest.mark.parametrize(
    ("tokens", "seconds", "use", "wait"),
    [(60, 60.5, "evenly", 1), (1, 60.5, None, 0), (1, 86400.5, "at once", 3600)],
    ids=["evenly", "not at all", "no longer than a pause"],
)
@pair
async def test_option_of_quotas_holds_for_each(
    integration: Integration, tokens: int, seconds: float, use: str | None, wait: float
) -> None:
    limiter = RateLimiter(BOTH, guard=0.0)
    await send_once(integration, limiter, openai(1000, tokens, seconds), server_quota=use)
    assert await limiter.try_acquire({"tokens": 1})
    found = (await limiter.try_acquire({"tokens": 1})).retry_after
    assert found == pytest.approx(wait, rel=0.003, abs=0.5 if use == "evenly" else 0)


# ---- throttled by the body alone -----------------------------------------------------------------

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
    "own mark": in_json(OWN, 400),
    "odd encoding": in_form(encoded(OWN), "sized", 400, **OURS, Content_Encoding="é"),
}
THROTTLED = {form: in_json(GRAPHQL, form=form) for form in FORMS} | OTHERS


@pytest.mark.parametrize("throttled", THROTTLED.values(), ids=THROTTLED)
@every()
async def test_throttled_body_is_retried(integration: Integration, throttled: Handler) -> None:
    async with integration.serve(throttled, in_json({"data": 1}), profiles=[PROFILE]) as at:
        assert await at.send(method="POST", body=b"query") == (200, encoded({"data": 1}))
        assert at.seen == [("POST", b"query")] * 2
        at.assert_granted(2)


@pytest.mark.parametrize("form", FORMS)
@every()
async def test_other_body_is_returned_whole(integration: Integration, form: str) -> None:
    """And a reader of `settle` gets it once."""
    bodies: list[object] = [{"data": "THROTTLED"}, LONG, []]
    readers = Readers()
    script = [in_json(data, form=form) for data in bodies]
    async with integration.serve(*script, profiles=[PROFILE], settle=readers) as at:
        for data in bodies:
            async with await at.open() as stream:
                assert await collected(stream.chunks()) == encoded(data)
        assert len(at.seen) == len(bodies)
    assert [(it.body, it.ends) for it in readers] == [(encoded(it), [True]) for it in bodies]


EVENT = b'data: {"errors": "THROTTLED"}\n\n'
OF_JSON = {"Content_Type": "application/json"}


@pytest.mark.parametrize(
    ("status", "start", "headers", "profile"),
    [
        (200, EVENT, OURS | {"Content_Type": "application/x-ndjson"}, PROFILE),
        (200, EVENT, OF_JSON | {"RateLimit_Remaining": "5"}, PROFILE),
        (200, EVENT, OURS, OTHER),
        (403, EVENT, OF_JSON, OTHER),
        (200, bytes(70_000), OURS, PROFILE),
    ],
    ids=["lines", "header of a limit", "another host", "403 of another host", "long"],
)
@pair
async def test_stream_and_other_host_are_not_read_ahead(
    integration: Integration, status: int, start: bytes, headers: dict[str, Any], profile: Profile
) -> None:
    handler = in_chunks(start, status=status, then=never, **headers)
    async with integration.serve(handler, profiles=[profile]) as at, await at.open() as stream:
        assert stream.status == status


@pytest.mark.parametrize("is_cut", [False, True])
@every()
async def test_failing_body_frees_the_slot(integration: Integration, is_cut: bool) -> None:
    end: dict[str, Any] = {"then": cut} if is_cut else {"Content_Encoding": "gzip"}
    handler = in_chunks(b"{no gzip, and no end", **OURS, **end)
    async with integration.serve(handler, profiles=[PROFILE], retry=ONCE) as at:
        with pytest.raises(BODY_ERRORS):
            await at.send()
        await turns(20)
        assert at.held == 0


JSON = {"Content-Type": "application/json; charset=utf-8"}
PACKED = JSON | {"Content-Encoding": "gzip"}  # so that it is not known to be short
AMAZON = {"Content-Type": "application/x-amz-json-1.0"}
LAGGED = {"MediaWiki-API-Error": "maxlag", "Retry-After": "7"}
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
    (0, ("sheets.googleapis.com", 403, PACKED, {"reason": "userRateLimitExceeded"}), 5),
    (0, ("aiplatform.googleapis.com", 429, PACKED, {"details": [{"retryDelay": "34.1s"}]}), 34.1),
    (0, ("api.linear.app", 400, PACKED, {"errors": [{"code": "RATELIMITED"}]}), 5),
    (0, ("graph.facebook.com", 400, PACKED, {"message": "(#17) User request limit reached"}), 5),
    (0, ("eu1.salesforce.com", 403, PACKED, [{"errorCode": "REQUEST_LIMIT_EXCEEDED"}]), 5),
    (0, ("en.wikipedia.org", 200, LAGGED, {"error": {"code": "maxlag"}}), 7),
    (0, ("wiki.example", 200, {"MediaWiki-API-Error": "badtoken, ratelimited"}, {}), 5),
    (0, ("wiki.example", 200, {"MediaWiki-API-Error": "badtoken", "Retry-After": "7"}, {}), 0),
]


async def test_known_servers_throttle_by_their_bodies(clock: Clock) -> None:
    limiter = KeyedRateLimiter(concurrency_limit=2, clock=clock.time)
    script, keys = iter(KNOWN), iter(range(len(KNOWN)))

    def respond(_: httpx.Request) -> httpx.Response:
        status, headers, data = next(script)[1][1:]
        content = encoded(data) if headers is not PACKED else gzip.compress(encoded(data))
        return httpx.Response(status, headers=headers, content=content)

    def by_number(_: object) -> int:
        return next(keys)

    retry = Retry(attempts=1, pause_jitter=0, max_pause=1000, backoff=5, max_backoff=5)
    found: list[float] = []
    async with client_of(limiter, respond, retry=retry, key=by_number) as client:
        for seconds, (host, *_, data), _ in KNOWN:
            await clock.skip(seconds)
            assert (await client.get(f"https://{host}/")).json() == data  # it is still readable
            found.append(limiter[len(found)].statistics().paused_for)
    assert found == pytest.approx([pause for _, _, pause in KNOWN], abs=1)

"""Specifies the limits and waits that only a body reports."""

import pytest

from aiothrottle.headers import ServerLimits
from tests.support.reading import EPOCH, read

THROTTLED = [
    (400, '{"errors":[{"extensions":{"code":"RATELIMITED"}}]}'),
    (403, '{"message":"You have triggered an ABUSE detection mechanism."}'),
    (403, '[{"errorCode":"REQUEST_LIMIT_EXCEEDED","message":"TotalRequests"}]'),
    (400, '{"__type":"com.amazon#ThrottlingException"}'),
    (400, '{"message":"secondary rate limit"}'),
    (400, "secondary rate limit"),
    (503, "<Error><Code>SlowDown</Code></Error>"),
    (200, "<?xml?><Error><Code>SlowDown</Code></Error>"),
    (200, '{"ok":false,"error":"ratelimited"}'),
    (200, '{"error":"Throttled"}'),
    (200, '{"error":["EAPI:Rate limit exceeded"]}'),
    (200, '{"errors":[{"extensions":{"code":"THROTTLED"}}]}'),
    (200, '{"retCode":10018,"retMsg":"no"}'),
    (200, '{"retCode":10006}'),
    (200, '{"retCode":"10006"}'),
    (200, '{"retCode":0,"retMsg":"Too many visits!"}'),
    (200, '{"ErrorCode":36,"ThrottleSeconds":15,"ErrorStatus":"Whatever"}'),
    (200, '{"ThrottleSeconds":"3"}'),
    (200, '{"ErrorStatus":"ThrottleLimitExceededMomentarily","ThrottleSeconds":0}'),
    (200, '{"code":99991400,"msg":"request trigger frequency limit"}'),
    (400, '{"error":{"message":"(#80004) There have been too many calls to this ad-account."}}'),
    (403, "<html><title>Request Rate Threshold Exceeded</title></html>"),
    (403, "x" * 40_000 + "secondary rate limit" + "x" * 100_000),
]


@pytest.mark.parametrize(("status", "body"), THROTTLED)
def test_body_marks_a_throttled_response(status: int, body: str) -> None:
    assert read(status=status, body=body).throttled
    assert read(status=status, body=body.encode()).throttled
    assert not read(status=413, body=body).throttled


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, '{"items":[{"title":"API rate limit exceeded"}],"message":"secondary rate limit"}'),
        (399, "secondary rate limit"), (399, '{"message":"secondary rate limit"}'),
        (200, "<List><Code>SlowDown</Code></List>"), (200, "<Error><Code>Other</Code></Error>"),
        (200, '[{"error":"ratelimited"}]'),
        (200, '{"ThrottleSeconds":0,"ErrorStatus":"Success","retry_after":5}'),
        (404, '{"message":"Nobody throttled this"}'), (404, '{"error":"not throttled"}'),
        (404, "slowdown"), (400, '{"code":10006}'), (400, '{"code":true}'),
        (400, '{"code":-99991400}'), (400, '{"ThrottleSeconds":"0"}'), (500, ""),
        (500, "[" * 60_000), (500, "[" * 900 + "1" + "]" * 900), (500, '{"a":' * 10_000),
        (500, "{" + '"code":' + "9" * 5000 + "}"), (500, "x" * 65_536 + "secondary rate limit"),
        (500, '{"retry_after":NaN}'), (500, '{"retry_after":-0.5}'),
        (500, '{"retry_after":true}'), (500, '{"retry_after":"soon"}'),
        (399, '{"retry_after":5}'), (399, '{"x":[{"retry_after":5}]}'),
        (399, f"IP banned until {EPOCH + 5}000"),
    ],
)  # fmt: skip
def test_other_body_reports_nothing(status: int, body: str) -> None:
    assert read(status=status, body=body) == ServerLimits()


@pytest.mark.parametrize(
    ("body", "seconds"),
    [
        ('{"retry_after":1.5}', 1.5),
        ('{"retry_after":0}', 0),
        ('{"retry_after":"35"}', 35),
        ('{"retryAfter":35}', 35),
        ('{"Retry-After":35}', 35),
        ('{"retryAfterSeconds":3000}', 3000),
        ('{"retryInSeconds":3000}', 3000),
        ('{"errcode":"M_LIMIT_EXCEEDED","retry_after_ms":2000}', 2),
        ('{"ThrottleSeconds":0.5}', 0.5),
        # Some servers send this zero with every response.
        ('{"ThrottleSeconds":0}', None),
        ('{"ThrottleSeconds":0,"retry_after":2}', 2),
        ('{"parameters":{"retry_after":35}}', 35),
        ('{"x":[{"retry_after":5}]}', 5),
        ('{"error":{"details":[{},{"retryDelay":"57.25s"}]}}', 57.25),
        # A timestamp counts from the clock beside it; a short number is a wait all the same.
        ('{"data":{"serverTime":1655974135000,"retryAfter":1655974138500}}', 3.5),
        ('{"data":{"serverTime":1655974135000,"retryAfter":1655974134000}}', 0),
        ('{"data":{"serverTime":0,"retryAfter":10000000000000000}}', 2**31),
        ('{"data":{"serverTime":1655974135000,"retryAfter":30}}', 30),
        (f'{{"data":{{"retryAfter":{EPOCH + 4}000}}}}', 4),
        (f'{{"msg":"IP banned until {EPOCH + 4}000. Bye"}}', 4),
        (f"IP banned until {EPOCH + 4}000", 4),
        ('{"retry_after":1e300}', 2**31),
    ],
)
def test_body_may_have_the_wait(body: str, seconds: float | None) -> None:
    assert read(status=400, body=body).retry_after == seconds
    assert read(("Retry-After", "7"), status=429, body=body).retry_after == 7


NESTED = '{{"error":{{"metadata":{{"headers":{}}}}}}}'


def test_headers_inside_a_body_fill_missing_fields() -> None:
    inner = '{"X-RateLimit-Limit":"50","X-RateLimit-Remaining":0,"X-RateLimit-Reset":"9"}'
    limits = read(status=429, body=NESTED.format(inner))
    assert limits == ServerLimits(True, None, 50, 0, 9.0, reset_error=1.0)
    assert read(("RateLimit-Limit", "7"), status=429, body=NESTED.format(inner)).limit == 7
    # The date of a response is that of its own headers.
    assert read(body=NESTED.format('{"Age":"5","X-RateLimit-Limit":"50"}')).limit == 50
    inner = '{"X-RateLimit-Limit":[50],"X-RateLimit-Remaining":4,"X-RateLimit-Reset":null}'
    limits = read(status=429, body=NESTED.format(inner))
    assert (limits.limit, limits.remaining, limits.reset_after) == (None, 4, None)
    assert read(status=429, body=NESTED.format("[1]")).limit is None
    assert read(status=429, body='{"error":{"metadata":5}}').limit is None

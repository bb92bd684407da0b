"""Specifies the limits and waits that only a body reports."""

import pytest

from aiothrottle.headers import ServerLimits
from tests.reading import EPOCH, read


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, '{"errors":[{"extensions":{"code":"RATELIMITED"}}]}'),
        (403, '{"message":"You have triggered an ABUSE detection mechanism."}'),
        (403, '[{"errorCode":"REQUEST_LIMIT_EXCEEDED","message":"TotalRequests"}]'),
        (400, '{"__type":"com.amazon#ThrottlingException"}'),
        (503, "<Error><Code>SlowDown</Code></Error>"),
        (200, "<?xml?><Error><Code>SlowDown</Code></Error>"),
        (200, '{"ok":false,"error":"ratelimited"}'),
        (200, '{"error":["EAPI:Rate limit exceeded"]}'),
        (200, '{"errors":[{"extensions":{"code":"THROTTLED"}}]}'),
        (200, '{"retCode":10018,"retMsg":"no"}'),
        (200, '{"retCode":0,"retMsg":"Too many visits!"}'),
        (200, '{"ErrorCode":36,"ThrottleSeconds":15,"ErrorStatus":"Whatever"}'),
        (200, '{"ErrorStatus":"ThrottleLimitExceededMomentarily","ThrottleSeconds":0}'),
        (200, '{"code":99991400,"msg":"request trigger frequency limit"}'),
        (
            400,
            '{"error":{"message":"(#80004) There have been too many calls to this ad-account."}}',
        ),
        (403, "<html><title>Request Rate Threshold Exceeded</title></html>"),
        (403, "x" * 40_000 + "secondary rate limit" + "x" * 100_000),
    ],
)
def test_body_marks_a_throttled_response(status: int, body: str) -> None:
    assert read(status=status, body=body).throttled
    assert read(status=status, body=body.encode()).throttled
    assert not read(status=413, body=body).throttled


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, '{"items":[{"title":"API rate limit exceeded"}],"message":"secondary rate limit"}'),
        (200, "<html>secondary rate limit</html>"),
        (200, '[{"error":"ratelimited"}]'),
        (200, '{"ThrottleSeconds":0,"ErrorStatus":"Success","retry_after":5}'),
        (404, '{"message":"Nobody throttled this"}'),
        (404, "slowdown"),
        (400, '{"code":10006}'),
        (500, ""),
        (500, "[" * 60_000),
        (500, '{"a":' * 10_000),
        (500, "{" + '"code":' + "9" * 5000 + "}"),
        (500, '{"retry_after":NaN}'),
        (500, '{"retry_after":-5}'),
        (500, '{"retry_after":true}'),
        (500, '{"retry_after":"soon"}'),
    ],
)
def test_other_body_reports_nothing(status: int, body: str) -> None:
    assert read(status=status, body=body) == ServerLimits()


@pytest.mark.parametrize(
    ("body", "seconds"),
    [
        ('{"retry_after":1.5}', 1.5),
        ('{"retry_after":"35"}', 35),
        ('{"retryAfter":35}', 35),
        ('{"errcode":"M_LIMIT_EXCEEDED","retry_after_ms":2000}', 2),
        ('{"parameters":{"retry_after":35}}', 35),
        ('{"error":{"details":[{},{"retryDelay":"57.25s"}]}}', 57.25),
        ('{"data":{"serverTime":1655974135000,"retryAfter":1655974138500}}', 3.5),
        (f'{{"data":{{"retryAfter":{EPOCH + 4}000}}}}', 4),
        (f'{{"msg":"IP banned until {EPOCH + 4}000. Bye"}}', 4),
        (f"IP banned until {EPOCH + 4}000", 4),
        ('{"retry_after":1e300}', 2**31),
    ],
)
def test_body_may_have_the_wait(body: str, seconds: float) -> None:
    assert read(status=429, body=body).retry_after == seconds
    assert read(("Retry-After", "7"), status=429, body=body).retry_after == 7


def test_headers_inside_a_body_fill_missing_fields() -> None:
    inner = '{"X-RateLimit-Limit":"50","X-RateLimit-Remaining":0,"X-RateLimit-Reset":"9"}'
    body = f'{{"error":{{"metadata":{{"headers":{inner}}}}}}}'
    limits = read(status=429, body=body)
    assert limits == ServerLimits(True, None, 50, 0, 9.0, reset_error=1.0)
    assert read(("RateLimit-Limit", "7"), status=429, body=body).limit == 7

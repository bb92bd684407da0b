"""The containers of headers, wrong arguments, which of several limits counts, and bodies.

The rules for the values of common headers are in the corpus, one by one: tests/corpus/README.md.
"""

from collections.abc import Callable
from datetime import datetime
from email.message import Message
from typing import Any

import httpx
import httpx2
import pytest
from multidict import CIMultiDict, CIMultiDictProxy, MultiDict

from aiothrottle.headers import Limit, Policy, Profile, ServerLimits, parse_rate_limit
from aiothrottle.headers.limits import binding
from tests.support.reading import EPOCH, NOW, read

Pairs = list[tuple[str, str]]

# ---- arguments -----------------------------------------------------------------------------------

PROXIES = [(name, "1") for name in ("Set-Cookie", "Set-Cookie", "Via", "Set-Cookie", "Via")]
TRIO: Pairs = [
    ("X-RateLimit-Limit", "10"),
    ("x-ratelimit-remaining", "3"),
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
    "list": list, "iterator": iter, "MultiDict": MultiDict, "CIMultiDict": CIMultiDict,
    "CIMultiDictProxy": lambda pairs: CIMultiDictProxy(CIMultiDict(pairs)),
    "httpx.Headers": httpx.Headers, "httpx2.Headers": httpx2.Headers,
    "email.message.Message": message,
}  # fmt: skip
CONTAINERS: dict[str, Callable[[Pairs], Any]] = {
    **KEEPS_LINES, "dict": dict, "requests": CaseInsensitiveDict,
}  # fmt: skip


@pytest.mark.parametrize("name", CONTAINERS)
def test_repeated_lines_shift_no_values(name: str) -> None:
    container = CONTAINERS[name]
    in_ms = [*TRIO[:2], ("X-RateLimit-Reset", "30000")]
    for pairs, profile in (
        (PROXIES + TRIO, None),
        (TRIO + PROXIES, None),
        ([*PROXIES[:2], TRIO[0], *PROXIES[2:4], *TRIO[1:], PROXIES[4]], None),
        (PROXIES + in_ms, "SkuVault"),
    ):
        found = parse_rate_limit(200, container(pairs), NOW, profile=profile)
        assert (found.limit, found.remaining, found.reset_after) == (10, 3, 30)
    assert parse_rate_limit(200, container([]), NOW) == ServerLimits()
    other = [("x-ratelimit-limit", "5"), ("X-RATELIMIT-REMAINING", "1"), ("X-RateLimit-Reset", "9")]
    for pairs in ([*TRIO, *PROXIES, *other], [*other, *TRIO]) if name in KEEPS_LINES else ():
        found = parse_rate_limit(200, container(pairs), NOW)
        assert (found.limit, found.remaining) == (5, 1)  # every line counts


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"status": "429"}, "status must be an int"),
        ({"now": 1700000000}, "now must be a datetime"),
        ({"body": {"retry_after": 3}}, "body must be str or bytes, got a dict"),
        ({"profile": 3}, "profile must be a Profile"),
        ({"headers": 3}, "headers must be a mapping or pairs of str"),
        ({"headers": [1]}, "headers must be a mapping or pairs of str"),
        ({"headers": "text"}, "headers must be a mapping or pairs of str"),
        ({"headers": [("Retry-After", "3", "s")]}, "headers must be a mapping or pairs of str"),
        ({"headers": [(b"Retry-After", b"3")]}, r"must be str, got b'Retry-After'.*decode"),
        ({"headers": {"Retry-After": 3}}, "headers must be str, got 3"),
        ({"headers": {3: "3"}}, "headers must be str, got 3"),
    ],
)
def test_argument_of_wrong_type_names_the_right_one(wrong: dict[str, Any], named: str) -> None:
    right: dict[str, Any] = {"status": 200, "headers": {}, "now": NOW}
    with pytest.raises(TypeError, match=named):
        parse_rate_limit(**right | wrong)


def test_naive_now_is_rejected_with_the_remedy() -> None:
    with pytest.raises(ValueError, match=r"datetime\.now\(UTC\)"):
        parse_rate_limit(200, {}, datetime(2026, 11, 20))


# ---- two families of headers in one response -----------------------------------------------------


def both(*lines: tuple[str, str]) -> ServerLimits:
    """Read them in either order, which makes no difference."""
    limits = read(*lines)
    assert limits == read(*reversed(lines))
    return limits


def test_first_family_takes_precedence() -> None:
    families = ("RateLimit", "Rate-Limit", "X-RateLimit", "X-Rate-Limit")
    for place, first in enumerate(families):
        for other in families[place + 1 :]:
            limits = both(
                (f"{first}-Limit", "10"), (f"{first}-Window", "1"),
                (f"{other}-Limit", "20"), (f"{other}-Window", "60"),
            )  # fmt: skip
            assert (limits.limit, limits.window) == (10, 1), (first, other)
    limits = both(("RateLimit-Limit", "10, 10;w=1"), ("X-RateLimit-Limit", "10, 10;w=60"))
    assert [policy.window for policy in limits.policies] == [1.0]


# ---- which of several limits binds ---------------------------------------------------------------

USED = Policy("used up", 10, remaining=0)


@pytest.mark.parametrize(
    ("policies", "name"),
    [
        ([Policy("b", 100, remaining=10), Policy("a", 10, remaining=2)], "b"),
        ([Policy("b", 10, remaining=5), Policy("a", 100, remaining=50)], "b"),  # fewer
        ([Policy("b", 10, remaining=5), Policy("a", None, remaining=1)], "b"),
        ([Policy("b", None, remaining=0), Policy("a", 10, remaining=1)], "b"),
        # Of those used up the one with the longest reset; a missing reset counts as none.
        ([USED._replace(name="b", reset_after=4.0), USED._replace(reset_after=3.0)], "b"),
        ([USED._replace(name="b", reset_after=3.0), USED], "b"),
        ([USED._replace(name="b", reset_after=0.0), USED], "b"),
        # Without remainders the one that resets last.
        ([Policy("b", reset_after=5.0), Policy("a", reset_after=0.5)], "b"),
        ([Policy("b", reset_after=0.5), Policy("a", reset_after=0.0)], "b"),
        ([Policy("b", reset_after=0.0)], "b"),
        ([Policy("b", 5), Policy("a", 6)], None),
    ],
)
def test_limit_with_the_smallest_share_binds(policies: list[Policy], name: str | None) -> None:
    for order in (policies, policies[::-1]):
        found = binding(order)
        assert (found and found.name) == name


def test_limit_of_a_profile_has_the_unit_of_its_name() -> None:
    for name, unit in (("requests_day", "requests"), ("Input-Tokens", "input-tokens"), ("-", None)):
        profile = Profile("Acme", limits=(Limit(name, limit="Acme-Max", window=60),))
        policies = read(("Acme-Max", "9"), profile=profile).policies
        assert policies == (Policy(name, 9, 60, unit=unit),)
    assert ServerLimits().by_unit == read(("Retry-After", "5")).by_unit == {}


# ---- bodies --------------------------------------------------------------------------------------


# Other marks are in the corpus.
CODES = (
    "RequestThrottled TooManyRequestsException ProvisionedThroughputExceededException "
    "RequestLimitExceeded userRateLimitExceeded PerApplicationThrottleExceeded"
)
THROTTLED = [
    *((400, f'{{"code":"{code}"}}') for code in CODES.split()),
    (400, "You exceeded the IP rate limit"),
    (400, '{"errors":[{"extensions":{"code":"RATELIMITED"}}]}'),
    (403, '{"message":"You have triggered an ABUSE detection mechanism."}'),
    (400, '{"message":"secondary rate limit"}'),
    (400, "secondary rate limit"),
    (503, "<Error><Code>SlowDown</Code></Error>"),
    (200, "<?xml?><Error><Code>SlowDown</Code></Error>"),
    (200, '{"ok":false,"error":"ratelimited"}'),
    (200, '{"error":"Throttled"}'),
    (200, '{"errors":[{"extensions":{"code":"THROTTLED"}}]}'),
    (200, '{"retCode":10018,"retMsg":"no"}'),
    (200, '{"retCode":10006}'),
    (200, '{"retCode":"10006"}'),
    (200, '{"retCode":0,"retMsg":"Too many visits!"}'),
    (200, '{"ErrorCode":36,"ThrottleSeconds":15,"ErrorStatus":"Whatever"}'),
    (200, '{"ThrottleSeconds":"3"}'),
    (200, '{"ErrorStatus":"ThrottleLimitExceededMomentarily","ThrottleSeconds":0}'),
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

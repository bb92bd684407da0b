"""The containers of headers, wrong arguments, and which of several limits counts.

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
from tests.support.reading import NOW, read

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

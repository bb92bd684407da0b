"""All of a response, its parts read in the order in which they are believed."""

from datetime import datetime

from aiothrottle.headers.body import Said, read_body, told_headers
from aiothrottle.headers.combine import UNSAID, read_limits
from aiothrottle.headers.fields import LAYOUTS, Fields, Headers, Words, collect, lines_of, word_of
from aiothrottle.headers.limits import Policy, ServerLimits
from aiothrottle.headers.profile import Profile
from aiothrottle.headers.profiled import read_vendor, with_seconds
from aiothrottle.headers.retry_after import read_wait
from aiothrottle.headers.trios import Trio
from aiothrottle.headers.values import Clock, read_number
from aiothrottle.headers.vendors import profile_for

__all__ = ["parse_rate_limit"]

_NOTHING, _REFUSED = ServerLimits(), ServerLimits(throttled=True)
# RFC 6585; old Twitter and its imitators; the overload of Anthropic and Notion.
_REFUSALS = frozenset({429, 420, 529})
# These are refusals if they say when to come back, and else an error like any other.
_MAYBE_REFUSALS = frozenset({403, 503})
_TOO_LARGE = 413


def parse_rate_limit(
    status: int,
    headers: Headers,
    now: datetime,
    body: str | bytes | None = None,
    profile: Profile | str | None = None,
) -> ServerLimits:
    """Read what a response says about limits.

    Understood are Retry-After (RFC 9110) and its kin; the RateLimit fields of the IETF's drafts 00
    to 10; X-RateLimit-* and its spellings, for one limit or for several; and, with a profile, the
    words of one vendor. Nothing is read by the name of a vendor where the value tells.

    Args:
        status: The status of the response.
        headers: A multidict, another mapping, or pairs in the order received. In any case; names
            may be repeated.
        now: The local time at which the headers arrived; it is used for dates and epochs if the
            response has no readable Date of its own. Aware.
        body: For the vendors that say it only there: as text, or as bytes of UTF-8.
        profile: What has to be known of this vendor: a `Profile`, or what `profile_for` takes, its
            host or its name; nothing is known of one that has no profile.

    Returns:
        What was said. Nothing that is unreadable raises: it was not said. Durations are seconds,
        never negative, never NaN, at most 2**31.

    Raises:
        TypeError: An argument is of a wrong kind.
        ValueError: `now` has no time zone.

    >>> from datetime import UTC
    >>> headers = {"RateLimit": '"default";r=0;t=5', "RateLimit-Policy": '"default";q=100;w=60'}
    >>> said = parse_rate_limit(429, headers, datetime(2026, 1, 1, tzinfo=UTC))
    >>> said.throttled, said.limit, said.remaining, said.reset_after, said.window
    (True, 100, 0, 5.0, 60.0)
    """
    if not isinstance(now, datetime):
        raise TypeError(f"now is a datetime, as datetime.now(UTC), not {now!r}")
    if now.tzinfo is None:
        raise ValueError(f"now has to be aware, as datetime.now(UTC) is: {now!r} has no time zone")
    if not isinstance(status, int):
        raise TypeError(f"status is a number, such as 429, not {status!r}")
    if body is not None and not isinstance(body, str | bytes):
        raise TypeError(f"body is a text, or bytes of one, not of type {type(body).__name__}")
    if profile is not None:
        profile = _useful(profile)
    names, values = lines_of(headers)
    layout = LAYOUTS[names] if profile is None else profile.layouts[names]
    if body is None and not layout.tells:
        return _REFUSED if _refused(status, profile, None) else _NOTHING
    if profile is not None and profile.milliseconds:
        values = with_seconds(profile, names, values)
    fields = collect(layout, values)
    clock, fresh = _clock(fields, now)
    said = None if body is None else read_body(body, status, clock)
    if said is not None:
        _add_told(fields, said)
    vendor = None
    if profile is not None and fresh:
        claimed = fields["vendor"].get("", {})
        vendor = read_vendor(profile, claimed, said and said.data, clock)
    policies, top = read_limits(fields, vendor, profile, clock) if fresh else ([], UNSAID)

    waits = fields["wait"]
    wait = read_wait(waits[""], clock) if waits else None
    if wait is None and vendor is not None:
        wait = vendor.wait
    if wait is None and said is not None:
        wait = said.retry_after
    throttled = _refused(status, profile, said) or _seems_refused(status, fields, wait, top)
    if wait is None and vendor is not None and throttled:
        wait = vendor.wait_if_refused
    words = fields["word"]
    return ServerLimits(
        throttled,
        wait,
        top.quota,
        top.remaining,
        top.reset_after,
        top.window,
        tuple(policies),
        _scope(words) if words else None,
        word_of(words, "reason") if words else None,
        top.unit,
    )


def _useful(profile: Profile | str) -> Profile | None:
    """Give the profile, if there is one and it says something."""
    found = profile_for(profile) if isinstance(profile, str) else profile
    if found is not None and not isinstance(found, Profile):
        raise TypeError(f"profile is a Profile, or the host or name of a vendor, not {found!r}")
    return found if found is not None and found.says_something else None


def _clock(fields: Fields, now: datetime) -> tuple[Clock, bool]:
    """Give the clock of the response, and whether it comes from its origin and not from a cache.

    What a cache gives says how things stood then (RFC 9111, section 4.2.3).
    """
    stamps = fields["stamp"].get("")
    if not stamps:
        return Clock(now), True
    dates = stamps.get("date", ())
    age = max(read_number(line) or 0.0 for line in stamps["age"]) if "age" in stamps else 0.0
    return Clock(now, dates[0] if len(dates) == 1 else None, age), age == 0


def _add_told(fields: Fields, said: Said) -> None:
    """Add the headers inside of the body where there are none outside."""
    told = told_headers(said.data)
    if told:
        names, values = lines_of(told)
        for kind, of_kind in collect(LAYOUTS[names], values).items():
            if not fields[kind] and kind != "stamp":
                fields[kind] = of_kind


def _refused(status: int, profile: Profile | None, said: Said | None) -> bool:
    """Tell whether the status or the body says so in so many words."""
    if status in _REFUSALS or (profile is not None and status in profile.refusals):
        return True
    return said is not None and said.refused and status != _TOO_LARGE


def _seems_refused(status: int, fields: Fields, wait: float | None, top: Policy | Trio) -> bool:
    """Tell whether it can be seen from what else was said."""
    if status in _MAYBE_REFUSALS:
        used_up = top.remaining == 0 and top.reset_after is not None
        if wait is not None or used_up:
            return True
    if "error" not in fields["word"]:
        return False
    errors = fields["word"]["error"][""]
    return any("throttl" in line.lower() or "toomanyrequests" in line.lower() for line in errors)


def _scope(words: Words) -> str | None:
    scope = word_of(words, "scope")
    return "global" if scope is None and word_of(words, "global") == "true" else scope

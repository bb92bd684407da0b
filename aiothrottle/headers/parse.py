"""Parses a whole response: all limits, the one that binds, the wait, and whether it throttles.

A dialect is a word of the common rules in ``profiles.toml``, and a case in the corpus.

Invariant: of the headers of one dialect that contradict each other the stricter one counts; nothing
that a server sends raises. What a name means is the same in any case, and the names of a response,
which a server repeats, are sorted once.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import NamedTuple, NoReturn, TypeAlias, cast

from aiothrottle._statuses import AMBIGUOUS, THROTTLED
from aiothrottle.headers.body import CODES, BodyResult, nested_headers, plain, read_body
from aiothrottle.headers.limits import Headers, Lines, Policy, ServerLimits, binding
from aiothrottle.headers.profile import Profile
from aiothrottle.headers.profile_reader import Vendor, read_vendor, with_seconds
from aiothrottle.headers.quotas import read_named, read_structured, read_unnamed
from aiothrottle.headers.values import WAITS, Clock, Memo, check_now, items, read_number, read_wait
from aiothrottle.headers.vendors import COMMON, profile_for

_NO_LIMIT = Policy()
_NOTHING, _THROTTLED = ServerLimits(), ServerLimits(throttled=True)
_TOO_LARGE = 413
# Seconds by which a reset may be earlier than it says: a whole number of seconds is rounded up, a
# timestamp too, to which some servers add a second. The Date that it counts from is cut to the
# second, and some servers renew it only once a second.
_ROUNDED_DELAY, _ROUNDED_TIMESTAMP = 1.0, 3.0
# More limits than any server has. An application checks each of them at every request.
_MOST_POLICIES = 256


# ---- names: a table of all dialects, and the one reader of it ------------------------------------

Names: TypeAlias = tuple[str, ...]


class _Role(NamedTuple):
    """The meaning of a header.

    `kind` is "wait"; "quota" (limit, remaining, reset and the like, of one family); "limit" (the
    same for a limit with a name of its own); "draft" (the combined headers of the IETF's drafts);
    "label" (texts such as the scope); "clock" (Date and Age); or "vendor" (known to a profile
    only). `of` is the family or the name of the limit, if there is any, and `field` the field.
    Of a label, `of` is the field and `field` the family, since labels of all families count alike.
    """

    kind: str
    of: str
    field: str


class Layout(NamedTuple):
    """The places of all lines by kind, owner (`_Role.of`) and field; and whether any is a limit."""

    has_limits: bool
    places: list[tuple[str, str, list[tuple[str, list[int]]]]]


Fields: TypeAlias = dict[str, dict[str, dict[str, list[str]]]]
"""The lines of each field, by kind, owner and field."""

Labels: TypeAlias = Mapping[str, Lines]
"""The lines of labels, by field and family."""


def _inverted(table: Mapping[str, Iterable[str]]) -> dict[str, str]:
    return {name: field for field, names in table.items() for name in names}


_FIELDS = _inverted(COMMON["spellings"])
_DRAFTS = {"": "state", "policy": "policy"}
_LABELS = _inverted(COMMON["labels"])
_WHOLE_NAMES = {
    **{name: _Role("wait", "", name) for name in WAITS},
    **{name: _Role(*role) for name, role in COMMON["names"].items()},
    **{
        begin + field: _Role("limit", name, field)
        for begin, name in COMMON["limits"].items()
        for field in ("limit", "remaining", "reset")
    },
}
_FAMILY = re.compile(r"((?:x-|anthropic-)?ratelimit|(?:x-)?rate-limit)(?:-(.+))?", re.DOTALL)
_OF_LIMIT = "limit|remaining|reset-after|reset|renewalperiod"
_NAMED = re.compile(rf"(?:({_OF_LIMIT})-(.+)|(.+)-({_OF_LIMIT}))", re.DOTALL)
_MAX_NAME = 64
# Characters of all lines about limits: more than any real response has. Parsers rely on it.
_MAX_CHARACTERS = 16384


def lines_of(headers: Headers) -> tuple[Names, Sequence[str]]:
    """Return the names of all lines, with repetitions, and their values.

    Raises:
        TypeError: The argument is no mapping and no list of pairs.
    """
    # httpx joins repeated lines in items(). Elsewhere items() gives each line, while keys and
    # values may differ in number: multidict from 7 on iterates over each name once.
    pairs = getattr(headers, "multi_items", None) or getattr(headers, "items", None)
    names: list[str] = []
    values: list[str] = []
    try:
        for name, value in cast("Iterable[tuple[str, str]]", headers if pairs is None else pairs()):
            names.append(name)
            values.append(value)
    except (TypeError, ValueError):
        raise TypeError(
            f"headers must be a mapping or pairs of str, got {headers!r:.100}"
        ) from None
    return tuple(names), values


def collect(layout: Layout, values: Sequence[str]) -> Fields:
    """Sort the lines by kind; drop those that are not about limits.

    A line that exceeds the rest of `_MAX_CHARACTERS` counts as empty.
    """
    left = _MAX_CHARACTERS
    fields: Fields = {
        "wait": {}, "quota": {}, "limit": {}, "draft": {}, "label": {}, "clock": {}, "vendor": {},
    }  # fmt: skip
    for kind, of, places in layout.places:
        group = fields[kind][of] = {}
        for field, at in places:
            lines = group[field] = []
            for place in at:
                value = values[place]
                line = (value if isinstance(value, str) else _reject(value)).strip(" \t")
                if len(line) > left:
                    line = ""
                left -= len(line)
                lines.append(line)
    return fields


def _reject(value: object) -> NoReturn:
    """Reject what is no str."""
    raise TypeError(
        f"names and values of headers must be str, got {value!r:.100}; decode raw headers: "
        "[(name.decode('latin-1'), value.decode('latin-1')) for name, value in raw]"
    )


def label_of(labels: Labels, about: str) -> str | None:
    """Return the first label with this name, of any family."""
    for lines in labels[about].values() if about in labels else ():
        for line in lines:
            if line and len(line) <= _MAX_NAME and line.isprintable():
                return line
    return None


def layouts(
    claims: Callable[[str], bool] | None = None, binds: str | None = None
) -> Memo[Names, Layout]:
    """Make a cache of layouts by names.

    `claims` returns whether a header is a vendor's; `binds` is the name of the one that names the
    binding limit, in lower case.
    """
    return Memo(partial(_layout, claims, binds), most=256, longest=4096)


def _layout(claims: Callable[[str], bool] | None, binds: str | None, names: Names) -> Layout:
    groups: dict[tuple[str, str], dict[str, list[int]]] = {}
    for place, given in enumerate(names):
        name = given if isinstance(given, str) else _reject(given)
        is_vendors = claims is not None and claims(name)
        role = _Role("vendor", "", name.lower()) if is_vendors else _role(name)
        if name.lower() == binds:
            role = _Role("label", "reason", name.lower())
        if role is not None:
            group = groups.setdefault((role.kind, role.of), {})
            group.setdefault(role.field, []).append(place)
    has_limits = any(kind != "clock" for kind, _ in groups)
    return Layout(has_limits, [(*group, list(at.items())) for group, at in groups.items()])


def _role(name: str) -> _Role | None:
    if len(name) > _MAX_NAME:
        return None
    name = name.lower()
    if name in _WHOLE_NAMES:
        return _WHOLE_NAMES[name]
    match = _FAMILY.fullmatch(name)
    if match is None:
        return None
    family, rest = match[1], match[2] or ""
    for kind, fields in (("quota", _FIELDS), ("draft", _DRAFTS)):
        if rest in fields:
            return _Role(kind, family, fields[rest])
    if rest in _LABELS:
        return _Role("label", _LABELS[rest], family)
    named = _NAMED.fullmatch(rest)
    return _Role("limit", named[2] or named[3], _FIELDS[named[1] or named[4]]) if named else None


def _is_limit_header(name: str) -> bool:
    role = _role(name)
    # Date and Age are no limits.
    return role is not None and role.kind != "clock"


IS_LIMIT_HEADER = Memo(_is_limit_header)
"""Whether a header can be about limits."""
LAYOUTS = layouts()
"""The layouts without any profile."""


# ---- the response --------------------------------------------------------------------------------


def parse_rate_limit(
    status: int,
    headers: Headers,
    now: datetime,
    body: str | bytes | None = None,
    profile: Profile | str | None = None,
) -> ServerLimits:
    """Parse the limits that a response reports.

    Supported are Retry-After (RFC 9110) and similar headers; the RateLimit fields of the IETF's
    drafts 00 to 10; X-RateLimit-* in all spellings, for one limit or for several; and, with a
    profile, the headers of one vendor. Where a value is unambiguous, no profile is needed.

    Args:
        status: The status of the response.
        headers: A multidict, another mapping, or pairs in the order received. Names are
            case-insensitive, and may be repeated.
        now: The local time at which the headers arrived, aware. Dates and epochs count from it if
            the response has no readable Date.
        body: For vendors that report limits there: a str, or bytes of UTF-8.
        profile: The rules of the vendor: a `Profile`, or an argument of `profile_for`, which is a
            host or a name. A host without a profile is read by the common rules.

    Returns:
        The limits. Unreadable values never raise; they count as missing. Durations are seconds,
        never negative, never NaN, at most 2**31.

    Raises:
        TypeError: An argument has a wrong type.
        ValueError: `now` has no time zone.

    >>> from datetime import UTC
    >>> headers = {"RateLimit": '"default";r=0;t=5', "RateLimit-Policy": '"default";q=100;w=60'}
    >>> limits = parse_rate_limit(429, headers, datetime(2026, 1, 1, tzinfo=UTC))
    >>> limits.throttled, limits.limit, limits.remaining, limits.reset_after, limits.window
    (True, 100, 0, 5.0, 60.0)
    """
    check_now(now)
    if not isinstance(status, int):
        raise TypeError(f"status must be an int such as 429, got {status!r}")
    if body is not None and not isinstance(body, str | bytes):
        raise TypeError(f"body must be str or bytes, got a {type(body).__name__}")
    return parse_response(status, headers, now, body=body, profile=_profile(profile))


def parse_response(
    status: int,
    headers: Headers,
    now: datetime,
    *,
    body: str | bytes | None = None,
    profile: Profile | None = None,
    server_time: Callable[[float], float] | None = None,
) -> ServerLimits:
    """Parse as `parse_rate_limit` does, for a caller that has checked the arguments.

    The profile is one that has an effect. `server_time` is that of a `Clock`.
    """
    names, values = lines_of(headers)
    layout = LAYOUTS[names] if profile is None else profile.layouts[names]
    if body is None and not layout.has_limits:
        return _THROTTLED if _is_throttled(status, profile, None) else _NOTHING
    if profile is not None and profile.milliseconds:
        values = with_seconds(profile, names, values)
    fields = collect(layout, values)
    clock, fresh = _clock(fields, now, server_time)
    marks = () if profile is None else profile.marks
    result = None if body is None else read_body(body, status, clock, marks)
    if result is not None:
        _add_nested(fields, result)
    vendor = None
    if profile is not None and fresh:
        claimed = fields["vendor"].get("", {})
        vendor = read_vendor(profile, claimed, result and result.data, clock)
    policies: list[Policy] = []
    bound = _NO_LIMIT
    if fresh and (vendor or fields["quota"] or fields["limit"] or fields["draft"]):
        policies, bound = _read_limits(fields, vendor, profile, clock)

    waits = fields["wait"]
    wait = read_wait(waits[""], clock) if waits else None
    if wait is None and vendor is not None:
        wait = vendor.wait
    if wait is None and result is not None:
        wait = result.retry_after
    throttled = _is_throttled(status, profile, result) or _seems_throttled(
        status, fields, wait, bound
    )
    if wait is None and vendor is not None and throttled:
        wait = vendor.wait_if_throttled
    labels = fields["label"]
    return ServerLimits(
        throttled,
        wait,
        bound.quota,
        bound.remaining,
        bound.reset_after,
        bound.window,
        tuple([it._replace(reset_error=_reset_error(it.reset_after, clock)) for it in policies]),
        _scope(labels) if labels else None,
        label_of(labels, "reason") if labels else None,
        bound.unit,
        _reset_error(bound.reset_after, clock),
        profile is not None and profile.refills,
    )


def _profile(profile: Profile | str | None) -> Profile | None:
    """Return the profile, if there is one and it has an effect."""
    if isinstance(profile, str):
        profile = profile_for(profile)
    if not isinstance(profile, Profile | None):
        raise TypeError(f"profile must be a Profile, a host or a vendor's name, got {profile!r}")
    return profile if profile is not None and profile.has_effect else None


def _clock(
    fields: Fields, now: datetime, server_time: Callable[[float], float] | None
) -> tuple[Clock, bool]:
    """Return the clock of the response, and whether the response is fresh, not from a cache.

    The limits in a cached response are those of the past (RFC 9111, section 4.2.3).
    """
    clock_fields = fields["clock"].get("", {})
    dates, ages = clock_fields.get("date", ()), clock_fields.get("age", ())
    age = max(read_number(line) or 0.0 for line in ages) if ages else 0.0
    return Clock(now, dates[0] if len(dates) == 1 else None, age, server_time), age == 0


def _read_limits(
    fields: Fields, vendor: Vendor | None, profile: Profile | None, clock: Clock
) -> tuple[list[Policy], Policy]:
    """Return all limits that have a name or a window of their own, and the one that binds."""
    drafts = fields["draft"]
    listed, has_state = read_structured(drafts, clock) if drafts else ([], False)
    named: list[Policy] = []
    state: Policy | None = None
    if not has_state:
        windows = {} if profile is None else dict(profile.windows)
        for name, lines in fields["limit"].items():
            if (policy := read_named(name, lines, windows, clock)) is not None:
                named.append(policy)
        if drafts or fields["quota"]:
            record = read_unnamed(drafts, fields["quota"], clock)
            if record is not None:
                listed = listed or list(record.listed)
                state = record.policy()
                if listed or named:
                    state = _matched(state, listed, named)
                if isinstance(state.quota, float):
                    state = state._replace(quota=math.floor(state.quota))
    policies = listed + named
    if vendor is not None:
        policies = _with_vendor(policies, vendor)
    bound: Policy | None = None
    if state is not None and (state.quota is not None or state.remaining is not None):
        bound = state
    elif profile is not None and profile.binds:
        bound = _named_by_server(policies, fields, profile.binds.lower())
    bound = bound or binding(policies)
    if bound is None and vendor is not None and vendor.unnamed is not None:
        bound = vendor.unnamed.policy()
    if bound is None and len(listed) == 1:
        bound = listed[0]
    bound = bound or state or _NO_LIMIT
    if bound.reset_after is None and state is not None:
        bound = bound._replace(reset_after=state.reset_after)
    return policies[:_MOST_POLICIES], bound


def _matched(state: Policy, listed: list[Policy], named: list[Policy]) -> Policy:
    """Put the state of the unnamed limit into the one limit of the lists that it belongs to.

    Returns:
        The state, with the window of that limit.
    """
    _, quota, window, remaining, reset_after, *_ = state
    if quota is None and remaining is None:
        return state
    if quota is None and len(listed) == 1:
        quota = listed[0].quota
    others = listed or named
    found = [
        place
        for place, other in enumerate(others)
        if other.quota == quota and (listed or other.remaining == remaining)
    ]
    if quota is not None and len(found) == 1:
        other = others[found[0]]
        window = other.window if window is None else window
        reset = reset_after if other.reset_after is None else other.reset_after
        others[found[0]] = other._replace(remaining=remaining, reset_after=reset)
    return Policy(None, quota, window, remaining, reset_after)


def _with_vendor(policies: list[Policy], vendor: Vendor) -> list[Policy]:
    """Add the limits of the profile. For a name that exists, fill in what is missing."""
    merged = list(policies)
    places = {policy.name: place for place, policy in enumerate(policies) if policy.name}
    for policy in (record.policy() for record in vendor.named.values()):
        place = places.get(policy.name or "")
        if place is None:
            merged.append(policy)
        else:
            both = zip(merged[place], policy, strict=True)
            merged[place] = Policy._make(other if own is None else own for own, other in both)
    return merged


def _named_by_server(policies: list[Policy], fields: Fields, header: str) -> Policy | None:
    """Return the limit that the server itself names in that header as the binding one."""
    word = plain(next(iter(fields["label"].get("reason", {}).get(header, ())), ""))
    return next((policy for policy in policies if plain(policy.name or "") == word), None)


def _add_nested(fields: Fields, result: BodyResult) -> None:
    """Add the headers nested in the body for each kind that has no line outside."""
    nested = nested_headers(result.data)
    if nested:
        names, values = lines_of(nested)
        for kind, of_kind in collect(LAYOUTS[names], values).items():
            if not fields[kind] and kind != "clock":
                fields[kind] = of_kind


def _is_throttled(status: int, profile: Profile | None, result: BodyResult | None) -> bool:
    """Return whether the status or the body explicitly means a throttled request."""
    if status in THROTTLED or (profile is not None and status in profile.throttled_statuses):
        return True
    return result is not None and result.throttled and status != _TOO_LARGE


def _seems_throttled(status: int, fields: Fields, wait: float | None, bound: Policy) -> bool:
    """Return whether the other headers show that the request was throttled."""
    used_up = bound.remaining == 0 and bound.reset_after is not None
    if status in AMBIGUOUS and (used_up or wait is not None):
        return True
    if "error" not in fields["label"]:
        return False
    codes = [it for line in fields["label"]["error"][""] for it in items(line.lower())]
    return any("throttl" in it or "toomanyrequests" in it or it in CODES for it in codes)


def _reset_error(reset_after: float | None, clock: Clock) -> float:
    if reset_after is None:
        return 0.0
    if clock.dates_resets:
        return _ROUNDED_TIMESTAMP
    return _ROUNDED_DELAY if reset_after.is_integer() else 0.0


def _scope(labels: Labels) -> str | None:
    scope = label_of(labels, "scope")
    return "global" if scope is None and label_of(labels, "global") == "true" else scope

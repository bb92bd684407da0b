"""Names of headers about limits: a table of all dialects, and the one reader of it.

A dialect is a word of `_SPELLINGS` or `_LABELS`, or a line of `_OF_LIMITS` or `_WHOLE_NAMES`; and a
case in the corpus.

Invariant: what a name means is the same in any case, and the names of a response, which a server
repeats, are sorted once.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias, cast

from aiothrottle.headers.limits import Headers
from aiothrottle.headers.values import WAITS, Memo

Names: TypeAlias = tuple[str, ...]
Lines: TypeAlias = Mapping[str, list[str]]
"""The lines of each field."""


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

FAMILIES = ("ratelimit", "rate-limit", "x-ratelimit", "x-rate-limit", "anthropic-ratelimit")
"""Prefixes in their order of precedence."""

# The endings of names for each field, after the prefix of a family.
_SPELLINGS = {
    "limit": "limit",
    "remaining": "remaining",
    "used": "used",
    "reset": "reset",
    "reset-after": "reset-after reset-in reset-seconds resetseconds",
    "reset-ms": "reset-ms",
    "reset-time": "reset-time resettime reset-at reset-date reset-timestamp",
    "next": "next",
    "window": "window window-size period duration interval interval-seconds renewalperiod",
    "window-ms": "interval-milliseconds",
    "rate": "rate",  # restify: tokens a second, of a bucket with so many as the limit
}
_FIELDS = {name: field for field, names in _SPELLINGS.items() for name in names.split()}
_DRAFTS = {"": "state", "policy": "policy"}
_LABELS = {"scope": "scope", "global": "global"} | dict.fromkeys(
    ("reason", "type", "problem", "resource", "name"), "reason"
)
# Limits with a name: headers that end with the part of a limit, and the name.
_OF_LIMITS = {
    "x-tokenlimit-": "tokens",
    # hapi-rate-limit
    "x-ratelimit-user": "user",
    "x-ratelimit-path": "path",
    "x-ratelimit-userpath": "user path",
}
_WHOLE_NAMES = {
    **{name: _Role("wait", "", name) for name in WAITS},
    "date": _Role("clock", "", "date"),
    "age": _Role("clock", "", "age"),
    "x-amzn-errortype": _Role("label", "error", ""),
    "x-concurrency-limit": _Role("limit", "concurrency", "limit"),
    **{
        begin + field: _Role("limit", name, field)
        for begin, name in _OF_LIMITS.items()
        for field in ("limit", "remaining", "reset")
    },
    "stripe-rate-limited-reason": _Role("label", "reason", ""),
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
                line = (value if isinstance(value, str) else _text(value)).strip(" \t")
                if len(line) > left:
                    line = ""
                left -= len(line)
                lines.append(line)
    return fields


def _text(value: object) -> str:
    """Return the value; reject anything but a str."""
    if isinstance(value, str):
        return value
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


def layouts(claims: Callable[[str], bool] | None = None) -> Memo[Names, Layout]:
    """Make a cache of layouts by names; `claims` returns whether a header is a vendor's."""
    return Memo(partial(_layout, claims), most=256, longest=4096)


def _layout(claims: Callable[[str], bool] | None, names: Names) -> Layout:
    groups: dict[tuple[str, str], dict[str, list[int]]] = {}
    has_limits = False
    for place, given in enumerate(names):
        name = given if isinstance(given, str) else _text(given)
        is_vendors = claims is not None and claims(name)
        role = _Role("vendor", "", name.lower()) if is_vendors else _role(name)
        if role is not None:
            group = groups.setdefault((role.kind, role.of), {})
            group.setdefault(role.field, []).append(place)
            has_limits = has_limits or role.kind != "clock"
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

"""Which header says what: the names, in every spelling, sorted into families, fields and limits."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias, cast

from aiothrottle.headers.memo import Memo
from aiothrottle.headers.retry_after import WAITS

__all__ = [
    "FAMILIES",
    "LAYOUTS",
    "TELLING",
    "Fields",
    "Headers",
    "Layout",
    "Lines",
    "Names",
    "Words",
    "collect",
    "layouts",
    "lines_of",
    "word_of",
]

Lines: TypeAlias = Collection[tuple[str, str]]
"""Names and values."""
Names: TypeAlias = tuple[str, ...]
Headers: TypeAlias = Mapping[str, str] | Iterable[tuple[str, str]]
"""A multidict, another mapping, or pairs in the order received."""


class _Role(NamedTuple):
    """What a header is for.

    `kind` is "wait"; "trio" (limit, remaining, reset and their companions, of one family); "limit"
    (the same of a limit that the name tells apart); "draft" (what the IETF's drafts put into one
    header); "word", "stamp", or "vendor" (what only a profile can read). `of` is the family, or the
    name of the limit, if there is any; `field` is what is said. Words are wanted whatever their
    family: what is said comes first.
    """

    kind: str
    of: str
    field: str


class Layout(NamedTuple):
    """Which lines say what: their places by kind, by what it is of, by field; if any tells."""

    tells: bool
    places: list[tuple[str, str, list[tuple[str, list[int]]]]]


Fields: TypeAlias = dict[str, dict[str, dict[str, list[str]]]]
"""The lines of each field: by kind, by what it is of, by field."""

Words: TypeAlias = Mapping[str, Mapping[str, list[str]]]
"""Those of words: by what they are about, by family."""

FAMILIES = ("ratelimit", "rate-limit", "x-ratelimit", "x-rate-limit", "anthropic-ratelimit")
"""Prefixes in the order in which they are believed."""

# What a name may end in after the prefix of a family: how the field is called here.
_FIELDS = {
    "limit": "limit",
    "remaining": "remaining",
    "reset": "reset",
    "reset-after": "reset-after",
    "reset-in": "reset-after",
    "reset-seconds": "reset-after",
    "resetseconds": "reset-after",
    "reset-ms": "reset-ms",
    "resettime": "reset-time",
    "reset-time": "reset-time",
    "reset-at": "reset-time",
    "reset-date": "reset-time",
    "reset-timestamp": "reset-time",
    "next": "next",
    "used": "used",
    "period": "window",
    "duration": "window",
    "window": "window",
    "window-size": "window",
    "interval": "window",
    "interval-seconds": "window",
    "interval-milliseconds": "window-ms",
    "renewalperiod": "window",
}
_DRAFTS = {"": "state", "policy": "policy"}
_WORDS = {
    "scope": "scope",
    "global": "global",
    "reason": "reason",
    "type": "reason",
    "problem": "reason",
    "resource": "reason",
    "name": "reason",
}
_WHOLE_NAMES = {
    **{name: _Role("wait", "", name) for name in WAITS},
    "date": _Role("stamp", "", "date"),
    "age": _Role("stamp", "", "age"),
    "x-amzn-errortype": _Role("word", "error", ""),
    "x-concurrency-limit": _Role("limit", "concurrency", "limit"),
    "stripe-rate-limited-reason": _Role("word", "reason", ""),
}
_FAMILY = re.compile(r"((?:x-|anthropic-)?ratelimit|(?:x-)?rate-limit)(?:-(.+))?", re.DOTALL)
_OF_LIMIT = "limit|remaining|reset-after|reset|renewalperiod"
_NAMED = re.compile(rf"(?:({_OF_LIMIT})-(.+)|(.+)-({_OF_LIMIT}))", re.DOTALL)
_LONGEST = 64
# Characters of all lines about limits: more than any honest response has.
_MOST = 16384


def lines_of(headers: Headers) -> tuple[Names, list[str]]:
    """Give the names of all lines, repeated ones too; and their values.

    Raises:
        TypeError: These are no headers.
    """
    # httpx joins repeated lines in items(). Elsewhere items() gives each line, while keys and
    # values may differ in number: multidict from 7 on iterates over each name once.
    pairs = getattr(headers, "multi_items", None) or getattr(headers, "items", None)
    names: list[str] = []
    values: list[str] = []
    try:
        lines = cast("Iterable[tuple[str, str]]", headers if pairs is None else pairs())
        for name, value in lines:
            names.append(name)
            values.append(value)
    except (TypeError, ValueError):
        raise TypeError(f"headers are a mapping, or pairs of texts, not {headers!r:.100}") from None
    return tuple(names), values


def collect(layout: Layout, values: Sequence[str]) -> Fields:
    """Sort the lines by what they are for; drop those that are for something else.

    A line that is too long for what is left of `_MOST` counts as an empty one.
    """
    left = _MOST
    fields: Fields = {
        "wait": {}, "trio": {}, "limit": {}, "draft": {}, "word": {}, "stamp": {}, "vendor": {},
    }  # fmt: skip
    for kind, of, places in layout.places:
        group = fields[kind][of] = {}
        for field, at in places:
            lines = group[field] = []
            for place in at:
                line = _text(values[place]).strip(" \t")
                if len(line) > left:
                    line = ""
                left -= len(line)
                lines.append(line)
    return fields


def _text(said: object) -> str:
    """Refuse what is no text."""
    if isinstance(said, str):
        return said
    raise TypeError(
        f"headers are names and values in text, not {said!r:.100}; of raw ones in bytes give "
        "[(name.decode('latin-1'), value.decode('latin-1')) for name, value in raw]"
    )


def word_of(words: Words, about: str) -> str | None:
    """Give the first such word, of whatever family."""
    for lines in words[about].values() if about in words else ():
        for line in lines:
            if line and len(line) <= _LONGEST and line.isprintable():
                return line
    return None


def layouts(claims: Callable[[str], bool] | None = None) -> Memo[Names, Layout]:
    """Make what tells the layout of lines with such names; `claims` tells which are a vendor's.

    The responses of a server are alike: so their names are looked at once, and not each time.
    """

    def role(name: str) -> _Role | None:
        return _Role("vendor", "", name.lower()) if claims and claims(name) else _ROLES[name]

    return Memo(partial(_layout, role), most=256, longest=4096)


def _layout(role_of: Callable[[str], _Role | None], names: Names) -> Layout:
    groups: dict[tuple[str, str], dict[str, list[int]]] = {}
    for place, name in enumerate(names):
        role = role_of(_text(name))
        if role is not None:
            group = groups.setdefault((role.kind, role.of), {})
            group.setdefault(role.field, []).append(place)
    # What time it is says nothing about limits.
    tells = any(kind != "stamp" for kind, _ in groups)
    return Layout(tells, [(*group, list(at.items())) for group, at in groups.items()])


def _role(name: str) -> _Role | None:
    if len(name) > _LONGEST:
        return None
    name = name.lower()
    if name in _WHOLE_NAMES:
        return _WHOLE_NAMES[name]
    match = _FAMILY.fullmatch(name)
    return _role_in(match[1], match[2] or "") if match else None


def _role_in(family: str, rest: str) -> _Role | None:
    for kind, fields in (("trio", _FIELDS), ("draft", _DRAFTS)):
        if rest in fields:
            return _Role(kind, family, fields[rest])
    if rest in _WORDS:
        return _Role("word", _WORDS[rest], family)
    named = _NAMED.fullmatch(rest)
    if named is None:
        return None
    return _Role("limit", named[2] or named[3], _FIELDS[named[1] or named[4]])


def _tells(name: str) -> bool:
    role = _role(name)
    # What time it is says nothing about limits.
    return role is not None and role.kind != "stamp"


_ROLES = Memo(_role)
TELLING = Memo(_tells)
"""Whether a header can be about limits."""
LAYOUTS = layouts()
"""The layouts without any profile."""

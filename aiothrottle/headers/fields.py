"""Which header says what: the names, in every spelling, sorted into families, fields and limits."""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple, TypeAlias, cast

from aiothrottle.headers.memo import Memo
from aiothrottle.headers.retry_after import WAITS

__all__ = [
    "FAMILIES",
    "TELLING",
    "Fields",
    "Headers",
    "Lines",
    "Words",
    "collect",
    "lines_of",
    "word_of",
]

Lines: TypeAlias = Collection[tuple[str, str]]
"""Names and values."""
Headers: TypeAlias = Mapping[str, str] | Iterable[tuple[str, str]]
"""A multidict, another mapping, or pairs in the order received."""


class _Role(NamedTuple):
    """What a header is for.

    `kind` is "wait"; "trio" (limit, remaining, reset and their companions, of one family); "limit"
    (the same of a limit that the name tells apart); "draft" (what the IETF's drafts put into one
    header); "word" or "stamp". `of` is the family, or the name of the limit, if there is any;
    `field` is what is said.
    """

    kind: str
    of: str
    field: str


Fields: TypeAlias = dict[str, dict[str, dict[str, list[str]]]]
"""The lines of each field: by kind, by what it is of, by field."""

Words: TypeAlias = Mapping[str, Mapping[str, list[str]]]
"""Those of one kind."""

FAMILIES = ("ratelimit", "rate-limit", "x-ratelimit", "x-rate-limit", "anthropic-ratelimit")
"""Prefixes in the order in which they are believed."""

# What a name may end in after the prefix of a family: how the field is called here.
_FIELDS = {
    "limit": "limit",
    "remaining": "remaining",
    "reset": "reset",
    "reset-after": "reset-after",
    "resettime": "reset-time",
    "reset-time": "reset-time",
    "next": "next",
    "used": "used",
    "period": "window",
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
    "x-amzn-errortype": _Role("word", "", "error"),
    "x-concurrency-limit": _Role("limit", "concurrency", "limit"),
    "stripe-rate-limited-reason": _Role("word", "", "reason"),
}
_FAMILY = re.compile(r"((?:x-|anthropic-)?ratelimit|(?:x-)?rate-limit)(?:-(.+))?", re.DOTALL)
_OF_LIMIT = "limit|remaining|reset-after|reset|renewalperiod"
_NAMED = re.compile(rf"(?:({_OF_LIMIT})-(.+)|(.+)-({_OF_LIMIT}))", re.DOTALL)
_LONGEST = 64


def lines_of(headers: Headers) -> tuple[Lines, Iterable[str]]:
    """Give all lines, repeated ones too; and their names, to be gone through as often as needed."""
    if isinstance(headers, Mapping):
        mapping = cast("Mapping[str, str]", headers)
        return mapping.items(), mapping
    lines = list(headers)
    return lines, [name for name, _ in lines]


def collect(lines: Lines) -> Fields:
    """Sort the lines by what they are for; drop those that are for something else."""
    fields: Fields = {"wait": {}, "trio": {}, "limit": {}, "draft": {}, "word": {}, "stamp": {}}
    for name, value in lines:
        role = _ROLES[name]
        if role is None:
            continue
        kind, of, field = role
        text = value.strip(" \t")
        said = fields[kind].get(of)
        if said is None:
            fields[kind][of] = {field: [text]}
        elif field in said:
            said[field].append(text)
        else:
            said[field] = [text]
    return fields


def word_of(words: Words, field: str) -> str | None:
    """Give the first such word, of whatever family."""
    for lines in words.values():
        for line in lines.get(field, ()):
            if line and len(line) <= _LONGEST and line.isprintable():
                return line
    return None


def _role(name: str) -> _Role | None:
    if len(name) > _LONGEST:
        return None
    name = name.lower()
    if name in _WHOLE_NAMES:
        return _WHOLE_NAMES[name]
    match = _FAMILY.fullmatch(name)
    return _role_in(match[1], match[2] or "") if match else None


def _role_in(family: str, rest: str) -> _Role | None:
    for kind, fields in (("trio", _FIELDS), ("draft", _DRAFTS), ("word", _WORDS)):
        if rest in fields:
            return _Role(kind, family, fields[rest])
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
"""Whether a header can be about limits. It is quick: in most responses none is."""

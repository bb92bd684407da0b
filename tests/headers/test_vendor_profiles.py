"""profiles.toml: each entry is well-formed and dated, and becomes a `Profile`; the page lists it.

After a change of the file, rewrite the table of docs/reference/headers.md with

    python -m tests.headers.test_vendor_profiles
"""

import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from datetime import UTC, date, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeAlias, cast

import pytest

from aiothrottle.headers import PROFILES, Items, Json, Limit, Profile
from aiothrottle.headers.vendors import _profile

Table: TypeAlias = dict[str, Any]

TEXT = files("aiothrottle.headers").joinpath("profiles.toml").read_text(encoding="utf-8")
ENTRIES: list[Table] = tomllib.loads(TEXT)["profile"]

# ---- the fields of an entry ------------------------------------------------------------------


def is_text(value: object) -> bool:
    return isinstance(value, str) and value != "" and value == value.strip()


def is_seconds(value: object) -> bool:
    return isinstance(value, float) and value > 0


def is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def is_status(value: object) -> bool:
    return type(value) is int and 100 <= value <= 599


def is_host(value: object) -> bool:
    return is_text(value) and bool(re.fullmatch(r"(\*\.)?[a-z0-9-]+(\.[a-z0-9-]+)+", str(value)))


def is_source(value: object) -> bool:
    known = {
        "captured responses",
        "public code of clients; no page of the vendor names the headers",
    }
    return is_text(value) and (value in known or str(value).startswith("https://"))


def is_date(value: object) -> bool:
    return type(value) is date and value <= datetime.now(UTC).date()


def is_pattern(value: object) -> bool:
    try:
        return is_text(value) and bool(re.compile(str(value)))
    except re.error:
        return False


def each(fits: Callable[[object], bool]) -> Callable[[object], bool]:
    """Accept a list that is not empty."""
    return lambda value: (
        isinstance(value, list) and value != [] and all(map(fits, cast("list[object]", value)))
    )


def either(*kinds: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: any(fits(value) for fits in kinds)


def table(fits: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: (
        isinstance(value, dict) and each(fits)([*cast("dict[str, object]", value).values()])
    )


Kinds: TypeAlias = Mapping[str, Callable[[object], bool]]

PROFILE_KEYS: Kinds = {
    "name": is_text,
    "hosts": each(is_host),
    "aliases": each(is_text),
    "note": is_text,
    "source": is_source,
    "date": is_date,
    "milliseconds": each(is_text),
    "refusals": each(is_status),
    "windows": table(is_seconds),
    "binds": is_text,
    "body_statuses": each(is_status),
    "body_header": is_text,
    "marks": each(is_text),
    "least_backoff": is_seconds,
    "limits": each(lambda value: isinstance(value, dict)),
}
LIMIT_KEYS: Kinds = {
    "name": is_text,
    "limit": is_text,
    "remaining": is_text,
    "used": is_text,
    "reset": is_text,
    "window": either(is_text, is_seconds),
}
ITEMS_KEYS: Kinds = {
    "header": is_pattern,
    "item": is_pattern,
    "name": either(is_text, each(is_text)),
    "window": either(is_seconds, each(is_seconds)),
    "remaining": is_count,
    "aligned": lambda value: isinstance(value, bool),
}
JSON_KEYS: Kinds = {
    "path": lambda value: value == "" or is_text(value),
    "header": is_text,
    "name": is_text,
    "limit": either(is_text, is_count),
    "remaining": is_text,
    "used": each(is_text),
    "reset": is_text,
    "window": is_text,
    "wait": is_text,
    "wait_unit": is_seconds,
    "cost": is_text,
    "rate": is_text,
}


def complaints(entry: Table) -> Iterator[str]:
    """Return the complaint about an entry of the file."""
    yield from _complaints(entry, PROFILE_KEYS, "name", "source", "date")
    for row in entry.get("limits", []):
        if "item" in row:
            yield from _complaints(row, ITEMS_KEYS, "header", "item")
        elif "path" in row:
            yield from _complaints(row, JSON_KEYS, "path")
        else:
            yield from _complaints(row, LIMIT_KEYS)
            if not {"limit", "remaining", "used", "reset"} & row.keys():
                yield "a limit without a header"


def _complaints(table: Table, kinds: Kinds, *required: str) -> Iterator[str]:
    for key in required:
        if key not in table:
            yield f"{key} is missing"
    for key, value in table.items():
        if key not in kinds:
            yield f"{key} is unknown"
        elif not kinds[key](value):
            yield f"{key} can't be {value!r}"


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.get("name", "?"))
def test_entry_is_well_formed(entry: Table) -> None:
    assert list(complaints(entry)) == []


GOOD = 'name = "Acme"\nsource = "https://acme.example"\ndate = 2026-11-20\n'


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (GOOD.replace("name =", "nam ="), "name is missing"),
        (GOOD.replace("source =", "note ="), "source is missing"),
        (GOOD.replace("date =", "read ="), "read is unknown"),
        (GOOD.replace("https://acme.example", "somewhere"), "source can't be 'somewhere'"),
        (GOOD.replace("2026-11-20", "2999-01-01"), "date can't be"),
        (GOOD.replace("2026-11-20", '"2026-11-20"'), "date can't be"),
        (GOOD.replace("2026-11-20", "2026-11-20T00:00:00Z"), "date can't be"),
        (GOOD + 'hosts = "acme.example"', "hosts can't be"),
        (GOOD + 'hosts = ["https://acme.example"]', "hosts can't be"),
        (GOOD + 'hosts = ["Acme.example"]', "hosts can't be"),
        (GOOD + "hosts = []", "hosts can't be []"),
        (GOOD + 'note = ""', "note can't be ''"),
        (GOOD + 'refusals = ["418"]', "refusals can't be"),
        (GOOD + "refusals = [4180]", "refusals can't be"),
        (GOOD + "windows = { day = 86400 }", "windows can't be"),
        (GOOD + 'milliseconds = "Retry-After"', "milliseconds can't be"),
        (GOOD + 'limits = ["Acme-Max"]', "limits can't be"),
        (GOOD + 'limits = [{ limits = "Acme-Max" }]', "limits is unknown"),
        (GOOD + 'limits = [{ name = "day" }]', "a limit without a header"),
        (GOOD + 'limits = [{ limit = "Acme-Max", window = 60 }]', "window can't be 60"),
        (GOOD + 'limits = [{ limit = "Acme-Max", window = 0.0 }]', "window can't be 0.0"),
        (GOOD + 'limits = [{ item = ".+" }]', "header is missing"),
        (GOOD + "limits = [{ header = '(', item = '.+' }]", "header can't be '('"),
        (GOOD + "limits = [{ header = 'a', item = '.+', remaining = -1 }]", "remaining can't be"),
        (GOOD + "limits = [{ header = 'a', item = '.+', aligned = 1 }]", "aligned can't be 1"),
        (GOOD + "limits = [{ path = 'a', item = '.+' }]", "path is unknown"),
        (GOOD + "limits = [{ path = '', used = 'a' }]", "used can't be 'a'"),
        (GOOD + "limits = [{ path = '', limit = 1.5 }]", "limit can't be 1.5"),
    ],
)
def test_broken_entry_is_found(text: str, complaint: str) -> None:
    assert any(found.startswith(complaint) for found in complaints(tomllib.loads(text)))


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        (Profile, PROFILE_KEYS.keys() - {"date"} | {"read"}),
        (Limit, LIMIT_KEYS.keys()),
        (Items, ITEMS_KEYS.keys()),
        (Json, JSON_KEYS.keys()),
    ],
)
def test_each_argument_may_stand_in_the_file(kind: type, keys: set[str]) -> None:
    assert {field.name for field in fields(kind)} == keys


def test_no_host_or_name_occurs_twice() -> None:
    names = [
        name.lower()
        for entry in ENTRIES
        for name in (entry["name"], *entry.get("hosts", ()), *entry.get("aliases", ()))
    ]
    assert [name for name, count in Counter(names).items() if count > 1] == []


def test_entries_are_in_alphabetical_order() -> None:
    names = [entry["name"] for entry in ENTRIES]
    assert names == sorted(names, key=str.lower)
    assert names == list(PROFILES)


# ---- the profile of an entry -----------------------------------------------------------------

ACME = """
name = "Acme"
hosts = ["api.acme.example", "*.acme.example"]
aliases = ["Acme Corporation"]
note = "limits by day"
source = "https://acme.example/limits"
date = 2026-11-20
milliseconds = ["Retry-After"]
refusals = [499]
windows = { requests = 86400.0, tokens = 60.0 }
binds = "Acme-Binds"

[[limits]]
name = "day"
limit = "Acme-Max"
window = 86400.0

[[limits]]
limit = "Acme-Max"

[[limits]]
header = 'acme-(?P<scope>[a-z]+)'
item = '[0-9]+'
name = ["first", "second"]
window = [1.0, 60.0]
aligned = true

[[limits]]
header = 'acme-of-all'
item = '[0-9]+'

[[limits]]
path = ""
name = "{name}"
limit = 100
used = ["calls", "time"]
"""


def test_entry_becomes_the_profile_that_python_would_define() -> None:
    assert _profile(tomllib.loads(ACME)) == Profile(
        "Acme",
        hosts=("api.acme.example", "*.acme.example"),
        aliases=("Acme Corporation",),
        note="limits by day",
        source="https://acme.example/limits",
        read="2026-11-20",
        milliseconds=frozenset({"Retry-After"}),
        refusals=frozenset({499}),
        windows=(("requests", 86400.0), ("tokens", 60.0)),
        binds="Acme-Binds",
        limits=(
            Limit("day", limit="Acme-Max", window=86400.0),
            Limit(None, limit="Acme-Max"),
            Items(
                "acme-(?P<scope>[a-z]+)",
                "[0-9]+",
                name=("first", "second"),
                window=(1.0, 60.0),
                aligned=True,
            ),
            Items("acme-of-all", "[0-9]+", name=None),
            Json("", name="{name}", limit=100, used=("calls", "time")),
        ),
    )


def test_smallest_entry_has_the_defaults_of_a_profile() -> None:
    acme = Profile("Acme", source="https://acme.example", read="2026-11-20")
    assert _profile(tomllib.loads(GOOD)) == acme


@pytest.mark.parametrize(
    "text",
    [
        GOOD + 'host = ["acme.example"]',
        GOOD + 'hosts = "acme.example"',
        GOOD + 'limits = [{ limits = "Acme-Max" }]',
        GOOD.replace("date =", "read ="),
    ],
)
def test_error_names_the_broken_entry(text: str) -> None:
    with pytest.raises((KeyError, TypeError)) as caught:
        _profile(tomllib.loads(text))
    assert caught.value.__notes__ == ["in profiles.toml, 'Acme'"]


# ---- the page --------------------------------------------------------------------------------

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "headers.md"
HEAD = "| vendor | own rules | to know | source | read |\n|---|---|---|---|---|\n"
LISTED = re.compile(re.escape(HEAD) + r"((?:\|.*\n)*)")


def rows() -> Iterator[str]:
    for profile in PROFILES.values():
        own = "yes" if profile.has_effect else ""
        source = re.sub(r"^https://[^,\s]+", r"<\g<0>>", profile.source)
        yield f"| {profile.name} | {own} | {profile.note} | {source} | {profile.read} |\n"


def test_page_lists_every_profile() -> None:
    listed = LISTED.search(PAGE.read_text(encoding="utf-8"))
    assert listed
    assert listed[1].splitlines(keepends=True) == list(rows()), __doc__


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(LISTED.sub(lambda _: HEAD + "".join(rows()), page), encoding="utf-8")

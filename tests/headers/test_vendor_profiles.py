"""profiles.toml: each entry is well-formed and dated, and becomes a `Profile`; the page lists it.

After a change of the file, rewrite the table of docs/reference/vendors.md with

    python -m tests.headers.test_vendor_profiles
"""

import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from aiothrottle.headers import PROFILES, Items, Limit, Profile, profile_for
from aiothrottle.headers.vendors import _profile

HOST = re.compile(r"(\*\.)?[a-z0-9-]+(\.[a-z0-9-]+)+")
NO_PAGES = {
    "captured responses",
    "public code of clients; no page of the vendor names the headers",
}


def complaints(profile: Profile) -> Iterator[str]:
    """Yield what is wrong with an entry; wrong types and unknown keys raise when it is loaded."""
    if not (profile.source in NO_PAGES or profile.source.startswith("https://")):
        yield f"source {profile.source!r}"
    if date.fromisoformat(profile.read) > datetime.now(UTC).date():
        yield f"read in the future, {profile.read}"
    yield from (f"host {host!r}" for host in profile.hosts if not HOST.fullmatch(host))
    yield from (
        f"status {status}" for status in profile.throttled_statuses if not 100 <= status <= 599
    )
    for name, window in profile.windows:
        if not (isinstance(window, float) and window > 0):
            yield f"window {window!r} of {name}"
    for row in profile.limits:
        if isinstance(row, Limit) and not row.headers:
            yield f"no header of {row.name}"
        if isinstance(row, Items) and not (row.names.pattern and row.each.pattern):
            yield f"no expression of {row.name}"
    for text in (profile.name, profile.note, *profile.aliases, *profile.marks):
        if text != text.strip():
            yield f"blanks around {text!r}"


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_entry_is_well_formed_and_found(profile: Profile) -> None:
    assert list(complaints(profile)) == []
    for name in (*profile.hosts, profile.name, *profile.aliases):
        assert profile_for(name.replace("*", "any")) is profile


def test_profiles_are_unique_and_read_only() -> None:
    names = Counter(
        name.lower()
        for profile in PROFILES.values()
        for name in (profile.name, *profile.hosts, *profile.aliases)
    )
    assert [name for name, count in names.items() if count > 1] == []
    with pytest.raises(TypeError):
        PROFILES["GitHub"] = PROFILES["Reddit"]  # type: ignore[index]  # pyright: ignore[reportIndexIssue]


# ---- the profile of an entry ---------------------------------------------------------------------

GOOD = 'name = "Acme"\nsource = "https://acme.example"\ndate = 2026-11-20\n'


@pytest.mark.parametrize(
    "text",
    [
        GOOD + 'host = ["acme.example"]', GOOD + 'hosts = "acme.example"',
        GOOD + 'limits = [{ limits = "Acme-Max" }]', GOOD.replace("date =", "read ="),
    ],
)  # fmt: skip
def test_error_names_the_broken_entry(text: str) -> None:
    with pytest.raises((KeyError, TypeError)) as caught:
        _profile(tomllib.loads(text))
    assert caught.value.__notes__ == ["in profiles.toml, 'Acme'"]


# ---- the page ------------------------------------------------------------------------------------

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "vendors.md"
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

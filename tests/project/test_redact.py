"""Specifies `redact`: it returns scheme and hosts, and no secret, for malformed addresses too."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiothrottle.redact import redact


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("redis://h", "redis://h"),
        ("redis://h:6379/0", "redis://h:6379"),
        ("rediss://me:secret@h:6379/0?password=secret", "rediss://h:6379"),
        ("redis://h?password=secret", "redis://h"),
        ("redis://h#secret", "redis://h"),
        ("redis://:secret@[::1]:6379", "redis://[::1]:6379"),
        ("redis://:sec@ret@h", "redis://h"),
        ("mongodb://me:secret@a:1,b:2/db", "mongodb://a:1,b:2"),
        ("mongodb+srv://me:secret@a.example.org", "mongodb+srv://a.example.org"),
        ("redis://", "redis://"),
        ("redis:///0", "redis://"),
        ("redis://:secret@", "redis://"),
        ("nonsense://x", "nonsense://x"),
        ("nowhere", "nowhere"),
        ("localhost:6379", "localhost:6379"),
    ],
)
def test_sound_address_is_shown_without_its_secrets(address: str, shown: str) -> None:
    assert redact(address) == shown


@pytest.mark.parametrize(
    "address",
    [
        "redis://:sec/ret@h",
        "redis://:sec?ret@h",
        "redis://:sec#ret@h",
        "redis://me:12/secret@h",
        "redis://:sec ret@h",
        "redis://:secret",
        "redis://me:secret",
        "redis://me:secret/0",
        "redis://[sec/ret@h",
        "redis://\nsecret@h",
        "redis://h:6379\nsecret",
        "redis://h,:secret@h/@",
    ],
)
def test_address_in_doubt_shows_its_scheme_only(address: str) -> None:
    assert redact(address) == "redis://***"


@pytest.mark.parametrize("text", ["me:secret@h", "secret@h", "redis:/h", "me:secret", "", "a b"])
def test_text_without_a_scheme_shows_nothing_in_doubt(text: str) -> None:
    assert redact(text) == "***"


parts = st.text("s/?#@:[]%, .1", max_size=6)


@given(st.sampled_from(["redis://", "mongodb://", ""]), parts, parts, parts, parts)
def test_truncated_password_is_never_shown(
    scheme: str, user: str, before: str, after: str, tail: str
) -> None:
    shown = redact(f"{scheme}{user}:{before}SECRET{after}@host{tail}")
    assert "SECRET" not in shown

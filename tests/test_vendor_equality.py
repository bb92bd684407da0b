"""The profiles of profiles.toml are those that vendor_plain, vendor_words and vendor_lists held."""

from dataclasses import replace

from aiothrottle.headers import PROFILES
from aiothrottle.headers.vendor_lists import LISTS
from aiothrottle.headers.vendor_plain import PLAIN
from aiothrottle.headers.vendor_words import WORDS

# In the modules these two had no source, but a note in its place.
NO_SOURCE = {"Coinbase", "KuCoin"}


def test_the_file_holds_what_the_modules_held() -> None:
    old = sorted((*PLAIN, *WORDS, *LISTS), key=lambda profile: profile.name.lower())
    assert list(PROFILES) == [profile.name for profile in old]
    assert len(old) == 91
    for before, after in zip(old, PROFILES.values(), strict=True):
        if before.name in NO_SOURCE:
            assert not before.source
            assert replace(before, source="", note="") == replace(after, source="", note="")
        else:
            assert before == after

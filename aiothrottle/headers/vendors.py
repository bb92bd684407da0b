"""The profiles that come with the package: what is known of each vendor, where from, as of when."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType

from aiothrottle.headers.profile import Profile
from aiothrottle.headers.vendor_lists import LISTS
from aiothrottle.headers.vendor_plain import PLAIN
from aiothrottle.headers.vendor_words import WORDS

__all__ = ["PROFILES", "profile_for"]

# No name of a host is longer (RFC 1035), nor that of a vendor.
_LONGEST = 255

_ALL = sorted((*PLAIN, *WORDS, *LISTS), key=lambda profile: profile.name.lower())

PROFILES: Mapping[str, Profile] = MappingProxyType({profile.name: profile for profile in _ALL})
"""All of them by name; it can't be changed."""


def profile_for(host: str, also: Iterable[Profile] = ()) -> Profile | None:
    """Give the profile of the vendor whose API is at that host.

    Args:
        host: The name of the host, as in ``url.host``; or of the vendor, for software that runs
            anywhere (``"Spring Cloud Gateway"``). Without case.
        also: Profiles of one's own. They come before those of the package.

    Returns:
        The profile; None: nothing is known of it, and nothing needs to be, as a rule.

    >>> profile_for("shop.myshopify.com").name
    'Shopify'
    >>> profile_for("example.org") is None
    True
    """
    if len(host) > _LONGEST:
        return None
    host = host.lower().rstrip(".")
    own = _find(host, _index(tuple(also)))
    return own or _find(host, _ours())


def _find(host: str, index: Mapping[str, Profile]) -> Profile | None:
    found = index.get(host)
    while found is None and "." in host:
        host = host.partition(".")[2]
        found = index.get(f"*.{host}")
    return found


@lru_cache(maxsize=1)
def _ours() -> Mapping[str, Profile]:
    return _index(_ALL)


def _index(profiles: Iterable[Profile]) -> Mapping[str, Profile]:
    index: dict[str, Profile] = {}
    for profile in profiles:
        for name in (*profile.hosts, profile.name, *profile.aliases):
            index.setdefault(name.lower(), profile)
    return index

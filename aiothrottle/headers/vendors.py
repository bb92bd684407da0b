"""What is loaded from ``profiles.toml``: the common rules, and the vendor profiles by host."""

import tomllib
from collections.abc import Iterable, Mapping
from importlib.resources import files
from types import MappingProxyType
from typing import Any, TypeAlias, cast

from aiothrottle.headers.profile import Items, Json, Limit, Profile
from aiothrottle.headers.values import check_text

# No name of a host (RFC 1035) or of a vendor is longer.
_LONGEST = 255

# Arguments of `Profile` that are sets.
_SETS = ("milliseconds", "throttled_statuses", "body_statuses")
# A table of TOML.
_Table: TypeAlias = dict[str, Any]


_TABLES = tomllib.loads(files("aiothrottle.headers").joinpath("profiles.toml").read_text("utf-8"))
COMMON: _Table = _TABLES["common"]
"""The words of servers without a profile."""


def _profile(table: _Table) -> Profile:
    try:
        return Profile(
            read=table.pop("date").isoformat(),
            limits=tuple(map(_limit, table.pop("limits", ()))),
            windows=tuple(table.pop("windows", {}).items()),
            **_immutable(table),
        )
    except (KeyError, TypeError) as error:
        error.add_note(f"in profiles.toml, {table.get('name')!r}")
        raise


def _limit(table: _Table) -> Limit | Items | Json:
    arguments = _immutable({"name": None, **table})
    if "item" in table:
        return Items(**arguments)
    return Json(**arguments) if "path" in table else Limit(**arguments)


def _immutable(table: _Table) -> _Table:
    """Make the lists of a table to tuples, or sets."""
    arguments = table.copy()
    for name, value in table.items():
        if isinstance(value, list):
            arguments[name] = (frozenset if name in _SETS else tuple)(cast("list[object]", value))
    return arguments


PROFILES: Mapping[str, Profile] = MappingProxyType(
    {profile.name: profile for profile in map(_profile, _TABLES["profile"])}
)
"""All profiles by name, read-only."""


def profile_for(host: str, also: Iterable[Profile] = ()) -> Profile | None:
    """Return the profile of the vendor with this host.

    Args:
        host: The host, as in ``url.host``, or the name of the vendor, for software that runs
            anywhere (``"Spring Cloud Gateway"``). Case-insensitive.
        also: Your own profiles. They take precedence over those of the package.

    Returns:
        The profile; None if there is none. Most servers need none.

    Raises:
        TypeError: `host` is no str.

    >>> profile_for("shop.myshopify.com").name
    'Shopify'
    >>> profile_for("example.org") is None
    True
    """
    check_text("host", host)
    if len(host) > _LONGEST:
        return None
    host = host.lower().rstrip(".")
    own = tuple(also)
    return (_find(host, _index(own)) if own else None) or _find(host, _OURS)


def _find(host: str, index: Mapping[str, Profile]) -> Profile | None:
    found = index.get(host)
    while found is None and "." in host:
        host = host.partition(".")[2]
        found = index.get(f"*.{host}")
    return found or index.get("*")


def _index(profiles: Iterable[Profile]) -> Mapping[str, Profile]:
    index: dict[str, Profile] = {}
    for profile in profiles:
        for name in (*profile.hosts, profile.name, *profile.aliases):
            index.setdefault(name.lower(), profile)
    return index


_OURS = _index(PROFILES.values())

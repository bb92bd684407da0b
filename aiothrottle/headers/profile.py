"""What has to be known of one vendor, as data: names of headers, units, paths in JSON."""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import cast

from aiothrottle.headers.fields import TELLING, Layout, Names, layouts
from aiothrottle.headers.memo import Memo

__all__ = ["Items", "Json", "Limit", "Profile"]

_LONGEST = 64


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit, told by headers that say nothing else.

    Args:
        name: The name of the `Policy`. None: it has none, and fills the fields of `ServerLimits`
            unless another limit binds.
        limit: The header that holds the quota. Names of headers are compared without case.
        remaining: The header that holds what is left,
        used: or what was used of the quota.
        reset: The header that says when there is more: seconds, an epoch, a date or a duration.
        window: Seconds; or the header that holds them (milliseconds, if its name says so).

    >>> Limit("day", limit="X-Limit-Per-Day", remaining="X-Remaining-Today", window=86400).name
    'day'
    """

    name: str | None
    limit: str = ""
    remaining: str = ""
    used: str = ""
    reset: str = ""
    window: float | str | None = None

    @property
    def headers(self) -> set[str]:
        """The headers of this limit, in small letters."""
        window = self.window if isinstance(self.window, str) else ""
        names = {self.limit, self.remaining, self.used, self.reset, window}
        return {name.lower() for name in names if name}


@dataclass(frozen=True)
class Items:
    """Several limits in one header, or in headers whose names hold a part of it.

    Args:
        header: A regular expression for the whole name, in small letters.
        item: A regular expression for one limit in the value; it is searched as often as it
            occurs between commas, semicolons or blanks. Groups of both named limit, remaining,
            used, reset and window are read as the fields of that name; what has none of them
            counts as a position, and says nothing.
        name: The name of the `Policy`; groups may stand in it in braces. A name with ";" in it is
            several. A tuple: by position.
        window: Seconds, where there is no such group. A tuple: by position.
        remaining: What is left, where there is no such group.
        aligned: Windows end at the multiples of their length since 1970, that is at the full
            hour or at midnight UTC.

    Both expressions have to run in linear time: what they read comes from strangers.

    >>> Items("x-calls", r"(?P<used>[0-9]+)/(?P<limit>[0-9]+)", name=None).remaining is None
    True
    """

    header: str
    item: str
    name: str | tuple[str, ...] | None = "{name}"
    window: float | tuple[float, ...] | None = None
    remaining: float | None = None
    aligned: bool = False

    @cached_property
    def names(self) -> re.Pattern[str]:
        """What the name of the header has to match."""
        return re.compile(self.header)

    @cached_property
    def each(self) -> re.Pattern[str]:
        """What each limit in the value has to match."""
        # No part of what is no item: "-5/40" is not "5/40".
        return re.compile(rf"(?<![^,; \t])(?:{self.item})(?![^,;( \t])")


@dataclass(frozen=True, slots=True)
class Json:
    """Limits in JSON, of a header or of the body.

    Args:
        path: The keys on the way to the object that holds the limit, with dots between them; "*"
            is every key, or every item of a list. "" is the whole.
        header: The header that holds the JSON. "": it is in the body.
        name: The name of the `Policy`. In braces may stand the key of an object on the way, and
            ``{0}``, ``{1}`` for what the stars stood for. None: as in `Limit`.
        limit: The key of the quota, or the quota itself. All keys may also belong to an object
            that lies on the way.
        remaining: The key of what is left,
        used: or the keys of what was used: the greatest of them counts.
        reset: The key of when there is more: seconds, an epoch, a date or a duration.
        window: The key of the length of the window in seconds.
        wait: The key of an explicit wait. 0 is none.
        wait_unit: What one of it is in seconds.
        cost: The key of what the request would have cost, for a bucket that refills by
        rate: the key of so much per second: a refused request waits until it can be paid for.
    """

    path: str
    header: str = ""
    name: str | None = None
    limit: str | float = ""
    remaining: str = ""
    used: tuple[str, ...] = ()
    reset: str = ""
    window: str = ""
    wait: str = ""
    wait_unit: float = 1.0
    cost: str = ""
    rate: str = ""


@dataclass(frozen=True)
class Profile:
    """What can't be told by the values that one vendor sends.

    A plain value: define it, and give it to `parse_rate_limit`, or to `profile_for` with `also=`.
    Headers that it names are read only as it says; all others are read as everybody's.

    Args:
        name: Of the vendor.
        hosts: Where its API is; ``*.example.com`` is every host below example.com.
        note: What to know before relying on it.
        source: Where it says so.
        read: When that was read, "2026-11-20".
        limits: Where its limits stand.
        milliseconds: Headers whose plain numbers are milliseconds, not seconds.
        refusals: Statuses that are a refusal from this vendor only.
        windows: Lengths in seconds of limits that the names of headers tell apart, by that name.
        binds: The header that names the limit that binds.
        aliases: Other names of it, for `profile_for`.

    Raises:
        TypeError: An argument is of a wrong kind.

    >>> acme = Profile(
    ...     "Acme",
    ...     hosts=("api.acme.example",),
    ...     limits=(Limit("minute", limit="Acme-Max", remaining="Acme-Left", window=60),),
    ... )
    """

    name: str
    hosts: tuple[str, ...] = ()
    note: str = ""
    source: str = ""
    read: str = ""
    limits: tuple[Limit | Items | Json, ...] = ()
    milliseconds: frozenset[str] = frozenset()
    refusals: frozenset[int] = frozenset()
    windows: tuple[tuple[str, float], ...] = ()
    binds: str = ""
    aliases: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what would be taken apart into letters, or never be found."""
        for name, kind, wanted in (
            ("hosts", str, "str"),
            ("aliases", str, "str"),
            ("limits", Limit | Items | Json, "Limit, Items or Json"),
        ):
            values = getattr(self, name)
            if not isinstance(values, tuple):
                raise TypeError(f"{name} of a Profile is a tuple, not {values!r}")
            for value in cast("tuple[object, ...]", values):
                if not isinstance(value, kind):
                    raise TypeError(f"{name} of a Profile are each a {wanted}, not {value!r}")
        for name in ("milliseconds", "refusals"):
            values = getattr(self, name)
            if not isinstance(values, frozenset):
                raise TypeError(f"{name} of a Profile is a frozenset, not {values!r}")

    @cached_property
    def says_something(self) -> bool:
        """Whether anything is read differently with it."""
        return bool(self.limits or self.milliseconds or self.refusals or self.windows)

    @cached_property
    def telling(self) -> Memo[str, bool]:
        """Whether a header can be about limits, read by everybody or by the profile only."""
        return Memo(lambda header: TELLING[header] or self._claims(header))

    @cached_property
    def layouts(self) -> Memo[Names, Layout]:
        """Where in a response the fields stand, those of the profile too."""
        return layouts(self._claims)

    def _claims(self, header: str) -> bool:
        """Tell whether a header is read by the profile only."""
        if len(header) > self._longest:
            return False
        header = header.lower()
        if header in self._headers:
            return True
        return len(header) <= _LONGEST and any(
            items.names.fullmatch(header) for items in self._items
        )

    @cached_property
    def in_milliseconds(self) -> frozenset[str]:
        """The headers of `milliseconds`, in small letters."""
        return frozenset(name.lower() for name in self.milliseconds)

    @cached_property
    def _headers(self) -> frozenset[str]:
        names = {row.header.lower() for row in self.limits if isinstance(row, Json)}
        for row in self.limits:
            if isinstance(row, Limit):
                names |= row.headers
        return frozenset(names - {""})

    @cached_property
    def _longest(self) -> int:
        return max([_LONGEST, *map(len, self._headers)])

    @cached_property
    def _items(self) -> tuple[Items, ...]:
        return tuple(row for row in self.limits if isinstance(row, Items))

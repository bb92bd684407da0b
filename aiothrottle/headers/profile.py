"""Vendor profiles as data: names of headers, units, paths in JSON."""

import re
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, cast

from aiothrottle._checks import check_number
from aiothrottle._statuses import LEAST_ERROR
from aiothrottle.headers.values import Memo

if TYPE_CHECKING:  # a session imports profiles, but no parser before the first response
    from aiothrottle.headers.parse import Layout, Names

_LONGEST = 64


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit, in headers of its own.

    Args:
        name: The name of the `Policy`. None: it has none, and fills the fields of `ServerLimits`
            unless another limit binds.
        limit: The header with the quota. Names of headers are case-insensitive.
        remaining: The header with the unused part of the quota,
        used: or with the used part.
        reset: The header with the reset: seconds, an epoch, a date or a duration.
        window: Seconds, or the header with them (milliseconds, if its name says so).

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
        """The headers of this limit, in lower case."""
        window = self.window if isinstance(self.window, str) else ""
        names = {self.limit, self.remaining, self.used, self.reset, window}
        return {name.lower() for name in names if name}


@dataclass(frozen=True)
class Items:
    """Several limits in one header, or in headers whose names contain a part of the limit.

    Args:
        header: A regular expression for the whole name, in lower case.
        item: A regular expression for one limit in the value, matched wherever it occurs between
            commas, semicolons or blanks. Groups of both expressions that are named limit,
            remaining, used, reset and window become the fields of that name. An item without any
            of them counts as a position only.
        name: The name of the `Policy`; ``{group}`` inserts a group. A name with ";" in it is
            several names. A tuple: by position.
        window: Seconds, if there is no such group. A tuple: by position.
        remaining: The unused part, if there is no such group.
        aligned: Windows end at the multiples of their length since 1970, such as the full
            hour or midnight UTC.

    Both expressions must run in linear time, as their input is untrusted.

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
        """The pattern for the name of the header."""
        return re.compile(self.header)

    @cached_property
    def each(self) -> re.Pattern[str]:
        """The pattern for each limit in the value."""
        # Matches whole items only: "-5/40" is not "5/40".
        return re.compile(rf"(?<![^,; \t])(?:{self.item})(?![^,;( \t])")


@dataclass(frozen=True, slots=True)
class Json:
    """Limits in JSON, of a header or of the body.

    Args:
        path: The keys that lead to the object with the limit, separated by dots; "*" matches
            every key, or every item of a list. "" is the whole document.
        header: The header with the JSON. "": it is in the body.
        name: The name of the `Policy`. ``{key}`` inserts a value of an object on the path,
            ``{0}``, ``{1}`` the keys that the stars matched. None: as in `Limit`.
        limit: The key of the quota, or the quota itself. All keys may also belong to an object
            on the path.
        remaining: The key of the unused part of the quota,
        used: or the keys of the used part: the greatest of them counts.
        reset: The key of the reset: seconds, an epoch, a date or a duration.
        window: The key of the length of the window in seconds.
        wait: The key of an explicit wait. 0 is none.
        wait_unit: The unit of that wait, in seconds.
        cost: The key of the cost of the request, in the tokens of a bucket.
        rate: The key of the tokens that this bucket gains per second. A throttled request waits
            until its cost is available.
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
    """How to read the headers of one vendor, where their values alone are ambiguous.

    A plain value: define it, and pass it to `parse_rate_limit`, or to `profile_for` with `also=`.
    The headers that it names are read by its rules only, all others by the common ones.

    Args:
        name: The name of the vendor.
        hosts: The hosts of its API; ``*.example.com`` is every host below example.com, ``*`` every
            host without another of your own profiles.
        note: A caveat for users.
        source: Where the vendor documents its limits.
        read: When that was read, "2026-11-20".
        limits: Where its limits are.
        milliseconds: Headers whose plain numbers are milliseconds, not seconds.
        throttled_statuses: Statuses that mean a throttled request from this vendor only.
        windows: Windows in seconds of limits that differ by the names of their headers, by that
            name.
        binds: The header with the name of the binding limit.
        aliases: Other names of the vendor, for `profile_for`.
        body_statuses: Statuses of responses whose body alone may report a throttled request. The
            sessions and transports read such a body before they return the response, if it is JSON
            and not longer than 64 KiB; the caller can read it all the same.
        body_header: A header that each of these responses has, if one of the statuses is below
            400. Responses without it stay unread, like those of any other server.
        marks: Texts in a body that mean a throttled request, besides the common ones. They are
            compared without case; below status 400 they count only in the parts about errors.
        least_backoff: Seconds to wait after a throttled request if the response names no time. It
            doubles with each further wait in a row.
        refills: Whether the quotas are refilled steadily, so that a reset is when they are full.

    Raises:
        TypeError: An argument has a wrong type.
        ValueError: A status below 400 has no `body_header`; or `least_backoff` is not positive.

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
    throttled_statuses: frozenset[int] = frozenset()
    windows: tuple[tuple[str, float], ...] = ()
    binds: str = ""
    aliases: tuple[str, ...] = ()
    body_statuses: frozenset[int] = frozenset()
    body_header: str = ""
    marks: tuple[str, ...] = ()
    least_backoff: float | None = None
    refills: bool = False

    def __post_init__(self) -> None:
        """Reject a text where a tuple is expected, and other wrong types."""
        for name, kind, wanted in (
            ("hosts", str, "str"),
            ("aliases", str, "str"),
            ("marks", str, "str"),
            ("limits", Limit | Items | Json, "Limit, Items or Json"),
        ):
            values = getattr(self, name)
            if not isinstance(values, tuple):
                raise TypeError(f"{name} of a Profile must be a tuple, got {values!r}")
            for value in cast("tuple[object, ...]", values):
                if not isinstance(value, kind):
                    raise TypeError(f"{name} of a Profile must each be a {wanted}, got {value!r}")
        for name in ("milliseconds", "throttled_statuses", "body_statuses"):
            values = getattr(self, name)
            if not isinstance(values, frozenset):
                raise TypeError(f"{name} of a Profile must be a frozenset, got {values!r}")
        if not self.body_header and min(self.body_statuses, default=LEAST_ERROR) < LEAST_ERROR:
            raise ValueError(
                "a Profile with body_statuses below 400 needs a body_header, by which their "
                "responses differ from others, such as 'Content-Type'"
            )
        check_number(
            "least_backoff of a Profile", self.least_backoff, "seconds", above=0, none="None"
        )

    def __getstate__(self) -> dict[str, object]:
        """Return the fields: what is cached of them cannot be pickled."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @cached_property
    def has_effect(self) -> bool:
        """Whether any response is read differently with this profile."""
        return bool(
            self.limits
            or self.milliseconds
            or self.throttled_statuses
            or self.windows
            or self.binds
            or self.body_statuses
            or self.marks
            or self.least_backoff
            or self.refills
        )

    @cached_property
    def is_limit_header(self) -> Memo[str, bool]:
        """Whether a header can be about limits, by the common rules or by this profile."""
        from aiothrottle.headers.parse import IS_LIMIT_HEADER

        others = self.body_header.lower(), self.binds.lower()
        return Memo(
            lambda header: (
                IS_LIMIT_HEADER[header] or self._claims(header) or header.lower() in others
            )
        )

    @cached_property
    def layouts(self) -> "Memo[Names, Layout]":
        """The places of the fields in a response, with those of the profile."""
        from aiothrottle.headers.parse import layouts

        return layouts(self._claims, self.binds.lower() or None)

    def _claims(self, header: str) -> bool:
        """Return whether only the profile reads this header."""
        header = header.lower()
        return any(_reads(row, header) for row in self.limits)


def _reads(row: Limit | Items | Json, header: str) -> bool:
    if isinstance(row, Limit):
        return header in row.headers
    if isinstance(row, Items):
        return len(header) <= _LONGEST and row.names.fullmatch(header) is not None
    return header != "" and header == row.header.lower()

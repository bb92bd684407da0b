"""One line of a list as a job: what to send and on which terms, or the problem with the line. Pure.

There are two formats of lists: URLs, and requests as JSON lines, ``{"url": ..., "json": ...}``.

Invariant: whatever a line contains, `read` returns a job that can be sent, or one with a problem.
No problem quotes a header or a body, which may be secret.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, NoReturn, TypeAlias, cast

from multidict import CIMultiDict
from yarl import URL

from aiothrottle._checks import shown
from aiothrottle.amounts import check_cost, read_cost
from aiothrottle.cli.addresses import LONGEST, Address, decoded, has_credentials, read_address
from aiothrottle.cli.fetch.lines import Line
from aiothrottle.cli.fetch.results import Id, digest, identity
from aiothrottle.cli.options import FRAMING, header, method
from aiothrottle.hooks import Throttle

_FORM, _JSON = "application/x-www-form-urlencoded", "application/json"
_FIELDS = ("url", "method", "headers", "json", "data", "cost", "key", "id")


class ListError(Exception):
    """The list has another format: nothing of it was sent."""


class Request(NamedTuple):
    """A request to send."""

    method: str
    url: URL
    headers: Mapping[str, str]
    data: bytes | None = None


class Job(NamedTuple):
    """What a line asks for."""

    #: The URL without credentials; of a line that is no URL, its beginning; "": there is none.
    url: str
    #: None: there is a problem.
    request: Request | None = None
    #: What the request overrides; None: nothing.
    throttle: Throttle | None = None
    #: What the line names itself; None: nothing.
    id: Id | None = None
    #: The number of the line in the whole list, if that identifies the job.
    number: int | None = None
    #: What is wrong with the line.
    problem: str | None = None

    @property
    def identity(self) -> str:
        """The text by which `--resume` identifies the job."""
        return identity(self.url, self.id, self.number)


@dataclass(frozen=True, slots=True)
class UrlReader:
    """Reads lines that are URLs, for which all else is the same."""

    method: str
    headers: Mapping[str, str]
    #: The most bytes of a line.
    longest: ClassVar[int] = LONGEST

    def read(self, line: Line) -> Job | None:
        """Parse a line; return None if it is blank or a comment.

        Raises:
            ListError: It is the first line, and of another format.
        """
        if line.place == 1 and line.text.lstrip().startswith(b"{"):
            raise ListError("the list has JSON, not URLs: give it with --requests")
        _check_encoding(line)
        address = read_address(line.text)
        if address is None:
            return None
        if address.url is None:
            return Job(address.shown, problem=address.problem)
        # Others may have the same URL with other credentials, which no output shows.
        return Job(
            address.shown,
            Request(self.method, address.url, self.headers),
            number=line.place if has_credentials(address.url) else None,
        )


@dataclass(frozen=True, slots=True)
class JsonReader:
    """Reads lines that are requests as JSON objects.

    It keeps a digest of each id, as an id must not occur twice.

    Args:
        headers: The headers of all requests; a line replaces those that it names too.
        resources: The resources that a cost must name; none: a cost is a number.
        keyed: Whether there is a limit for each key.
    """

    headers: Mapping[str, str]
    resources: Sequence[str]
    keyed: bool
    #: The most bytes of a line. A prompt with an image is long.
    longest: ClassVar[int] = 16 << 20
    _ids: set[bytes] = field(default_factory=set[bytes], init=False)

    def read(self, line: Line) -> Job | None:
        """Parse a line; return None if it is blank or a comment.

        Raises:
            ListError: It is the first line, and of another format.
        """
        _check_encoding(line)
        text = line.text.strip()
        if not text or text.startswith(b"#"):
            return None
        first = read_address(text) if line.place == 1 and not text.startswith(b"{") else None
        if first is not None and first.url is not None:
            raise ListError("the list has URLs, not JSON objects: give it with --input-file")
        job = Job("", number=line.place)
        try:
            fields = _fields(text, self.longest)
            address = _address(fields)
            job = job._replace(url=address.shown)
            if (own := self._id(fields)) is not None:
                job = job._replace(id=own, number=None)
            request, throttle = self._request(address, fields), self._throttle(fields)
        except (TypeError, ValueError, argparse.ArgumentTypeError) as error:
            return job._replace(problem=f"{error!s:.300}")  # a wrong cost may be long
        return job._replace(request=request, throttle=throttle)

    def _id(self, fields: Mapping[str, Any]) -> Id | None:
        """Return the id of a line, which no line before has had."""
        own: object = fields.get("id")
        if own is None:
            return None
        if isinstance(own, bool) or not isinstance(own, str | int):
            raise TypeError(f"id must be a text or a whole number, got {shown(own):.100}")
        seen = digest(json.dumps(own))
        if seen in self._ids:
            raise ValueError(f"an earlier line has the id {shown(own):.100} too")
        self._ids.add(seen)
        return own

    def _request(self, address: Address, fields: Mapping[str, Any]) -> Request:
        if address.url is None:
            raise ValueError(f"the url {address.problem}")
        body, kind = _body(fields)
        headers = CIMultiDict(self.headers)
        headers.update(_headers(fields))
        if kind is not None:
            headers.setdefault("Content-Type", kind)
        return Request(_method(fields, body), address.url, headers, body)

    def _throttle(self, fields: Mapping[str, Any]) -> Throttle | None:
        """Return the terms of a request, checked, as the retry loop would end the run by them."""
        throttle: Throttle = {}
        if (key := _text(fields, "key")) is not None:
            if not self.keyed:
                raise ValueError(
                    "key chooses one of several limits: give --per-host or --per-host-concurrency"
                )
            throttle["key"] = key
        cost: object = fields.get("cost")
        if cost is not None:
            self._check_cost(cost)
            throttle["cost"] = cast("Any", cost)
        return throttle or None

    def _check_cost(self, cost: object) -> None:
        if self.resources:
            read_cost(cost, self.resources)
        elif isinstance(cost, dict):
            raise TypeError(
                "cost must be a number, as the limits name no resources; "
                "or name them, such as --rate tokens=200000/min"
            )
        else:
            check_cost(cost)


Reader: TypeAlias = UrlReader | JsonReader


def _check_encoding(line: Line) -> None:
    """Reject a list that is compressed, or in UTF-16, as PowerShell writes it."""
    if line.place == 1 and line.text.startswith((b"\x1f\x8b", b"\xff\xfe", b"\xfe\xff")):
        raise ListError("the list is compressed or in UTF-16: give it as text in UTF-8")


def _fields(text: bytes, longest: int) -> dict[str, Any]:
    """Parse an object. A field that is null counts as absent."""
    try:
        found: object = json.loads(decoded(text, longest), parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise ValueError(f"is no JSON: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    if not isinstance(found, dict):
        raise TypeError("is no JSON object")
    fields = cast("dict[str, Any]", found)
    for name in fields:
        if name not in _FIELDS:
            known = ", ".join(_FIELDS)
            raise ValueError(f"has the unknown field {shown(name):.100}; there are {known}")
    return fields


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"is no JSON: {name} is no number")


def _address(fields: Mapping[str, Any]) -> Address:
    url = _text(fields, "url")
    return (None if url is None else read_address(url.encode())) or Address("", None, "is missing")


def _text(fields: Mapping[str, Any], name: str) -> str | None:
    """Return a field that is a text and can be sent."""
    value: object = fields.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a text, got a value of another type")
    return _sendable(name, value)


def _sendable(name: str, text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name} has half of a surrogate pair, which UTF-8 cannot have") from None
    return text


def _method(fields: Mapping[str, Any], body: bytes | None) -> str:
    name = _text(fields, "method")
    if name is None:
        return "GET" if body is None else "POST"
    return method(name)


def _body(fields: Mapping[str, Any]) -> tuple[bytes | None, str | None]:
    """Return the body and its type."""
    data, document = _text(fields, "data"), fields.get("json")
    if data is not None and document is not None:
        raise ValueError("has both json and data: give one of them")
    if data is not None:
        return data.encode(), _FORM  # as curl does
    if document is None:
        return None, None
    try:
        return json.dumps(document, allow_nan=False).encode(), _JSON
    except (RecursionError, ValueError):
        raise ValueError("json has a number that is too great, or is nested too deeply") from None


def _headers(fields: Mapping[str, Any]) -> dict[str, str]:
    given: object = fields.get("headers")
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise TypeError("headers must be an object of names and values")
    headers: dict[str, str] = {}
    for name, value in cast("dict[str, object]", given).items():
        if not isinstance(value, str):
            raise TypeError(f"the header {shown(name):.100} must be a text")
        if name.lower() in FRAMING:
            raise ValueError(f"headers must not have {name}, which follows from the body")
        try:
            found, content = header(f"{name}: {_sendable('a header', value)}")
        except argparse.ArgumentTypeError:
            found, content = None, ""
        if found != name:
            raise ValueError(
                "headers has a name with other characters than those of names, or a value with a "
                "control character"
            )
        headers[name] = content
    return headers

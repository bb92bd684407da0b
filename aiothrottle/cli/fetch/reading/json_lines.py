"""Reads requests as JSON lines: ``{"url": ..., "method": ..., "json": ...}``.

Invariant: whatever a line contains, `read` returns a job that can be sent, or one with a problem.
No problem quotes a header or a body, which may be secret.
"""

import argparse
import json
from collections.abc import Collection, Mapping
from typing import Any, NoReturn, cast

from aiothrottle._checks import check_number, shown
from aiothrottle.amounts import MOST
from aiothrottle.cli.arguments import header, method
from aiothrottle.cli.fetch.reading.addresses import Address, read_address
from aiothrottle.cli.fetch.reading.jobs import Job, ListError, Request
from aiothrottle.cli.fetch.reading.lines import Line
from aiothrottle.cli.fetch.results.output import digest
from aiothrottle.cli.fetch.results.record import Id
from aiothrottle.hooks import Throttle

__all__ = ["JsonReader"]

_FIELDS = ("url", "method", "headers", "json", "data", "cost", "key", "id")
# They would contradict the body, and its end would be taken for the next request.
_FRAMING = frozenset({"content-length", "transfer-encoding"})
_JSON, _FORM = "application/json", "application/x-www-form-urlencoded"


class JsonReader:
    """Reads lines that are requests as JSON objects.

    It keeps a digest of each id, as an id must not occur twice.

    Args:
        headers: The headers of all requests; a line replaces those that it names too.
        resources: The resources that a cost must name; none: a cost is a number.
        keyed: Whether there is a limit for each key.
    """

    #: A prompt with an image is long.
    longest = 16 << 20

    def __init__(
        self,
        headers: Mapping[str, str],
        *,
        resources: Collection[str] = (),
        keyed: bool = False,
    ) -> None:
        self._headers = headers
        self._resources = resources
        self._keyed = keyed
        self._ids = set[bytes]()

    def read(self, line: Line) -> Job | None:
        """Parse a line; return None if it is blank or a comment."""
        text = line.text.strip()
        if not text or text.startswith(b"#"):
            return None
        if line.place == 1 and not text.startswith(b"{") and _is_url(text):
            raise ListError("the list has URLs, not JSON objects: give it with --input-file")
        job = Job("", number=line.place)
        try:
            fields = _fields(text, self.longest)
            address = _address(fields)
            job = job._replace(url=address.shown)
            if (own := self._id(fields)) is not None:
                job = job._replace(id=own, number=None)
            request, throttle = self._request(address, fields), self._throttle(fields)
        except (TypeError, ValueError) as error:
            return job._replace(problem=str(error))
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
        headers = _combined(self._headers, _headers(fields), kind)
        return Request(_method(fields, body), address.url, headers, body)

    def _throttle(self, fields: Mapping[str, Any]) -> Throttle | None:
        """Return the terms of a request, checked, as the retry loop would end the run by them."""
        throttle: Throttle = {}
        if (key := _text(fields, "key")) is not None:
            if not self._keyed:
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
        if not self._resources:
            if isinstance(cost, dict):
                raise TypeError(
                    "cost must be a number, as the limits name no resources; "
                    "or name them, such as --rate tokens=200000/min"
                )
            check_number("cost", cost, "tokens", most=MOST)
            return
        names = ", ".join(self._resources)
        if not isinstance(cost, dict):
            raise TypeError(f"cost must be an object of {names}, got {shown(cost):.100}")
        for name, tokens in cast("dict[str, object]", cost).items():
            if name not in self._resources:
                raise ValueError(f"cost may name {names}, got {shown(name):.100}")
            check_number(f"the cost in {name}", tokens, "tokens", most=MOST)


def _is_url(text: bytes) -> bool:
    address = read_address(text)
    return address is not None and address.url is not None


def _fields(text: bytes, longest: int) -> dict[str, Any]:
    """Parse an object. A field that is null counts as absent."""
    if len(text) > longest:
        raise ValueError(f"is longer than {longest} bytes")
    try:
        found: object = json.loads(text.decode(), parse_constant=_no_constant)
    except UnicodeDecodeError:
        raise ValueError("is not in UTF-8") from None
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
    try:
        return method(name)
    except argparse.ArgumentTypeError as error:
        raise ValueError(f"method {error}") from None


def _body(fields: Mapping[str, Any]) -> tuple[bytes | None, str | None]:
    """Return the body and its type."""
    data, document = _text(fields, "data"), fields.get("json")
    if data is not None and document is not None:
        raise ValueError("has both json and data: give one of them")
    if data is not None:
        return data.encode(), _FORM  # as of --data
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
        try:
            found, content = header(f"{name}: {_sendable('a header', value)}")
        except argparse.ArgumentTypeError:
            found, content = "", ""
        if found != name:
            raise ValueError(
                "headers has a name with other characters than those of names, or a value with a "
                "control character"
            )
        if name.lower() in _FRAMING:
            raise ValueError(f"headers must not have {name}, which follows from the body")
        headers[found] = content
    return headers


def _combined(
    common: Mapping[str, str], own: Mapping[str, str], kind: str | None
) -> Mapping[str, str]:
    """Return all headers of a request; a name of its own replaces that name in any case."""
    names = {name.lower() for name in own}
    kept = {name: value for name, value in common.items() if name.lower() not in names}
    headers = {**kept, **own}
    if kind is not None and "content-type" not in map(str.lower, headers):
        headers["Content-Type"] = kind
    return headers

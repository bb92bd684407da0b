"""What a hook sees of a request of aiohttp. Nothing is consumed, serialized or read from a file."""

import io
from collections.abc import Mapping
from typing import Any, cast

from aiohttp import BytesPayload, ClientRequest, FormData
from yarl import URL

from aiothrottle.aiohttp.body import is_plain_form
from aiothrottle.hooks import Request

__all__ = ["view_of_call", "view_of_request"]


def view_of_call(
    method: str, url: URL, session_headers: Mapping[str, str], options: Mapping[str, Any]
) -> Request:
    """Return the view of a call of a session.

    Args:
        method: The method, in capitals.
        url: The absolute URL.
        session_headers: The headers of all requests of the session: a multidict.
        options: The options of the call.
    """
    # As aiohttp combines them: a name of the call replaces that of the session.
    headers = cast("Any", session_headers).copy()
    headers.update(options.get("headers") or ())
    if (document := options.get("json")) is not None:
        return Request(method, url, headers, document=document)
    return Request(method, url, headers, _content(options.get("data")))


def view_of_request(request: ClientRequest) -> Request:
    """Return the view of a request that a middleware got."""
    body: object = request.body
    if isinstance(body, BytesPayload):
        body = _bytes_of(body)
    content = body if isinstance(body, bytes) else None
    return Request(request.method, request.url, request.headers, content or None)


def _content(data: object) -> bytes | None:
    """Return the bytes of a body that is in memory and can be sent again."""
    if isinstance(data, str):
        return data.encode()
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(cast("bytes", data))
    if isinstance(data, io.BytesIO):
        return None if data.closed else data.getvalue()[data.tell() :]
    if isinstance(data, BytesPayload):
        return _bytes_of(data)
    if data and is_plain_form(data):
        form = FormData(cast("Any", data))()
        return _bytes_of(form) if isinstance(form, BytesPayload) else None
    return None


def _bytes_of(payload: BytesPayload) -> bytes:
    # The only public way that does not wait; this encoding has each byte.
    return payload.decode("latin-1").encode("latin-1")

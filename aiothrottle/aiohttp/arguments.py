"""The arguments of a session: our options, and those passed on to an `aiohttp.ClientSession`."""

import inspect
from asyncio import AbstractEventLoop
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypedDict

from aiohttp import (
    BaseConnector,
    BasicAuth,
    ClientMiddlewareType,
    ClientRequest,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    ClientWebSocketResponse,
    HttpVersion,
    TraceConfig,
)
from aiohttp.abc import AbstractCookieJar
from aiohttp.typedefs import LooseCookies, LooseHeaders, StrOrURL

from aiothrottle._checks import check_names
from aiothrottle._http.options import Options, SessionOptions, names_of

_OF_AIOHTTP = frozenset(
    name
    for name, parameter in inspect.signature(ClientSession).parameters.items()
    if parameter.kind is not parameter.VAR_KEYWORD
)


class _ClientSessionArguments(TypedDict, total=False):
    """The arguments of `aiohttp.ClientSession`, for type checkers: those of the newest aiohttp.

    At run time those of the installed aiohttp count.
    """

    base_url: StrOrURL | None
    connector: BaseConnector | None
    loop: AbstractEventLoop | None
    cookies: LooseCookies | None
    headers: LooseHeaders | None
    proxy: StrOrURL | None
    proxy_auth: BasicAuth | None
    skip_auto_headers: Iterable[str] | None
    auth: BasicAuth | None
    json_serialize: Callable[[Any], str]
    json_serialize_bytes: Callable[[Any], bytes] | None
    request_class: type[ClientRequest]
    response_class: type[ClientResponse]
    ws_response_class: type[ClientWebSocketResponse]
    version: HttpVersion
    cookie_jar: AbstractCookieJar | None
    connector_owner: bool
    raise_for_status: bool | Callable[[ClientResponse], Awaitable[None]]
    read_timeout: float
    conn_timeout: float | None
    timeout: ClientTimeout
    auto_decompress: bool
    trust_env: bool
    requote_redirect_url: bool
    trace_configs: list[TraceConfig] | None
    read_bufsize: int
    max_line_size: int
    max_field_size: int
    max_headers: int
    fallback_charset_resolver: Callable[[ClientResponse, bytes], str]
    middlewares: Sequence[ClientMiddlewareType]
    ssl_shutdown_timeout: float | None


class SessionArguments(SessionOptions, _ClientSessionArguments, total=False):
    """The arguments of `ThrottledSession` and `throttled_session`: options, and aiohttp's."""


def read_arguments(
    function: Callable[..., object], given: Mapping[str, Any]
) -> tuple[Options, dict[str, Any]]:
    """Split the arguments of `function` into options and arguments of `aiohttp.ClientSession`.

    Raises:
        TypeError: A name is unknown to both, or an option is of a wrong type.
        ValueError: An option is out of range.
    """
    names = names_of(SessionOptions)
    named = {name for name in inspect.signature(function).parameters if name != "arguments"}
    check_names(
        function.__name__,
        names | _OF_AIOHTTP | named,
        given,
        elsewhere=", and aiohttp.ClientSession has none either",
    )
    options = Options(**{name: value for name, value in given.items() if name in names})
    return options, {name: value for name, value in given.items() if name not in names}

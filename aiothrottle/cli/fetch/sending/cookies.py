"""The cookies of a run: read from a file as browsers and curl write it, and kept in a jar."""

import math
import re
import time
from collections.abc import Iterable, Iterator
from http.cookies import Morsel
from typing import Any, NamedTuple, cast

from aiohttp import CookieJar
from yarl import URL

from aiothrottle.cli.fetch.reading.addresses import url_of

__all__ = ["Cookie", "jar_of", "read_cookies"]

_HTTP_ONLY = "#HttpOnly_"
_UNFIT = re.compile(r"[;\x00-\x1f\x7f]")


class Cookie(NamedTuple):
    """A cookie, and the URL of a server that could have set it."""

    url: URL
    morsel: "Morsel[str]"


def jar_of(cookies: Iterable[Cookie]) -> CookieJar:
    """Return a jar with these cookies, which adds no quotes. Needs a running loop."""
    # Unsafe are only cookies of servers without a name, such as 127.0.0.1.
    jar = CookieJar(unsafe=True, quote_cookie=False)
    for url, morsel in cookies:
        jar.update_cookies([(morsel.key, morsel)], url)
    return jar


def read_cookies(text: str) -> Iterator[Cookie]:
    """Yield the cookies of a file in Netscape's format, except those that have expired.

    Raises:
        ValueError: A line is no cookie. The error does not show it, as it may be a secret.
    """
    now = time.time()
    for number, line in enumerate(text.splitlines(), 1):
        content = line.removeprefix(_HTTP_ONLY)
        if not content.strip() or content.startswith("#"):
            continue
        try:
            cookie, expires = _cookie(content.split("\t"))
        except ValueError:
            raise ValueError(
                f"line {number} is no cookie in Netscape's format: domain, TRUE or FALSE, path, "
                "TRUE or FALSE, time, name and value, with tabs between them"
            ) from None
        if expires:  # 0: at the end of the session, and that may be this run
            cookie.morsel["max-age"] = str(int(expires - now))
        if not expires or expires > now:
            yield cookie


def _cookie(fields: list[str]) -> tuple[Cookie, float]:
    """Return the cookie of a line, and when it expires."""
    domain, subdomains, path, secure, expires, name, value = fields
    host = domain.removeprefix(".")
    morsel: Morsel[str] = Morsel()
    if not name or not math.isfinite(float(expires)) or _UNFIT.search(name + value):
        raise ValueError
    # `set` rejects names that servers use all the same, such as "version" and "a[b]".
    state = {"key": name, "value": value, "coded_value": value}
    cast("Any", morsel).__setstate__(state)  # public, but without a type
    morsel["path"] = path
    if _is_true(subdomains):
        morsel["domain"] = host
    if _is_true(secure):
        morsel["secure"] = True
    return Cookie(url_of(f"https://{host}/"), morsel), float(expires)


def _is_true(word: str) -> bool:
    if word not in {"TRUE", "FALSE"}:
        raise ValueError(word)
    return word == "TRUE"

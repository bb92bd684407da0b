"""Parses one line of a list of URLs. Pure."""

import re
from typing import NamedTuple

from yarl import URL

from aiothrottle.cli.output import without_credentials

#: Bytes. Most servers accept no more than 8,000.
LONGEST = 1 << 16

# Characters shown of a line that is no URL.
_SHOWN = 200
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_HTTP = re.compile(r"https?://([^/?#]*)", re.IGNORECASE)
# A host with an optional port: what may stand without a scheme. No credentials, which a guessed
# scheme would send in clear text, and which `without_credentials` would not find.
_BARE = re.compile(r"(?:[^\s/?#@:\[\]\\]+|\[[0-9a-f:.]+\])(?::[0-9]+)?(?=[/?#]|$)", re.IGNORECASE)
# A byte of a header that is not UTF-8, as aiohttp decodes it. yarl leaves it out.
_UNDECODED = re.compile("[\udc80-\udcff]")
_UNFIT = re.compile(r"[^\S ]|[\x00-\x1f\x7f]")
# What follows the host, if nothing in it has to be encoded (RFC 3986, appendix A).
_ENCODED = re.compile(
    r"[/?](?!/)(?:[\w.~:/?#\[\]@!$&'()*+,;=-]|%[0-9a-f]{2})*", re.ASCII | re.IGNORECASE
)


class Address(NamedTuple):
    """The URL of a line, or the problem with it."""

    #: The line without credentials. In the output, `--resume` identifies it by this text.
    shown: str
    url: URL | None
    problem: str | None = None


def read_address(line: bytes) -> Address | None:
    """Parse a line; return None if it is blank or a comment.

    >>> read_address(b" https://me:secret@example.org/ ").shown
    'https://***@example.org/'
    >>> read_address(b"example.org/a b").url
    URL('http://example.org/a%20b')
    >>> read_address(b"ftp://example.org").problem
    'is no URL: it does not begin with http:// or https://'
    """
    line = line.strip()
    if not line or line.startswith(b"#"):
        return None
    try:
        text = decoded(line, LONGEST)
        return Address(without_credentials(text), _url(text))
    except ValueError as error:
        return Address(_shown(line), None, without_credentials(str(error)))


def url_of(text: str) -> URL:
    """Parse an untrusted URL, and check that its host can be decoded.

    A byte that is not UTF-8 is encoded, as in a browser.

    Raises:
        ValueError: The text is no URL, or has no readable host.
    """
    text = _UNDECODED.sub(lambda byte: f"%{ord(byte[0]) & 0xFF:02X}", text)
    try:
        url = URL(text)
        _ = url.host  # decoded at its first use, and cached
    except (IndexError, OverflowError, UnicodeError):
        # yarl 1.25 raises IndexError for "http://[::1]:8.@", and Python up to 3.12 OverflowError
        # for "http://xn--le99999999999999es".
        raise ValueError("its host cannot be read") from None
    return url


def has_credentials(url: URL) -> bool:
    """Return whether a URL has a user or a password."""
    return url.raw_user is not None or url.raw_password is not None  # a token may have no user


def decoded(line: bytes, longest: int) -> str:
    """Return the text of a line.

    Raises:
        ValueError: It is longer than so many bytes, or is not in UTF-8.
    """
    if len(line) > longest:
        raise ValueError(f"is longer than {longest} bytes")
    try:
        return line.decode()
    except UnicodeDecodeError:
        raise ValueError("is not in UTF-8") from None


def _url(text: str) -> URL:
    """Parse a URL as curl does: without a scheme it is http, and spaces are encoded."""
    begin = _HTTP.match(text)
    if begin is None:
        if not _BARE.match(text):
            raise ValueError("is no URL: it does not begin with http:// or https://")
        text = f"http://{text}"
    elif " " in begin[1]:
        raise ValueError("is no URL: a space is in its host")
    if _UNFIT.search(text):
        raise ValueError("is no URL: a tab or a control character is in it")
    rest = _HTTP.sub("", text, count=1)
    try:
        url = url_of(text.replace(" ", "%20"))
        if _ENCODED.fullmatch(rest):  # yarl would decode some of it, which breaks a signature
            url = url.join(URL(rest, encoded=True))
        host = url.host
    except ValueError as error:
        # The error may quote a part of the password as the port.
        wrong = "its host or port cannot be read" if "@" in text else error
        raise ValueError(f"is no URL: {wrong}") from None
    if not host:
        raise ValueError("is no URL: it names no host")
    return url


def _shown(line: bytes) -> str:
    """Return the beginning of a line that is no URL, without a possible password."""
    text = line.decode(errors="backslashreplace")
    before, at, after = text.rpartition("@")
    if at:
        scheme = _SCHEME.match(before)
        text = f"{scheme[0] if scheme else ''}***@{after}"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"

"""The result of one URL, its identity, and its line of JSON. Pure."""

import asyncio
import base64
import codecs
import contextlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import TypeAlias

from aiothrottle._statuses import LEAST_ERROR
from aiothrottle.cli.output import without_credentials

Id: TypeAlias = str | int
"""What a line of JSON names itself."""

#: The beginning of every line. It distinguishes a line that a crash cut off from other data.
BEGINNING = b'{"url": "'

# Encoding a whole record as a dict takes more than twice as long.
_quoted = json.encoder.encode_basestring_ascii
# The codecs of text that take linear time. The server chooses one of all that Python has, and idna
# and punycode take a minute for a megabyte.
_TEXT_CODEC = re.compile(
    r"utf-(?:8|8-sig|(?:16|32)(?:-[bl]e)?)|ascii|iso8859-[0-9]+|cp[0-9]+|koi8-[rtu]|kz1048|ptcp154"
    r"|tis-620|hp-roman8|mac-[a-z]+|big5\w*|gb\w+|hz|johab|euc_\w+|shift_jis\w*|iso2022_\w+"
)


@dataclass(slots=True, kw_only=True)
class Record:
    """The result of one URL.

    Attributes:
        url: The URL in the list, without credentials.
        id: What the line in the list named itself; None: nothing.
        number: The number of the line in the whole list, if that identifies the request.
        status: The status of the last response; None: there was none.
        final_url: The URL after redirects, if any were followed.
        headers: The kept headers of the response; None: none are kept.
        body: The body of the response, unless it is in a file.
        charset: The charset that the response declares.
        file: The name of the file with the body.
        attempts: The number of attempts; a followed redirect is no attempt.
        waited: Seconds in the queue and before retries.
        error: Why there is no complete response.
    """

    url: str
    id: Id | None = None
    number: int | None = None
    status: int | None = None
    final_url: str | None = None
    headers: Mapping[str, str] | None = None
    body: bytes | None = None
    charset: str | None = None
    file: str | None = None
    attempts: int = 0
    waited: float = 0.0
    error: str | None = None

    @property
    def failed(self) -> bool:
        """Whether there is no response, or one with a status of an error."""
        return self.error is not None or self.status is None or self.status >= LEAST_ERROR

    @property
    def name(self) -> str:
        """The URL, with the id or the line if that identifies the request, for messages."""
        if self.id is not None:
            return f"{self.url} (id {self.id})".lstrip()
        return f"{self.url} (line {self.number})" if self.url and self.number else self.url

    def line(self) -> bytes:
        """Return the record as a line of JSON, in ASCII, so that it is safe for terminals."""
        status = "null" if self.status is None else self.status
        parts = [f'"url": {_quoted(self.url)}']
        if self.id is not None:
            parts.append(f'"id": {json.dumps(self.id)}')
        if self.number is not None:
            parts.append(f'"line": {self.number}')
        parts.append(f'"status": {status}')
        if self.final_url is not None:
            parts.append(f'"final_url": {_quoted(self.final_url)}')
        if self.headers is not None:
            parts.append(f'"headers": {json.dumps(self.headers)}')
        if self.body is not None:
            parts.append(_body(self.body, self.charset))
        if self.file is not None:
            parts.append(f'"file": {_quoted(self.file)}')
        error = "null" if self.error is None else _quoted(self.error)
        parts.append(f'"attempts": {self.attempts}, "waited": {self.waited:.3f}, "error": {error}')
        return f"{{{', '.join(parts)}}}\n".encode()


def identity(url: str, own: Id | None, number: int | None) -> str:
    """Return the text by which `--resume` identifies a request: its id, its line or its URL."""
    if own is not None:
        return json.dumps({"id": own})
    return url if number is None else json.dumps({"line": number})


def digest(identity: str) -> bytes:
    """Return 16 bytes for an identity, which take less memory."""
    return blake2b(identity.encode(errors="surrogatepass"), digest_size=16).digest()


def described(error: BaseException) -> str:
    """Return why there is no complete response, without credentials."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, asyncio.CancelledError):
        return "aborted"
    return without_credentials(str(error) or type(error).__name__)


def _body(body: bytes, charset: str | None) -> str:
    """Return the body as text if it can be decoded, else in Base64."""
    with contextlib.suppress(LookupError, ValueError):
        codec = codecs.lookup(charset or "utf-8").name
        if _TEXT_CODEC.fullmatch(codec):
            return f'"body": {_quoted(body.decode(codec))}'
    return f'"body_base64": "{base64.b64encode(body).decode()}"'

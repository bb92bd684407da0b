"""What became of one URL, and the line of JSON that says so. Pure."""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["BEGINNING", "Record"]

#: How every line begins. By it, one that a crash has cut off is told from a stranger's.
BEGINNING = b'{"url": "'

# To give the encoder a whole record takes more than twice as long.
_quoted = json.encoder.encode_basestring_ascii


@dataclass(slots=True, kw_only=True)
class Record:
    """What became of one URL.

    Attributes:
        url: As it stood in the list, without credentials.
        status: Of the last response; None: there was none.
        final_url: Where redirects have led, if they have been followed.
        headers: Those that were asked for; None: none were asked for.
        body: What was answered, unless it went to a file.
        charset: In which the body says it is written.
        file: The name of the file that holds the body.
        attempts: How often it was asked for; a redirect that was followed is no attempt.
        waited: Seconds that it waited for its turn, or to be tried again.
        error: Why there is no answer, or none of use.
    """

    url: str
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
        """Whether it was not answered, or with a status that means an error."""
        return self.error is not None or self.status is None or self.status >= 400

    def line(self) -> bytes:
        """Write it as a line of JSON, in ASCII: nothing in it moves a terminal's cursor."""
        status = "null" if self.status is None else self.status
        said = [f'"url": {_quoted(self.url)}, "status": {status}']
        if self.final_url is not None:
            said.append(f'"final_url": {_quoted(self.final_url)}')
        if self.headers is not None:
            said.append(f'"headers": {json.dumps(self.headers)}')
        if self.body is not None:
            said.append(_body(self.body, self.charset))
        if self.file is not None:
            said.append(f'"file": {_quoted(self.file)}')
        error = "null" if self.error is None else _quoted(self.error)
        said.append(f'"attempts": {self.attempts}, "waited": {self.waited:.3f}, "error": {error}')
        return f"{{{', '.join(said)}}}\n".encode()


def _body(body: bytes, charset: str | None) -> str:
    """Give the body as text if it is one, and else so that no byte is lost."""
    try:
        return f'"body": {_quoted(body.decode(charset or "utf-8"))}'
    except (LookupError, ValueError):
        return f'"body_base64": "{base64.b64encode(body).decode()}"'

"""What became of one URL, and the line of JSON that says so. Pure."""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["BEGINNING", "Record"]

#: How every line begins. By it, one that a crash has cut off is told from a stranger's.
BEGINNING = b'{"url": "'


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
        said: dict[str, Any] = {"url": self.url, "status": self.status}
        if self.final_url is not None:
            said["final_url"] = self.final_url
        if self.headers is not None:
            said["headers"] = self.headers
        if self.body is not None:
            said |= _body(self.body, self.charset)
        if self.file is not None:
            said["file"] = self.file
        said |= {"attempts": self.attempts, "waited": round(self.waited, 3), "error": self.error}
        return json.dumps(said).encode() + b"\n"


def _body(body: bytes, charset: str | None) -> dict[str, str]:
    """Give the body as text if it is one, and else so that no byte is lost."""
    try:
        return {"body": body.decode(charset or "utf-8")}
    except (LookupError, ValueError):
        return {"body_base64": base64.b64encode(body).decode()}

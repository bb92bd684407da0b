"""One line of a list as a job: what to send and on which terms, or the problem with the line. Pure.

Each format of lists has a `Reader`; behind it there is one kind of job.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from yarl import URL

from aiothrottle.cli.fetch.reading.addresses import LONGEST, read_address
from aiothrottle.cli.fetch.reading.lines import Line
from aiothrottle.cli.fetch.results.record import Id, identity
from aiothrottle.hooks import Throttle

__all__ = ["Job", "ListError", "Reader", "Request", "UrlReader"]


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


class Reader(Protocol):
    """A format of lists."""

    @property
    def longest(self) -> int:
        """The most bytes of a line."""
        ...

    def read(self, line: Line) -> Job | None:
        """Parse a line; return None if it is blank or a comment.

        Raises:
            ListError: It is the first line, and of another format.
        """
        ...


@dataclass(frozen=True, slots=True)
class UrlReader:
    """Reads lines that are URLs, for which all else is the same.

    Attributes:
        method: The method of all requests.
        headers: The headers of all requests.
        data: The body of all requests.
    """

    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    data: bytes | None = None

    longest = LONGEST

    def read(self, line: Line) -> Job | None:
        """Parse a line; return None if it is blank or a comment."""
        if line.place == 1 and line.text.lstrip().startswith(b"{"):
            raise ListError("the list has JSON, not URLs: give it with --requests")
        address = read_address(line.text)
        if address is None:
            return None
        if address.url is None:
            return Job(address.shown, problem=address.problem)
        # Others may have the same URL with other credentials, which no output shows.
        has_credentials = address.url.raw_user is not None or address.url.raw_password is not None
        return Job(
            address.shown,
            Request(self.method, address.url, self.headers, self.data),
            number=line.place if has_credentials else None,
        )

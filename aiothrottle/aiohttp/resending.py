"""Switches off that aiohttp sends a request again by itself, which would take no token."""

from aiohttp import ClientSession

__all__ = ["without_resending"]


def without_resending(session: ClientSession) -> ClientSession:
    """Make the session send no request twice by itself, and return it.

    When a connection is cut, even a new one, aiohttp sends an idempotent request once more (RFC
    9112, section 9.3.1): a server that cuts all of them would get twice the limit. A `Retry`
    decides about retries instead.
    """
    # There is no public way.
    session._retry_connection = False  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    return session

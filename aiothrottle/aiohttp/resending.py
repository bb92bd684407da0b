"""What aiohttp does behind the back of whoever counts: it sends a request again by itself."""

from aiohttp import ClientSession

__all__ = ["without_resending"]


def without_resending(session: ClientSession) -> ClientSession:
    """Have the session send nothing twice by itself: nobody would have paid for it.

    When a connection is cut, a new one too, aiohttp sends an idempotent request once more (RFC
    9112, section 9.3.1): a server that cuts all of them would get twice the limit. Whether and when
    to try again is for a `Retry` to say.
    """
    # There is no public way.
    session._retry_connection = False  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    return session

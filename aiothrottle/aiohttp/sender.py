"""Sends for a session: waits for each attempt, holds its slot, and tries again when refused."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar, cast

import aiohttp
from aiohttp import ClientResponse, ClientSession, ClientTimeout, ClientWebSocketResponse
from aiohttp.typedefs import StrOrURL
from yarl import URL

from aiothrottle._http.admission import Admission, Target
from aiothrottle._http.attempts import Attempts, Outcome, failed
from aiothrottle._http.options import Options
from aiothrottle.aiohttp.body import Body
from aiothrottle.aiohttp.lease import Leases
from aiothrottle.aiohttp.resending import without_resending
from aiothrottle.aiohttp.response import (
    FAILURES,
    SWITCHING_PROTOCOLS,
    discard,
    hear,
    is_certain,
    is_failure,
    is_plain,
    judged,
    origin_of,
    trusts_successes,
)
from aiothrottle.permit import Permit, report_answer

__all__ = ["Sender"]

_Result = TypeVar("_Result", bound="ClientResponse | ClientWebSocketResponse[bool]")

# aiohttp rounds its own time-outs up to a whole second.
_GRACE = 1.0


class Sender:
    """What a `ThrottledSession` sends with, and `aiothrottle fetch`, whatever the request is.

    Args:
        session: The session, or the arguments for one: it is made when it is first needed, as that
            needs a running loop, and closed by `close`.
        admission: Whom to wait for, and what is done about refusals.
        options: For how long responses and websockets hold their slots.
        owns_session: Whether a session that is given is closed by `close` too.
    """

    __slots__ = (
        "_arguments",
        "_failures",
        "_hold_websockets",
        "_leases",
        "_max_hold",
        "_owns_session",
        "_retry",
        "_session",
        "_trusting",
        "admission",
    )

    def __init__(
        self,
        session: ClientSession | Mapping[str, Any],
        admission: Admission,
        options: Options,
        *,
        owns_session: bool = False,
    ) -> None:
        self.admission: Admission = admission
        self._retry = admission.retry
        self._trusting = trusts_successes(self._retry)
        self._failures = FAILURES if self._retry.exceptions is None else self._retry.exceptions
        self._leases = Leases()
        self._max_hold = options.max_hold
        self._hold_websockets = options.hold_websockets
        self._owns_session = owns_session
        self._session: ClientSession | None = None
        self._arguments: Mapping[str, Any] | None = None
        if isinstance(session, ClientSession):
            self._session = without_resending(session)
        else:
            self._arguments = session
            self._owns_session = True

    @property
    def session(self) -> ClientSession:
        """The session that sends."""
        if self._session is None:
            self._session = without_resending(ClientSession(**(self._arguments or {})))
        return self._session

    async def close(self) -> None:
        """Close the session that sends, if it is owned. The limiter stays as it is."""
        if self._owns_session:
            await self.session.close()  # made here if it never was: then it is closed for good

    async def send(
        self,
        method: str,
        url: StrOrURL,
        send: Callable[[ClientSession], Awaitable[_Result]],
        timeout: object = None,
        body: Body | None = None,
    ) -> _Result:
        """Send until it ends well, or is not to be sent again."""
        admission = self.admission
        key, limiter = admission.only or self._target(method, url)
        server = None if admission.overloads is None else self._server(url)
        announcements = admission.announcements
        attempts: Attempts | None = None
        outcome: Outcome[Any] | None = None
        while True:
            permit = await admission.enter(limiter, server, outcome)
            try:
                response = await send(self.session)
            except Exception as error:
                permit.release()
                if (failure := self._failed(error, server)) is None:
                    raise
                outcome = failure
            except BaseException:
                permit.release()
                raise
            else:
                self._hold(permit, response, timeout)
                if not isinstance(response, ClientResponse):
                    admission.answered(server, SWITCHING_PROTOCOLS)
                    return response
                if server is not None:
                    admission.answered(server, response.status)
                if self._trusting and announcements.has_none(response.status, response.headers):
                    report_answer(permit)
                    return response
                limits = hear(announcements, limiter, permit, response)
                if is_plain(self._retry, response.status, limits):
                    report_answer(permit)
                    return response
                outcome = await judged(self._retry, announcements, response, limits)
            attempts = attempts or Attempts(self._retry, method, admission.quota, key)
            delay = attempts.delay(outcome)
            # Also if this request is not tried again: its siblings would be refused as well.
            paused = admission.ended(permit, outcome, delay)
            replayable = body is None or body.is_replayable()
            if (
                delay is None
                or not replayable
                or not admission.again(attempts, permit, outcome, delay)
            ):
                attempts.ended(outcome)
                return cast("_Result", outcome.result())
            if outcome.response is not None:
                await discard(outcome.response)
            # Nothing is held meanwhile. Where the limiter is paused, that is the wait.
            if not paused:
                await asyncio.sleep(delay)

    def _failed(self, error: Exception, server: str | None) -> Outcome[Any] | None:
        """Tell how an attempt ended that raised an error; None if that is the last word."""
        if isinstance(error, aiohttp.ClientResponseError):  # as raise_for_status asks for
            self.admission.answered(server, error.status)
            host = error.request_info.url.raw_host or ""
            limits = self.admission.announcements.read(host, error.status, error.headers or ())
            return failed(error, error.status, limits)
        if is_failure(error):
            self.admission.failed(server)
        if isinstance(error, self._failures) and not is_certain(self._retry, error):
            return failed(error)
        return None

    def _target(self, method: str, url: StrOrURL) -> Target:
        return self.admission.target(method, self._absolute(url))

    def _server(self, url: StrOrURL) -> str:
        return origin_of("", self._absolute(url))

    def _absolute(self, url: StrOrURL) -> URL:
        try:
            url = URL(url)
        except ValueError as error:
            raise aiohttp.InvalidUrlClientError(url) from error  # as aiohttp says it
        if not url.absolute:
            # There is no public way to ask a session for its base_url.
            base: URL | None = getattr(self.session, "_base_url", None)
            url = url if base is None else base.join(url)
        return url

    def _hold(
        self,
        permit: Permit,
        response: "ClientResponse | ClientWebSocketResponse[bool]",
        timeout: object,
    ) -> None:
        """Release the permit when the response ends, whichever way it ends."""
        if isinstance(response, ClientResponse):
            if response.connection is None:  # the whole body came with the headers
                permit.release()
            else:
                self._leases.hold(permit, response, self._longest_hold(timeout))
            return
        # There is no public way from a websocket to its connection.
        handshake: ClientResponse | None = getattr(response, "_response", None)
        if self._hold_websockets and handshake is not None:
            self._leases.hold(permit, handshake, self._max_hold)
        else:
            permit.release()

    def _longest_hold(self, timeout: object) -> float | None:
        if self._max_hold is not None:
            return self._max_hold
        if not isinstance(timeout, ClientTimeout):
            timeout = self.session.timeout
        return timeout.total + _GRACE if timeout.total else None

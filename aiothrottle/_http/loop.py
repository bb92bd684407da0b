"""The retry loop: the only place where attempts are made, judged, delayed and ended.

`ThrottledSession`, both middlewares, both transports and ``aiothrottle fetch`` share it; an
`Adapter` does what differs between HTTP clients. One turn of the loop, and the effect of a
cancellation at each await:

0. Before the first attempt, buffer the body, if that is wanted and needed, and call the hooks:
   `key`, `cost`, `priority`. Cancelled, or if a hook raises: nothing was taken.
1. Wait for the limiter. Cancelled: the request has left the queue and took nothing.
2. Send, and have the response hold the permit. Cancelled, or if it raises: the permit is released.
3. Parse the headers, and call `settle`. No await; if `settle` raises, a throttled request is
   reported, and the response closed, which releases the permit.
4. Read a short body that may report more; call `Retry.should_retry`. Cancelled, or if it raises:
   the response is closed, which releases the permit.
5. Report the outcome to the limiter, which pauses if the server throttled. No await.
6. Return the response or raise the exception. If there is another attempt, discard the response and
   sleep instead. Cancelled: the adapter releases the permit all the same; asleep, it holds none.

An exception of step 2 is handled by the first line that applies:

- A `ThrottleError`, of a limiter further in: raised, with the attempt before as its cause.
- A cancellation, or any other that is no `Exception`: raised.
- One that stands for a response (`Failure.response`): handled as a response of that status.
- One of `Retry.exceptions` or, where that is None, one that is `Failure.retryable`: retried if the
  method can be repeated, and raised after the last attempt.
- Any other: raised.

Adaptive throttling counts `Failure.unanswered` in each of these cases, and the limiter gets a
failure.

A response is handled by the first line that applies:

- 101, or one that neither the server nor the `Retry` has a rule for: reported, and returned.
- `should_retry` returned True, or returned None and the server throttled: reported as throttled,
  and retried with any method, but a 429 or 503 only if it is in `Retry.statuses`, and a 503 without
  Retry-After only if the method can be repeated. So is a 403 without a report of limits in a run of
  failures that the limiter takes for a limit.
- Its status is in `Retry.statuses`, and `should_retry` did not return False: reported, and retried
  if the method can be repeated.
- Any other: reported, and returned.

Reported is a status from 500 on as a failure, any other as a success.

When no attempts or no retry budget are left, the wait would exceed `Retry.max_retry_after`, or the
body cannot be sent again, the last response is returned.
"""

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import AbstractContextManager
from types import EllipsisType
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from aiothrottle._core.feedback import PauseRule
from aiothrottle._http.options import Options
from aiothrottle._http.origins import Origins
from aiothrottle._http.terms import Admission, LimiterLike, Settlement, Terms
from aiothrottle._statuses import (
    AMBIGUOUS,
    FORBIDDEN,
    LEAST_ERROR,
    LEAST_FAILURE,
    SERVICE_UNAVAILABLE,
    SWITCHING_PROTOCOLS,
)
from aiothrottle.errors import AttemptThrottled, ThrottleError
from aiothrottle.headers import ServerLimits
from aiothrottle.hooks import Request as HookRequest
from aiothrottle.keyed import KeyedRateLimiter
from aiothrottle.permit import Permit
from aiothrottle.retry import PLAINLY_THROTTLED, RetryQuota
from aiothrottle.server_limits import apply_limits

_logger = logging.getLogger("aiothrottle")

# ---- what the loop needs of an HTTP client -------------------------------------------------------

# Bytes and seconds. The body of a discarded response is read up to these, which keeps its
# connection; reading a longer one costs more than a new connection.
SHORT_BODY = 1 << 16
SHORT_TIME = 1.0


def is_short(headers: Mapping[str, str], *, as_sent: bool = False) -> bool:
    """Return whether a body is short, also when it is decompressed, unless it is read `as_sent`."""
    if not as_sent and "Content-Encoding" in headers:
        return False
    try:
        return int(headers.get("Content-Length", "")) <= SHORT_BODY
    except ValueError:
        return False


def lacks_files(error: BaseException) -> bool:
    """Return whether no connection was made as this machine has too many files open."""
    return isinstance(error, OSError) and error.errno in {errno.EMFILE, errno.ENFILE}


class Request(Protocol):
    """The part of a request that the loop reads."""

    @property
    def method(self) -> str:
        """The method, in capitals."""
        ...


class Failure(NamedTuple):
    """What an exception means that the client raised in place of a response."""

    #: Whether it is retried where `Retry.exceptions` is None.
    retryable: bool = False
    #: Whether the server did not answer, or not in time: adaptive throttling counts a failure.
    unanswered: bool = False
    #: Host, status and headers of the response that it stands for.
    response: tuple[str, int, Mapping[str, str]] | None = None


_Request = TypeVar("_Request", bound=Request)
_Request_contra = TypeVar("_Request_contra", bound=Request, contravariant=True)
_Response = TypeVar("_Response")


class Adapter(Protocol[_Request_contra, _Response]):
    """Translates the requests, responses and exceptions of one client.

    An adapter decides nothing about retries or pauses. None of its methods waits for a limiter, and
    each that awaits leaves no slot held when it is cancelled.
    """

    def origin(self, request: _Request_contra, /) -> str:
        """Return the server of a request: its host in DNS, with any port but the usual one."""
        ...

    def is_replayable(self, request: _Request_contra, response: _Response | None = None, /) -> bool:
        """Return whether another attempt would do the same, and send the same body.

        The loop calls it after each attempt, as some bodies are consumed unnoticed.

        Args:
            request: The request.
            response: The response to the attempt, if there was one.
        """
        ...

    async def buffer(self, request: _Request_contra, /) -> None:
        """Read a body that can be sent only once into memory, if that makes it replayable."""
        ...

    def classify(self, error: Exception) -> Failure:
        """Return what an exception of the client means."""
        ...

    def receive(
        self, request: _Request_contra, response: _Response, permit: Permit | None, /
    ) -> tuple[int, Mapping[str, str]]:
        """Return status and headers, and have the response hold the permit until it ends."""
        ...

    def view(self, request: _Request_contra, /) -> HookRequest:
        """Return what a hook sees of a request that was not sent yet; nothing is consumed."""
        ...

    def follow(self, response: _Response, settlement: Settlement, /) -> None:
        """Feed the body to the settlement, as it is read, and end it when the body ends."""
        ...

    def host(self, response: _Response) -> str:
        """Return the host that sent the response, by which its profile is found."""
        ...

    async def read_body(self, response: _Response, *, unsized: bool) -> bytes | None:
        """Return a short body, which the caller can read once more; None if it is not short.

        Args:
            response: The response, unread.
            unsized: Whether a compressed body, or one of unknown length, is read too, as far as
                it is short. The caller is going to read it, so it may take its time.
        """
        ...

    def replayed(self, response: _Response) -> AbstractContextManager[_Response]:
        """Return what `Retry.should_retry` gets: the caller can still read the whole body."""
        ...

    async def close(self, response: _Response) -> None:
        """Close a response that is not returned, also if this is cancelled."""
        ...

    async def discard(self, response: _Response) -> None:
        """Close a response that is followed by another attempt, also if this is cancelled.

        A short body is read first, which keeps the connection.
        """
        ...

    async def prepare_again(self, request: _Request_contra, /) -> None:
        """Make a request ready for another attempt, after the delay."""
        ...


# ---- one attempt ---------------------------------------------------------------------------------


class Outcome(NamedTuple, Generic[_Response]):
    """How one attempt ended: with a response, or with an error, which may have a status too."""

    response: _Response | None
    error: Exception | None
    #: None: the server did not answer.
    status: int | None = None
    #: Seconds that the server asked for.
    retry_after: float | None = None
    #: Whether the server throttled the request: it did nothing, and other requests wait too.
    throttled: bool = False
    #: Whether it is retried, with any method; None: the `Retry` decides by the status.
    verdict: bool | None = None
    #: Seconds for which the limiter is paused because of it, and so delays the next attempt; 0:
    #: the attempt has to wait by itself.
    paused: float = 0.0

    def result(self) -> _Response:
        """Return the response, or raise the error."""
        if self.response is None:
            assert self.error is not None
            raise self.error
        return self.response


def chain(error: ThrottleError, outcome: Outcome[Any] | None) -> None:
    """Make the outcome of an attempt the cause of an error that prevents the next one.

    Not its response, which would hold a slot: that is discarded before the next attempt.
    """
    if outcome is None or error.__cause__ is not None:
        return
    cause = outcome.error
    if cause is None and outcome.status is not None:
        cause = AttemptThrottled(outcome.status, outcome.retry_after)
    error.__cause__ = cause


# ---- the loop ------------------------------------------------------------------------------------


class RetryLoop(Generic[_Request, _Response]):
    """Sends the requests of one integration.

    Args:
        adapter: Translates for the client.
        options: The options of the integration. Adaptive throttling and, without a limiter, the
            retry budget are per server.
        limiter: As for `Admission`.
        on_grant: Called with each request and its permit; it may raise, and nothing is sent.
        inner_permit: Returns the permit that a request got further in, if it got one: the limiter
            of that emits the events of retries.
        known_terms: Of requests that may come again, the terms, unless these are the usual ones:
            their hooks were called before, or they were throttled.

    Raises:
        TypeError: `limiter` is of a wrong type.
        ValueError: It is no rate limit; or the options have a `key`, and the limiter has no keys.
    """

    def __init__(
        self,
        adapter: Adapter[_Request, _Response],
        options: Options,
        limiter: LimiterLike | EllipsisType = ...,
        *,
        on_grant: Callable[[_Request, Permit], None] | None = None,
        inner_permit: Callable[[_Request], Permit | None] | None = None,
        known_terms: MutableMapping[_Request, Terms] | None = None,
    ) -> None:
        retry = options.retry
        self.options: Options = options
        self._adapter = adapter
        #: Finds the limiter of a request, and calls the hooks.
        self.admission: Admission = Admission(limiter, options, adapter.origin, adapter.view)
        self._retry = retry
        self._pause_rule = PauseRule(
            retry.pause_jitter, retry.max_pause, retry.backoff, retry.max_backoff
        )
        self._origins = Origins(options.profiles, options.adaptive_throttling)
        self._retry_quota = None if retry.budget is None else RetryQuota(retry.budget)
        # Whether the policy has no rule for a response below 400.
        judges_all = retry.should_retry is not None or retry.budget is not None
        ruled = {*retry.statuses, *retry.throttled_statuses}
        self._trusting = not judges_all and all(it >= LEAST_ERROR for it in ruled)
        self._on_grant = on_grant
        self._inner_permit = inner_permit
        self._known_terms = known_terms

    async def run(
        self,
        request: _Request,
        send: Callable[[_Request], Awaitable[_Response]],
        throttle: object = None,
        made: int = 0,
    ) -> _Response:
        """Send a request until an attempt succeeds or must not be retried.

        Args:
            request: The request.
            send: Makes one attempt. Cancelled, it leaves no connection in use.
            throttle: The `Throttle` of the request, as the caller gave it; None: none.
            made: The attempts before this call, which count too: their bodies were cut off.

        Returns:
            The response to the last attempt.

        Raises:
            ThrottleError: The limiter's.
            TypeError: A hook returned, or `throttle` has, a value of a wrong type.
            ValueError: The same with a value out of range.
            Exception: What the client raised in the last attempt; what a hook or `should_retry`
                raised.
        """
        adapter, origins, retry = self._adapter, self._origins, self._retry
        if self.options.buffer_body and not adapter.is_replayable(request):
            await adapter.buffer(request)
        terms = self._known_terms.get(request) if self._known_terms else None
        if terms is None and throttle is None:
            terms = self.admission.usual
        if terms is None:
            terms = self.admission.terms(request, throttle)
            if self._known_terms is not None:
                self._known_terms[request] = terms
        server = adapter.origin(request) if self.options.adaptive_throttling else None
        permit: Permit | None = None
        outcome: Outcome[_Response] | None = None
        delay, paid = 0.0, 0.0
        while True:
            made += 1
            try:
                if server is not None:
                    origins.check(server)
                limiter = terms.limiter
                if isinstance(limiter, KeyedRateLimiter):
                    limiter = limiter[terms.key]  # anew, as `merge` may have moved the key
                if limiter is not None:
                    permit = await limiter.throttle(
                        terms.cost, terms.priority, terms.timeout
                    ).__aenter__()
            except ThrottleError as error:
                chain(error, outcome)
                raise
            try:
                if self._on_grant is not None and permit is not None:
                    self._on_grant(request, permit)
                response = await send(request)
                status, headers = adapter.receive(request, response, permit)
            except BaseException as error:
                try:
                    failed = self._fail(error, server, permit, terms)
                finally:
                    if permit is not None:
                        permit.release()
                if failed is None:
                    if isinstance(error, ThrottleError):  # of a limiter further in
                        chain(error, outcome)
                    raise
                outcome = failed
            else:
                if server is not None:
                    origins.ended(server, status)
                if permit is not None and permit._engine.semaphore.filled_by is not None:
                    permit._hand_over()
                # Most responses have a status without a rule, and no header about limits: only the
                # names are looked at.
                if (
                    self._trusting
                    and status < LEAST_ERROR
                    and terms.settle is None
                    and not origins.watched_until
                    and not origins.may_report(tuple(headers))
                ):
                    if permit is not None:
                        permit._report_answer()
                    return response
                outcome = await self._judge(response, status, headers, permit, terms)
            if outcome.throttled:
                terms = terms.after_throttled()
                if self._known_terms is not None:
                    self._known_terms[request] = terms
            again_in = retry.next_delay(
                made,
                request.method,
                status=outcome.status,
                retry_after=outcome.retry_after,
                throttled=outcome.verdict,
                previous=delay,
            )
            if again_in is None or not adapter.is_replayable(request, outcome.response):
                self._refund(terms, outcome, paid)
                return outcome.result()
            if self._retry_quota is not None:
                cost = self._retry_quota.pay(terms.key, throttled=outcome.throttled)
                if cost is None:
                    return outcome.result()
                paid = cost
            delay = again_in
            emits = permit or (self._inner_permit and self._inner_permit(request))
            if emits is not None:
                seconds = outcome.paused or delay
                emits._engine.observers.retried(made + 1, seconds, outcome.status, outcome.error)
            if outcome.response is not None:
                await adapter.discard(outcome.response)
            if not outcome.paused:
                await asyncio.sleep(delay)
            await adapter.prepare_again(request)

    def _fail(
        self, error: BaseException, server: str | None, permit: Permit | None, terms: Terms
    ) -> Outcome[Any] | None:
        """Return the outcome of an attempt that raised; None if the exception is to be raised."""
        if isinstance(error, ThrottleError):  # a limiter has waited as long as it may
            return None
        if not isinstance(error, Exception):
            if permit is not None:
                permit._pass_on()
            return None
        failure = self._adapter.classify(error)
        if failure.response is not None:
            host, status, headers = failure.response
            if server is not None:
                self._origins.ended(server, status)
            limits, _ = self._origins.read(host, status, headers)
            try:
                if permit is not None and terms.settle is not None:
                    settlement = terms.settle_head(status, headers, permit)
                    if settlement is not None:
                        settlement.end(complete=False)
            finally:  # a 429 is reported for the others, whatever becomes of this one
                self._apply(limits, permit)
                outcome = self._decide(host, status, limits, permit, error=error)
            return outcome
        if failure.unanswered:
            if server is not None:
                self._origins.ended(server, None)
            if permit is not None:
                permit._report_failure(None, self._pause_rule)
        exceptions = self._retry.exceptions
        retried = failure.retryable if exceptions is None else isinstance(error, exceptions)
        return Outcome(None, error) if retried else None

    async def _judge(
        self,
        response: _Response,
        status: int,
        headers: Mapping[str, str],
        permit: Permit | None,
        terms: Terms,
    ) -> Outcome[_Response]:
        """Return the outcome of an attempt with a response, whose whole body stays readable."""
        adapter, should_retry = self._adapter, self._retry.should_retry
        host = adapter.host(response)
        limits = ServerLimits()
        # An open websocket is a success.
        verdict = False if status == SWITCHING_PROTOCOLS else None
        try:
            limits, reads_body = self._origins.read(host, status, headers)
            if permit is not None and terms.settle is not None:
                settlement = terms.settle_head(status, headers, permit)
                if settlement is not None:
                    adapter.follow(response, settlement)
            self._apply(limits, permit)
            if permit is not None:
                permit._hold_trial()
            if reads_body is not None:
                try:
                    body = await adapter.read_body(response, unsized=reads_body)
                except Exception as error:
                    if not adapter.classify(error).unanswered:
                        raise
                    # The response is not returned any more, as its body cannot be read.
                    return self._decide(host, status, limits, permit, error=error, lost=True)
                if body is not None:
                    limits, _ = self._origins.read(host, status, headers, body)
                    self._apply(limits, permit)
            if should_retry is not None and verdict is None:
                with adapter.replayed(response) as seen:
                    answer = should_retry(seen)
                    answer = await answer if isinstance(answer, Awaitable) else answer
                    # Functions return other values too, such as a match or a header.
                    verdict = None if answer is None else bool(answer)
            return self._decide(host, status, limits, permit, verdict, response=response)
        except BaseException:
            try:
                if limits.throttled:  # for the others, whatever becomes of this one
                    self._decide(host, status, limits, permit)
                elif permit is not None:
                    permit._pass_on()
            finally:  # an algorithm of the user may fail
                await adapter.close(response)
            raise

    def _apply(self, limits: ServerLimits, permit: Permit | None) -> None:
        """Apply the reported limits to the limiter of the request, if it has one."""
        if permit is not None and (
            limits.remaining is not None or limits.limit is not None or limits.policies
        ):
            apply_limits(permit, limits, self.options.server_quota, self._retry.max_pause)

    def _decide(
        self,
        host: str,
        status: int,
        limits: ServerLimits,
        permit: Permit | None,
        verdict: bool | None = None,
        *,
        response: _Response | None = None,
        error: Exception | None = None,
        lost: bool = False,
    ) -> Outcome[_Response]:
        """Decide whether the server throttled a request, and report its answer to the limiter.

        Args:
            host: The host that answered.
            status: The status of its answer.
            limits: What the answer reports.
            permit: The permit of the attempt, if it has one.
            verdict: What `Retry.should_retry` returned.
            response: The answer, if it is to be returned.
            error: What is to be raised in its place.
            lost: Whether its body was lost.
        """
        origins, rule = self._origins, self._pause_rule
        throttled, wait, paused = verdict, limits.wait, 0.0
        if throttled is None:
            throttled = self._retry.is_throttled(status, reported=limits.throttled)
            if status == SERVICE_UNAVAILABLE and not throttled:
                throttled = origins.throttles_by_503(host)
            # One with a report of limits would say that it is throttled.
            is_bare = limits.remaining is None and limits.limit is None and not limits.policies
            if status == FORBIDDEN and is_bare and not throttled and permit is not None:
                throttled = permit._report_failure(status, rule)
            # A 403 with a Retry-After, for example. The policy recognises the plain ones itself.
            if throttled and status not in PLAINLY_THROTTLED:
                verdict = True
        if status in AMBIGUOUS or origins.watched_until:
            self._count(host, status, permit, throttled=throttled)
        if permit is not None:
            if throttled:
                paused = permit._report_pause(wait, rule, everywhere=limits.is_global)
                if wait is not None and wait > self._retry.max_pause:
                    paused = 0.0  # the pause was cut short
            elif lost or status >= LEAST_FAILURE:
                permit._report_failure(status, rule)
            elif status != FORBIDDEN or permit._is_first_report():  # else a run of them is reported
                permit._report_answer()
        return Outcome(response, error, status, wait, throttled, verdict, paused)

    def _count(self, host: str, status: int, permit: Permit | None, *, throttled: bool) -> None:
        """Warn once for each host that seems to throttle by a status that does not count so."""
        found = self._origins.count(host, status, throttled=throttled)
        if found is None or permit is None:
            return
        throttles = sorted(found.statuses | {*self._retry.throttled_statuses})
        _logger.warning(
            "%.200r answered %.0f %% of the requests of a minute with %s, which does not count as "
            "throttled; if it throttles so, write Retry(throttled_statuses=%s)",
            host,
            100.0 * found.part,
            " and ".join(map(str, sorted(found.statuses))),
            f"{{{', '.join(map(str, throttles))}}}",
        )
        permit._engine.observers.suspected(host, found.statuses, found.part)

    def _refund(self, terms: Terms, outcome: Outcome[Any], paid: float) -> None:
        """Refund the budget if the last attempt, which cost `paid`, succeeded."""
        if self._retry_quota is None or outcome.throttled or outcome.status is None:
            return
        if outcome.status not in self._retry.statuses:
            self._retry_quota.refund(terms.key, paid)

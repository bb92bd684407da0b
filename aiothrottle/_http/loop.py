"""The retry loop: the only place where attempts are made, judged, delayed and ended.

`ThrottledSession`, both middlewares, both transports and ``aiothrottle fetch`` share it; an
`Adapter` does what differs between HTTP clients. One turn of the loop, and the effect of a
cancellation at each await:

0. Before the first attempt, call the hooks: `key`, `cost`, `priority`. If one raises, nothing was
   taken. No await.
1. Wait for the limiter. Cancelled: the request has left the queue and took nothing.
2. Send. Cancelled, or if it raises: the permit is released.
3. Have the response hold the permit, call `settle`, and parse the headers. No await; if `settle`
   raises, the response is closed, which releases the permit.
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
  and retried with any method.
- Its status is in `Retry.statuses`, and `should_retry` did not return False: reported, and retried
  if the method can be repeated.
- Any other: reported, and returned.

Reported is a status from 500 on as a failure, any other as a success.

When no attempts or no retry budget are left, the wait would exceed `Retry.max_retry_after`, or the
body cannot be sent again, the last response is returned.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Generic, TypeVar

from aiothrottle._core.feedback import PauseRule
from aiothrottle._http.adapter import Adapter, Request
from aiothrottle._http.admission import Admission, Target
from aiothrottle._http.attempts import Attempts, Outcome, chain, failed, judge
from aiothrottle._http.hooking import Hooking, Terms
from aiothrottle._http.options import Options
from aiothrottle._http.origins import OriginThrottling, Suspicion, Unavailable
from aiothrottle._http.quotas import ServerQuotas
from aiothrottle._http.settlement import Settlement, settle_head
from aiothrottle.errors import ThrottleError
from aiothrottle.headers import ServerLimits
from aiothrottle.limiter import RateLimiter
from aiothrottle.permit import ONE, Permit
from aiothrottle.retry import Retry, RetryQuota

__all__ = ["RetryLoop"]

_SWITCHING_PROTOCOLS = 101
_LEAST_ERROR, _LEAST_FAILURE = 400, 500

_logger = logging.getLogger("aiothrottle")

_Request = TypeVar("_Request", bound=Request)
_Response = TypeVar("_Response")


class RetryLoop(Generic[_Request, _Response]):
    """Sends the requests of one integration.

    Args:
        adapter: Translates for the client.
        options: The options of the integration.
        origin: Returns the server of a request, by its method and URL. Adaptive throttling and,
            without an admission, the retry budget are per server.
        admission: Finds the limiter of a request. None: an integration further in waits, if any.
        on_grant: Called with each request and its permit.
        inner_permit: Returns the permit that a request got further in, if it got one: the limiter
            of that emits the events of retries.
        known_terms: The terms of requests that may come again, whose hooks were called before.
    """

    def __init__(
        self,
        adapter: Adapter[_Request, _Response],
        options: Options,
        origin: Callable[[str, Any], str],
        admission: Admission | None = None,
        *,
        on_grant: Callable[[_Request, Permit], None] | None = None,
        inner_permit: Callable[[_Request], Permit | None] | None = None,
        known_terms: MutableMapping[_Request, Terms] | None = None,
    ) -> None:
        retry, algorithm = options.retry, options.adaptive_throttling
        self._adapter = adapter
        self._origin = origin
        self._hooking = (
            None if admission is None else Hooking[_Request](options, admission, adapter.view)
        )
        self._has_hooks = self._hooking is not None and self._hooking.has_hooks
        self._admission = admission
        self._retry = retry
        self._pause_rule = PauseRule(
            retry.pause_jitter, retry.max_pause, retry.backoff, retry.max_backoff
        )
        self._queue_timeout = options.queue_timeout
        self._quotas = ServerQuotas(options.server_quota, options.profiles, retry.max_pause)
        self._throttling = None if algorithm is None else OriginThrottling(algorithm)
        self._suspicion = Suspicion()
        self._unavailable = Unavailable()
        self._retry_quota = None if retry.budget is None else RetryQuota(retry.budget)
        # The target of all requests, if it is the same for all.
        nowhere = Target(None, None) if self._retry_quota is None else None
        self._only = nowhere if admission is None else admission.only
        # Whether the policy has a rule for every response; whether it has none for any below 400.
        self._judges_all = retry.should_retry is not None or retry.budget is not None
        ruled = {*retry.statuses, *retry.throttled_statuses}
        self._trusting = not self._judges_all and all(it >= _LEAST_ERROR for it in ruled)
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
        adapter = self._adapter
        plain = throttle is None and not self._has_hooks
        terms = None if plain else self._terms(request, throttle)
        key, limiter = self._only or self._target(request) if terms is None else terms.target
        server = None if self._throttling is None else self._origin(request.method, request.url)
        permit: Permit | None = None
        attempts: Attempts | None = None
        outcome: Outcome[_Response] | None = None
        priority = 0
        while True:
            replayable = adapter.is_replayable(request)
            if limiter is not None:
                permit = await (
                    limiter.throttle(ONE, 0, self._queue_timeout).__aenter__()
                    if server is None and outcome is None and terms is None  # a coroutine less
                    else self._enter(limiter, server, outcome, priority, terms)
                )
                if self._on_grant is not None:
                    self._on_grant(request, permit)
            try:
                response = await send(request)
            except BaseException as error:
                try:
                    failure = self._failure(error, server, outcome, permit, terms)
                finally:
                    if permit is not None:
                        permit.release()
                if failure is None:
                    raise
                outcome = failure
            else:
                head = adapter.receive(request, response, permit)
                if server is not None:
                    self._count(server, head[0])
                if terms is not None and permit is not None:
                    await self._settle(response, head, permit, terms)
                if (limits := self._read(response, head, permit)) is None:
                    return response
                outcome = await self._judge(response, head, limits, permit)
                outcome = self._weigh(adapter.host(response), outcome)
            attempts = attempts or Attempts(
                self._retry, request.method, self._retry_quota, key, made
            )
            if not await self._wait(request, permit, attempts, outcome, replayable):
                return outcome.result()
            # At the end of the queue it would be throttled anew after each pause, with all that
            # start at once, and use up its attempts.
            priority += outcome.throttled

    def _terms(self, request: _Request, throttle: object) -> Terms:
        """Return the terms of a request with hooks, or with a `Throttle` of its own."""
        assert self._hooking is not None  # without an admission there is no `throttle`
        if self._known_terms is not None and (known := self._known_terms.get(request)) is not None:
            return known
        terms = self._hooking.terms(request, request.method, request.url, throttle)
        if self._known_terms is not None:
            self._known_terms[request] = terms
        return terms

    def _target(self, request: _Request) -> Target:
        """Return the key and the limiter of a request; without an admission, its origin as key."""
        if self._admission is not None:
            return self._admission.target(request.method, request.url)
        return Target(self._origin(request.method, request.url), None)

    async def _enter(
        self,
        limiter: RateLimiter,
        server: str | None,
        before: Outcome[Any] | None,
        priority: int,
        terms: Terms | None,
    ) -> Permit:
        """Wait for the limiter, no longer than `queue_timeout`.

        Args:
            limiter: The limiter.
            server: The server, if requests to it may be dropped.
            before: The outcome of the attempt before, if there was one.
            priority: How often the request was throttled: it precedes those that were not.
            terms: The terms of the request; None: the default ones.

        Raises:
            RequestDropped: Adaptive throttling drops the request, which took no token.
        """
        try:
            if self._throttling is not None and server is not None:
                self._throttling.check(server)
            if terms is None:
                permit = limiter.throttle(priority=priority, timeout=self._queue_timeout)
            else:
                permit = limiter.throttle(terms.cost, priority + terms.priority, terms.timeout)
            return await permit.__aenter__()
        except ThrottleError as error:
            chain(error, before)
            raise

    def _failure(
        self,
        error: BaseException,
        server: str | None,
        before: Outcome[Any] | None,
        permit: Permit | None,
        terms: Terms | None,
    ) -> Outcome[Any] | None:
        """Return the outcome of an attempt that raised; None if the exception is to be raised."""
        if isinstance(error, ThrottleError):  # a limiter has waited as long as it may
            chain(error, before)
            return None
        if not isinstance(error, Exception):
            if permit is not None:
                permit._pass_on()
            return None
        failure = self._adapter.classify(error)
        if failure.response is not None:
            host, status, headers = failure.response
            self._count(server, status)
            if terms is not None and permit is not None:
                settlement = self._settle_head((status, headers), permit, terms)
                if settlement is not None:
                    settlement.end(complete=False)
            limits = self._quotas.parse(host, status, headers)
            if permit is not None:
                permit._hold_trial()
            return self._weigh(host, failed(self._retry, error, status, limits))
        if failure.unanswered:
            self._count(server, None)
            if permit is not None:
                permit._report_failure()
        exceptions = self._retry.exceptions
        retried = failure.retryable if exceptions is None else isinstance(error, exceptions)
        return failed(self._retry, error) if retried else None

    def _settle_head(
        self, head: tuple[int, Mapping[str, str]], permit: Permit, terms: Terms
    ) -> Settlement | None:
        """Call `settle`, if there is one; return the settlement that needs the body."""
        if self._hooking is None or self._hooking.settle is None or terms.request is None:
            return None
        return settle_head(self._hooking.settle, terms.request, *head, permit)

    async def _settle(
        self,
        response: _Response,
        head: tuple[int, Mapping[str, str]],
        permit: Permit,
        terms: Terms,
    ) -> None:
        """Settle an attempt, now or when its body ends; if `settle` raises, close the response."""
        try:
            settlement = self._settle_head(head, permit, terms)
            if settlement is not None:
                self._adapter.follow(response, settlement)
        except BaseException:
            await self._adapter.close(response)
            raise

    def _read(
        self,
        response: _Response,
        head: tuple[int, Mapping[str, str]],
        permit: Permit | None,
    ) -> ServerLimits | None:
        """Parse the headers of a response, which holds the permit from now on, and apply the quota.

        Returns:
            The reported limits. None: neither the server nor the policy has a rule for the
            response, and it is reported as a success.
        """
        status, headers = head
        if permit is not None and permit._engine.semaphore.filled_by is not None:
            permit._hand_over()
        if self._unavailable.hosts and status != Retry.SERVICE_UNAVAILABLE:
            self._unavailable.answered(self._adapter.host(response))
        if not (self._trusting and self._quotas.has_none(status, headers)):
            host = self._adapter.host(response)
            limits = self._quotas.parse(host, status, headers)
            self._quotas.apply(permit, limits)
            if status != _SWITCHING_PROTOCOLS and (  # an open websocket is a success
                self._judges_all
                or status in self._retry.statuses
                or status in self._retry.throttled_statuses
                or limits.throttled
                or self._quotas.body_may_report(host, status, headers, limits)
            ):
                if permit is not None:
                    permit._hold_trial()
                return limits
            if status >= _LEAST_ERROR and permit is not None:
                self._suspect(response, status, permit)
                if status >= _LEAST_FAILURE:
                    permit._report_failure(answered=True)
                    return None
        if permit is not None:
            permit._report_answer()
            if self._suspicion.tallies and status < _LEAST_ERROR:
                self._suspect(response, status, permit)
        return None

    def _weigh(self, host: str, outcome: Outcome[_Response]) -> Outcome[_Response]:
        """Return the outcome; a bare 503 is throttled if most answers of the host are such."""
        if (
            outcome.status != Retry.SERVICE_UNAVAILABLE
            or outcome.throttled
            or outcome.verdict is not None
        ):
            return outcome
        now = asyncio.get_running_loop().time()
        return outcome._replace(throttled=self._unavailable.throttles(host, now))

    def _suspect(
        self, response: _Response, status: int, permit: Permit, *, throttled: bool = False
    ) -> None:
        """Warn once for each host that seems to throttle by a status that does not count so."""
        host = self._adapter.host(response)
        now = asyncio.get_running_loop().time()
        found = self._suspicion.count(host, status, now, throttled=throttled)
        if found is None:
            return
        statuses, part = found
        _logger.warning(
            "%.200r answered %.0f %% of the requests of a minute with %s, which does not count as "
            "throttled; if it throttles so, write Retry(throttled_statuses=%s)",
            host,
            100.0 * part,
            " and ".join(map(str, sorted(statuses))),
            f"{{{', '.join(map(str, sorted(statuses | {*self._retry.throttled_statuses})))}}}",
        )
        permit._engine.observers.suspected(host, frozenset(statuses), part)

    async def _judge(
        self,
        response: _Response,
        head: tuple[int, Mapping[str, str]],
        limits: ServerLimits,
        permit: Permit | None,
    ) -> Outcome[_Response]:
        """Return the outcome of an attempt with a response, whose whole body stays readable."""
        adapter, retry = self._adapter, self._retry
        status, headers = head
        try:
            host = adapter.host(response)
            if self._quotas.body_may_report(host, status, headers, limits):
                unsized = self._quotas.reads_json(host, status, headers, limits)
                try:
                    body = await adapter.read_body(response, unsized=unsized)
                except Exception as error:
                    if not adapter.classify(error).unanswered:
                        raise
                    # The response is not returned any more, as its body cannot be read.
                    return failed(retry, error, status, limits)
                if body is not None:
                    limits = self._quotas.parse(host, status, headers, body)
                    self._quotas.apply(permit, limits)
            if retry.should_retry is None:
                return await judge(retry, response, status, limits)
            with adapter.replayed(response) as unread:
                outcome = await judge(retry, response, status, limits)
            return outcome._replace(response=unread())
        except BaseException:
            if permit is not None:
                permit._pass_on()
            await adapter.close(response)
            raise

    async def _wait(
        self,
        request: _Request,
        permit: Permit | None,
        attempts: Attempts,
        outcome: Outcome[_Response],
        replayable: bool,
    ) -> bool:
        """Report an outcome and wait for the next attempt; return False if there is none."""
        delay = attempts.delay(outcome)
        # Also if this request is not retried: the others would be throttled as well.
        paused = self._report(permit, outcome)
        if (
            delay is None
            or not (replayable and self._adapter.is_replayable(request))
            or not attempts.start_next(outcome, delay)
        ):
            attempts.finish(outcome)
            return False
        known = permit
        if known is None and self._inner_permit is not None:
            known = self._inner_permit(request)
        if known is not None:
            known._engine.observers.retried(attempts.count, delay, outcome.status, outcome.error)
        if outcome.response is not None:
            await self._adapter.discard(outcome.response)
        # No slot is held during the delay. A paused limiter delays the next attempt by itself.
        if not paused:
            await asyncio.sleep(delay)
        await self._adapter.prepare_again(request)
        return True

    def _count(self, server: str | None, status: int | None) -> None:
        """Count an attempt for adaptive throttling; a status of None is a failure."""
        if self._throttling is not None and server is not None:
            self._throttling.count(server, status)

    def _report(self, permit: Permit | None, outcome: Outcome[Any]) -> bool:
        """Report the outcome of an attempt to the limiter, unless it was reported already.

        Returns:
            Whether the limiter is paused because of this outcome.
        """
        if permit is None:
            return False
        if outcome.response is not None and outcome.status is not None:
            self._suspect(outcome.response, outcome.status, permit, throttled=outcome.throttled)
        if outcome.throttled:
            return permit._report_pause(
                outcome.retry_after or None,
                self._pause_rule,
                from_server=bool(outcome.retry_after),
                everywhere=outcome.everywhere,
            )
        if outcome.status is not None:
            if outcome.response is None or outcome.status >= _LEAST_FAILURE:
                permit._report_failure(answered=True)
            else:
                permit._report_answer()
        return False

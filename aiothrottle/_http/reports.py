"""Reports of integrations to the limiter of a request: its outcome, and what the server reported.

Invariant: only the first outcome of a permit counts.
"""

from collections.abc import Iterable

from aiothrottle import events
from aiothrottle._core import outcomes
from aiothrottle._core.feedback import PauseRule
from aiothrottle.amounts import REQUESTS
from aiothrottle.permit import Permit, is_first_report, report_answer, request_of
from aiothrottle.reported_quota import ReportedQuota

__all__ = [
    "PauseRule",
    "hold_trial",
    "infer_rate",
    "keep_to_quotas",
    "pass_on",
    "report_answer",
    "report_failure",
    "report_pause",
    "report_retry",
    "report_suspicion",
]


# ---- outcomes ------------------------------------------------------------------------------------


def report_pause(
    permit: Permit, seconds: float | None, rule: PauseRule, *, from_server: bool
) -> bool:
    """Report a throttled request, with the pause of a retry policy.

    Args:
        permit: The permit of the request.
        seconds: Duration of the pause. None: it doubles with each pause in a row.
        rule: How long pauses are.
        from_server: Whether the server sent the duration.

    Returns:
        Whether the limiter is now paused for `seconds`.
    """
    request = request_of(permit)
    return is_first_report(permit) and outcomes.report_throttled(
        request.entry, request.sent_at, seconds, rule, from_server=from_server
    )


def report_failure(permit: Permit, *, answered: bool = False) -> None:
    """Report a request that failed without being throttled: a 5xx, or no response.

    An adaptive number of slots learns from it.

    Args:
        permit: The permit of the request.
        answered: Whether there was a response, by which the server did not throttle.
    """
    if is_first_report(permit):
        entry, waiter, sent_at, *_ = request_of(permit)
        outcomes.report_failure(entry, waiter, entry.bucket.clock() - sent_at, answered=answered)


def hold_trial(permit: Permit) -> None:
    """Have others wait for the report of this request if it is the trial, not for its release."""
    request = request_of(permit)
    outcomes.hold_trial(request.entry, request.waiter)


def pass_on(permit: Permit) -> None:
    """Let another request go ahead of the others if this one was to, and was cancelled."""
    request = request_of(permit)
    request.entry.pass_on(request.waiter)


# ---- what the server reported --------------------------------------------------------------------


def keep_to_quotas(permit: Permit, quotas: Iterable[ReportedQuota], *, evenly: bool) -> None:
    """Keep to the reported quotas of the resources that the limiter has."""
    request = request_of(permit)
    engine = request.entry.engine
    for quota in quotas:
        if quota.resource == REQUESTS or quota.resource in engine.resources:
            outcomes.update_quota(
                engine,
                quota,
                sent_at=request.sent_at,
                cost=request.cost,
                held=request.held,
                evenly=evenly,
            )


def infer_rate(permit: Permit, quota: ReportedQuota) -> None:
    """Infer the rate of the server from the quotas of requests that it reports."""
    request = request_of(permit)
    engine = request.entry.engine
    engine.limits.infer(engine, request.sent_at, quota)


# ---- events --------------------------------------------------------------------------------------


def report_retry(
    permit: Permit,
    attempt: int,
    delay: float,
    *,
    status: int | None = None,
    error: Exception | None = None,
) -> None:
    """Emit `Retried`: the request is going to be retried.

    Args:
        permit: The permit of the request; it need not have been held.
        attempt: The number of the next attempt; the first one was 1.
        delay: Seconds until the next attempt.
        status: Status of the response; None: there was no response.
        error: Why there was no response; None: there was a response.
    """
    engine = request_of(permit).entry.engine
    if engine.observers.listeners:
        engine.observers.emit(events.Retried(engine.key, attempt, delay, status, error))


def report_suspicion(permit: Permit, host: str, statuses: frozenset[int], part: float) -> None:
    """Emit `ThrottlingSuspected`: these statuses do not count as throttled."""
    engine = request_of(permit).entry.engine
    if engine.observers.listeners:
        engine.observers.emit(events.ThrottlingSuspected(engine.key, host, statuses, part))

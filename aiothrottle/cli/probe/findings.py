"""What a probe has found, as lines of text and as a JSON document. Sends and prints nothing."""

from collections.abc import Iterator
from dataclasses import dataclass

from aiothrottle._checks import number
from aiothrottle.cli.document import rate_value
from aiothrottle.cli.probe.requests import Answer, Inquiry
from aiothrottle.cli.probe.search import LONGEST_WAIT, Search, Tried
from aiothrottle.cli.suggestion import Advice, Sighting
from aiothrottle.cli.table import fitted
from aiothrottle.cli.terminal import printable, without_credentials
from aiothrottle.headers import Policy, ServerLimits

__all__ = ["Findings"]

# The only status of a throttled response here that sessions do not count by themselves.
_FORBIDDEN = 403


@dataclass(slots=True)
class Findings:
    """The findings of a probe so far.

    Attributes:
        inquiry: The request.
        answer: The response to the first one.
        burst: What was observed until a request was throttled; None: it was not searched.
        tried: The last try of the search; None: there was none.
        advice: The limiter to use; None: no limit is known.
    """

    inquiry: Inquiry
    answer: Answer | None = None
    burst: Sighting | None = None
    tried: Tried | None = None
    advice: Advice | None = None

    # ---- as text

    def announcement(self, width: int | None) -> Iterator[str]:
        """Yield what the first response says, in lines of at most this width."""
        inquiry, answer = self.inquiry, self._answer
        vendor = f", read by the profile of {inquiry.profile.name}" if inquiry.profile else ""
        yield f"Status {answer.status}{vendor}."
        if answer.location is not None:
            target = without_credentials(answer.location)
            yield f"It redirects to {target}: you may want to probe that URL."
        limits = answer.limits
        if limits.throttled:
            when = "" if limits.retry_after is None else f", for {number(limits.retry_after, 6)} s"
            yield f"It throttles requests now{when}."
        policies = _policies(limits)
        yield "It reports:" if policies else "It reports no limit."
        if policies:
            indent = "  "
            room = None if width is None else width - len(indent)
            yield from (f"{indent}{line}" for line in fitted(_table(policies), room))

    def seen(self) -> Iterator[str]:
        """Yield what the burst has shown."""
        burst = self._burst
        many = f"{burst.admitted} requests in {burst.seconds:.2f} s"
        if not burst.throttled:
            yield f"It throttled none of {many}:"
            yield "the limit, if there is one, is above that."
            return
        wait = burst.retry_after
        after = "no Retry-After" if wait is None else f"Retry-After: {number(wait, 6)} s"
        yield f"It admitted {many}, then throttled one ({after})."
        if burst.status == _FORBIDDEN:
            yield f"By {burst.status}: a session waits then only if you give it"
            yield f"retry=Retry(throttled_statuses={{{burst.status}, 429, 503}})."

    def outcome(self, search: Search) -> Iterator[str]:
        """Yield the outcome of the search."""
        burst, tried = self._burst, self.tried
        if tried is not None and tried.passed:
            yield (
                f"With the limiter below it throttled {tried.throttled or 'none'} of "
                f"{tried.sent} requests "
                f"in {tried.seconds:.1f} s."
            )
        elif (burst.retry_after or 0.0) > LONGEST_WAIT:
            yield "The rate was not searched, as that wait is too long."
        elif search.wait > LONGEST_WAIT:
            yield f"No rate was found: it wants pauses of more than {number(LONGEST_WAIT)} s."
        elif search.left <= 0:
            yield "No rate was found that it does not throttle: give more --max-requests."
        else:
            yield "No rate was found that it does not throttle."

    def conclusion(self) -> Iterator[str]:
        """Yield the limiter to use."""
        yield ""
        if self.advice is not None:
            yield "Use:"
            yield f"  {self.advice.line()}"
        else:
            yield "No limit is known. Start slowly, and read the server's documentation:"
            yield '  RateLimiter("1/s", concurrency_limit=1)'

    # ---- as a document

    def document(self) -> dict[str, object]:
        """Return all of it as a JSON document."""
        answer, burst, tried, advice = self._answer, self.burst, self.tried, self.advice
        profile, location = self.inquiry.profile, answer.location
        return {
            "url": without_credentials(str(self.inquiry.url)),
            "status": answer.status,
            "location": None if location is None else without_credentials(location),
            "profile": None if profile is None else profile.name,
            "throttled": answer.limits.throttled,
            "retry_after": answer.limits.retry_after,
            "reported": [
                {
                    "name": policy.name,
                    "unit": policy.unit,
                    "quota": policy.quota,
                    "window": policy.window,
                    "remaining": policy.remaining,
                    "reset_after": policy.reset_after,
                }
                for policy in _policies(answer.limits)
            ],
            "burst": None
            if burst is None
            else {
                "admitted": burst.admitted,
                "seconds": burst.seconds,
                "throttled": burst.throttled,
                "retry_after": burst.retry_after,
            },
            "tried": None
            if tried is None
            else {
                "passed": tried.passed,
                "sent": tried.sent,
                "throttled": tried.throttled,
                "seconds": tried.seconds,
            },
            "limiter": None
            if advice is None
            else {
                "rates": [rate_value(rate) for rate in advice.rates],
                "burst": advice.burst,
                "guard": advice.guard,
                "python": advice.line(),
            },
        }

    @property
    def _answer(self) -> Answer:
        assert self.answer is not None, "nothing was sent yet"
        return self.answer

    @property
    def _burst(self) -> Sighting:
        assert self.burst is not None, "no limit was searched yet"
        return self.burst


def _policies(limits: ServerLimits) -> tuple[Policy, ...]:
    """Return the limits that are reported, or the one without a name."""
    numbers = (limits.limit, limits.window, limits.remaining, limits.reset_after)
    if limits.policies or all(number is None for number in numbers):
        return limits.policies
    return (Policy(None, *numbers, limits.unit),)


def _table(policies: tuple[Policy, ...]) -> list[tuple[str, ...]]:
    """Return the rows of a table, without columns of which nothing is reported."""
    rows = [("limit", "quota", "window", "remaining", "reset in"), *map(_row, policies)]
    columns = list(zip(*rows, strict=True))
    return list(zip(*(column for column in columns if any(column[1:])), strict=True))


def _row(policy: Policy) -> tuple[str, ...]:
    unit = printable(policy.unit or "requests")
    quota = "" if policy.quota is None else f"{number(policy.quota)} {unit}"
    return (
        printable(policy.name or ""),
        quota,
        "" if policy.window is None else f"{number(policy.window)} s",
        "" if policy.remaining is None else number(policy.remaining),
        "" if policy.reset_after is None else f"{number(policy.reset_after, 6)} s",
    )

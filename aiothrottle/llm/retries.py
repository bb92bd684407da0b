"""When to retry calls of a model: wherever the official SDKs do, and for longer."""

from typing import Any

from aiothrottle.retry import Retry

_STATUSES = frozenset({408, 409, 429, *range(500, 600)})
_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "PATCH", "DELETE", "POST"})


def retry(attempts: int = 5) -> Retry:
    """Return the `Retry` of `openai` and `anthropic`.

    It retries each method after a 408, a 409, a 429, each status from 500 on and a lost connection,
    as the SDKs of OpenAI and Anthropic do, and obeys the header ``x-should-retry``. So a call may
    be made twice, although the server had begun with the first.

    Args:
        attempts: How often a request is sent at most, 1 or more.

    Raises:
        TypeError: `attempts` is not a whole number.
        ValueError: `attempts` is below 1.

    >>> retry().next_delay(1, "POST", status=408, uniform=lambda: 0.5)
    0.25
    """
    return Retry(attempts, statuses=_STATUSES, methods=_METHODS, should_retry=_advised)


def _advised(response: Any) -> bool | None:  # noqa: ANN401 - of any client
    """Return what the server says on retrying; None if it says nothing, or the status suffices."""
    advice = response.headers.get("x-should-retry")
    if advice == "false":
        return False
    status = getattr(response, "status_code", None) or response.status
    return True if advice == "true" and status not in _STATUSES else None

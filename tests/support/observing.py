"""The events that a limiter emits while a test observes it."""

from collections.abc import Iterable
from typing import Any, TypeVar, overload

from aiothrottle import KeyedRateLimiter, RateLimiter
from aiothrottle.events import Adapted, Event

Kind = TypeVar("Kind")


@overload
def observed(limiter: RateLimiter | KeyedRateLimiter) -> list[Event]: ...
@overload
def observed(limiter: RateLimiter | KeyedRateLimiter, *kinds: type[Kind]) -> list[Kind]: ...
def observed(limiter: RateLimiter | KeyedRateLimiter, *kinds: Any) -> list[Any]:
    """Return the list that gets all events from now on, or those of the given kinds."""
    seen: list[Any] = []
    limiter.observe(lambda it: seen.append(it) if not kinds or isinstance(it, kinds) else None)
    return seen


def adaptations(seen: Iterable[Event], what: str | None = None) -> list[Adapted]:
    """Return the events of limits that have adapted, or of one of these limits."""
    adapted = [event for event in seen if isinstance(event, Adapted)]
    return [event for event in adapted if what in {None, event.what}]

"""What a limit counts, by the words of its name: ``input-tokens-minute`` counts input-tokens.

A name without a word for it counts requests, as most limits do, or is of a scope: then the unit is
not known.
"""

import re

from aiothrottle.headers.memo import Memo

__all__ = ["UNIT_BY_NAME"]

_REQUESTS = frozenset({"request", "requests", "req", "reqs"})
_OTHERS = frozenset(
    {
        "tokens", "characters", "images", "audio", "bytes",
        "complexity", "cost", "credits", "points", "usd", "concurrency",
    }
)  # fmt: skip
_WINDOWS = frozenset(
    {
        "second", "secondly", "minute", "minutely", "hour", "hourly", "day", "daily",
        "week", "weekly", "month", "monthly", "year", "yearly",
    }
)  # fmt: skip
_WORDS = re.compile("[^-_]+")


def _unit_of(name: str) -> str | None:
    words = _WORDS.findall(name.lower())
    if words and words[-1] in _WINDOWS:
        words.pop()
    if not _REQUESTS.isdisjoint(words):
        return "requests"
    return None if _OTHERS.isdisjoint(words) else "-".join(words)


UNIT_BY_NAME = Memo(_unit_of)
"""The unit of a limit by its name; None: not known, most likely requests."""

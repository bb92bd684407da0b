"""The tokens that a response reports in its `usage`, as the final cost of the request.

Invariant: a number that is missing or no plausible count of tokens changes nothing: that resource
is not named, and stays as it was charged.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, cast

CostOf: TypeAlias = Callable[[Mapping[str, Any]], dict[str, float]]
"""Returns the final cost that a `usage` reports; of resources that it does not report, nothing."""

#: No model reads or writes more. A larger number would stop all requests for hours or for ever.
_MOST = 10_000_000


def openai_cost(usage: Mapping[str, Any]) -> dict[str, float]:
    """Return the cost that OpenAI and compatible APIs report.

    Tokens that came from the cache count as others do. An embedding has no output.

    >>> openai_cost({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15})
    {'tokens': 15.0}
    >>> openai_cost({"total_tokens": -1})
    {}
    """
    total = _count(usage.get("total_tokens"))
    if total is None and "total_tokens" not in usage:
        read = _count(usage.get("prompt_tokens", usage.get("input_tokens")))
        written = _count(usage.get("completion_tokens", usage.get("output_tokens", 0)))
        total = None if read is None or written is None else read + written
    return {} if total is None else {"tokens": total}


def anthropic_cost(usage: Mapping[str, Any]) -> dict[str, float]:
    """Return the cost that Anthropic reports.

    Tokens that were written into the cache count towards the limit of input tokens, those that were
    read from it do not (but with some older models).

    >>> anthropic_cost({"input_tokens": 10, "cache_creation_input_tokens": 90, "output_tokens": 5})
    {'input_tokens': 100.0, 'output_tokens': 5.0}
    """
    cost: dict[str, float] = {}
    read = _count(usage.get("input_tokens"))
    cached = usage.get("cache_creation_input_tokens")
    cached = 0.0 if cached is None else _count(cached)
    if read is not None and cached is not None:
        cost["input_tokens"] = read + cached
    if (written := _count(usage.get("output_tokens"))) is not None:
        cost["output_tokens"] = written
    return cost


def _count(value: object) -> float | None:
    """Return a plausible count of tokens, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= _MOST else None  # a NaN is neither


def read_object(text: str | bytes) -> dict[str, Any]:
    """Return a JSON object; an empty one if the text is none."""
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):  # nested too deeply for the parser
        return {}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}

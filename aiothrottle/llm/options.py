"""The options of an integration for an API of language models: costs, and what is retried.

A request is charged its estimated input and a reservation for its output, before it is sent. The
response settles it; what that does not report stays as it was charged.
"""

import asyncio
from collections.abc import Callable
from typing import Any, NotRequired, TypeAlias, TypedDict

from aiothrottle._checks import check_choice, check_whole, shown
from aiothrottle._statuses import LEAST_ERROR, LEAST_FAILURE, TOO_MANY_REQUESTS
from aiothrottle.hooks import BodyReader, CostHook, KeyHook, Request, Response, SettleHook
from aiothrottle.llm.calls import (
    ANTHROPIC_PATHS,
    OPENAI_PATHS,
    Call,
    Paths,
    TokenCounter,
    bounds_of,
    estimate_tokens,
    model_of,
    read_call,
)
from aiothrottle.llm.readers import CostOf, EventUsage, JsonUsage, anthropic_cost, openai_cost
from aiothrottle.retry import Retry

_OK = 200
_REQUEST_TIMEOUT, _OVERLOADED = 408, 529
# What the SDKs retry.
_RETRIED = frozenset({408, 409, 429, *range(LEAST_FAILURE, 600)})
# In the body of a 429 of OpenAI: no money is left; the request alone is above the limit.
_FINAL = (b"insufficient_quota", b"Request too large")
# Seconds to wait for that body, which may never arrive.
_BODY_TIME = 1.0
_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "PATCH", "DELETE", "POST"})

_Charge: TypeAlias = Callable[[Call], dict[str, float]]
"""Returns the cost of a call before its response."""


class LLMOptions(TypedDict):
    """Options for any integration: ``ThrottledTransport(limiter, **llm.openai())``.

    They are a dict, so that each can be replaced: ``options["retry"] = Retry(attempts=2)``.
    """

    key: NotRequired[KeyHook]
    """Returns the model of a request; only with `per_model`."""

    cost: CostHook
    """Returns the estimated cost of a request."""

    settle: SettleHook
    """Returns the final cost, by the response."""

    retry: Retry
    """Retries what the SDKs retry."""


def openai(
    *,
    count_tokens: TokenCounter = estimate_tokens,
    default_output: int = 1000,
    most_tokens: int | None = None,
    per_model: bool = False,
) -> LLMOptions:
    """Return the options for OpenAI, and for servers with the same API.

    The limiter needs the resource "tokens": ``RateLimiter({"requests": "500/min", "tokens":
    "30000/min"})``. Calls of chat completions, responses, completions and embeddings cost tokens;
    all other requests cost only themselves.

    Args:
        count_tokens: Returns the tokens in a text of a request. By default an estimate by its
            length; `tiktoken_counter` counts exactly.
        default_output: Tokens that are reserved for the output if the request does not bound it
            (`max_completion_tokens`, `max_tokens`, `max_output_tokens`), 0 or more.
        most_tokens: Tokens that a request is charged at most before its response, 1 or more: the
            limit of the limiter. None, the default: a request that is estimated above the limit
            raises a `CostTooHigh`.
        per_model: Whether the options have a `key`, so that a `KeyedRateLimiter` limits each model
            by itself. By default not.

    Raises:
        TypeError: An argument is of a wrong type.
        ValueError: An argument is out of range.

    >>> from aiothrottle.hooks import Request
    >>> body = b'{"model": "small", "input": "To be, or not to be", "max_output_tokens": 90}'
    >>> import yarl
    >>> url = yarl.URL("https://api.openai.com/v1/responses")
    >>> openai()["cost"](Request("POST", url, {}, body))
    {'tokens': 95}
    """
    most = _check(count_tokens, default_output, most_tokens)

    def charge(call: Call) -> dict[str, float]:
        each = default_output if call.output is None else call.output
        return {"tokens": min(most, call.input + each * call.outputs)}

    return _options(OPENAI_PATHS, count_tokens, charge, openai_cost, per_model=per_model)


def anthropic(
    *,
    count_tokens: TokenCounter = estimate_tokens,
    default_output: int = 1000,
    most_tokens: int | None = None,
    per_model: bool = False,
) -> LLMOptions:
    """Return the options for Anthropic.

    The limiter needs the resources "input_tokens" and "output_tokens". Calls of messages cost
    tokens; all other requests cost only themselves.

    Anthropic counts the output that was written, whatever `max_tokens` is. So only `default_output`
    is reserved for it, and a longer output delays later requests.

    Args:
        count_tokens: Returns the tokens in a text of a request. By default an estimate by its
            length.
        default_output: Tokens that are reserved for the output, or the request's `max_tokens` if
            that is less; 0 or more.
        most_tokens: Input tokens that a request is charged at most before its response, 1 or more:
            the limit of the limiter. What is read from the cache is not counted in the end, so a
            request may be estimated above the limit; with None, the default, that raises a
            `CostTooHigh`.
        per_model: Whether the options have a `key`, so that a `KeyedRateLimiter` limits each model
            by itself. By default not.

    Raises:
        TypeError: An argument is of a wrong type.
        ValueError: An argument is out of range.

    >>> from aiothrottle.hooks import Request
    >>> import yarl
    >>> body = b'{"max_tokens": 9000, "messages": [{"role": "user", "content": "Hello"}]}'
    >>> url = yarl.URL("https://api.anthropic.com/v1/messages")
    >>> anthropic()["cost"](Request("POST", url, {}, body))
    {'input_tokens': 5, 'output_tokens': 1000}
    """
    most = _check(count_tokens, default_output, most_tokens)

    def charge(call: Call) -> dict[str, float]:
        output = default_output if call.output is None else min(call.output, default_output)
        return {"input_tokens": min(most, call.input), "output_tokens": output}

    return _options(ANTHROPIC_PATHS, count_tokens, charge, anthropic_cost, per_model=per_model)


def _check(count_tokens: object, default_output: object, most_tokens: int | None) -> float:
    """Validate the arguments, and return the most tokens of a request."""
    if not callable(count_tokens):
        raise TypeError(f"count_tokens must be a function of a text, got {shown(count_tokens)}")
    check_whole("default_output", default_output, "tokens", least=0)
    check_whole("most_tokens", most_tokens, "tokens", none="None")
    return float("inf") if most_tokens is None else most_tokens


def _options(
    paths: Paths, count_tokens: TokenCounter, charge: _Charge, cost_of: CostOf, *, per_model: bool
) -> LLMOptions:
    """Return the options of an API: its paths, how it is charged, and how its `usage` is read."""
    check_choice("per_model", per_model, (True, False))

    def cost(request: Request) -> dict[str, float] | None:
        call = read_call(request, paths, count_tokens)
        return None if call is None else charge(call)

    def settle(response: Response) -> dict[str, float] | BodyReader | None:
        request, status, headers = response
        if bounds_of(request, paths) is None:
            return None
        if status == _OVERLOADED or (
            LEAST_ERROR <= status < LEAST_FAILURE and status != _REQUEST_TIMEOUT
        ):
            return dict.fromkeys(charge(Call(0, 0, 0)), 0.0)  # the model did nothing
        if status != _OK:
            return None
        streamed = "event-stream" in headers.get("Content-Type", "").lower()
        return EventUsage(cost_of) if streamed else JsonUsage(cost_of)

    options: LLMOptions = {"cost": cost, "settle": settle, "retry": retry()}
    return {**options, "key": model_of} if per_model else options


def retry(attempts: int = 5) -> Retry:
    """Return the `Retry` of `openai` and `anthropic`.

    It retries each method after a 408, a 409, a 429, each status from 500 on and a lost connection,
    as the SDKs of OpenAI and Anthropic do, and obeys the header ``x-should-retry``. So a call may
    be made twice, although the server had begun with the first. A 429 that waiting does not end is
    not retried, and pauses nothing: its body has "insufficient_quota" or "Request too large".

    Args:
        attempts: How often a request is sent at most, 1 or more.

    Raises:
        TypeError: `attempts` is not a whole number.
        ValueError: `attempts` is below 1.

    >>> retry().next_delay(1, "POST", status=408, uniform=lambda: 0.5)
    0.25
    """
    return Retry(attempts, statuses=_RETRIED, methods=_METHODS, should_retry=_advised)


async def _advised(response: Any) -> bool | None:  # noqa: ANN401 - of any client
    """Return what the server says on retrying; None if it says nothing, or the status suffices."""
    advice = response.headers.get("x-should-retry")
    if advice == "false":
        return False
    status = getattr(response, "status_code", None) or response.status
    if status == TOO_MANY_REQUESTS and advice is None and await _is_final(response):
        return False
    is_other_error = status >= LEAST_ERROR and status not in _RETRIED
    return True if advice == "true" and is_other_error else None


async def _is_final(response: Any) -> bool:  # noqa: ANN401 - of any client
    """Return whether waiting does not help after a 429."""
    read = getattr(response, "aread", None) or response.read
    try:
        async with asyncio.timeout(_BODY_TIME):
            body: bytes = await read()
    except Exception:  # noqa: BLE001 - the body is lost: the status alone counts
        return False
    return any(mark in body for mark in _FINAL)

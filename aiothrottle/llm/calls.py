"""What a request asks of a model: how much it may read and write, and which model it is.

Invariant: nothing that a request contains raises. A body that cannot be read counts by its size.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeGuard, cast

from aiothrottle.hooks import Request
from aiothrottle.llm.tokens import TokenCounter, measure

Paths: TypeAlias = Mapping[str, Sequence[str]]
"""The ends of the paths that call a model, and the fields of their bodies that bound the output."""

#: An embedding has no output.
OPENAI_PATHS: Paths = {
    "/chat/completions": ("max_completion_tokens", "max_tokens"),
    "/completions": ("max_tokens",),
    "/responses": ("max_output_tokens",),
    "/embeddings": (),
}
ANTHROPIC_PATHS: Paths = {"/messages": ("max_tokens",)}

# What the model reads; the other fields are settings.
_PROMPT = frozenset(
    {
        "functions",
        "input",
        "instructions",
        "messages",
        "prediction",
        "prompt",
        "response_format",
        "suffix",
        "system",
        "text",
        "tools",
    }
)
_BYTES_PER_TOKEN = 4
#: More outputs than an API writes for one request; more tokens than a model writes.
_MOST_OUTPUTS, _MOST_TOKENS = 128, 10_000_000


class Call(NamedTuple):
    """A call of a model.

    Args:
        input: An estimate of the tokens that it reads.
        output: The tokens that each output has at most; None: the request does not bound them.
        outputs: How many outputs it has.
    """

    input: float
    output: float | None
    outputs: int


def bounds_of(request: Request, paths: Paths) -> Sequence[str] | None:
    """Return the fields that bound the output; None if the request calls no model."""
    if request.method != "POST":
        return None
    path = str(request.url.path).rstrip("/")
    for end, fields in paths.items():
        if path.endswith(end):
            return fields
    return None


def read_call(request: Request, paths: Paths, count_tokens: TokenCounter) -> Call | None:
    """Return the call that a request is; None if it calls no model."""
    bounds = bounds_of(request, paths)
    if bounds is None:
        return None
    body = read_body(request)
    if body is None:
        return Call(_size(request) // _BYTES_PER_TOKEN, None if bounds else 0, 1)
    prompt = [value for name, value in body.items() if name in _PROMPT]
    return Call(
        measure(prompt, count_tokens),
        _bound(body, bounds) if bounds else 0,
        _outputs(body) if bounds else 1,
    )


def model_of(request: Request) -> str:
    """Return the model that a request names; an empty string if it names none."""
    model = (read_body(request) or {}).get("model")
    return model if isinstance(model, str) else ""


def read_body(request: Request) -> dict[str, Any] | None:
    """Return the body, if it is a JSON object that is in memory."""
    try:
        body: object = request.json()
    except RecursionError:  # nested too deeply for the parser
        return None
    return cast("dict[str, Any]", body) if isinstance(body, dict) else None


def _size(request: Request) -> int:
    """Return the bytes of the body, as far as they are known."""
    if request.content is not None:
        return len(request.content)
    try:
        return max(0, int(request.headers.get("Content-Length", "0")))
    except ValueError:
        return 0


def _bound(body: dict[str, Any], fields: Sequence[str]) -> int | None:
    for name in fields:
        value = body.get(name)
        if _is_count(value) and 0 <= value <= _MOST_TOKENS:
            return value
    return None


def _outputs(body: dict[str, Any]) -> int:
    """Return how many outputs a request has: one for each prompt, times those that it asks for."""
    asked = [body.get("n"), body.get("best_of")]
    each = max((n for n in asked if _is_count(n) and n <= _MOST_OUTPUTS), default=1)
    prompt: object = body.get("prompt")
    prompts = cast("list[object]", prompt) if isinstance(prompt, list) else []
    # A list of numbers is one prompt, of tokens.
    return max(1, each) * (1 if not prompts or _is_count(prompts[0]) else len(prompts))


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)

"""What a request asks of a model: how much it may read and write, and which model it is.

Tokens are estimated, which the response corrects.

Invariant: nothing that a request contains raises, however deep or odd it is. A body that cannot be
read counts by its size, and what is no text has a size of its own.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple, TypeAlias, TypeGuard, cast

from aiothrottle.hooks import Request

TokenCounter: TypeAlias = Callable[[str], int]
"""Returns the number of tokens in a text."""

#: Tokens of an image, a file or a recording, which depend on more than the request shows.
_ATTACHMENT = 1000
# Where a request refers to one, or holds it as a data URL: texts of these keys, the others in
# parts of these types, and in objects of these keys. Elsewhere it is a citation, or an argument.
_REFERENCES, _OTHERS = frozenset({"file_data", "file_url", "image_url"}), ("file_id", "url")
_PARTS = ("file", "input_file", "input_image", "url")
_HOLDERS = frozenset({"audio_url", "file", "image_url", "video_url"})
# Bytes as text. No text in a language is as long without a blank, and in ASCII alone.
_BASE64 = re.compile(r"(?:data:[^,]{0,200},)?[A-Za-z0-9+/_-]{512}")

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
    prompt = [value for name, value in body.items() if name in _PROMPT]
    tokens = measure(prompt, count_tokens) if body else _size(request) // _BYTES_PER_TOKEN
    return Call(tokens, _bound(body, bounds), _outputs(body))


def model_of(request: Request) -> str:
    """Return the model that a request names; an empty string if it names none."""
    model = read_body(request).get("model")
    return model if isinstance(model, str) else ""


def read_body(request: Request) -> dict[str, Any]:
    """Return the body; an empty object if it is no JSON object, or not in memory."""
    try:
        return as_object(request.json())
    except RecursionError:  # nested too deeply for the parser
        return {}


def as_object(value: object) -> dict[str, Any]:
    """Return a JSON value if it is an object, else an empty one."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _size(request: Request) -> int:
    """Return the bytes of the body, as far as they are known."""
    if request.content is not None:
        return len(request.content)
    try:
        return max(0, int(request.headers.get("Content-Length", "0")))
    except ValueError:
        return 0


def _bound(body: dict[str, Any], fields: Sequence[str]) -> int | None:
    """Return the tokens that an output has at most: 0 where no field can bound it."""
    values = [body.get(name) for name in fields]
    counts = (it for it in values if _is_count(it) and 0 <= it <= _MOST_TOKENS)
    return next(counts, None if fields else 0)


def _outputs(body: dict[str, Any]) -> int:
    """Return how many outputs a request has: one for each prompt, times those that it asks for."""
    asked = [body.get("n"), body.get("best_of")]
    each = max((n for n in asked if _is_count(n) and 1 <= n <= _MOST_OUTPUTS), default=1)
    prompt: object = body.get("prompt")
    prompts = cast("list[object]", prompt) if isinstance(prompt, list) else []
    # A list of numbers is one prompt, of tokens.
    return each * (1 if not prompts or _is_count(prompts[0]) else len(prompts))


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


# ---- tokens --------------------------------------------------------------------------------------


def estimate_tokens(text: str) -> int:
    """Estimate the tokens in a text: one for each 4 bytes of its UTF-8, rounded up.

    That is about right for English, a little too low for code, and too low for some other scripts.

    Args:
        text: The text.

    Returns:
        The number of tokens.

    >>> estimate_tokens("How many tokens is this?"), estimate_tokens("")
    (6, 0)
    """
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    return -(-size // _BYTES_PER_TOKEN)


def tiktoken_counter(model: str = "gpt-4o") -> TokenCounter:
    """Return a counter that counts with tiktoken, as the models of OpenAI do.

    tiktoken is imported at the first text, and then downloads the encoding unless it has it. It
    runs on the event loop, which a long text blocks for its time.

    Args:
        model: The model, whose encoding is used; if tiktoken does not know it, "o200k_base".

    Raises:
        ModuleNotFoundError: From the counter: tiktoken is not installed.
    """

    @cache
    def encoding() -> Any:  # noqa: ANN401 - of a package that need not be there
        try:
            tiktoken = import_module("tiktoken")
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "tiktoken is not there: pip install tiktoken, or leave out count_tokens",
                name="tiktoken",
            ) from error
        try:
            return tiktoken.encoding_for_model(model)
        except KeyError:
            return tiktoken.get_encoding("o200k_base")

    # Not `encode`, which raises where a text contains the name of a special token.
    return lambda text: len(encoding().encode_ordinary(text))


def measure(value: object, count_tokens: TokenCounter) -> float:
    """Return the tokens of a JSON value.

    Each text is counted, and each key, number and other value is a token of its own, so that a list
    of tokens counts as these. An image, a file or a recording counts 1000.

    >>> measure([{"role": "user", "content": "How many tokens is this?"}], estimate_tokens)
    9
    """
    tokens = 0
    values = [value]
    while values:  # not by recursion, as a request may be nested deeply
        each = values.pop()
        if isinstance(each, str):
            tokens += _ATTACHMENT if _BASE64.match(each) else count_tokens(each)
        elif isinstance(each, dict):
            fields = cast("dict[str, object]", each)
            kind = fields.get("type")
            for key, inner in fields.items():
                tokens += 1
                if _is_attached(key, inner, kind):
                    tokens += _ATTACHMENT
                else:
                    values.append(inner)
        elif isinstance(each, list | tuple):
            values.extend(cast("list[object]", each))
        elif each is not None:
            tokens += 1
    return tokens


def _is_attached(key: str, value: object, kind: object) -> bool:
    """Return whether a field of an object of this type is an attachment."""
    if isinstance(value, str):
        return key in _REFERENCES or (key in _OTHERS and kind in _PARTS)
    return key in _HOLDERS and isinstance(value, dict) and any(map(value.__contains__, _OTHERS))

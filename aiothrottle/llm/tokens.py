"""How many tokens the parts of a request are: an estimate, which the response corrects.

Invariant: no JSON value raises, however deep or odd it is. What is no text has a size of its own.
"""

import re
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, TypeAlias, cast

TokenCounter: TypeAlias = Callable[[str], int]
"""Returns the number of tokens in a text."""

#: Tokens of an image, a file or a recording, which depend on more than the request shows.
_ATTACHMENT = 1000
# The keys by which a request refers to one, or holds it as a data URL.
_REFERENCES = frozenset({"file_data", "file_id", "file_url", "image_url", "url"})
# Bytes as text. No text in a language is as long without a blank, and in ASCII alone.
_BASE64 = re.compile(r"(?:data:[^,]{0,200},)?[A-Za-z0-9+/_-]{512}")
_BYTES_PER_TOKEN = 4


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
            for key, inner in cast("dict[str, object]", each).items():
                tokens += 1
                if key in _REFERENCES and isinstance(inner, str):
                    tokens += _ATTACHMENT
                else:
                    values.append(inner)
        elif isinstance(each, list | tuple):
            values.extend(cast("list[object]", each))
        elif each is not None:
            tokens += 1
    return tokens

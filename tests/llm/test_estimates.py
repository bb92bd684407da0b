"""What a request is charged before its response, for all that it may contain."""

import base64
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import yarl
from hypothesis import given
from hypothesis import strategies as st

from aiothrottle import llm
from aiothrottle.amounts import Cost
from aiothrottle.hooks import Request
from aiothrottle.llm.calls import ANTHROPIC_PATHS, OPENAI_PATHS

CHAT = "https://api.openai.com/v1/chat/completions"
RESPONSES = "https://api.openai.com/v1/responses"
MESSAGES = "https://api.anthropic.com/v1/messages"
TEN = "x" * 40  # ten tokens by its length


def posted(url: str, body: object) -> Request:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Request("POST", yarl.URL(url), {}, content)


def openai(url: str, body: object, **options: Any) -> Cost | None:  # noqa: ANN401
    return llm.openai(**options)["cost"](posted(url, body))


def anthropic(body: object, **options: Any) -> Cost | None:  # noqa: ANN401
    return llm.anthropic(**options)["cost"](posted(MESSAGES, body))


MESSAGE = {"role": "user", "content": TEN}  # 10, 1 for "user", and 1 for each key


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ({"messages": [MESSAGE], "max_tokens": 100}, 113),
        ({"messages": [MESSAGE], "max_completion_tokens": 50, "max_tokens": 100}, 63),
        ({"messages": [MESSAGE], "max_tokens": 100, "n": 3}, 313),
        ({"messages": [MESSAGE, MESSAGE], "max_tokens": 0}, 26),
        ({"messages": [MESSAGE]}, 1013),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": TEN}]}]}, 1016),
        ({"messages": [], "tools": [{"function": {"name": "f", "description": TEN}}]}, 1014),
        ({"messages": TEN, "max_tokens": 5, "metadata": {"a": "b" * 10_000}, "user": "u"}, 15),
    ],
)
def test_chat_costs_its_input_and_bound(body: object, tokens: int) -> None:
    assert openai(CHAT, body) == {"tokens": tokens}


@pytest.mark.parametrize(
    ("end", "body", "tokens"),
    [
        ("responses", {"input": TEN, "max_output_tokens": 7}, 17),
        ("responses", {"input": TEN, "instructions": TEN, "max_output_tokens": 7}, 27),
        ("responses", {"input": [MESSAGE], "max_output_tokens": 7}, 20),
        ("embeddings", {"input": [TEN, TEN]}, 20),
        ("embeddings", {"input": [[1, 2, 3], [4]]}, 4),
        ("completions", {"prompt": TEN, "max_tokens": 5, "best_of": 3, "n": 2}, 25),
        ("completions", {"prompt": [TEN, TEN], "max_tokens": 5}, 30),
        ("completions", {"prompt": [1, 2, 3], "max_tokens": 5}, 8),
    ],
)
def test_other_endpoints_cost_by_their_own_fields(end: str, body: object, tokens: int) -> None:
    assert openai(f"http://localhost/prefix/{end}?api-version=1", body) == {"tokens": tokens}


@pytest.mark.parametrize(
    ("method", "url"),
    [
        ("GET", "https://api.openai.com/v1/models"),
        ("GET", CHAT),
        ("POST", "https://api.openai.com/v1/files"),
        ("POST", RESPONSES + "/resp_1/cancel"),
        ("POST", MESSAGES + "/count_tokens"),
        ("POST", MESSAGES + "/batches"),
    ],
)
def test_request_that_calls_no_model_costs_itself(method: str, url: str) -> None:
    request = Request(method, yarl.URL(url), {}, b'{"messages": "a text"}')
    assert llm.openai()["cost"](request) is None
    assert llm.anthropic()["cost"](request) is None


def test_anthropic_reserves_the_default_output_at_most() -> None:
    body = {"system": TEN, "messages": [MESSAGE], "max_tokens": 64_000}
    assert anthropic(body) == {"input_tokens": 23, "output_tokens": 1000}
    assert anthropic({**body, "max_tokens": 9}) == {"input_tokens": 23, "output_tokens": 9}
    assert anthropic(body, default_output=0) == {"input_tokens": 23, "output_tokens": 0}


def test_most_tokens_bound_the_estimate() -> None:
    body = {"messages": TEN * 1000, "max_tokens": 50_000}
    assert openai(CHAT, body, most_tokens=30_000) == {"tokens": 30_000}
    assert anthropic(body, most_tokens=500) == {"input_tokens": 500, "output_tokens": 1000}


def test_count_tokens_replaces_the_estimate() -> None:
    def words(text: str) -> int:
        return len(text.split())

    body = {"messages": "one two three", "max_tokens": 0}
    assert openai(CHAT, body, count_tokens=words) == {"tokens": 3}


def test_error_of_count_tokens_is_raised() -> None:
    def broken(text: str) -> int:
        raise LookupError(text)

    with pytest.raises(LookupError, match="a text"):
        openai(CHAT, {"messages": "a text"}, count_tokens=broken)


# ---- attachments ---------------------------------------------------------------------------------

IMAGE = base64.b64encode(bytes(range(256)) * 400).decode()


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + IMAGE}},
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
        {"type": "input_image", "image_url": "https://example.org/a.png"},
        {"type": "input_audio", "input_audio": {"data": IMAGE, "format": "wav"}},
        {"type": "file", "file": {"file_id": "file-1"}},
        {"type": "image", "source": {"type": "base64", "media_type": "a/b", "data": IMAGE}},
    ],
)
def test_attachment_counts_1000_tokens_whatever_its_size(part: object) -> None:
    cost = openai(CHAT, {"messages": [{"content": [part]}], "max_tokens": 0})
    assert isinstance(cost, dict)
    assert 1000 <= cost["tokens"] <= 1025


def test_long_text_is_no_attachment() -> None:
    for text in ("A sentence. " * 1000, "文" * 4000, '{"a":1,"b":[2,3]}' * 700):
        assert openai(CHAT, {"messages": text, "max_tokens": 0}) == {
            "tokens": llm.estimate_tokens(text)
        }


# ---- what may be wrong with a request ------------------------------------------------------------


@pytest.mark.parametrize(
    "bound", [-1, True, "100", 1e400, math.nan, [], {}, 10**30, 1.5, None], ids=repr
)
def test_odd_bound_counts_as_none(bound: object) -> None:
    assert openai(CHAT, {"messages": TEN, "max_tokens": bound}) == {"tokens": 1010}
    assert anthropic({"messages": TEN, "max_tokens": bound}) == {
        "input_tokens": 10,
        "output_tokens": 1000,
    }


@pytest.mark.parametrize("outputs", [-1, 0, True, "2", 10**9, None], ids=repr)
def test_odd_number_of_outputs_counts_as_one(outputs: object) -> None:
    assert openai(CHAT, {"messages": TEN, "max_tokens": 5, "n": outputs}) == {"tokens": 15}


@pytest.mark.parametrize(
    "content", [b"x" * 400, b"[" * 400, b"\xff" * 400, b"[1, 2]" + b" " * 394, b"\x00" * 400]
)
def test_body_that_is_no_object_counts_by_its_size(content: bytes) -> None:
    assert openai(CHAT, content) == {"tokens": 1100}


def test_deeply_nested_body_does_not_raise() -> None:
    depth = 200_000
    cost = openai(CHAT, b'{"messages":' + b"[" * depth + b"]" * depth + b"}")
    assert isinstance(cost, dict)
    assert cost["tokens"] >= 1000


def test_body_out_of_memory_counts_by_its_length() -> None:
    for length, tokens in (("4000", 2000), ("-5", 1000), ("many", 1000), (None, 1000)):
        headers = {} if length is None else {"Content-Length": length}
        request = Request("POST", yarl.URL(CHAT), headers, None)
        assert llm.openai()["cost"](request) == {"tokens": tokens}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
NAMES = st.sampled_from(
    (
        *("messages", "input", "prompt", "system", "tools", "model", "n", "best_of", "url"),
        *("max_tokens", "max_output_tokens", "max_completion_tokens", "image_url"),
    )
)
PATHS = st.sampled_from([*OPENAI_PATHS, *ANTHROPIC_PATHS])


@given(PATHS, st.dictionaries(NAMES, JSON) | JSON)
def test_no_body_raises_and_costs_are_finite(path: str, body: object) -> None:
    request = Request("POST", yarl.URL("http://localhost" + path), {}, None, body)
    for options in (llm.openai(per_model=True), llm.anthropic(per_model=True)):
        cost = options["cost"](request)
        if cost is not None:
            assert isinstance(cost, dict)
            assert all(0 <= tokens < 10**12 for tokens in cost.values())
        assert "key" in options
        hash(options["key"](request))


@given(st.text(st.characters(codec=None)))
def test_any_text_is_estimated(text: str) -> None:
    tokens = llm.estimate_tokens(text)
    assert math.ceil(len(text) / 4) <= tokens <= len(text)


# ---- models and arguments ------------------------------------------------------------------------


def test_key_is_the_model() -> None:
    for body, key in (({"model": "small"}, "small"), ({}, ""), ([1], ""), ({"model": 5}, "")):
        for options in (llm.openai(per_model=True), llm.anthropic(per_model=True)):
            assert "key" in options
            assert options["key"](posted(CHAT, body)) == key
    assert "key" not in llm.openai()


@pytest.mark.parametrize("options", [llm.openai, llm.anthropic])
@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"count_tokens": 4}, TypeError, "count_tokens must be a function of a text, got 4"),
        ({"default_output": -1}, ValueError, "default_output must be a whole number of tokens, 0"),
        ({"default_output": 1.5}, TypeError, "default_output must be a whole number"),
        ({"most_tokens": 0}, ValueError, "most_tokens must be a whole number of tokens, 1 or mor"),
        ({"most_tokens": "9"}, TypeError, "most_tokens must be .*, or None, got '9'"),
    ],
)
def test_wrong_argument_is_rejected(
    options: Callable[..., llm.LLMOptions],
    wrong: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    with pytest.raises(error, match=message):
        options(**wrong)


def test_missing_tiktoken_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tiktoken", None)
    count = llm.tiktoken_counter()
    with pytest.raises(ModuleNotFoundError, match="pip install tiktoken"):
        count("text")

"""What a request is charged before its response, for all that it may contain."""

import base64
import json
import math
import sys
from typing import Any
from unittest.mock import Mock

import pytest
import yarl
from hypothesis import given
from hypothesis import strategies as st

from aiothrottle import llm
from aiothrottle.amounts import Cost
from aiothrottle.hooks import Request
from tests.support.effort import examples

CHAT = "https://api.openai.com/v1/chat/completions"
MESSAGES = "https://api.anthropic.com/v1/messages"
CHATS = "chat/completions"
TEN = "x" * 40  # ten tokens by its length


def posted(url: str, body: object) -> Request:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Request("POST", yarl.URL(url), {}, content)


def openai(url: str, body: object, **options: Any) -> Cost | None:
    return llm.openai(**options)["cost"](posted(url, body))


def anthropic(body: object, **options: Any) -> Cost | None:
    return llm.anthropic(**options)["cost"](posted(MESSAGES, body))


MESSAGE = {"role": "user", "content": TEN}  # 10, 1 for "user", and 1 for each key
TEXT = {"type": "text", "text": TEN}


@pytest.mark.parametrize(
    ("end", "body", "tokens"),
    [
        (CHATS, {"messages": [MESSAGE], "max_tokens": 100}, 113),
        (CHATS, {"messages": [MESSAGE], "max_completion_tokens": 5, "max_tokens": 9}, 18),
        (CHATS, {"messages": [MESSAGE], "max_tokens": 100, "n": 3}, 313),
        (CHATS, {"messages": [MESSAGE]}, 1013),
        (CHATS, {"messages": "\ud800" * 4, "max_tokens": 0}, 3),
        (CHATS, {"messages": [{"role": "user", "content": [TEXT]}]}, 1016),
        (CHATS, {"messages": [], "tools": [{"function": {"name": "f", "is": TEN}}]}, 1014),
        (CHATS, {"messages": TEN, "max_tokens": 5, "metadata": [TEN] * 99, "user": "u"}, 15),
        ("responses", {"input": TEN, "instructions": TEN, "max_output_tokens": 7}, 27),
        ("responses", {"input": [MESSAGE], "max_output_tokens": 7}, 20),
        ("embeddings", {"input": [[1, 2, 3], [4]]}, 4),
        ("completions", {"prompt": TEN, "max_tokens": 5, "best_of": 3, "n": 2}, 25),
        ("completions", {"prompt": [TEN, TEN], "max_tokens": 5}, 30),
        ("completions", {"prompt": [1, 2, 3], "max_tokens": 5}, 8),
    ],
)
def test_call_costs_its_input_and_bound(end: str, body: object, tokens: int) -> None:
    for url in (f"http://localhost/prefix/{end}?api-version=1", f"http://localhost/{end}/"):
        assert openai(url, body) == {"tokens": tokens}


def test_request_that_calls_no_model_costs_itself() -> None:
    others = ["/v1/files", "/v1/responses/r/cancel", "/v1/messages/count_tokens"]
    posts = [("POST", path) for path in others]
    for method, path in (("GET", "/v1/chat/completions"), *posts):
        request = Request(method, yarl.URL("http://localhost" + path), {}, b'{"messages": "a b"}')
        assert llm.openai()["cost"](request) is None, path
        assert llm.anthropic()["cost"](request) is None, path


def test_output_and_estimate_are_bounded() -> None:
    body = {"system": TEN, "messages": [MESSAGE], "max_tokens": 64_000}
    assert anthropic(body) == {"input_tokens": 23, "output_tokens": 1000}
    assert anthropic({**body, "max_tokens": 9}) == {"input_tokens": 23, "output_tokens": 9}
    assert anthropic(body, default_output=0) == {"input_tokens": 23, "output_tokens": 0}
    body = {"messages": TEN * 1000, "max_tokens": 50_000}
    assert openai(CHAT, body, most_tokens=30_000) == {"tokens": 30_000}
    assert anthropic(body, most_tokens=500) == {"input_tokens": 500, "output_tokens": 1000}


def test_count_tokens_replaces_the_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    body = {"messages": "one two three", "max_tokens": 0}
    counts = {"one two three": 3}
    assert openai(CHAT, body, count_tokens=counts.__getitem__) == {"tokens": 3}
    counts.clear()
    with pytest.raises(KeyError, match="one two three"):
        openai(CHAT, body, count_tokens=counts.__getitem__)
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    count = llm.tiktoken_counter()
    with pytest.raises(ModuleNotFoundError, match="pip install tiktoken"):
        count("text")
    tiktoken = Mock()
    tiktoken.encoding_for_model.side_effect = KeyError  # a model that it does not know
    tiktoken.get_encoding.return_value.encode_ordinary = str.split
    monkeypatch.setitem(sys.modules, "tiktoken", tiktoken)
    assert llm.tiktoken_counter("new")("one two three") == 3


# ---- attachments ---------------------------------------------------------------------------------

IMAGE = base64.b64encode(bytes(range(256)) * 400).decode()


def test_attachment_counts_1000_tokens_and_text_its_length() -> None:
    parts: list[tuple[dict[str, Any], int]] = [
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64," + IMAGE}}, 1000),
        ({"type": "input_image", "image_url": "https://example.org/a.png"}, 1000),
        ({"type": "input_audio", "input_audio": {"data": IMAGE, "format": "wav"}}, 1000),
        ({"type": "file", "file": {"file_id": "file-1"}}, 1000),
        ({"type": "image", "source": {"type": "base64", "data": IMAGE}}, 1000),
        ({"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}, 1000),
        ({"type": "input_file", "file_id": "file-1"}, 1000),
        # Of an agent's history.
        ({"type": "tool_use", "name": "fetch", "input": {"url": "https://example.org/"}}, 0),
        (
            {"type": "tool_use", "name": "save", "input": {"file": {"text": "A line. " * 1000}}},
            2000,
        ),
        ({"type": "url_citation", "url": "https://example.org/", "title": "Example"}, 0),
        ({"type": "file_citation", "file_id": "file-1", "index": 3}, 0),
    ]
    for part, tokens in parts:
        cost: Any = openai(CHAT, {"messages": [{"content": [part]}], "max_tokens": 0})
        assert tokens <= cost["tokens"] <= tokens + 25, part["type"]
    for text in ("A sentence. " * 1000, "文" * 4000, '{"a":1,"b":[2,3]}' * 700):
        cost = openai(CHAT, {"messages": text, "max_tokens": 0})
        assert cost == {"tokens": llm.estimate_tokens(text)}


# ---- what may be wrong with a request ------------------------------------------------------------


def test_odd_bounds_count_as_none() -> None:
    bounds: list[object] = [-1, True, "100", math.nan, {}, 10**30, 1.5, None]
    for bound in bounds:
        body = {"messages": TEN, "max_tokens": bound}
        assert openai(CHAT, body) == {"tokens": 1010}, bound
        assert anthropic(body) == {"input_tokens": 10, "output_tokens": 1000}, bound
    for outputs in (-1, 0, True, "2", 10**9, None):
        body = {"messages": TEN, "max_tokens": 5, "n": outputs}
        assert openai(CHAT, body) == {"tokens": 15}, outputs


def test_body_that_is_no_object_counts_by_its_size() -> None:
    for body in (b"x" * 400, b"\xff" * 400, b"[1, 2]" + b" " * 394):
        assert openai(CHAT, body) == {"tokens": 1100}, body
    depth = 200_000
    cost: Any = openai(CHAT, b'{"messages":' + b"[" * depth + b"]" * depth + b"}")
    assert cost["tokens"] >= 1000
    for length, tokens in (("4000", 2000), ("-5", 1000), ("many", 1000), (None, 1000)):
        headers = {} if length is None else {"Content-Length": length}
        request = Request("POST", yarl.URL(CHAT), headers, None)  # a body out of memory
        assert llm.openai()["cost"](request) == {"tokens": tokens}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
FIELDS = "messages input prompt system tools model n best_of url image_url"
BOUNDS = "max_tokens max_output_tokens max_completion_tokens"
NAMES = st.sampled_from(f"{FIELDS} {BOUNDS}".split())
ENDS = st.sampled_from(("chat/completions", "completions", "responses", "embeddings", "messages"))


@examples(30)
@given(ENDS, st.dictionaries(NAMES, JSON) | JSON)
def test_no_body_raises_and_costs_are_finite(end: str, body: object) -> None:
    request = Request("POST", yarl.URL("http://localhost/v1/" + end), {}, None, body)
    for options in (llm.openai(per_model=True), llm.anthropic(per_model=True)):
        cost: Any = options["cost"](request)
        assert cost is None or 0 <= min(cost.values()) <= max(cost.values()) < 10**12
        assert "key" in options
        hash(options["key"](request))


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
        ({"most_tokens": 0}, ValueError, "most_tokens must be a whole number of tokens, 1 or mor"),
        ({"per_model": "no"}, ValueError, "per_model must be one of True, False, got 'no'"),
        ({"most_tokens": "9"}, TypeError, "most_tokens must be .*, or None, got '9'"),
    ],
)
def test_wrong_argument_is_rejected(
    options: Any, wrong: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        options(**wrong)

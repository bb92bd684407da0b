"""The final cost that a response reports: in JSON, in streams, and what changes nothing."""

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
import yarl
from hypothesis import given
from hypothesis import strategies as st

from aiothrottle import llm
from aiothrottle.amounts import Cost
from aiothrottle.hooks import Request, Response
from aiothrottle.llm.readers import EventUsage, JsonUsage

OPENAI = llm.openai()["settle"]
ANTHROPIC = llm.anthropic()["settle"]
CHAT = Request("POST", yarl.URL("https://api.openai.com/v1/chat/completions"), {}, b"{}")
MESSAGES = Request("POST", yarl.URL("https://api.anthropic.com/v1/messages"), {}, b"{}")
JSON = {"Content-Type": "application/json"}
EVENTS = {"Content-Type": "text/event-stream; charset=utf-8"}


def settled(
    request: Request, headers: dict[str, str], body: bytes, *, complete: bool = True, size: int = 7
) -> Cost | None:
    """Return the final cost by a body that comes in chunks of that size."""
    reader = (OPENAI if request is CHAT else ANTHROPIC)(Response(request, 200, headers))
    assert isinstance(reader, JsonUsage | EventUsage)
    for start in range(0, len(body), size):
        reader.feed(body[start : start + size])
    return reader.end(complete=complete)


def stream(*events: object) -> bytes:
    return b"".join(
        b"data: " + (each if isinstance(each, bytes) else json.dumps(each).encode()) + b"\r\n\r\n"
        for each in events
    )


CHAT_USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        (CHAT_USAGE, 15),
        ({"prompt_tokens": 8, "total_tokens": 8}, 8),
        ({"input_tokens": 3, "output_tokens": 4, "total_tokens": 7}, 7),
        ({"prompt_tokens": 3, "completion_tokens": 4}, 7),
        ({"prompt_tokens": 3}, 3),
        ({**CHAT_USAGE, "prompt_tokens_details": {"cached_tokens": 9}}, 15),
        ({"total_tokens": 0}, 0),
    ],
)
def test_openai_json_settles_by_usage(usage: object, tokens: float) -> None:
    body = json.dumps({"choices": [], "usage": usage}).encode()
    assert settled(CHAT, JSON, body) == {"tokens": tokens}


ODD: list[object] = [None, {}, [], 5, "15", {"total_tokens": None}]
ODD_COUNTS: list[object] = [-1, -0.5, True, "15", None, [], 10**30, 10_000_001, 1e400, math.nan]


@pytest.mark.parametrize(
    "usage", [*ODD, *({"total_tokens": each} for each in ODD_COUNTS)], ids=repr
)
def test_openai_usage_without_plausible_count_changes_nothing(usage: object) -> None:
    assert settled(CHAT, JSON, json.dumps({"usage": usage}).encode()) is None
    assert settled(CHAT, EVENTS, stream({"usage": usage}, b"[DONE]")) is None


@pytest.mark.parametrize("count", ODD_COUNTS, ids=repr)
def test_anthropic_settles_plausible_counts_alone(count: object) -> None:
    def cost(**usage: object) -> Cost | None:
        return settled(MESSAGES, JSON, json.dumps({"usage": usage}).encode())

    assert cost(input_tokens=count, output_tokens=5) == {"output_tokens": 5}
    assert cost(input_tokens=7, output_tokens=count) == {"input_tokens": 7}
    assert cost(input_tokens=count, output_tokens=count) is None
    if count is not None:
        assert cost(input_tokens=7, cache_creation_input_tokens=count) is None


def test_anthropic_counts_written_cache_but_not_read() -> None:
    usage = {
        "input_tokens": 10,
        "cache_creation_input_tokens": 200,
        "cache_read_input_tokens": 50_000,
        "output_tokens": 30,
    }
    body = json.dumps({"usage": usage}).encode()
    assert settled(MESSAGES, JSON, body) == {"input_tokens": 210, "output_tokens": 30}


@pytest.mark.parametrize(
    "body", [b"", b"{", b"null", b"[1]", b"\xff\xfe", b"<html>", b'{"usage":' + b"[" * 200_000]
)
def test_body_that_is_no_document_changes_nothing(body: bytes) -> None:
    assert settled(CHAT, JSON, body, size=1000) is None
    assert settled(MESSAGES, JSON, body, size=1000) is None
    assert settled(CHAT, EVENTS, b"data: " + body + b'"usage"\n\n', size=1000) is None


def test_cut_off_json_changes_nothing() -> None:
    body = json.dumps({"usage": CHAT_USAGE}).encode()
    assert settled(CHAT, JSON, body[:-1]) is None
    assert settled(CHAT, JSON, body, complete=False) is None


def test_usage_at_the_end_of_a_large_body_is_found() -> None:
    vectors = [{"embedding": [0.123456789] * 1536, "index": i} for i in range(20)]
    document = {"data": vectors, "note": '"usage": {"total_tokens": 1}', "usage": CHAT_USAGE}
    assert settled(CHAT, JSON, json.dumps(document).encode(), size=9000) == {"tokens": 15}
    document = {"usage": CHAT_USAGE, "data": vectors}
    assert settled(CHAT, JSON, json.dumps(document).encode(), size=9000) is None
    document = {"data": vectors, "usage": {"total_tokens": -5}}
    assert settled(CHAT, JSON, json.dumps(document).encode(), size=9000) is None


def test_large_body_is_not_kept() -> None:
    reader = OPENAI(Response(CHAT, 200, JSON))
    assert isinstance(reader, JsonUsage)
    for _ in range(500):
        reader.feed(b"x" * 4096)
        assert len(reader._kept) <= 1 << 18


# ---- streams -------------------------------------------------------------------------------------

DELTA = {"choices": [{"delta": {"content": "wörd"}}], "usage": None}


def test_last_chunk_of_a_chat_settles_it() -> None:
    body = stream(DELTA, DELTA, {"choices": [], "usage": CHAT_USAGE}, b"[DONE]")
    assert settled(CHAT, EVENTS, body) == {"tokens": 15}
    # The SDK need not read to the end of the body.
    assert settled(CHAT, EVENTS, body, complete=False) == {"tokens": 15}


def test_chat_without_usage_changes_nothing() -> None:
    assert settled(CHAT, EVENTS, stream(DELTA, DELTA, b"[DONE]")) is None


def test_cut_off_stream_changes_nothing() -> None:
    growing = {**DELTA, "usage": {"total_tokens": 11}}
    assert settled(CHAT, EVENTS, stream(growing, DELTA), complete=False) is None
    assert settled(CHAT, EVENTS, stream(growing, {"usage": CHAT_USAGE})) == {"tokens": 15}


@pytest.mark.parametrize("kind", ["completed", "incomplete", "failed"])
def test_response_object_settles_at_its_end(kind: str) -> None:
    usage = {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7}
    body = stream(
        {"type": "response.created", "response": {"usage": None}},
        {"type": "response.output_text.delta", "delta": '"usage"'},
        {"type": f"response.{kind}", "response": {"output": ["x" * 20_000], "usage": usage}},
    )
    assert settled(CHAT, EVENTS, body, complete=False) == {"tokens": 7}


def anthropic_stream(usage: object, output: object) -> Iterator[Any]:
    yield {"type": "message_start", "message": {"usage": usage}}
    yield {"type": "content_block_delta", "delta": {"text": "wörd"}}
    yield {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": output}
    yield {"type": "message_stop"}


def test_message_settles_by_its_start_and_delta() -> None:
    start = {"input_tokens": 10, "cache_creation_input_tokens": 2, "output_tokens": 1}
    body = stream(*anthropic_stream(start, {"output_tokens": 30}))
    cost = {"input_tokens": 12, "output_tokens": 30}
    assert settled(MESSAGES, EVENTS, body, complete=False) == cost
    later = {"input_tokens": 11, "cache_creation_input_tokens": None, "output_tokens": 30}
    body = stream(*anthropic_stream(start, later))
    assert settled(MESSAGES, EVENTS, body) == {"input_tokens": 13, "output_tokens": 30}


def test_cut_off_message_keeps_its_charge() -> None:
    start, *_ = anthropic_stream({"input_tokens": 10, "output_tokens": 1}, None)
    assert settled(MESSAGES, EVENTS, stream(start), complete=False) is None
    # Without a delta its output is not known, although the body has ended.
    assert settled(MESSAGES, EVENTS, stream(start)) == {"input_tokens": 10}


@given(st.lists(st.binary(max_size=200) | st.just(stream({"usage": CHAT_USAGE})), max_size=8))
def test_no_stream_raises(chunks: list[bytes]) -> None:
    for request in (CHAT, MESSAGES):
        for headers in (EVENTS, JSON):
            whole = b"".join(chunks)
            assert settled(request, headers, whole, size=3) == settled(
                request, headers, whole, size=1 << 20
            )


# ---- statuses ------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 422, 429, 529])
def test_error_that_ran_no_model_costs_no_tokens(status: int) -> None:
    assert OPENAI(Response(CHAT, status, JSON)) == {"tokens": 0}
    assert ANTHROPIC(Response(MESSAGES, status, JSON)) == {"input_tokens": 0, "output_tokens": 0}


@pytest.mark.parametrize("status", [202, 302, 408, 500, 502, 503, 504])
def test_other_status_keeps_the_charge(status: int) -> None:
    assert OPENAI(Response(CHAT, status, JSON)) is None
    assert ANTHROPIC(Response(MESSAGES, status, JSON)) is None


def test_request_that_calls_no_model_is_not_settled() -> None:
    request = Request("GET", yarl.URL("https://api.openai.com/v1/models"), {})
    assert OPENAI(Response(request, 429, JSON)) is None
    assert ANTHROPIC(Response(request, 200, JSON)) is None

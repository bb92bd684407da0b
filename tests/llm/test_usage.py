"""The final cost that a response reports: in JSON, in streams, and what changes nothing."""

import itertools
import json
import math
import re
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
import yarl
from hypothesis import example, given
from hypothesis import strategies as st

from aiothrottle import llm
from aiothrottle.amounts import Cost
from aiothrottle.hooks import Request, Response
from aiothrottle.llm.readers import EventStream
from tests.support.effort import examples

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
    reader: Any = (OPENAI if request is CHAT else ANTHROPIC)(Response(request, 200, headers))
    for start in range(0, len(body), size):
        reader.feed(body[start : start + size])
    cost: Cost | None = reader.end(complete=complete)
    return cost


def stream(*events: object) -> bytes:
    return b"".join(
        b"data: " + (each if isinstance(each, bytes) else json.dumps(each).encode()) + b"\r\n\r\n"
        for each in events
    )


CHAT_USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({**CHAT_USAGE, "prompt_tokens_details": {"cached_tokens": 9}}, 15),
        ({"input_tokens": 3, "output_tokens": 4}, 7),
        ({"prompt_tokens": 3, "completion_tokens": 4}, 7),
        ({"prompt_tokens": 3}, 3),
        ({"total_tokens": 0}, 0),
    ],
)
def test_openai_json_settles_by_usage(usage: object, tokens: float) -> None:
    body = json.dumps({"choices": [], "usage": usage}).encode()
    assert settled(CHAT, JSON, body) == {"tokens": tokens}


ODD: list[object] = [None, {}, [], 5, "15", {"total_tokens": None}]
ODD.append({"total_tokens": -1, "prompt_tokens": 10, "completion_tokens": 5})
ODD_COUNTS: list[object] = [-1, True, "15", None, 10_000_001, math.nan]


def test_openai_usage_without_plausible_count_changes_nothing() -> None:
    for usage in (*ODD, *({"total_tokens": each} for each in ODD_COUNTS)):
        assert settled(CHAT, JSON, json.dumps({"usage": usage}).encode()) is None, usage
        assert settled(CHAT, EVENTS, stream({"usage": usage}, b"[DONE]")) is None, usage


def test_anthropic_settles_plausible_counts_alone() -> None:
    def cost(**usage: object) -> Cost | None:
        return settled(MESSAGES, JSON, json.dumps({"usage": usage}).encode())

    for count in ODD_COUNTS:
        assert cost(input_tokens=count, output_tokens=5) == {"output_tokens": 5}, count
        assert cost(input_tokens=7, output_tokens=count) == {"input_tokens": 7}, count
        assert cost(input_tokens=count, output_tokens=count) is None, count
        if count is not None:
            assert cost(input_tokens=7, cache_creation_input_tokens=count) is None, count
    cached = {"cache_creation_input_tokens": 200, "cache_read_input_tokens": 50_000}
    written = {"input_tokens": 210, "output_tokens": 30}
    assert cost(input_tokens=10, **cached, output_tokens=30) == written


def test_broken_body_changes_nothing() -> None:
    deep = b'{"usage":' + b"[" * 200_000
    for body in (b"", b"{", b"null", b"[1]", b"\xff\xfe", b"<html>", deep):
        for request, headers, sent in (
            (CHAT, JSON, body),
            (MESSAGES, JSON, body),
            (CHAT, EVENTS, b"data: " + body + b'"usage"\n\n'),
        ):
            assert settled(request, headers, sent, size=1000) is None, body[:20]
    body = json.dumps({"usage": CHAT_USAGE}).encode()
    assert settled(CHAT, JSON, body[:-1]) is None
    assert settled(CHAT, JSON, body, complete=False) is None


def test_usage_at_the_end_of_a_large_body_is_found() -> None:
    vectors = {"data": [{"embedding": [0.123456789] * 1536, "index": i} for i in range(20)]}
    note = {"note": '"usage": {"total_tokens": 1}'}
    for document, cost in (
        ({**vectors, **note, "usage": CHAT_USAGE}, {"tokens": 15}),
        ({"usage": CHAT_USAGE, **vectors}, None),
        ({**vectors, "last": {"usage": {"total_tokens": 1}}, "usage": CHAT_USAGE}, {"tokens": 15}),
        ({**vectors, "usage": {"total_tokens": -5}}, None),
    ):
        assert settled(CHAT, JSON, json.dumps(document).encode(), size=9000) == cost
    broken = json.dumps({**vectors, "usage": CHAT_USAGE}).encode()[:-5]
    assert settled(CHAT, JSON, broken, size=9000) is None


def test_endless_body_is_not_kept() -> None:
    for headers, chunk in (
        (JSON, b"x" * 65536),
        (EVENTS, b"x" * 65536),
        (EVENTS, (b"data: " + b"x" * 57 + b"\n") * 1024),
        (EVENTS, (b": comment" + b"x" * 54 + b"\n") * 1024),
    ):
        reader: Any = OPENAI(Response(CHAT, 200, headers))
        tracemalloc.start()
        for _ in range(50):  # 3 MB
            reader.feed(chunk)
        kept, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert kept < 2 << 20, chunk[:8]


# ---- streams -------------------------------------------------------------------------------------

DELTA = {"choices": [{"delta": {"content": "wörd"}}], "usage": None}


def test_last_chunk_of_a_chat_settles_it() -> None:
    body = stream(DELTA, DELTA, {"choices": [], "usage": CHAT_USAGE}, b"[DONE]")
    for complete in (True, False):  # a client need not read to the end of the body
        for read in (body, body[:-2], body[:-3], body[:-4]):  # or of the last event
            assert settled(CHAT, EVENTS, read, complete=complete) == {"tokens": 15}
    assert settled(CHAT, EVENTS, body[:-5], complete=False) is None
    assert settled(CHAT, EVENTS, stream(DELTA, DELTA, b"[DONE]")) is None
    growing = {**DELTA, "usage": {"total_tokens": 11}}
    assert settled(CHAT, EVENTS, stream(growing, DELTA), complete=False) is None, "it was cut off"
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
    later = {"input_tokens": 11, "cache_creation_input_tokens": None, "output_tokens": 30}
    for delta, read in (({"output_tokens": 30}, 12), (later, 13)):
        body = stream(*anthropic_stream(start, delta))
        cost = {"input_tokens": read, "output_tokens": 30}
        assert settled(MESSAGES, EVENTS, body, complete=False) == cost
    head, *_ = anthropic_stream({"input_tokens": 10, "output_tokens": 1}, None)
    assert settled(MESSAGES, EVENTS, stream(head), complete=False) is None
    # Without a delta its output is not known, although the body has ended.
    assert settled(MESSAGES, EVENTS, stream(head)) == {"input_tokens": 10}


@examples(25)
@example([stream({"type": ["message_stop"], "usage": CHAT_USAGE})])
@given(st.lists(st.binary(max_size=200) | st.just(stream({"usage": CHAT_USAGE})), max_size=8))
def test_no_stream_raises(chunks: list[bytes]) -> None:
    body = b"".join(chunks)
    for request, headers in itertools.product((CHAT, MESSAGES), (EVENTS, JSON)):
        large = settled(request, headers, body, size=1 << 20)
        assert settled(request, headers, body, size=3) == large


# ---- statuses ------------------------------------------------------------------------------------


def test_error_that_ran_no_model_costs_no_tokens() -> None:
    none = {"input_tokens": 0, "output_tokens": 0}
    for status in (400, 401, 403, 404, 409, 413, 422, 429, 529):
        assert OPENAI(Response(CHAT, status, JSON)) == {"tokens": 0}, status
        assert ANTHROPIC(Response(MESSAGES, status, JSON)) == none, status
    for status in (202, 302, 408, 500, 502, 503, 504):
        assert OPENAI(Response(CHAT, status, JSON)) is None, status
        assert ANTHROPIC(Response(MESSAGES, status, JSON)) is None, status
    models = Request("GET", yarl.URL("https://api.openai.com/v1/models"), {})
    for status in (200, 429):
        assert OPENAI(Response(models, status, JSON)) is None, status
        assert ANTHROPIC(Response(models, status, JSON)) is None, status


# ---- server-sent events --------------------------------------------------------------------------


FIELDS = (b"data: {}", b"data:x", b"data", b"data: \xc3\xb6", b"data: " + b"long " * 8)
OTHERS = (b"event: a", b": ping", b"\xef\xbb\xbfdata: 1", b"database: 2", b"", b"")
LINES = st.sampled_from([*FIELDS, *OTHERS])
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])
TEXTS = st.lists(st.tuples(LINES, ENDS), max_size=20).map(
    lambda lines: b"".join(line + end for line, end in lines)
)


def read(chunks: list[bytes], longest: int = 1 << 20) -> list[bytes]:
    events = EventStream(longest)
    return [data for chunk in chunks for data in events.feed(chunk)]


def expected(text: bytes) -> list[bytes]:
    """Parse the whole text at once, by the letter of the standard."""
    found: list[bytes] = []
    data: list[bytes] = []
    *ended, _ = re.split(rb"\r\n|\r|\n", text.removeprefix(b"\xef\xbb\xbf"))
    for line in ended:
        name, _, value = line.partition(b":")
        if name == b"data":
            data.append(value.removeprefix(b" "))
        elif not line:
            found += [b"\n".join(data)] if data else []
            data = []
    return found


@examples(40)
@example(b"\xef\xbb\xbfdata: 1\n\n", [], 60)
@given(TEXTS, st.lists(st.integers(0, 300), max_size=12), st.integers(0, 60))
def test_any_chunking_gives_the_same_events(text: bytes, cuts: list[int], longest: int) -> None:
    places = sorted({min(cut, len(text)) for cut in cuts})
    chunks = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
    single = [text[i : i + 1] for i in range(len(text))]
    assert read(chunks) == read(single) == expected(text)
    assert read(single, longest) == read([text], longest)


def test_event_after_a_too_long_one_is_found() -> None:
    for piece in (b"data: x", b"data: x\n", b"event", b": comment\n", b"data:\n"):
        events = EventStream(longest=1000)
        assert [data for _ in range(5000) for data in events.feed(piece)] == [], piece
        assert [*events.feed(b"\n\n\n"), *events.feed(b"data: 2\n\n")][-1] == b"2", piece

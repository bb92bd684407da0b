"""The parser of server-sent events: any chunking gives the events of the whole text."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiothrottle.llm.events import EventStream

LINES = st.sampled_from(
    [
        b"data: {}",
        b"data:x",
        b"data",
        b"data: \xc3\xb6\xf0\x9f\x98\x80",
        b"event: a",
        b": ping",
        b"id: 1",
        b"\xef\xbb\xbfdata: 1",
        b"database: 2",
        b"",
        b"",
        b"data: " + b"long " * 8,
    ]
)
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])
TEXTS = st.lists(st.tuples(LINES, ENDS), max_size=20).map(
    lambda lines: b"".join(line + end for line, end in lines)
)


def chunked(text: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({min(cut, len(text)) for cut in cuts})
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


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


@given(TEXTS, st.lists(st.integers(0, 300), max_size=12))
def test_any_chunking_gives_the_same_events(text: bytes, cuts: list[int]) -> None:
    assert read(chunked(text, cuts)) == expected(text)


@given(TEXTS, st.integers(0, 60))
def test_single_bytes_give_the_events_of_one_chunk(text: bytes, longest: int) -> None:
    single = [text[i : i + 1] for i in range(len(text))]
    assert read(single, longest) == read([text], longest)


@given(st.lists(st.binary(max_size=50)))
def test_no_bytes_raise(chunks: list[bytes]) -> None:
    assert read(chunks) == read([b"".join(chunks)])


@pytest.mark.parametrize("piece", [b"data: x", b"data: x\n", b"event", b": comment\n", b"data:\n"])
def test_too_long_event_is_skipped_in_bounded_memory(piece: bytes) -> None:
    events = EventStream(longest=1000)
    for _ in range(5000):
        assert list(events.feed(piece)) == []
        assert len(events._line) + sum(map(len, events._data)) <= 1000
        assert len(events._data) <= 200
    assert [*events.feed(b"\n\n\n"), *events.feed(b"data: 2\n\n")][-1] == b"2"

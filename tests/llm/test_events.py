"""The parser of server-sent events: any chunking gives the events of the whole text."""

import re

from hypothesis import example, given
from hypothesis import strategies as st

from aiothrottle.llm.events import EventStream
from tests.support.effort import examples

FIELDS = (
    b"data: {}",
    b"data:x",
    b"data",
    b"data: \xc3\xb6\xf0\x9f\x98\x80",
    b"data: " + b"long " * 8,
)
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

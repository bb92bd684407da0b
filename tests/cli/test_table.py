"""Tables in the first form that fits, down to a block for each row."""

import io

from hypothesis import given
from hypothesis import strategies as st

from aiothrottle.cli.table import columns_of, fitted, paragraph

ROWS = [
    ("", "pages found", "time", "most at once"),
    ("no limiter", "40", "0.62 s", "9"),
    ("a semaphore", "7", "10.00 s", ""),
]


def test_wide_table_has_heads_in_one_line() -> None:
    assert fitted(ROWS, 50) == fitted(ROWS, None)
    assert fitted(ROWS, None) == [
        "              pages found      time   most at once",
        "no limiter             40    0.62 s              9",
        "a semaphore             7   10.00 s",
    ]


def test_narrower_table_folds_its_heads() -> None:
    assert fitted(ROWS, 36) == [
        "                                most",
        "              pages               at",
        "              found      time   once",
        "no limiter       40    0.62 s      9",
        "a semaphore       7   10.00 s",
    ]


def test_narrow_table_turns_columns_into_rows() -> None:
    assert fitted(ROWS, 35) == [
        "                    no           a",
        "               limiter   semaphore",
        "pages found         40           7",
        "time            0.62 s     10.00 s",
        "most at once         9",
    ]


def test_narrowest_table_is_a_block_for_each_row() -> None:
    assert fitted(ROWS, 22) == [
        "no limiter",
        "  pages found   40",
        "  time          0.62 s",
        "  most at once  9",
        "a semaphore",
        "  pages found   7",
        "  time          10.00 s",
    ]


CELLS = st.text("ab ", max_size=12)


@given(
    st.integers(2, 5).flatmap(
        lambda size: st.lists(st.tuples(*[CELLS] * size), min_size=2, max_size=5)
    ),
    st.integers(1, 80),
)
def test_every_cell_is_in_every_form(rows: list[tuple[str, ...]], width: int) -> None:
    shown = "".join(fitted(rows, width)).replace(" ", "")
    wanted = "".join("".join(row) for row in rows[1:]).replace(" ", "")
    assert shown.count("a") >= wanted.count("a")
    assert shown.count("b") >= wanted.count("b")


def test_long_word_of_a_text_stays_whole() -> None:
    assert paragraph("see http://a-host.example/path now", 10) == (
        "see\nhttp://a-host.example/path\nnow"
    )
    assert paragraph("see http://a now", None) == "see http://a now"


def test_stream_without_terminal_has_no_width() -> None:
    assert columns_of(io.StringIO()) is None

"""The table of README.md that compares the package with its peers: the cells, by row and column.

A test finds out what is true, by running the package of the column, and compares it with the cell.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

README = Path(__file__).parents[2] / "README.md"
YES, NO = "\N{CHECK MARK}", "\N{EN DASH}"
OURS = "aiothrottle"
# The package to import for each column.
COLUMNS = {
    OURS: "aiothrottle",
    "aiolimiter": "aiolimiter",
    "asyncio-throttle": "asyncio_throttle",
    "pyrate-limiter": "pyrate_limiter",
    "limits": "limits",
    "aiohttp-retry": "aiohttp_retry",
    "token-throttle": "token_throttle",
}
NOTE = re.compile(r"<sup>.*?</sup>")
LINE = re.compile(r"(?m)^\|(.*)\|$")


def compared() -> Iterator[list[str]]:
    """Yield the lines of the table as lists of cells, without their notes."""
    section = README.read_text(encoding="utf-8").partition("## Compared")[2].partition("\n## ")[0]
    for line in LINE.findall(section):
        yield [NOTE.sub("", text).replace("`", "").strip() for text in line.split("|")]


HEAD, _, *LINES = compared()
ROWS = [line[0] for line in LINES]


def cell(row: str, column: str) -> str:
    """Return what the table says."""
    [line] = [line for line in LINES if line[0] == row]
    return line[HEAD.index(column)]


def columns(*names: str) -> Callable[[Callable[..., object]], Any]:
    """Parametrize a test with `column`: those named, or else all."""
    return pytest.mark.parametrize("column", names or tuple(COLUMNS))


def the_package(column: str) -> Any:
    """Import the package of a column; the test is skipped where it is not installed."""
    return pytest.importorskip(COLUMNS[column])


def source_of(column: str) -> list[str]:
    """Return the texts of the files of a package."""
    folder = Path(the_package(column).__file__).parent
    return [path.read_text(encoding="utf-8") for path in folder.rglob("*.py")]

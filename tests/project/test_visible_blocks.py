"""The guides run as printed: the visible Python blocks of a page alone, in a fresh namespace."""

import ast
import asyncio
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"
# A skipped block needs a package or a server; the other runner of the pages checks which.
BLOCK = re.compile(r"(?ms)^(<!-- skip: next[^\n]*-->\n+)?```python\n(.*?)^```$")


def pages() -> list[str]:
    folders = [DOCS / "start", DOCS / "guides"]
    return sorted(str(page.relative_to(DOCS)) for it in folders for page in it.glob("*.md"))


@pytest.mark.parametrize("page", pages())
def test_visible_blocks_of_a_page_run_alone(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    names: dict[str, Any] = {"__name__": "page"}
    with asyncio.Runner() as runner:
        for skipped, block in BLOCK.findall(text):
            if skipped:
                continue
            code = compile(block, page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            ended = eval(code, names)
            if code.co_flags & inspect.CO_COROUTINE:
                runner.run(ended)

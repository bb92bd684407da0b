"""The recipes of docs/servers/works-with*.md, each run as printed, in a namespace of its own."""

import ast
import inspect
import re
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).resolve().parents[2] / "docs" / "servers"
_PAGES = [_FOLDER / "works-with.md", _FOLDER / "works-with-models.md"]
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


async def run_recipe(heading: str) -> dict[str, Any]:
    """Run the Python blocks under a heading of the page, and return the names that they define.

    Args:
        heading: The text of a second-level heading of one of the pages.

    Raises:
        LookupError: No page has such a heading, or there is no Python block under it.
    """
    texts: dict[str, str] = {}
    for page in _PAGES:
        sections = re.split(r"^## (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
        texts |= dict(zip(sections[1::2], sections[2::2], strict=True))
    blocks = _BLOCK.findall(texts[heading])
    if not blocks:
        raise LookupError(f"no Python block under {heading!r} in {_FOLDER}")
    names: dict[str, Any] = {"__name__": f"recipe of {heading}"}
    for block in blocks:
        code = compile(
            block, f"works-with, {heading}", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        )
        done = eval(code, names)
        if code.co_flags & inspect.CO_COROUTINE:
            await done
    return names

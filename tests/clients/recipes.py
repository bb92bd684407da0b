"""The recipes of docs/servers/works-with.md, each run as printed, in a namespace of its own."""

import ast
import inspect
import re
from pathlib import Path
from typing import Any

_PAGE = Path(__file__).resolve().parents[2] / "docs" / "servers" / "works-with.md"
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


async def run_recipe(heading: str) -> dict[str, Any]:
    """Run the Python blocks under a heading of the page, and return the names that they define.

    Args:
        heading: The text of a second-level heading.

    Raises:
        LookupError: The page has no such heading, or there is no Python block under it.
    """
    sections = re.split(r"^## (.+)$", _PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    texts = dict(zip(sections[1::2], sections[2::2], strict=True))
    blocks = _BLOCK.findall(texts[heading])
    if not blocks:
        raise LookupError(f"no Python block under {heading!r} in {_PAGE.name}")
    names: dict[str, Any] = {"__name__": f"recipe of {heading}"}
    for block in blocks:
        code = compile(
            block, f"{_PAGE.name}, {heading}", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        )
        done = eval(code, names)
        if code.co_flags & inspect.CO_COROUTINE:
            await done
    return names

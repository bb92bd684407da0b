"""The tables of defaults and errors: they name each argument, and what the code says."""

import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import aiothrottle
from aiothrottle import RateLimiter
from aiothrottle.aiohttp import Retry, SessionOptions
from tests.support.servers import imported

# All options, with their defaults, stand beside the public groups of them.
Options = imported(SessionOptions.__module__).Options
REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
SOURCES = "".join(
    path.read_text(encoding="utf-8") for path in Path(aiothrottle.__file__).parent.rglob("*.py")
)


def rows(page: str, heading: str) -> list[list[str]]:
    text = (REFERENCE / page).read_text(encoding="utf-8")
    section = re.split(rf"^#+ {heading}$", text, flags=re.MULTILINE)[1].split("\n\n#")[0]
    lines = [
        [cell.strip() for cell in line[1:-1].split("|")]
        for line in section.splitlines()
        if line.startswith("| ")
    ]
    return lines[1:]


def defaults(heading: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for cells in rows("defaults.md", heading):
        names, parts = re.findall(r"`(\w+)`", cells[0]), cells[1].split(", ")
        # "0.5, 30" has one for each of two names, "429, 502" is one.
        values = parts if len(parts) == len(names) else [cells[1]] * len(names)
        found |= dict(zip(names, (value.strip("`") for value in values), strict=True))
    return found


def shown(value: object) -> str:
    """Return a default as a table has it."""
    if isinstance(value, frozenset):
        return ", ".join(map(str, sorted(map(int, value))))  # pyright: ignore[reportUnknownArgumentType,reportUnknownVariableType]
    return f"{value:g}" if isinstance(value, float) else f"{value!r}".replace("'", '"')


def values_of(options: Any) -> dict[str, object]:
    return {field.name: getattr(options, field.name) for field in fields(options)}


PARAMETERS = inspect.signature(RateLimiter).parameters.values()
TABLES: dict[str, dict[str, object]] = {
    "RateLimiter": {it.name: it.default for it in PARAMETERS if it.kind is not it.VAR_POSITIONAL},
    "Retry": values_of(Retry()),
    "Sessions, middlewares, transports": values_of(Options()),
}
# Defaults that a table has in words.
IN_WORDS = {
    "algorithm": "SlidingWindowLog",
    "methods": f"the idempotent ones: {', '.join(sorted(Retry().methods))}",
    "exceptions": "None`: lost and failed connections",
    "profiles": "none",
    "retry": "Retry()",
}


@pytest.mark.parametrize("heading", TABLES)
def test_table_has_each_default(heading: str) -> None:
    found, real = defaults(heading), TABLES[heading]
    assert found.keys() == real.keys() - {"clock"}  # which is for tests
    assert found == {name: IN_WORDS.get(name) or shown(real[name]) for name in found}


def test_defaults_in_words_are_those_of_the_code() -> None:
    assert (Options().profiles, Options().retry, Retry().exceptions) == ((), Retry(), None)


@pytest.mark.parametrize(("message", "_"), rows("errors.md", "Messages and their causes"))
def test_message_of_the_table_is_in_the_code(message: str, _: str) -> None:
    words = re.sub(r"<.*>|\bRateLimiter\b", "", message.strip("`")).strip()
    joined = re.sub(r'"\s+f?"', "", SOURCES)
    assert words.removeprefix("a ") in joined

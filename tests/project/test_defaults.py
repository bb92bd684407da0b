"""The tables of defaults and errors: they name each argument, and what the code says."""

import inspect
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import pytest

import aiothrottle
from aiothrottle import RateLimiter
from aiothrottle._http.options import Options
from aiothrottle.retry import Retry

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
SOURCES = "".join(
    path.read_text(encoding="utf-8") for path in Path(aiothrottle.__file__).parent.rglob("*.py")
)


def rows(page: str, heading: str) -> list[list[str]]:
    """Return the cells of the table under a heading."""
    text = (REFERENCE / page).read_text(encoding="utf-8")
    section = re.split(rf"^#+ {heading}$", text, flags=re.MULTILINE)[1].split("\n\n#")[0]
    lines = [
        [cell.strip() for cell in line[1:-1].split("|")]
        for line in section.splitlines()
        if line.startswith("| ")
    ]
    return lines[1:]


def defaults(heading: str) -> dict[str, str]:
    """Return each argument of a table with its default, as it is written there."""
    return {
        name: default
        for names, default, *_ in rows("defaults.md", heading)
        for name, default in zip(
            re.findall(r"`(\w+)`", names), written(names, default), strict=True
        )
    }


def written(names: str, default: str) -> list[str]:
    """Return a default for each of the names: "0.5, 30" has one for each, "429, 502" is one."""
    count = names.count("`") // 2
    parts = default.split(", ")
    return parts if count == len(parts) else [default] * count


def shown(value: object) -> str:
    """Return a default as a table has it."""
    if isinstance(value, frozenset):
        return ", ".join(map(str, sorted(map(int, value))))  # pyright: ignore[reportUnknownArgumentType,reportUnknownVariableType]
    return f"{value:g}" if isinstance(value, float) else f"{value!r}".replace("'", '"')


def of_signature(function: object) -> Mapping[str, object]:
    parameters = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    return {it.name: it.default for it in parameters if it.kind is not it.VAR_POSITIONAL}


def test_table_of_the_limiter_has_each_default() -> None:
    found = defaults("RateLimiter")
    real = dict(of_signature(RateLimiter))
    real.pop("clock")  # for tests
    assert found.keys() == real.keys()
    assert found.pop("algorithm") == "`SlidingWindowLog`"
    real.pop("algorithm")
    assert {name: default.strip("`") for name, default in found.items()} == {
        name: shown(default) for name, default in real.items()
    }


def test_table_of_retries_has_each_default() -> None:
    found, retry = defaults("Retry"), Retry()
    assert found.keys() == {field.name for field in fields(Retry)}
    methods = found.pop("methods").partition(": ")[2]
    assert methods.split(", ") == sorted(retry.methods)
    assert found.pop("exceptions").startswith("`None`")
    assert {name: default.strip("`") for name, default in found.items()} == {
        name: shown(getattr(retry, name)) for name in found
    }


def test_table_of_options_has_each_default() -> None:
    found = defaults("Sessions, middlewares, transports")
    assert found.keys() == {field.name for field in fields(Options)}
    options = Options()
    assert found.pop("profiles") == "none"
    assert options.profiles == ()
    assert found.pop("retry") == "`Retry()`"
    assert {name: default.strip("`") for name, default in found.items()} == {
        name: shown(getattr(options, name)) for name in found
    }


@pytest.mark.parametrize(("message", "_"), rows("errors.md", "Messages and their causes"))
def test_message_of_the_table_is_in_the_code(message: str, _: str) -> None:
    words = re.sub(r"<.*>|\bRateLimiter\b", "", message.strip("`")).strip()
    joined = re.sub(r'"\s+f?"', "", SOURCES)
    assert words.removeprefix("a ") in joined

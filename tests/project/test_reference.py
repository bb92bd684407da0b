"""The generated reference: it is what the script writes, and it has every public name."""

import runpy
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.project.test_architecture import ENTRY_POINTS
from tests.support.servers import imported

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "reference.py"
pytestmark = pytest.mark.skipif(
    not SCRIPT.is_file(), reason="the scripts are not there: a built package"
)


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


@pytest.mark.skipif(
    tuple(map(int, aiohttp.__version__.split(".")[:2])) < (3, 14),
    reason="an older aiohttp writes the type of a handler in another way",
)
def test_pages_are_those_that_the_script_writes(script: dict[str, Any]) -> None:
    stale: list[str] = []
    for path, text in script["pages"]():
        try:
            wanted = text()
        except ModuleNotFoundError:  # a driver that this Python has not
            continue
        if not path.is_file() or path.read_text(encoding="utf-8") != wanted:
            stale.append(path.name)
    assert stale == [], "write them anew: python scripts/reference.py"
    written = {path for path, _ in script["pages"]()}
    assert {*(ROOT / "docs" / "reference" / "api").glob("*.md")} <= written


def test_every_public_name_is_in_the_reference(script: dict[str, Any]) -> None:
    # A name that two modules have stands at one of them.
    there: list[object] = []
    for part in (part for page in script["PAGES"].values() for part in page.parts):
        try:
            names: list[str] = script["listed"](part)
        except ModuleNotFoundError:  # a driver that this Python has not
            names = []
        there += [getattr(imported(part.module), name) for name in names]
    missing = [
        f"{module}.{name}"
        for module in ENTRY_POINTS
        for name in imported(module).__all__
        if not any(getattr(imported(module), name) is value for value in there)
        and not name.startswith("__")
    ]
    assert missing == []


def test_page_has_signature_arguments_fields_and_errors(script: dict[str, Any]) -> None:
    text: str = script["page_text"]("limiters")
    limiter = text.partition("\n## RateLimiter\n")[2].partition("\n### ")[0]
    assert "\n    concurrency_limit: int | AdaptiveConcurrency" in limiter
    assert "\n**Arguments**\n\n- `rate_limit`: " in limiter
    assert "\n- `max_queue`: How many requests may wait. None: no limit.\n" in limiter
    assert "\n- `ValueError`: An argument is out of range" in limiter
    assert "\n>>> limiter = RateLimiter(rate_limit=20, concurrency_limit=10)\n" in limiter
    assert "\n- `granted: int`: Requests that were granted.\n" in script["page_text"]("values")
    with pytest.raises(LookupError, match="VALUES"):
        script["value_text"](imported("aiothrottle.headers"), "__doc__")


def test_type_is_shown_alike_by_every_python(script: dict[str, Any]) -> None:
    shown = script["annotation_text"]
    assert shown("typing.Union[int, typing.List[a.b.C], None]") == "int | List[C] | None"
    assert shown("typing.Optional[int]") == "int | None"
    assert shown("Callable[[], Union[int, None]]") == "Callable[[], int | None]"

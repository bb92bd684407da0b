"""The pages: what they name exists, their programs run, and they are short."""

import ast
import asyncio
import doctest
import inspect
import pkgutil
import re
import runpy
import subprocess
import sys
import tomllib
from asyncio.subprocess import PIPE
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest
from aiohttp import web

import aiothrottle
from aiothrottle.testing import RateLimitedServer
from tests.project.test_architecture import ENTRY_POINTS
from tests.support.servers import imported

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


PAGES = {page: text_of(page) for page in (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))}

A_FILE = re.compile(r"`((?:tests|examples|benchmarks|aiothrottle|docs)/[\w/.]+\.(?:py|md|lua))`")
# The id of a test: the whole, its file, its function; parameters may follow.
A_NODE = re.compile(r"`((tests/[\w/.]+\.py)::(\w+)(?:\[[^`]*\])?)`")


def test_every_imported_module_is_public() -> None:
    # Public modules are the entry points, and every module that a page imports.
    imports = re.compile(r"^from (aiothrottle[\w.]*) import", re.MULTILINE)
    texts = [text for page, text in PAGES.items() if page.parent.name != "api"]
    assert {name for text in texts for name in imports.findall(text)} <= {*ENTRY_POINTS}


def test_docstring_examples_give_their_output() -> None:
    finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner()
    for found in pkgutil.walk_packages(aiothrottle.__path__, "aiothrottle."):
        if not found.name.endswith(".__main__"):
            for test in finder.find(imported(found.name)):
                # `doctest.testmod` looks at all sources anew for each docstring without examples.
                assert not test.examples or runner.run(test).failed == 0, test.name


def test_every_file_named_by_a_page_exists() -> None:
    named = [(page.name, name) for page, text in PAGES.items() for name in A_FILE.findall(text)]
    assert [(page, name) for page, name in named if not (ROOT / name).is_file()] == []


def wrong_names(page: str) -> list[str]:
    """Return the classes and methods that a page about the code names, but that are not there."""
    package = ROOT / "aiothrottle"
    # Read, not imported: some need a driver.
    files = {it.relative_to(package).as_posix(): text_of(it) for it in package.rglob("*.py")}
    wrong: list[str] = []

    def check(kind: str, method: str, places: Iterable[str]) -> None:
        there = re.compile(rf"^ +(async def |def |self\.){method}\b[(:]", re.MULTILINE)
        defined = re.compile(rf"^(?:class|def) {kind}\b(.*?)(?=^\S|\Z)", re.MULTILINE | re.DOTALL)
        bodies = [body for it in places for body in defined.findall(files.get(it, ""))]
        if not any(not method or there.search(body) for body in bodies):
            wrong.append(f"{kind}.{method}")

    for kind, method in re.findall(r"`([A-Z]\w+)\.(\w+)`", page):
        check(kind, method, files)
    file = ""
    for line in "".join(re.findall(r"(?ms)^```text\n(.*?)^```$", page)).splitlines():
        # A line of a drawing names its file, or it is that of the line before.
        named, names = re.fullmatch(r"(\S+\.py)? *((?:\w+(?:\.\w+)?(?:, )?)*).*", line).groups()  # type: ignore[union-attr]
        file = named or file
        for name in filter(None, names.split(", ")):
            kind, _, method = name.partition(".")
            check(kind, method, [file])
    names = re.findall(r"`((?:\w+/)*\w+\.py)`", page)
    return wrong + [it for it in names if it not in files and not (ROOT / it).is_file()]


def test_page_about_the_code_names_what_is_there() -> None:
    page = PAGES[DOCS / "project" / "code.md"]
    assert wrong_names(page) == []
    undrawn = [
        it.name for it in (ROOT / "aiothrottle/_core").glob("[a-z]*.py") if it.name not in page
    ]
    assert undrawn == []
    for gone in (
        "`Engine.gone`",
        "`gone.py`",
        "```text\npermit.py  Engine.arrive\n```",
        "```text\npermit.py  Permit\n           Permit.gone  takes\n```",
        "```text\npermit.py  Permit.__aenter__, Permit.gone\n```",
        "```text\npermit.py  Gone  takes\n```",
    ):
        assert len(wrong_names(gone)) == 1, gone


def test_every_link_has_a_target() -> None:
    # Sphinx checks the links between the pages of docs/.
    for name in ("CONTRIBUTING.md", "SECURITY.md", "examples/README.md", "tests/README.md"):
        links = re.findall(r"\]\((?!\w+:)([^)#]+)", text_of(ROOT / name))
        assert [it for it in links if not ((ROOT / name).parent / it).exists()] == [], name
    for page, text in PAGES.items():
        links = re.findall(r"\]\(https://[^)\s]+/blob/main/([^)#\s]+)", text)
        assert [link for link in links if not (ROOT / link).exists()] == [], page


def test_links_of_the_readme_are_absolute_and_have_targets() -> None:
    # An index shows the page alone, without the files beside it.
    source = tomllib.loads(text_of(ROOT / "pyproject.toml"))["project"]["urls"]["Source"]
    files = (f"{source}/blob/main/", source.replace("github", "raw.githubusercontent") + "/main/")
    links = re.findall(r"\]\(([^)\s]+)\)|(?:src|srcset)=\"([^\"]+)\"", PAGES[ROOT / "README.md"])
    assert len(links) > 10
    for link in map("".join, links):
        assert link.startswith("https://")
        if link.startswith(files):
            assert (ROOT / link.partition("/main/")[2]).exists(), link


@cache
def names_in(name: str) -> set[str]:
    tree = ast.parse(text_of(ROOT / name) if (ROOT / name).is_file() else "")
    return {getattr(it, "name", "") for it in tree.body}


def missing_tests(text: str) -> list[str]:
    return [node for node, name, test in A_NODE.findall(text) if test not in names_in(name)]


def test_every_promise_names_tests_that_exist() -> None:
    page = PAGES[DOCS / "concepts" / "guarantees.md"]
    promises = page.partition("## What is not promised")[0].split("\n- ")[1:]
    assert len(promises) > 20
    unnamed = [it for it in promises if not A_NODE.search(it.partition("*Tests:*")[2])]
    assert unnamed == []
    texts = PAGES | {ROOT / "SECURITY.md": text_of(ROOT / "SECURITY.md")}
    missing = [f"{page.name}: {it}" for page, text in texts.items() for it in missing_tests(text)]
    assert not missing, "no such test:\n" + "\n".join(missing)
    here, this = "tests/project/test_docs.py", "test_every_promise_names_tests_that_exist"
    gone = [f"{here}::test_that_is_gone", f"tests/project/test_gone.py::{this}", f"{here}::ROOT"]
    nodes = [*gone, f"{here}::{this}", f"{here}::{this}[one]", here]
    assert missing_tests(", ".join(f"`{node}`" for node in nodes)) == gone


def test_every_page_is_in_the_table_of_contents() -> None:
    pages = {page.relative_to(DOCS).with_suffix("").as_posix() for page in DOCS.rglob("*.md")}
    listed = {"index"}
    for index in DOCS.rglob("index.md"):
        lines = filter(None, text_of(index).splitlines())
        listed |= {(index.parent / line).relative_to(DOCS).as_posix() for line in lines}
    assert pages - listed == set()


# Written by programs, so as long as their results.
GENERATED = (
    "project/benchmarks/",
    "project/results/",
    "reference/api/",
    "reference/options",
    "reference/vendors",
)
MOST_WORDS, MOST_IN_ALL, MOST_OF_README = 1_500, 28_000, 800


def words_of(text: str) -> int:
    """Return the number of words that a reader sees, those of the code too."""
    seen = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    return sum(1 for word in seen.split() if re.search(r"\w", word))


def test_pages_are_short() -> None:
    pages = {
        page.relative_to(DOCS).with_suffix("").as_posix(): words_of(text)
        for page, text in PAGES.items()
        if page.is_relative_to(DOCS)
    }
    counted = {name: words for name, words in pages.items() if not name.startswith(GENERATED)}
    assert [it for it, words in counted.items() if words > MOST_WORDS] == []
    assert sum(counted.values()) <= MOST_IN_ALL
    assert len(PAGES[ROOT / "README.md"].split()) <= MOST_OF_README
    assert words_of("| two words | - |\n<!-- unseen -->") == 2


def test_readme_says_how_large_the_package_is() -> None:
    code = (
        "import sys; from pathlib import Path; from aiothrottle import RateLimiter; "
        "RateLimiter('10/s', concurrency_limit=2); "
        "print(sum(len(Path(it.__file__).read_text(encoding='utf-8').splitlines()) "
        "for name, it in sys.modules.items() if name.startswith('aiothrottle')))"
    )
    printed = subprocess.check_output([sys.executable, "-c", code], text=True)
    files = Path(aiothrottle.__file__).parent.rglob("*.py")
    lines = sum(len(text_of(it).splitlines()) for it in files)
    [said] = re.findall(
        r"([\d,]+) lines of Python, of which a program with a limiter loads ([\d,]+)",
        " ".join(PAGES[ROOT / "README.md"].split()),
    )
    numbers = [float(it.replace(",", "")) for it in said]
    assert numbers == pytest.approx([lines, int(printed)], rel=0.15)


def test_benchmark_page_has_the_docstring_of_its_script() -> None:
    pages = [it for it in (DOCS / "project" / "benchmarks").glob("*.md") if it.name != "index.md"]
    assert len(pages) > 10
    for page in pages:
        script = text_of(ROOT / "benchmarks" / f"{page.stem}.py")
        about = (ast.get_docstring(ast.parse(script)) or "").partition("\n\n")[2]
        assert about, script
        assert f"\n{about}\n" in PAGES[page], page.name


def test_pictures_are_those_that_the_script_draws() -> None:
    drawn: dict[str, str] = runpy.run_path(str(ROOT / "benchmarks" / "pictures.py"))["pictures"]()
    for name, svg in drawn.items():
        message = "draw them anew: python benchmarks/pictures.py"
        assert text_of(DOCS / "pictures" / name) == svg, message
    for page in (ROOT / "README.md", DOCS / "index.md"):
        for counts in re.findall(r"\d+ sent, \d+ throttled", PAGES[page]):
            assert counts in drawn["crawl-light.svg"]


# A skipped block needs a package or a server; the other runner of the pages checks which.
BLOCK = re.compile(r"(?ms)^(<!-- skip: next[^\n]*-->\n+)?```python\n(.*?)^```$")
GUIDES = [page for name in ("start", "guides") for page in sorted((DOCS / name).glob("*.md"))]


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)  # pyright: ignore[reportUnknownLambdaType,reportUnknownMemberType]
def test_visible_blocks_of_a_guide_run_alone(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As printed: each page in a fresh namespace, and an empty folder."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    with asyncio.Runner() as runner:
        for skipped, block in BLOCK.findall(PAGES[page]):
            if skipped:
                continue
            code = compile(block, page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            ended = eval(code, names)
            if code.co_flags & inspect.CO_COROUTINE:
                runner.run(ended)


async def test_program_of_the_readme_prints_what_it_says() -> None:
    [program] = re.findall(r"(?ms)^```python\n(.*?)^```$", PAGES[ROOT / "README.md"])
    url = "https://httpbin.org/status/200,200,429"
    assert url in program
    sent = 0

    async def throttle_one_in_three(_: web.Request) -> web.Response:
        nonlocal sent
        sent += 1
        return web.Response(status=429 if sent % 3 == 0 and sent < 10 else 200)

    async with RateLimitedServer(handler=throttle_one_in_three) as server:
        code = program.replace(url, str(server.url))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", code), stdout=PIPE, stderr=PIPE
        )
        assert await process.communicate() == (f"{[200] * 20}\n".encode(), b"")
        assert server.audit.sent == 23
        assert server.audit.greatest_concurrency <= 4

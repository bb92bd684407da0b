"""The pages: every public name is in the reference, every file that a page names exists."""

import ast
import doctest
import inspect
import pkgutil
import re
import runpy
import tomllib
from pathlib import Path

import pytest

import aiothrottle
from tests.project.test_architecture import ENTRY_POINTS
from tests.servers import imported

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]

# A directive of the reference: its name, its argument, its options.
DIRECTIVE = re.compile(
    r"^\.\. (automodule|currentmodule|autoclass|autoexception):: (\S+)\n((?:   :.*\n)*)",
    re.MULTILINE,
)
EXCLUDED = re.compile(r":exclude-members: (.*)")
A_FILE = re.compile(r"`((?:tests|examples|benchmarks|aiothrottle|docs)/[\w/.]+\.(?:py|md|lua))`")


API = "".join(
    page.read_text(encoding="utf-8") for page in (DOCS / "reference" / "api").glob("*.md")
)


def documented(api: str) -> set[str]:
    """Return the full names of all that the reference describes."""
    found = set(re.findall(r"^\.\. py:data:: (\S+)$", api, re.MULTILINE))
    module = ""
    for kind, name, options in DIRECTIVE.findall(api):
        if kind == "automodule":
            excluded = {it for names in EXCLUDED.findall(options) for it in names.split(", ")}
            found |= {f"{name}.{it}" for it in {*imported(name).__all__} - excluded}
        module = name if kind in {"automodule", "currentmodule"} else module
        found.add(f"{module}.{name}")
    return found


@pytest.mark.parametrize("module", ENTRY_POINTS)
def test_every_public_name_is_in_the_reference(module: str) -> None:
    # A name that two modules have stands at one of them.
    places = [name.rpartition(".") for name in documented(API)]
    there = [
        getattr(imported(place), name)
        for place, _, name in places
        if place in {*ENTRY_POINTS, "aiothrottle._http.options"} and name
        if hasattr(imported(place), name)
    ]
    public = imported(module)
    missing = [name for name in public.__all__ if getattr(public, name) not in there]
    assert [name for name in missing if not name.startswith("__")] == []


def test_name_without_an_entry_is_found() -> None:
    api = ".. automodule:: aiothrottle.retry\n   :exclude-members: Retry\n"
    assert "aiothrottle.retry.RetryBudget" in documented(api)
    assert "aiothrottle.retry.Retry" not in documented(api)


@pytest.mark.parametrize("module", ENTRY_POINTS)
def test_other_public_value_has_an_entry(module: str) -> None:
    # autodoc finds the documentation of such a name only where it is defined.
    public = imported(module)
    source = inspect.getsource(public)
    for name in public.__all__:
        value = getattr(public, name)
        if not (inspect.isclass(value) or inspect.isroutine(value) or name.startswith("__")):
            there = re.search(rf"^{name}\b", source, re.MULTILINE)
            assert there or f".. py:data:: {module}.{name}\n" in API, name


def test_every_imported_module_is_public() -> None:
    # Public modules are the entry points, and every module that a page imports.
    imports = re.compile(r"^from (aiothrottle[\w.]*) import", re.MULTILINE)
    found = {name for page in PAGES for name in imports.findall(page.read_text(encoding="utf-8"))}
    assert found <= {*ENTRY_POINTS}


@pytest.mark.parametrize(
    "module",
    [
        found.name
        for found in pkgutil.walk_packages(aiothrottle.__path__, "aiothrottle.")
        if not found.name.endswith(".__main__")
    ],
)
def test_docstring_examples_give_their_output(module: str) -> None:
    assert doctest.testmod(imported(module)).failed == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_named_by_a_page_exists(page: Path) -> None:
    named = A_FILE.findall(page.read_text(encoding="utf-8"))
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_how_it_works_names_real_files_and_methods() -> None:
    page = (DOCS / "concepts" / "how-it-works.md").read_text(encoding="utf-8")
    package = ROOT / "aiothrottle"
    sources = "".join(path.read_text(encoding="utf-8") for path in package.rglob("*.py"))
    # Read, not imported: some need a driver.
    classes = re.findall(r"^class (\w+)(.*?)(?=^\S)", sources, re.MULTILINE | re.DOTALL)
    methods = re.findall(r"`([A-Z]\w+)\.(\w+)`", page)
    assert len(methods) > 30
    for kind, method in methods:
        there = re.compile(rf"^ +(async def |def |self\.|){method}\b[(:]", re.MULTILINE)
        bodies = [body for name, body in classes if name == kind]
        assert any(there.search(body) for body in bodies), f"{kind}.{method}"
    files = re.findall(r"`((?:\w+/)*\w+\.py)`", page)
    assert len(files) > 20
    for name in files:
        assert (ROOT / name).is_file() or (package / name).is_file(), name


@pytest.mark.parametrize("page", ["CONTRIBUTING", "SECURITY", "examples/README"])
def test_every_link_to_a_file_has_a_target(page: str) -> None:
    # Sphinx checks the links between the pages of docs/.
    place = ROOT / f"{page}.md"
    links = re.findall(r"\]\((?!\w+:)([^)#]+)", place.read_text(encoding="utf-8"))
    assert [link for link in links if not (place.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_to_the_repository_has_a_target(page: Path) -> None:
    links = re.findall(
        r"\]\(https://[^)\s]+/blob/main/([^)#\s]+)", page.read_text(encoding="utf-8")
    )
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_links_of_the_readme_are_absolute_and_have_targets() -> None:
    # An index shows the page alone, without the files beside it.
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    source = project["urls"]["Source"]
    files = (f"{source}/blob/main/", source.replace("github", "raw.githubusercontent") + "/main/")
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)\s]+)\)|(?:src|srcset)=\"([^\"]+)\"", page)
    assert len(links) > 10
    for link in map("".join, links):
        assert link.startswith("https://")
        if link.startswith(files):
            assert (ROOT / link.partition("/main/")[2]).exists(), link


def test_every_promise_names_its_tests() -> None:
    page = (DOCS / "concepts" / "guarantees.md").read_text(encoding="utf-8")
    promises = page.partition("## What is not promised")[0].split("\n- ")[1:]
    assert len(promises) > 20
    assert [promise for promise in promises if "*Tests:* `tests/" not in promise] == []


def test_every_page_is_in_the_table_of_contents() -> None:
    pages = {page.relative_to(DOCS).with_suffix("").as_posix(): page for page in DOCS.rglob("*.md")}
    listed = {"index"}
    for index in DOCS.rglob("index.md"):
        lines = index.read_text(encoding="utf-8").splitlines()
        listed |= {(index.parent / line).relative_to(DOCS).as_posix() for line in lines if line}
    assert pages.keys() - listed == set()


def test_benchmark_page_has_the_docstring_of_its_script() -> None:
    pages = [it for it in (DOCS / "project" / "benchmarks").glob("*.md") if it.name != "index.md"]
    assert len(pages) > 10
    for page in pages:
        script = (ROOT / "benchmarks" / f"{page.stem}.py").read_text(encoding="utf-8")
        about = (ast.get_docstring(ast.parse(script)) or "").partition("\n\n")[2]
        assert about, script
        assert f"\n{about}\n" in page.read_text(encoding="utf-8"), page.name


def test_pictures_are_those_that_the_script_draws() -> None:
    drawn: dict[str, str] = runpy.run_path(str(ROOT / "benchmarks" / "pictures.py"))["pictures"]()
    for name, svg in drawn.items():
        picture = (DOCS / "pictures" / name).read_text(encoding="utf-8")
        assert picture == svg, "draw them anew: python benchmarks/pictures.py"
    for page in (ROOT / "README.md", DOCS / "index.md"):
        for counts in re.findall(r"\d+ sent, \d+ throttled", page.read_text(encoding="utf-8")):
            assert counts in drawn["crawl-light.svg"]


def test_attribute_description_is_not_parsed_as_its_type() -> None:
    napoleon = pytest.importorskip("sphinx.ext.napoleon")
    lines = ["Seconds that the server asked for; None: it did not."]
    runpy.run_path(str(DOCS / "conf.py"))["_begin_with_text"](None, "attribute", "x", None, lines)
    parsed = napoleon.GoogleDocstring(lines, napoleon.Config(), None, "attribute", "x").lines()
    assert "Seconds that the server asked for; None: it did not." in parsed
    assert not any(line.startswith(":type:") for line in parsed)

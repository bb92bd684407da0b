"""The pages: every public name is in the reference, every file that a page names exists."""

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

# A directive of the reference: its module, and its options.
AUTOMODULE = re.compile(r"^\.\. automodule:: (\S+)\n((?:   :.*\n)*)", re.MULTILINE)
EXCLUDED = re.compile(r":exclude-members: (.*)")
BY_ITSELF = re.compile(r"^\.\. autoclass:: (\w+)", re.MULTILINE)
A_FILE = re.compile(r"`((?:tests|examples|benchmarks|aiothrottle|docs)/[\w/.]+\.(?:py|md|lua))`")


API = (DOCS / "reference" / "api.md").read_text(encoding="utf-8")
# Of each module in the reference, the names that are excluded there.
REFERENCE = {
    module: {name for excluded in EXCLUDED.findall(options) for name in excluded.split(", ")}
    for module, options in AUTOMODULE.findall(API)
}


@pytest.mark.parametrize("module", REFERENCE)
def test_name_excluded_from_the_reference_is_elsewhere(module: str) -> None:
    public = imported(module)
    for name in REFERENCE[module]:
        # It stands at its first module; a module whose driver is missing has only names of its own.
        there = name in BY_ITSELF.findall(API) or any(
            name not in excluded
            and getattr(imported(other), name, None) is getattr(public, name)
            and name in imported(other).__all__
            for other, excluded in REFERENCE.items()
        )
        assert there, f"{module}.{name} is in no section of docs/reference/api.md"


@pytest.mark.parametrize("module", REFERENCE)
def test_other_public_value_has_an_entry(module: str) -> None:
    # autodoc finds the documentation of such a name only where it is defined.
    public = imported(module)
    source = inspect.getsource(public)
    for name in set(public.__all__) - REFERENCE[module]:
        value = getattr(public, name)
        if not (inspect.isclass(value) or inspect.isroutine(value)):
            there = re.search(rf"^{name}\b", source, re.MULTILINE)
            assert there or f".. py:data:: {module}.{name}\n" in API, name


def test_every_public_module_is_in_the_reference() -> None:
    # Public modules are the entry points, and every module that a page imports.
    imported = re.compile(r"^from (aiothrottle[\w.]*) import", re.MULTILINE)
    found = {name for page in PAGES for name in imported.findall(page.read_text(encoding="utf-8"))}
    assert {*ENTRY_POINTS, *found} <= set(REFERENCE)


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
    contents = (DOCS / "index.md").read_text(encoding="utf-8").splitlines()
    pages = {page.relative_to(DOCS).with_suffix("").as_posix() for page in DOCS.rglob("*.md")}
    assert pages - {*contents, "index"} == set()


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

"""The layers of the package: which folder may import which, and what from outside the package.

One row for each folder. Modules of the top level are two layers: `limiter`, `keyed` and `permit`
stand on the core, all others are values under it.
"""

import ast
import inspect
import re
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

import aiothrottle
from tests.support.servers import imported

PACKAGE = Path(aiothrottle.__file__).parent

# "folder: folders of the package | third parties, and modules with a clock, a loop or chance".
LAYERS = """
values:       | importlib random
algorithms:   values |
adaptive:     values algorithms |
headers:      values | http_sf importlib
llm:          values | asyncio importlib
stores:       values algorithms _core | asyncio importlib random threading time redis pymongo bson emcache
_core:        values algorithms adaptive stores | asyncio random threading time
limiter:      values algorithms headers stores _core | asyncio threading time
_http:        values adaptive headers _core limiter | asyncio random time
aiohttp:      values limiter _http | aiohttp asyncio yarl
transport:    values limiter _http | asyncio httpx httpx2
integrations: values headers limiter _http aiohttp | aiohttp langchain_core
metrics:      values algorithms adaptive stores _core limiter | time opentelemetry prometheus_client
dashboard:    values limiter metrics | aiohttp asyncio importlib socket time yarl
testing:      values algorithms stores | aiohttp asyncio random selectors threading time yarl
simulation:   values _core limiter _http testing | asyncio random
"""  # noqa: E501 - a row for each folder
# The public modules.
PUBLIC = """
adaptive aiohttp algorithms dashboard events headers hooks httpx httpx2
integrations.aiobotocore integrations.langchain llm metrics.opentelemetry metrics.prometheus
retry simulation stores stores.memcached stores.mongo stores.redis testing testing.store_contract
"""
ENTRY_POINTS = ["aiothrottle", *(f"aiothrottle.{name}" for name in PUBLIC.split())]
EVERYTHING = {"cli", "__init__", "__main__"}  # nothing imports these
# The rest of the standard library is allowed everywhere.
WATCHED = {"asyncio", "importlib", "random", "selectors", "socket", "threading", "time"}
FACES = {"limiter", "keyed", "per_loop", "permit", "server_limits"}


def rows() -> dict[str, tuple[set[str], set[str]]]:
    """Return what each folder may import, of the package and from outside."""
    found: dict[str, tuple[set[str], set[str]]] = {}
    for line in LAYERS.strip().splitlines():
        folder, _, allowed = line.partition(":")
        inside, _, outside = allowed.partition("|")
        found[folder] = {folder, *inside.split()}, set(outside.split())
    return found


def name_of(path: Path) -> str:
    """Return "testing.server" for testing/server.py, and "testing" for testing/__init__.py."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts if len(parts) == 1 or parts[-1] != "__init__" else parts[:-1])


FILES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def layer(module: str) -> str:
    folder, _, rest = module.partition(".")
    if rest or (PACKAGE / folder).is_dir() or folder in EVERYTHING:
        return folder
    return {"httpx": "transport", "httpx2": "transport"}.get(
        folder, "limiter" if folder in FACES else "values"
    )


STATEMENTS = (ast.stmt, ast.excepthandler, ast.match_case)


class Import(NamedTuple):
    name: str
    #: Whether it is executed when the module is imported.
    at_once: bool


@cache
def imports(source: str) -> list[Import]:
    """Return every module that a source imports, in a function or for types only, too."""
    found: list[Import] = []
    # Only statements have imports: expressions are most of a tree, and are left out.
    todo: list[tuple[ast.AST, bool]] = [(ast.parse(source), True)]
    for node, at_once in todo:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "no relative imports, they are harder to read"
            # `from aiothrottle import rate` imports the module, `... import Rate` the package.
            submodules = [f"{node.module}.{alias.name}" for alias in node.names]
            modules = [it for it in submodules if it.removeprefix("aiothrottle.") in FILES]
            names = modules or [node.module or ""]
        else:
            is_later = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or (
                isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            )
            inner = [it for it in ast.iter_child_nodes(node) if isinstance(it, STATEMENTS)]
            todo += [(it, at_once and not is_later) for it in inner]
            continue
        found += (Import(name, at_once) for name in names)
    return found


def complaints(module: str, source: str) -> list[str]:
    if layer(module) in EVERYTHING:
        return []
    if layer(module) not in rows():
        return [f"{module}: its folder has no row"]
    inside, outside = rows()[layer(module)]
    found: list[str] = []
    for name, _ in imports(source):
        top, _, rest = name.partition(".")
        if top == "aiothrottle":
            allowed = layer(rest or "__init__") in inside
        else:
            allowed = top in outside or top in sys.stdlib_module_names - WATCHED
        if not allowed:
            found.append(f"{module} may not import {name}")
    return found


def test_folders_import_only_what_their_rows_allow() -> None:
    sources = {module: path.read_text(encoding="utf-8") for module, path in FILES.items()}
    assert [text for it, source in sources.items() for text in complaints(it, source)] == []
    assert rows().keys() == {layer(module) for module in FILES} - EVERYTHING
    for module, source in {
        "rate": "from aiothrottle.limiter import RateLimiter",
        "algorithms.buckets": "from time import monotonic",
        "_core.engine": "from aiothrottle import limiter",
        "limiter": "def f():\n    import aiohttp.web",
        "keyed": "if TYPE_CHECKING:\n    from aiohttp import ClientSession",
        "permit": "from aiothrottle import Rate",
        "headers.parse": "import time",
        "new.module": "",
    }.items():
        assert len(complaints(module, source)) == 1, "the search finds nothing"


ROW = re.compile(r"^\| (?!folder)(\w+)(?: \([^|]*\))? \| [^|]+ \| ?([\w, ]*)\|$", re.MULTILINE)


def drawn(page: str) -> dict[str, set[str]]:
    """Return what each folder imports from, in the table of a page."""
    found = {
        folder: {it.strip() for it in others.split(",")} for folder, others in ROW.findall(page)
    }
    return {folder: others - {""} for folder, others in found.items()}


def test_map_of_the_docs_shows_the_imports_that_there_are() -> None:
    real: dict[str, set[str]] = {}
    for module, path in FILES.items():
        names = {name.partition(".") for name, _ in imports(path.read_text(encoding="utf-8"))}
        others = {layer(rest or "__init__") for top, _, rest in names if top == "aiothrottle"}
        if (folder := layer(module)) not in EVERYTHING:
            real.setdefault(folder, set()).update(others - {folder})
    page = Path(__file__).parents[2] / "docs" / "project" / "code.md"  # the package may be a wheel
    assert drawn(page.read_text(encoding="utf-8")) == real
    assert drawn("| a (`b.py`, ...) | task | c, d |\n| e | task | |") == {
        "a": {"c", "d"},
        "e": set(),
    }


# ---- what tests import ---------------------------------------------------------------------------

TESTS = Path(__file__).parents[1]
# "folder of tests: layers whose private modules it may import". All others use public modules.
UNIT_TESTS = """
limiter:      limiter values
core:         _core
algorithms:   algorithms adaptive values
adaptive:     adaptive algorithms values
headers:      headers
integrations: _http aiohttp transport headers values
stores:       stores testing values
outages:      stores
cli:          cli testing
fuzz:         cli stores values
llm:          llm values
metrics:      metrics dashboard
testing:      testing simulation
"""
# Most tests say what users see: so many files may be unit tests of parts of the core and loop.
MOST_UNIT_TESTS = 12


def private_imports(folder: str, source: str) -> set[str]:
    """Return the private modules that a test imports, other than those of its own part."""
    lines = (line.partition(":") for line in UNIT_TESTS.strip().splitlines())
    allowed = {name: layers.split() for name, _, layers in lines}.get(folder, [])
    names = {
        name.partition(".")[2]
        for name, _ in imports(source)
        if name.startswith("aiothrottle.") and name not in {*ENTRY_POINTS, "aiothrottle.cli"}
    }
    return {it for it in names if layer(it) not in allowed}


def test_tests_outside_the_folder_of_a_part_use_public_modules() -> None:
    sources = {
        path.relative_to(TESTS): path.read_text(encoding="utf-8") for path in TESTS.rglob("*.py")
    }
    found = {
        path: names
        for path, source in sources.items()
        if (names := private_imports("/".join(path.parts[:-1][:1]), source))
    }
    assert found == {}
    of_parts = re.compile(r"^ *(from|import) aiothrottle\._(core|http)\b", re.MULTILINE)
    unit_tests = [path for path, source in sources.items() if of_parts.search(source)]
    assert 0 < len(unit_tests) <= MOST_UNIT_TESTS, unit_tests
    source = "from aiothrottle._core.pause import Pause\nfrom aiothrottle import Rate"
    assert private_imports("limiter", source) == {"_core.pause"}
    assert private_imports("core", source) == set()
    assert private_imports("", "import aiothrottle.permit") == {"permit"}
    assert private_imports("", "from aiothrottle.aiohttp import Retry") == set()


# ---- no cycles at run time -----------------------------------------------------------------------


def cycle(imported: dict[str, set[str]]) -> list[str]:
    """Return the modules of a chain of imports that returns to its start; none: there is none."""
    try:
        TopologicalSorter(imported).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_module_imports_itself_through_others() -> None:
    graph = {
        module: {
            name.partition(".")[2] or "__init__"
            for name, at_once in imports(path.read_text(encoding="utf-8"))
            if name.partition(".")[0] == "aiothrottle" and at_once
        }
        for module, path in FILES.items()
    }
    assert "rate" in graph["limiter"]
    assert cycle(graph) == []
    assert cycle({"a": {"b"}, "b": {"c", "x"}, "c": {"b"}}), "the search finds nothing"


def loaded_by(statement: str) -> set[str]:
    """Return the modules that a statement loads in a process of its own, beside asyncio's.

    And typing's, which asyncio loads up to Python 3.13.
    """
    code = (
        "import asyncio, sys, typing; before = set(sys.modules); "
        f"{statement}; print(*(sys.modules.keys() - before))"
    )
    printed = subprocess.check_output([sys.executable, "-c", code], cwd=PACKAGE.parent, text=True)
    return set(printed.split())


# Of the standard library, modules that cost some milliseconds.
LARGE = {"datetime", "decimal", "difflib", "hashlib", "json", "random", "urllib.parse"}


def test_package_alone_loads_no_part() -> None:
    assert loaded_by("import aiothrottle") <= {"aiothrottle", "aiothrottle._lazy"}


def test_plain_limiter_loads_no_third_party_and_no_part_that_it_does_not_need() -> None:
    loaded = loaded_by("from aiothrottle import RateLimiter; RateLimiter('9/s')")
    # The latter is the traceback's, from Python 3.15 on, which does not list it.
    of_python = sys.stdlib_module_names | {"_missing_stdlib_info"}
    assert {name.partition(".")[0] for name in loaded} - of_python == {"aiothrottle"}
    assert not LARGE & loaded
    modules = {name.partition(".")[2] or "__init__" for name in loaded if "aiothrottle" in name}
    of_stores = {module for module in modules if layer(module) == "stores"}
    assert of_stores <= {"stores", "stores.store"}
    layers = {layer(module) for module in modules - of_stores}
    assert layers == {"__init__", "values", "limiter", "_core", "algorithms", "adaptive"}
    assert not {"keyed", "per_loop", "retry", "server_limits"} & modules


def test_session_loads_no_parser_of_headers_and_no_store() -> None:
    loaded = loaded_by("from aiothrottle.aiohttp import ThrottledSession")
    modules = {name.partition(".")[2] for name in loaded if name.startswith("aiothrottle.")}
    assert not {"http_sf", "tomllib", "rich", "redis", "pymongo"} & loaded
    assert not {"headers.parse", "headers.vendors", "stores.memory"} & modules
    assert not {"cli", "dashboard", "testing", "metrics"} & {layer(module) for module in modules}


# ---- the public modules --------------------------------------------------------------------------


@pytest.mark.parametrize("module", ENTRY_POINTS)
def test_public_name_exists_and_has_a_docstring(module: str) -> None:
    entry_point = imported(module)
    assert entry_point.__doc__
    assert len(entry_point.__all__) == len(set(entry_point.__all__))
    for name in entry_point.__all__:
        public = getattr(entry_point, name)
        if inspect.isclass(public) or inspect.isroutine(public):
            # `__doc__` and not `getdoc`: an inherited sentence describes something else.
            assert public.__doc__, name


def test_package_lists_exactly_its_public_names() -> None:
    values = vars(aiothrottle).items()
    loaded = {it for it, value in values if not it.startswith("_") and not inspect.ismodule(value)}
    listed = vars(aiothrottle)["__all__"]  # as a star import reads it
    assert loaded - {"TYPE_CHECKING", "lazily"} <= set(listed)
    assert dir(aiothrottle) == sorted(listed)
    assert (PACKAGE / "py.typed").is_file()

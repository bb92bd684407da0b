"""Which module may import which: a table, and a walk over every import statement that checks it.

In one line: cli -> aiohttp -> _http -> limiter -> _core -> algorithms -> rate, errors.
`retry` and `headers` stand beside `aiohttp` and are pure: `now` is an argument.
No two modules import each other, directly or by way of others, nor for types only.
"""

import ast
import inspect
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

import aiothrottle
from tests.servers import imported

PACKAGE = Path(aiothrottle.__file__).parent

# A new module is one row: its imports inside the package, then those outside.
# "*" stands for any name; the first row that fits a module counts. What FOR_ALL names may be
# imported by every module.
FOR_ALL = {"amounts", "arguments", "checks", "redact", "texts"}
TABLE = """
    module       | inside                                                    | outside

    texts        |                                                           |
    amounts      |                                                           |
    resource     |                                                           |
    reported_quota |                                                         |
    hooks        |                                                           | json
    llm          | llm.*                                                     |
    llm.options  | llm.* hooks retry                                         |
    llm.calls    | llm.tokens hooks                                          |
    llm.retries  | retry                                                     |
    llm.tokens   |                                                           | importlib
    llm.*        | llm.*                                                     |
    arguments    |                                                           |
    checks       |                                                           |
    errors       |                                                           |
    events       | rate                                                      |
    rate_text    |                                                           |
    rate         | errors rate_text                                          |
    algorithms   | algorithms.*                                              |
    algorithms.protocol | rate                                               |
    algorithms.capabilities | algorithms.protocol                            |
    algorithms.all_of | algorithms.capabilities algorithms.level algorithms.protocol algorithms.sliding_window_counter algorithms.sliding_window_log |
    algorithms.per_resource | algorithms.all_of algorithms.capabilities algorithms.protocol |
    algorithms.* | algorithms.protocol algorithms.capabilities algorithms.timestamps algorithms.dumps algorithms.level algorithms.draining algorithms.leaky_bucket rate |
    headers      | headers.*                                                 |
    headers.structured | headers.*                                           | http_sf
    headers.vendors | headers.*                                              | importlib
    headers.*    | headers.*                                                 |
    budget       |                                                           |
    retry        | budget headers errors                                     | random
    _http        |                                                           |
    _http.attempts | budget errors headers retry                             |
    _http.options | adaptive headers hooks retry                             |
    _http.hooking | _http.admission _http.options hooks permit               |
    _http.settlement | _http.hooking hooks permit                            | asyncio
    _http.suspicion |                                                        |
    _http.throttling | adaptive adaptive.throttling errors                       | asyncio random
    _http.backoff |                                                          |
    _http.quotas | _http.backoff _http.options _http.reports headers headers.* limiter permit rate reported_quota | time
    _http.reports | _core.* events permit reported_quota |
    _http.admission | _http.options keyed limiter                            |
    _http.adapter | _http.settlement hooks permit                            |
    _http.loop   | _http.* budget errors headers limiter permit              | asyncio
    adaptive     | adaptive.*                                                |
    adaptive.*   | adaptive.* algorithms.protocol algorithms.level rate reported_quota |
    decision     | permit resource                                           |
    statistics   | resource                                                  |
    _core        |                                                           |
    _core.pause  | _core.wait_queue algorithms.timestamps                    |
    _core.semaphore |                                                        |
    _core.wait_queue |                                                       | asyncio
    _core.observers | events statistics                                      |
    _core.consumer |                                                         | asyncio
    _core.bucket | _core.wait_queue algorithms algorithms.* reported_quota |
    _core.feedback | adaptive.* algorithms                                   | random
    _core.stall  |                                                           | asyncio time
    _core.threads | errors                                                   | asyncio threading
    _core.verdict |                                                          |
    _core.shared | _core.verdict _core.wait_queue algorithms stores.shared_concurrency |
    _core.lost   |                                                           | asyncio
    _core.rejects | _core.* errors events                                    | asyncio
    _core.charges | _core.bucket _core.wait_queue                            |
    _core.dispatcher | _core.*                                                | asyncio
    _core.snapshot | _core.* resource statistics                              |
    _core.starter | _core.wait_queue                                         |
    _core.limits | _core.* adaptive.pace adaptive.server_window algorithms events rate stores.shared_concurrency reported_quota |
    _core.entry  | _core.* errors                                            | asyncio
    _core.outcomes | _core.* adaptive.* algorithms algorithms.all_of algorithms.capabilities events rate reported_quota |
    _core.trying | _core.* errors events                                     |
    _core.engine | _core.* algorithms events errors rate statistics          | asyncio threading
    _core.chain  | _core.* errors                                            | asyncio
    permit       | _core.* errors events reported_quota | asyncio threading
    stores.process_count | algorithms.timestamps stores.store                        | random
    stores.local_share | stores.ledger stores.store algorithms algorithms.capabilities |
    stores.share_size | stores.process_count stores.store                     |
    stores.health | stores.process_count stores.store algorithms.timestamps errors  | asyncio random
    stores.spent |                                                          |
    stores.fallback | stores.health stores.local_share stores.share_size stores.spent stores.store algorithms algorithms.capabilities                     |
    stores.failover | events stores.fallback stores.health stores.share_size stores.spent stores.store algorithms errors        | asyncio
    stores.shared_concurrency |                                                    |
    stores.slot_claims | stores.shared_concurrency stores.slots stores.store             |
    stores.slot_demand | _core.engine                                         |
    stores.slot_outage | _core.semaphore errors events stores.health stores.share_size stores.shared_concurrency stores.slots stores.store | random asyncio
    stores.slot_tries | errors                                                | asyncio
    stores.slot_wakeups | stores.slots                                        | random
    stores.shared_semaphore | _core.engine events stores.share_size stores.shared_concurrency stores.slot_* stores.slots stores.store | asyncio
    _core.plan   | _core.feedback adaptive adaptive.* stores.shared_concurrency algorithms algorithms.bounded_burst algorithms.protocol algorithms.capabilities rate |
    _core.build  | _core.* algorithms algorithms.capabilities rate stores.memory stores.reserved stores.share_size stores.shared_bucket stores.shared_concurrency stores.shared_semaphore stores.slots stores.store |
    limiter      | _core.* events stores.share_size stores.store permit decision statistics algorithms rate resource errors | asyncio time
    keyed        | _core.* events limiter permit decision statistics stores.store rate errors | asyncio threading
    aiohttp      | _http.options aiohttp.* retry                                           |
    aiohttp.*    | aiohttp.* _http.* hooks permit retry | asyncio aiohttp yarl
    stores.store | algorithms.protocol algorithms.timestamps                 |
    stores.ledger | stores.store algorithms algorithms.*                     |
    stores.damage | algorithms                                                | logging time
    stores.keeper | stores.ledger stores.store algorithms                    |
    stores.slots | stores.store algorithms.dumps                                             |
    stores.memory | stores.keeper stores.ledger stores.slots stores.store algorithms | asyncio time
    stores.contention | stores.store                                         | random
    stores.swap  | stores.contention stores.damage stores.keeper stores.ledger stores.slots stores.store algorithms errors | asyncio
    stores       | stores.memory stores.slots stores.store stores.swap       |
    stores.port  | algorithms algorithms.*                                   |
    stores.patient |                                                         | asyncio
    stores.calls | errors stores.patient                                                   | asyncio
    stores.request | stores.* algorithms algorithms.protocol errors          |
    stores.wakes | stores.store errors                                       | asyncio random
    stores.batching | algorithms algorithms.protocol algorithms.capabilities  |
    stores.prefetch | rate                                                    |
    stores.reserved | algorithms.protocol algorithms.capabilities algorithms.timestamps |
    stores.round_trip |                                                      |
    stores.reserver | _core.* algorithms.* errors stores.failover stores.reserved stores.batching stores.prefetch stores.round_trip stores.store | asyncio weakref random
    stores.newcomers | _core.* algorithms algorithms.* errors stores.reserved stores.reserver            | asyncio weakref
    stores.shared_bucket | _core.* algorithms.* errors events rate stores.failover stores.share_size stores.reserved stores.newcomers stores.prefetch stores.reserver stores.store | asyncio weakref
    stores.redis_nodes |                                                     |
    stores.redis | stores.* algorithms algorithms.capabilities errors                                | redis importlib
    stores.mongo | stores.* algorithms                                       | pymongo bson
    stores.mongo_wait_until | stores.* algorithms algorithms.*                     |
    stores.memcached | stores.*                                              | time emcache
    metrics      |                                                           |
    metrics.growth |                                                         |
    metrics.recorder | events metrics.gauges                                         | time
    metrics.prometheus | events metrics.gauges metrics.recorder                      | prometheus_client
    metrics.opentelemetry | events metrics.gauges metrics.recorder                   | opentelemetry
    metrics.gauges | _core.engine stores.reserved adaptive.* algorithms algorithms.* keyed limiter rate |
    transport    | transport.*                                               |
    transport.library |                                                      |
    transport.hold | _http.settlement permit transport.library              | asyncio
    transport.decoding | _http.settlement                                    |
    transport.adapter | transport.* _http.adapter _http.admission _http.settlement hooks permit | asyncio
    transport.transport | transport.* _http.*                                |
    httpx        | _http.options transport retry                                           | httpx
    httpx2       | _http.options transport retry                                           | httpx2
    integrations |                                                           |
    integrations.aiobotocore | _http.admission _http.reports aiohttp.hold headers keyed limiter permit | aiohttp
    integrations.langchain | limiter                                         | langchain_core
    testing      | testing.*                                                 |
    testing.algorithms |                                                           |
    testing.manual_clock |                                                   |
    testing.store_contract | testing.manual_clock testing.store_contract.*   |
    testing.store_contract.* | algorithms stores testing.manual_clock testing.store_contract.* | asyncio random
    testing.slots_contract | stores testing.manual_clock testing.store_contract.check | asyncio
    testing.*    | testing.* rate errors           | asyncio random selectors threading time aiohttp yarl
    simulation   | simulation.*                                              |
    simulation.* | simulation.* testing.* _http.reports limiter permit retry rate errors   | asyncio random
    dashboard    | dashboard.server                                          |
    dashboard.feed | dashboard.history dashboard.shared_use events metrics.gauges metrics.growth keyed metrics.recorder |
    dashboard.history |                                                      |
    dashboard.shared_use | metrics.gauges keyed limiter errors               | asyncio
    dashboard.connections |                                                  | asyncio
    dashboard.server | dashboard.* metrics.gauges                                    | asyncio importlib socket time aiohttp yarl
    redact       |                                                           |
    cli          | __init__ cli.*                                            | importlib
    cli.arguments | cli.picture rate rate_text                               |
    cli.terminal |                                                           |
    cli.display  | cli.table                                                 | rich
    cli.picture  | rate                                                      | matplotlib
    cli.suggestion | headers limiter rate                                    |
    cli.probe.search | cli.suggestion errors limiter rate                    | asyncio
    cli.probe.findings | cli.* headers                                       |
    cli.probe.requests | aiohttp.* headers cli.suggestion                    | asyncio time aiohttp yarl
    cli.demo.crawl | aiohttp limiter rate testing cli.display cli.fetch.results.progress | asyncio time aiohttp yarl
    cli.demo.run | cli.* limiter                                             | asyncio
    cli.document | rate                                                      |
    cli.table    |                                                           |
    cli.fetch.report | cli.* rate                                            | asyncio time
    cli.fetch.results.progress | cli.display cli.suggestion cli.fetch.results.tally metrics.growth rate |
    cli.fetch.results.* | cli.fetch.results.* cli.terminal statistics texts  | asyncio yarl
    cli.fetch.reading.* | cli.fetch.reading.* cli.fetch.results.* cli.arguments cli.terminal hooks | asyncio threading yarl
    cli.fetch.sending.limits | cli.fetch.sending.* _http.admission algorithms keyed limiter rate stores |
    cli.fetch.sending.rates | cli.arguments rate rate_text                   |
    cli.fetch.sending.profiles | _http.options headers llm retry             |
    cli.fetch.sending.store | redact stores stores.* algorithms              | redis pymongo emcache
    cli.fetch.sending.* | cli.fetch.sending.* cli.fetch.reading.* cli.fetch.results.* cli.terminal aiohttp.adapter aiohttp.sender limiter retry errors | asyncio time aiohttp yarl
    cli.completion.command | cli                                             | shtab
    cli.*.command | * cli.*                                                  | asyncio time aiohttp yarl
    cli.*        | __init__ cli.* dashboard aiohttp.adapter aiohttp.sender _http.admission _http.options limiter retry errors events | asyncio threading time aiohttp yarl
    __main__     | cli                                                       |
    __init__     | adaptive keyed limiter permit decision retry stores.shared_concurrency statistics algorithms rate resource errors |
"""  # noqa: E501 - a table

# The rest of the standard library is allowed everywhere: it neither waits, nor reads a clock, nor
# draws random numbers. Imports from elsewhere always need a row of the table.
WATCHED = {"asyncio", "importlib", "random", "selectors", "socket", "threading", "time"}


class Row(NamedTuple):
    module: str
    inside: list[str]
    outside: list[str]


def read(table: str) -> list[Row]:
    lines = [line.split("|") for line in table.splitlines() if line.strip()]
    return [Row(m.strip(), inside.split(), outside.split()) for m, inside, outside in lines[1:]]


ROWS = read(TABLE)


def name_of(path: Path) -> str:
    """Return "testing.audit" for testing/audit.py, and "testing" for testing/__init__.py."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts if len(parts) == 1 or parts[-1] != "__init__" else parts[:-1])


FILES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imports(module: str, source: str) -> set[str]:
    """Every module that the source imports, anywhere: in a function and for types only, too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}: no relative imports, they are harder to read"
            assert node.module
            # `from aiothrottle import rate` imports the module, `... import Rate` the package.
            submodules = {f"{node.module}.{alias.name}" for alias in node.names}
            inside = {name for name in submodules if name.removeprefix("aiothrottle.") in FILES}
            found |= inside
            if len(inside) < len(submodules):
                found.add(node.module)
    return found


def complaints(module: str, source: str) -> list[str]:
    row = next((row for row in ROWS if fnmatchcase(module, row.module)), None)
    if row is None:
        return [f"{module} has no row in the table"]
    found: list[str] = []
    for name in sorted(imports(module, source)):
        top, _, rest = name.partition(".")
        if top == "aiothrottle":
            inner = rest or "__init__"
            allowed = inner in FOR_ALL or any(fnmatchcase(inner, pattern) for pattern in row.inside)
        else:
            free = top in sys.stdlib_module_names and top not in WATCHED
            allowed = free or top in row.outside
        if not allowed:
            found.append(f"{module} may not import {name}")
    return found


@pytest.mark.parametrize("module", FILES)
def test_module_imports_only_what_its_row_allows(module: str) -> None:
    assert complaints(module, FILES[module].read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.module)
def test_every_row_matches_an_existing_module(row: Row) -> None:
    assert any(fnmatchcase(module, row.module) for module in FILES)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("rate", "import time"),
        ("algorithms.token_bucket", "import asyncio"),
        ("algorithms.token_bucket", "from time import monotonic"),
        ("algorithms.token_bucket", "from aiothrottle.algorithms.sliding_window_log import x"),
        ("algorithms.new", "from aiothrottle._core.engine import Engine"),
        ("_core.engine", "from aiothrottle.limiter import RateLimiter"),
        ("_core.engine", "from aiothrottle import limiter"),
        ("_core.engine", "from aiothrottle.stores.shared_semaphore import SharedSemaphore"),
        ("_core.wait_queue", "from aiothrottle._core.semaphore import Semaphore"),
        ("limiter", "import aiohttp"),
        ("limiter", "import aiothrottle.aiohttp"),
        ("limiter", "from aiothrottle import aiohttp"),
        ("limiter", "from aiothrottle import Rate"),
        ("limiter", "def f():\n    import aiohttp.web"),
        ("limiter", "if TYPE_CHECKING:\n    from aiohttp import ClientSession"),
        ("limiter", "importlib = __import__('x')\nimport importlib"),
        ("retry", "import asyncio"),
        ("retry", "from aiothrottle.limiter import RateLimiter"),
        ("stores.ledger", "import time"),
        ("stores.redis", "import pymongo"),
        ("stores", "from aiothrottle.stores.redis import RedisStore"),
        ("cli.fetch.results.new", "from aiothrottle.cli.fetch.reading.jobs import Job"),
        ("cli.fetch.reading.new", "from aiothrottle.cli.fetch.sending.worker import Rules"),
        ("cli.fetch.sending.new", "from aiothrottle.cli.fetch.run import Settings"),
        ("headers", "import random"),
        ("headers", "import aiohttp"),
        ("headers.values", "import http_sf"),
        ("headers.parse", "import time"),
        ("aiohttp", "import requests"),
        ("nobody", ""),
    ],
)
def test_walk_finds_a_forbidden_import(module: str, source: str) -> None:
    assert len(complaints(module, source)) == 1


# ---- no cycles -----------------------------------------------------------------------------------


def graph() -> dict[str, set[str]]:
    """Every module, and the modules of the package that it imports, for types only too."""
    return {
        module: {
            name.removeprefix("aiothrottle.") if "." in name else "__init__"
            for name in imports(module, path.read_text(encoding="utf-8"))
            if name.partition(".")[0] == "aiothrottle"
        }
        for module, path in FILES.items()
    }


def cycles(imported: dict[str, set[str]]) -> list[list[str]]:
    """Find each chain of imports that returns to its start, by depth-first search."""
    found: list[list[str]] = []
    done: set[str] = set()

    def follow(module: str, path: list[str]) -> None:
        if module in path:
            found.append([*path[path.index(module) :], module])
        elif module not in done:
            for name in sorted(imported.get(module, ())):
                follow(name, [*path, module])
            done.add(module)

    for module in sorted(imported):
        follow(module, [])
    return found


def test_no_module_imports_itself_through_others() -> None:
    assert cycles(graph()) == []


@pytest.mark.parametrize(
    ("imported", "cycle"),
    [
        ({"a": {"a"}}, ["a", "a"]),
        ({"a": {"b"}, "b": {"a"}}, ["a", "b", "a"]),
        ({"a": {"b"}, "b": {"c", "x"}, "c": {"d"}, "d": {"b"}}, ["b", "c", "d", "b"]),
    ],
    ids=["itself", "two", "three"],
)
def test_search_finds_a_cycle(imported: dict[str, set[str]], cycle: list[str]) -> None:
    assert cycles(imported) == [cycle]


def test_two_paths_to_one_module_are_no_cycle() -> None:
    assert cycles({"a": {"b", "c"}, "b": {"d"}, "c": {"d"}}) == []


def test_graph_has_imports_for_types_only() -> None:
    modules = graph()
    assert "stores.store" in modules["stores.shared_semaphore"]  # for types only
    assert "__init__" in modules["cli.probe.command"]
    assert modules.keys() == FILES.keys()


def test_package_alone_loads_no_third_party() -> None:
    code = (
        "import sys; before = set(sys.modules); import aiothrottle; "
        "print(*{name.partition('.')[0] for name in sys.modules.keys() - before})"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=PACKAGE.parent, capture_output=True, text=True, check=True
    )
    # The latter is the traceback's, from Python 3.15 on, which does not list it.
    of_python = sys.stdlib_module_names | {"_missing_stdlib_info"}
    assert set(run.stdout.split()) - of_python == {"aiothrottle"}


# ---- the public modules ----------------------------------------------------------------------

ENTRY_POINTS = [
    "aiothrottle",
    "aiothrottle.adaptive",
    "aiothrottle.aiohttp",
    "aiothrottle.algorithms",
    "aiothrottle.dashboard",
    "aiothrottle.events",
    "aiothrottle.headers",
    "aiothrottle.hooks",
    "aiothrottle.httpx",
    "aiothrottle.httpx2",
    "aiothrottle.integrations.aiobotocore",
    "aiothrottle.integrations.langchain",
    "aiothrottle.llm",
    "aiothrottle.metrics.opentelemetry",
    "aiothrottle.metrics.prometheus",
    "aiothrottle.retry",
    "aiothrottle.simulation",
    "aiothrottle.stores",
    "aiothrottle.stores.memcached",
    "aiothrottle.stores.mongo",
    "aiothrottle.stores.redis",
    "aiothrottle.testing",
    "aiothrottle.testing.store_contract",
]


@pytest.fixture(params=ENTRY_POINTS)
def entry_point(request: pytest.FixtureRequest) -> ModuleType:
    return imported(request.param)


def test_listed_public_name_exists_and_has_a_docstring(entry_point: ModuleType) -> None:
    assert entry_point.__doc__
    assert len(entry_point.__all__) == len(set(entry_point.__all__))
    for name in entry_point.__all__:
        public = getattr(entry_point, name)
        if inspect.isclass(public) or inspect.isroutine(public):
            # `__doc__` and not `getdoc`: an inherited sentence describes something else.
            assert public.__doc__, name


def test_package_lists_exactly_its_public_names() -> None:
    public = {
        name
        for name, value in vars(aiothrottle).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    }
    assert public == set(aiothrottle.__all__) - {"__version__"}


def test_package_is_marked_as_typed() -> None:
    assert (PACKAGE / "py.typed").is_file()

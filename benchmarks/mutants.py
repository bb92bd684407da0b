"""Mutation testing: change the code in one place at a time, and see whether a test fails.

    uv run python benchmarks/mutants.py headers                  all mutants of a target
    uv run python benchmarks/mutants.py core --sample 200        so many, drawn by --seed
    uv run python benchmarks/mutants.py algorithms --module leaky_bucket:90 --module cooldown

Strategy. The tests are collected once, and each mutant gets a fork of that process. A first fork,
without a mutant, tells which test enters which function and how long it takes. In the others the
code of one function is changed, and the tests that enter it run, the quickest first, until one
fails. What is changed outside of functions, or in one that ran while the tests were imported, is
tried in a fork in which nothing had been imported: there the changed module is what the import
finds. So nothing is written to the disk. Each mutant gets `--seconds` of tests, by what they took
in the first fork; those that start servers are no part of it.

Killed is what makes a test fail, or takes several times the processor time it should. All others
survive, and are listed at the end; an exit code of 1 says that fewer than 90 % were killed.
Needs Python 3.12, and `fork`.
"""

import argparse
import gc
import importlib.abc
import importlib.util
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, TextIO

import pytest
from mutations import ROOT, Mutant, mutants_of

PACKAGE = ROOT / "aiothrottle"
# The share of the mutants that have to be killed.
ENOUGH = 0.9
# What a fork gives if only the import can tell.
UNCLEAR = 3
# Seconds of processor time, and what has to be imported takes longer.
LEAST, LEAST_IMPORTING = 10.0, 40.0


@dataclass(frozen=True)
class Target:
    """Modules, and the tests that are about them."""

    modules: str
    tests: str


TARGETS = {
    "algorithms": Target(
        "algorithms/*.py checks.py",
        "algorithms more_algorithms law_edges announced reserved inherit laws state_bytes "
        "several_limits oracle refunds exact update checks",
    ),
    "headers": Target(
        "headers/*.py",
        "headers header_values dates header_memo header_fuzz profiles rate_limit_headers "
        "rate_limit_drafts refusal_bodies header_edges header_choices corpus",
    ),
    "retry": Target(
        "retry.py budget.py _http/attempts.py _core/feedback.py",
        "retry budget attempts gave_up feedback events overload",
    ),
    "core": Target(
        "_core/*.py permit.py plan.py sharing/refusing.py",
        "limiter cancellation timeout priority parent settle update fast_path idle "
        "statistics events announcements adaptive shared_wait_until wait_until_outages",
    ),
}

# ---- a fork -------------------------------------------------------------------------------------


def fork(work: Callable[[], int], *, cpu: float, output: Path) -> int | None:
    """Run it in a process of its own. Gives what it gives, None if it takes too long."""
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        code = 70
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (int(cpu) + 1, int(cpu) + 2))
            descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
            code = work()
        except BaseException:  # noqa: BLE001 - nothing may leave the fork
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    # Many times as long, since the machine may be busy.
    until = time.monotonic() + 20 * cpu
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def pytest_in_here(arguments: Sequence[str], plugin: object | None = None) -> int:
    """Run pytest in this process."""
    # What is imported before the forks need not be imported in each.
    options = ["-q", "-x", "-s", "-p", "no:cacheprovider", "-W", "ignore:Module already imported"]
    plugins = [] if plugin is None else [plugin]
    return int(pytest.main([*options, "--timeout", "60", *arguments], plugins=plugins))


# ---- forks of a process that has collected the tests ---------------------------------------------


@dataclass
class Tests:
    """What the run without a mutant has told, the quickest tests first."""

    most: float
    seconds: Mapping[str, float]
    entered: Mapping[str, Sequence[Sequence[object]]]

    def of(self, mutant: Mutant) -> list[str]:
        """Give those that enter the changed function; outside of any, those that enter the file.

        A file that nobody enters holds data: all may be about that.
        """
        path, left = str(mutant.path), self.most
        entered = {
            test: [line for file, line in places if file == path]
            for test, places in self.entered.items()
        }
        data = not any(entered.values())
        chosen: list[str] = []
        for test, seconds in self.seconds.items():
            lines = entered[test]
            if data or (lines and mutant.function in {None, *lines}):
                left -= seconds
                if chosen and left < 0:
                    break
                chosen.append(test)
        return chosen

    def cpu(self, tests: Sequence[str]) -> float:
        """Give the seconds of processor time that they may take."""
        return 4 * sum(self.seconds[test] for test in tests)


@dataclass
class Session:
    """A plugin of pytest that tries the mutants in place of running the tests."""

    mutants: Sequence[Mutant]
    seconds: float
    folder: Path
    console: TextIO
    collecting: "Watch | None" = None

    @property
    def record(self) -> Path:
        """Where the run without a mutant is told."""
        return self.folder / "tests.json"

    def pytest_sessionstart(self) -> None:
        """See what runs while the tests are imported."""
        self.collecting = Watch()

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Be the one who runs the tests."""
        assert self.collecting is not None
        ran_before = self.collecting.end()
        if session.testsfailed:
            raise session.Interrupted("the tests cannot be collected")
        items = {item.nodeid: item for item in session.items}
        functions = live_functions()
        gc.freeze()  # so that the forks share it
        output = self.folder / "session.txt"
        if fork(lambda: self.watch(list(items.values())), cpu=3600, output=output) != 0:
            print(output.read_text()[-3000:], "\nThe tests fail without a mutant.")
            raise session.Failed
        tests = Tests(self.seconds, *json.loads(self.record.read_text()))
        survivors: list[tuple[int, bool]] = []
        for number, mutant in enumerate(self.mutants):
            chosen = tests.of(mutant)

            def work(mutant: Mutant = mutant, chosen: list[str] = chosen) -> int:
                if not chosen:
                    return 0  # nobody would notice
                if not swap(functions, mutant):
                    return UNCLEAR
                return run(session, [items[test] for test in chosen])

            code = fork(work, cpu=LEAST + tests.cpu(chosen), output=output)
            if code in {0, UNCLEAR}:
                unclear = code == UNCLEAR or (str(mutant.path), mutant.function) in ran_before
                survivors.append((number, unclear))
            word = {0: "?", UNCLEAR: "!"}.get(1 if code is None else code, ".")
            print(word, end="", file=self.console, flush=True)
        (self.folder / "survivors.json").write_text(json.dumps(survivors))
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Say in the fork why a test failed: its terminal report is never written."""
        if report.failed:
            print(f"\n{report.nodeid}\n{report.longreprtext}")

    def watch(self, items: Sequence[pytest.Item]) -> int:
        """Run them all, and note how long each takes and which functions it enters."""
        seconds: dict[str, float] = {}
        entered: dict[str, list[tuple[str, int]]] = {}
        for item, following in zip(items, [*items[1:], None], strict=True):
            began = time.process_time()
            watch = Watch()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            places, taken = watch.end(), time.process_time() - began
            seconds[item.nodeid], entered[item.nodeid] = taken, sorted(places)
            if item.session.testsfailed:
                return 1
        quickest_first = dict(sorted(seconds.items(), key=lambda test: test[1]))
        self.record.write_text(json.dumps([quickest_first, entered]))
        return 0


# From Python 3.12 on.
monitoring: Any = getattr(sys, "monitoring", None)


class Watch:
    """Notes which functions of the package are entered, by file and first line."""

    def __init__(self) -> None:
        self.places: set[tuple[str, int]] = set()
        tool, events = monitoring.COVERAGE_ID, monitoring.events
        monitoring.use_tool_id(tool, "mutants")
        monitoring.register_callback(tool, events.PY_START, self._enter)
        monitoring.set_events(tool, events.PY_START)
        monitoring.restart_events()

    def _enter(self, code: CodeType, _: int) -> object:
        if code.co_filename.startswith(str(PACKAGE)):
            self.places.add((code.co_filename, code.co_firstlineno))
        disable: object = monitoring.DISABLE
        return disable

    def end(self) -> set[tuple[str, int]]:
        """Watch no longer. Gives what there was."""
        monitoring.set_events(monitoring.COVERAGE_ID, 0)
        monitoring.free_tool_id(monitoring.COVERAGE_ID)
        return self.places


def run(session: pytest.Session, items: Sequence[pytest.Item]) -> int:
    """Run them until one fails."""
    for item, following in zip(items, [*items[1:], None], strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.testsfailed:
            return 1
    return 0


Functions = Mapping[tuple[str, int, str], Sequence[FunctionType]]


def live_functions() -> Functions:
    """Give the functions of the package that there are."""
    found: defaultdict[tuple[str, int, str], list[FunctionType]] = defaultdict(list)
    package = str(PACKAGE)
    for thing in gc.get_objects():
        if isinstance(thing, FunctionType) and thing.__code__.co_filename.startswith(package):
            code = thing.__code__
            found[code.co_filename, code.co_firstlineno, code.co_name].append(thing)
    return found


def swap(functions: Functions, mutant: Mutant) -> bool:
    """Give the function its changed code. Tells whether there is one, and it is clear which."""

    def inner(code: CodeType) -> Iterator[CodeType]:
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield constant
                yield from inner(constant)

    changed = [code for code in inner(mutant.code()) if code.co_firstlineno == mutant.function]
    if len(changed) != 1:
        return False
    code = changed[0]
    found = functions.get((str(mutant.path), code.co_firstlineno, code.co_name), ())
    if any(function.__code__.co_freevars != code.co_freevars for function in found):
        return False
    for function in found:
        function.__code__ = code
    return bool(found)


# ---- forks in which nothing was imported ---------------------------------------------------------


class Changed(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Imports the changed module in place of that on the disk."""

    def __init__(self, mutant: Mutant) -> None:
        name = ".".join(mutant.path.relative_to(ROOT).with_suffix("").parts)
        self.name: str = name.removesuffix(".__init__")
        self.path: Path = mutant.path
        self.changed: CodeType = mutant.code()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Claim the one module."""
        del path, target
        if fullname != self.name:
            return None
        return importlib.util.spec_from_file_location(fullname, self.path, loader=self)

    def get_code(self, fullname: str) -> CodeType:
        """Give what was changed."""
        del fullname
        return self.changed

    def get_source(self, fullname: str) -> str:
        """Give what is on the disk."""
        del fullname
        return self.path.read_text(encoding="utf-8")


def survives_import(mutant: Mutant, tests: Tests, folder: Path) -> bool:
    """Tell whether no test fails when the module is imported as changed."""
    chosen = tests.of(mutant)

    def work() -> int:
        sys.meta_path.insert(0, Changed(mutant))
        return pytest_in_here(chosen)

    cpu = LEAST_IMPORTING + tests.cpu(chosen)
    return not chosen or fork(work, cpu=cpu, output=folder / "import.txt") == 0


# ---- all of it ----------------------------------------------------------------------------------


def drawn(target: Target, modules: Sequence[str], sample: int | None, seed: int) -> list[Mutant]:
    """Give the mutants that were asked for."""
    paths = sorted(path for pattern in target.modules.split() for path in PACKAGE.glob(pattern))
    mutants = [mutant for path in paths for mutant in mutants_of(path)]
    if modules:
        wanted = set(modules)
        mutants = [
            mutant
            for mutant in mutants
            if wanted & {mutant.path.stem, f"{mutant.path.stem}:{mutant.line}"}
        ]
    if sample is None or sample >= len(mutants):
        return mutants
    return [mutants[at] for at in sorted(random.Random(seed).sample(range(len(mutants)), sample))]


def survivors_of(
    mutants: Sequence[Mutant], target: Target, seconds: float, folder: Path
) -> list[Mutant]:
    """Try them all."""
    files = [f"tests/test_{name}.py" for name in target.tests.split()]
    output = folder / "output.txt"
    with os.fdopen(os.dup(1), "w") as console:
        session = Session(mutants, seconds, folder, console)
        fork(lambda: pytest_in_here(files, session), cpu=36_000, output=output)
        print(file=console)
    try:
        alive: list[tuple[int, bool]] = json.loads((folder / "survivors.json").read_text())
    except FileNotFoundError:
        sys.exit(output.read_text()[-3000:])
    tests = Tests(seconds, *json.loads(session.record.read_text()))
    survivors: list[Mutant] = []
    for at, unclear in alive:
        mutant = mutants[at]
        if not unclear or survives_import(mutant, tests, folder):
            survivors.append(mutant)
            print(mutant, flush=True)
    return survivors


def main() -> int:
    """Run it as the command line says."""
    parser = argparse.ArgumentParser(description="See whether the tests notice changes.")
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--module", action="append", default=[], metavar="NAME[:LINE]")
    parser.add_argument("--tests", metavar="NAMES", help="as in TARGETS; by default the target's")
    parser.add_argument("--sample", type=int, metavar="MUTANTS", help="by default all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=20.0, help="of tests for each mutant")
    arguments = parser.parse_args()
    target = TARGETS[arguments.target]
    if arguments.tests:
        target = Target(target.modules, arguments.tests)
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    sys.dont_write_bytecode = True
    mutants = drawn(target, arguments.module, arguments.sample, arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        survivors = survivors_of(mutants, target, arguments.seconds, Path(folder))
    killed = len(mutants) - len(survivors)
    print(f"{arguments.target}: {killed} of {len(mutants)} killed")
    return 0 if killed >= ENOUGH * len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main())

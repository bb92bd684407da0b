"""Runs every Python block of README.md and docs/; the blocks of a page share a namespace."""

import ast
import asyncio
import inspect
import os
import sys
from pathlib import Path
from typing import Any

from sybil import Example, Sybil
from sybil.evaluators.python import PythonEvaluator, pad
from sybil.parsers.myst import CodeBlockParser, SkipParser

RUNNER = "__runner__"

if sys.dont_write_bytecode:
    # Each process that a test starts would compile all modules, which takes longer than its test.
    # The tree stays free of what is compiled.
    sys.dont_write_bytecode = False
    sys.pycache_prefix = str(Path(__file__).parent / ".pytest_cache" / "bytecode")
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


class AwaitablePython(PythonEvaluator):
    """Python with `await` at the top level, as in `python -m asyncio`."""

    def __call__(self, example: Example) -> None:
        # The padding makes a traceback name the line of the page.
        source = pad(example.parsed, example.line + example.parsed.line_offset)
        flags = self.flags | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        code = compile(source, example.path, "exec", flags=flags, dont_inherit=True)
        namespace = example.namespace
        # With that flag, eval gives a coroutine where the block awaits, and None where it does not.
        if code.co_flags & inspect.CO_COROUTINE:
            runner = namespace.setdefault(RUNNER, asyncio.Runner())
            runner.run(_finish(eval(code, namespace)))  # noqa: S307 - the page is ours
        else:
            exec(code, namespace)  # noqa: S102 - the page is ours
        namespace.pop("__builtins__", None)


async def _finish(block: Any) -> None:  # noqa: ANN401 - eval is untyped
    await block


def _close_runner(namespace: dict[str, Any]) -> None:
    if runner := namespace.pop(RUNNER, None):
        runner.close()


pytest_collect_file = Sybil(
    parsers=[CodeBlockParser(language="python", evaluator=AwaitablePython()), SkipParser()],
    patterns=["README.md", "docs/**/*.md"],
    excludes=["docs/servers/works-with*.md"],  # needs the clients: see tests/clients
    teardown=_close_runner,
).pytest()

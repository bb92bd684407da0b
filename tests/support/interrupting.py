"""Code that runs at a chosen point of our own code: any point where CPython may collect garbage.

CPython does so where a function begins, when a call of a function written in C has returned, and
where a loop jumps back. The points are counted as they are passed.
"""

import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from types import CodeType, ModuleType
from typing import Any

# Tools of `sys.monitoring` have numbers; 0 to 2 and 5 are a debugger's, and so on.
_TOOL = 4

# From Python 3.12 on.
_monitoring: Any = getattr(sys, "monitoring", None)


class Interruption:
    """Calls a function at the n-th point."""

    def __init__(self, at: int, do: Callable[[], None]) -> None:
        self.left = at
        self._do = do
        #: Where it was called, for error messages.
        self.where = ""

    @contextmanager
    def armed(self, codes: Iterable[CodeType]) -> Generator[None]:
        """Count the points in these codes that are passed inside the block."""
        monitoring, kinds = _monitoring, _monitoring.events
        monitoring.use_tool_id(_TOOL, "interruption")
        for kind in (kinds.PY_START, kinds.C_RETURN, kinds.JUMP):
            monitoring.register_callback(_TOOL, kind, self._come_by)
        for code in codes:
            # The return of a call is reported only where calls are.
            monitoring.set_local_events(_TOOL, code, kinds.PY_START | kinds.CALL | kinds.JUMP)
        try:
            yield
        finally:
            for code in codes:
                monitoring.set_local_events(_TOOL, code, 0)
            monitoring.free_tool_id(_TOOL)

    def _come_by(self, code: CodeType, offset: int, to: object = None, *_: object) -> None:
        if isinstance(to, int) and to > offset:
            return  # a jump forward
        self.left -= 1
        if self.left == 0:
            self.where = f"{code.co_qualname}, {offset}"
            self._do()


def codes_of(*modules: ModuleType) -> list[CodeType]:
    found: list[CodeType] = []
    for module in modules:
        _find(vars(module), module.__name__, found)
    return found


def _find(names: "dict[str, Any]", module: str, found: list[CodeType]) -> None:
    for name in names.values():
        value = name.fget if isinstance(name, property) else getattr(name, "__func__", name)
        if getattr(value, "__module__", None) != module:
            continue
        if isinstance(value, type):
            _find(dict(vars(value)), module, found)
        elif (code := getattr(value, "__code__", None)) is not None:
            _with_inner(code, found)


def _with_inner(code: CodeType, found: list[CodeType]) -> None:
    found.append(code)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _with_inner(constant, found)

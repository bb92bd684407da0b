"""A KeyboardInterrupt at a chosen point of our own code: any point where CPython may raise one.

CPython checks for signals where a function begins, when a call of a function written in C has
returned, and where a loop jumps back; nowhere else. So the code between two of these points is one
step for a signal. The points are counted as they are passed, and the interrupt comes at the n-th.
"""

import dis
import functools
import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from types import CodeType, ModuleType
from typing import Any

# Tools of `sys.monitoring` have numbers; 0 to 2 and 5 are a debugger's, and so on.
_TOOL = 4

# From Python 3.12 on.
_monitoring: Any = getattr(sys, "monitoring", None)


class Interrupt:
    """Raises KeyboardInterrupt at the n-th point."""

    def __init__(self, at: int) -> None:
        self.left = at
        #: Where it was raised, for error messages.
        self.where = ""

    @contextmanager
    def armed(self, codes: Iterable[CodeType]) -> Generator[None]:
        """Count the points in these codes that are passed inside the block."""
        monitoring, kinds = _monitoring, _monitoring.events
        monitoring.use_tool_id(_TOOL, "interrupt")
        monitoring.register_callback(_TOOL, kinds.PY_START, self._come_by)
        monitoring.register_callback(_TOOL, kinds.C_RETURN, self._come_by)
        # An exception raised in a jump callback finds no handler: CPython 3.13.0.
        monitoring.register_callback(_TOOL, kinds.INSTRUCTION, self._jump)
        for code in codes:
            # The return of a call is reported only where calls are.
            wanted = kinds.PY_START | kinds.CALL
            if _jumps_back(code):
                wanted |= kinds.INSTRUCTION
            monitoring.set_local_events(_TOOL, code, wanted)
        try:
            yield
        finally:
            for code in codes:
                monitoring.set_local_events(_TOOL, code, 0)
            monitoring.free_tool_id(_TOOL)

    def _come_by(self, code: CodeType, offset: int, *_: object) -> None:
        self.left -= 1
        if self.left == 0:
            lines = (line for start, end, line in code.co_lines() if start <= offset < end)
            self.where = f"{code.co_qualname}, line {next(lines, None)}"
            raise KeyboardInterrupt

    def _jump(self, code: CodeType, offset: int) -> object:
        if offset not in _jumps_back(code):
            disable: object = _monitoring.DISABLE
            return disable
        self._come_by(code, offset)
        return None


@functools.cache
def _jumps_back(code: CodeType) -> frozenset[int]:
    steps = dis.get_instructions(code)
    return frozenset(step.offset for step in steps if step.opname == "JUMP_BACKWARD")


def codes_of(*modules: ModuleType) -> list[CodeType]:
    """Return the code of all functions of the modules."""
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

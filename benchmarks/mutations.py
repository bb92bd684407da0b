"""The changes that mutation testing makes: one place of a module at a time, in its syntax tree.

The operators are those of cosmic-ray that change a value or a branch (comparisons, arithmetic,
logic, numbers, loops), and besides a statement or a result that is left out. Left alone are
assertions, the texts of errors, annotations and decorators: no test is about them.
"""

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import cast

ROOT = Path(__file__).parent.parent

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}


def changed(node: ast.AST, **fields: object) -> ast.AST:
    """Give a copy with other fields."""
    other = copy.copy(node)
    for name, value in fields.items():
        setattr(other, name, value)
    return other


def mutations(node: ast.AST) -> Iterator[ast.AST]:
    """Give what may stand in its place."""
    yield from of_expressions(node)
    yield from of_numbers(node)
    yield from of_statements(node)


def of_expressions(node: ast.AST) -> Iterator[ast.AST]:
    """Give the other operators."""
    match node:
        case ast.Compare(ops=ops):
            for place, op in enumerate(ops):
                for other in COMPARISONS[type(op)]:
                    yield changed(node, ops=[*ops[:place], other(), *ops[place + 1 :]])
        case ast.BinOp(op=op) | ast.AugAssign(op=op):
            yield changed(node, op=OPERATORS[type(op)]())
        case ast.BoolOp(op=op):
            yield changed(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield operand
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
            if not isinstance(test, ast.Compare | ast.UnaryOp):
                yield changed(node, test=ast.UnaryOp(ast.Not(), test))
        case _:
            pass


def of_numbers(node: ast.AST) -> Iterator[ast.AST]:
    """Give the other truth, or the numbers beside it."""
    match node:
        case ast.Constant(value=bool(value)):
            yield changed(node, value=not value)
        case ast.Constant(value=int(value) | float(value)):
            yield changed(node, value=value + 1)
            yield changed(node, value=value - 1)
        case _:
            pass


def of_statements(node: ast.AST) -> Iterator[ast.AST]:
    """Give what is left when something is left out."""
    match node:
        case ast.Break():
            yield ast.Continue()
        case ast.Continue():
            yield ast.Break()
        case ast.For(iter=iterated) if not isinstance(iterated, ast.Tuple):
            yield changed(node, iter=ast.Tuple([], ast.Load()))
        case ast.Return(value=ast.expr() as value) if not is_none(value):
            yield changed(node, value=ast.Constant(None))
        case ast.Expr(value=value) if not isinstance(value, ast.Constant):  # no docstring
            yield ast.Pass()
        # Without the first assignment of a name nothing runs.
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield ast.Pass()
        case ast.AugAssign() | ast.Delete():
            yield ast.Pass()
        case _:
            pass


def is_none(node: ast.AST) -> bool:
    """Tell whether it is the constant None."""
    return isinstance(node, ast.Constant) and node.value is None


# What no test is about: each a field of a node that is not looked into.
SKIPPED = {"annotation", "returns", "decorator_list"}


@dataclass(frozen=True)
class Place:
    """Where a node stands: how to put another there. And in which function, if in one."""

    node: ast.AST
    put: Callable[[ast.AST], None]
    function: int | None  # its first line, as its code has it


def places(node: ast.AST, function: int | None = None, *, top: bool = True) -> Iterator[Place]:
    """Give whatever is below it, in the order of the text."""
    around = function
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and function is None:
        decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
        function = min([node.lineno, *(decorator.lineno for decorator in decorators)])
    for name, value in ast.iter_fields(node):
        if name in SKIPPED:
            continue
        children = cast("list[object]", value) if isinstance(value, list) else [value]
        # What arguments are by default is reckoned where the function is defined, not in it.
        inside = around if isinstance(value, ast.arguments) else function
        for index, child in enumerate(children):
            if not isinstance(child, ast.AST) or is_left_alone(child, top=top):
                continue

            def put(
                other: ast.AST, where: object = value, name: str = name, index: int = index
            ) -> None:
                if isinstance(where, list):
                    where[index] = other
                else:
                    setattr(node, name, other)

            yield Place(child, put, inside)
            yield from places(child, inside, top=top and isinstance(child, ast.Module))


def is_left_alone(node: ast.AST, *, top: bool) -> bool:
    """Tell whether no test is about it."""
    match node:
        case ast.Assert() | ast.Raise() | ast.JoinedStr() | ast.Import() | ast.ImportFrom():
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            # What a type checker alone looks at.
            kind = node.annotation if isinstance(node, ast.AnnAssign) else None
            return name in {"__all__", "__slots__"} or (
                top and isinstance(kind, ast.Name) and kind.id == "TypeAlias"
            )
        case _:
            return False


@dataclass(frozen=True)
class Mutant:
    """One change of one file: number `which` of those that there are."""

    path: Path
    which: int
    line: int
    function: int | None
    text: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.text}"

    def code(self) -> CodeType:
        """Compile the changed module."""
        tree = ast.parse(self.path.read_bytes())
        for which, (place, other) in enumerate(changes(tree)):
            if which == self.which:
                place.put(ast.copy_location(other, place.node))
                break
        return compile(ast.fix_missing_locations(tree), self.path, "exec", dont_inherit=True)


def changes(tree: ast.AST) -> Iterator[tuple[Place, ast.AST]]:
    """Give all that may be changed in it, always in the same order."""
    for place in places(tree):
        for other in mutations(place.node):
            yield place, other


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Give all mutants of a file."""
    for which, (place, other) in enumerate(changes(ast.parse(path.read_bytes()))):
        before, after = (
            ast.unparse(
                ast.fix_missing_locations(copy.deepcopy(ast.copy_location(node, place.node)))
            ).partition("\n")[0]
            for node in (place.node, other)
        )
        yield Mutant(path, which, place.node.lineno, place.function, f"{before}  ->  {after}")  # type: ignore[attr-defined]

"""The public names and their signatures are those of tests/project/api_surface.txt.

A line names a class's bases in the package, and the lines after it its members, inherited ones
too. An object that several modules list stands at the first one.
After a change on purpose, write the file again, and a line in the changelog:

    python -m tests.project.test_api_surface
"""

import inspect
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, is_typeddict

from aiothrottle.aiohttp import SessionOptions
from tests.project.test_architecture import ENTRY_POINTS
from tests.support.servers import imported

SURFACE = Path(__file__).with_name("api_surface.txt")
PLAIN = (bool, int, float, str, tuple, type(None))
HOW = (
    "if that is on purpose: `python -m tests.project.test_api_surface`, and a line in CHANGELOG.md"
)


def signature(public: Any) -> str:
    """Names, kinds and defaults: annotations are written differently by each Python."""
    try:
        return written(inspect.signature(public).parameters.values())
    except (TypeError, ValueError):
        return ""


def keywords(public: Any) -> str:
    """The same of a class of options, whose defaults are those of `Options` if it has them."""
    of_all = inspect.signature(imported(SessionOptions.__module__).Options).parameters
    names = sorted(public.__annotations__)
    if not of_all.keys() >= set(names):
        return written([inspect.Parameter(it, inspect.Parameter.KEYWORD_ONLY) for it in names])
    return written([of_all[name] for name in names])


def written(parameters: Iterable[inspect.Parameter]) -> str:
    empty = inspect.Parameter.empty
    bare: list[inspect.Parameter] = []
    for each in parameters:
        # Values other than plain ones may be written differently each time.
        default: object = each.default
        if default is not empty and not isinstance(default, PLAIN):
            default = ...
        bare.append(each.replace(annotation=empty, default=default))
    return str(inspect.Signature(bare)).replace("Ellipsis", "...")


def lines_of(path: str, public: Any) -> Iterator[str]:
    """An object, then the members of a class."""
    if is_typeddict(public):
        yield f"{path}{keywords(public)}"
    elif inspect.isclass(public):
        bases = [it for it in public.__mro__[1:] if it.__module__.startswith("aiothrottle")]
        # A protocol is not called.
        arguments = "" if getattr(public, "_is_protocol", False) else signature(public)
        yield f"{path}{arguments}{': ' if bases else ''}{', '.join(it.__name__ for it in bases)}"
        for name in sorted({name for kind in (public, *bases) for name in vars(kind)}):
            value = inspect.getattr_static(public, name)
            is_called = inspect.isroutine(value) or isinstance(value, staticmethod | classmethod)
            if not name.startswith("_"):
                yield f"{path}.{name}{signature(getattr(public, name)) if is_called else ''}"
    else:
        yield f"{path}{signature(public) if inspect.isroutine(public) else ''}"


def surface() -> list[str]:
    lines: list[str] = []
    seen: dict[int, str] = {}
    for entry_point in ENTRY_POINTS:
        module = imported(entry_point)
        for name in sorted(module.__all__):
            path, public = f"{entry_point}.{name}", getattr(module, name)
            is_object = inspect.isclass(public) or inspect.isroutine(public)
            first = seen.setdefault(id(public), path) if is_object else path
            lines += lines_of(path, public) if first == path else [f"{path} is {first}"]
    return lines


def test_public_names_and_signatures_are_recorded() -> None:
    now, written = surface(), SURFACE.read_text(encoding="utf-8").splitlines()
    changed = [f"- {line}" for line in written if line not in now]
    changed += [f"+ {line}" for line in now if line not in written]
    assert not changed, "\n".join(["the public API has changed:", *changed, HOW])
    assert now == written, f"the lines of {SURFACE.name} are in another order; {HOW}"


if __name__ == "__main__":
    SURFACE.write_text("".join(f"{line}\n" for line in surface()), encoding="utf-8")

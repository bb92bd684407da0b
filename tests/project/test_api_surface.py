"""The public names and their signatures are those of tests/project/api_surface.txt.

Each object is listed once, where users import it from. A line names the class's bases and the
public protocols that it keeps to the letter; the members of those are listed once, with them.
After a change on purpose, write the file again, and a line in the changelog:

    python -m tests.project.test_api_surface
"""

import inspect
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, is_typeddict

from aiothrottle._http.options import Options
from tests.project.test_architecture import ENTRY_POINTS
from tests.servers import imported

SURFACE = Path(__file__).with_name("api_surface.txt")
PLAIN = (bool, int, float, str, tuple, type(None))
HOW = (
    "if that is on purpose: `python -m tests.project.test_api_surface`, and a line in CHANGELOG.md"
)


def signature(public: Any) -> str:  # noqa: ANN401
    """Names, kinds and defaults: annotations are written differently by each Python."""
    try:
        return written(inspect.signature(public).parameters.values())
    except (TypeError, ValueError):
        return ""


def keywords(public: Any) -> str:  # noqa: ANN401
    """The same of a class of options, whose defaults are those of `Options` if it has them."""
    of_all = inspect.signature(Options).parameters
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


def is_protocol(kind: type) -> bool:
    return getattr(kind, "_is_protocol", False)


def member(kind: type, name: str) -> str:
    """The name, for what is called with its signature."""
    value = inspect.getattr_static(kind, name)
    is_called = inspect.isroutine(value) or isinstance(value, staticmethod | classmethod)
    return f"{name}{signature(getattr(kind, name)) if is_called else ''}"


def own(kind: type) -> list[str]:
    """The public members that the class itself defines."""
    return [member(kind, name) for name in sorted(vars(kind)) if not name.startswith("_")]


def bases(kind: type) -> list[type]:
    """The classes of the package from which this one inherits, nearest first."""
    return [each for each in kind.__mro__[1:] if each.__module__.startswith("aiothrottle")]


def members(kind: type) -> set[str]:
    """The public members, inherited ones too."""
    return {each for base in (kind, *bases(kind)) for each in own(base)}


def kept(kind: type, protocols: dict[str, type]) -> dict[str, type]:
    """The protocols of which the class has each member, with the very signature."""
    if is_protocol(kind):
        return {}
    here = {name for base in (kind, *bases(kind)) for name in vars(base)}
    found: dict[str, type] = {}
    for name, protocol in protocols.items():
        wanted = {each.partition("(")[0]: each for each in members(protocol)}
        if wanted.keys() <= here and all(
            member(kind, each) == text for each, text in wanted.items()
        ):
            found[name] = protocol
    return found


def lines_of_class(path: str, kind: type, protocols: dict[str, type]) -> Iterator[str]:
    """The class with its bases and protocols, then what neither of them has."""
    fits = kept(kind, protocols)
    named = sorted({each.__name__ for each in bases(kind)} | fits.keys())
    arguments = "" if is_protocol(kind) else signature(kind)  # a protocol is not called
    yield f"{path}{arguments}{': ' if named else ''}{', '.join(named)}"
    known = {each for protocol in fits.values() for each in members(protocol)}
    yield from (f"{path}.{each}" for each in own(kind) if each not in known)


def surface() -> list[str]:
    """Each public object once, under the first module that lists it; and each base once.

    A module that lists it again only names it.
    """
    modules = {entry_point: imported(entry_point) for entry_point in ENTRY_POINTS}
    public = {
        entry_point: {name: getattr(module, name) for name in sorted(module.__all__)}
        for entry_point, module in modules.items()
    }
    classes = [
        each for names in public.values() for each in names.values() if inspect.isclass(each)
    ]
    protocols = {each.__name__: each for each in classes if is_protocol(each)}
    lines: list[str] = []
    seen: set[int] = set()
    for entry_point, names in public.items():
        repeated: list[str] = []
        for name, each in names.items():
            if inspect.isclass(each) or inspect.isroutine(each):
                if id(each) in seen:
                    repeated.append(name)
                    continue
                seen.add(id(each))
            if is_typeddict(each):
                lines.append(f"{entry_point}.{name}{keywords(each)}")
            elif inspect.isclass(each):
                lines += lines_of_class(f"{entry_point}.{name}", each, protocols)
            else:
                lines.append(
                    f"{entry_point}.{name}{signature(each) if inspect.isroutine(each) else ''}"
                )
        if repeated:
            lines.append(f"{entry_point} also has {', '.join(repeated)}")
    for each in dict.fromkeys(base for kind in classes for base in bases(kind)):
        if id(each) not in seen:
            seen.add(id(each))
            lines += lines_of_class(f"{each.__module__}.{each.__name__}", each, protocols)
    return lines


def test_public_names_and_signatures_are_recorded() -> None:
    now, written = surface(), SURFACE.read_text(encoding="utf-8").splitlines()
    changed = [f"- {line}" for line in written if line not in now]
    changed += [f"+ {line}" for line in now if line not in written]
    assert not changed, "\n".join(["the public API has changed:", *changed, HOW])
    assert now == written, f"the lines of {SURFACE.name} are in another order; {HOW}"


if __name__ == "__main__":
    SURFACE.write_text("".join(f"{line}\n" for line in surface()), encoding="utf-8")

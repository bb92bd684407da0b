"""The public names and their signatures are those of tests/api_surface.txt.

Whoever changes them on purpose writes the file anew, and the changelog:

    python -m tests.test_api_surface
"""

import inspect
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, is_typeddict

import pytest

from aiothrottle._http.options import Options
from tests.servers import imported
from tests.test_architecture import DOORS

SURFACE = Path(__file__).with_name("api_surface.txt")
PLAIN = (bool, int, float, str, tuple, type(None))
HOW = "if that is on purpose: `python -m tests.test_api_surface`, and a line in CHANGELOG.md"


def signature(public: Any) -> str:  # noqa: ANN401
    """Names, kinds and defaults: annotations are written differently by each Python."""
    try:
        return written(inspect.signature(public).parameters.values())
    except (TypeError, ValueError):
        return ""


def keywords(public: Any) -> str:  # noqa: ANN401
    """The same of a class of options, whose defaults are those of `Options`."""
    of_all = inspect.signature(Options).parameters
    return written([of_all[name] for name in sorted(public.__annotations__)])


def written(parameters: Iterable[inspect.Parameter]) -> str:
    empty = inspect.Parameter.empty
    bare: list[inspect.Parameter] = []
    for each in parameters:
        # What is no plain value may be written differently each time.
        default: object = each.default
        if default is not empty and not isinstance(default, PLAIN):
            default = ...
        bare.append(each.replace(annotation=empty, default=default))
    return str(inspect.Signature(bare)).replace("Ellipsis", "...")


def members(public: type) -> Iterator[str]:
    for name in sorted(dir(public)):
        value = inspect.getattr_static(public, name)
        owner = next((each for each in public.__mro__ if name in vars(each)), object)
        if name.startswith("_") or not owner.__module__.startswith("aiothrottle"):
            continue
        is_called = inspect.isroutine(value) or isinstance(value, staticmethod | classmethod)
        yield f".{name}{signature(getattr(public, name)) if is_called else ''}"


def surface(door: str) -> Iterator[str]:
    module = imported(door)
    for name in sorted(module.__all__):
        public = getattr(module, name)
        if is_typeddict(public):
            yield f"{door}.{name}{keywords(public)}"
            continue
        is_called = inspect.isclass(public) or inspect.isroutine(public)
        yield f"{door}.{name}{signature(public) if is_called else ''}"
        if inspect.isclass(public):
            yield from (f"{door}.{name}{member}" for member in members(public))


def door_of(line: str) -> str:
    """Tell which module the line is of: the longest name that it begins with."""
    return max((door for door in DOORS if line.startswith(f"{door}.")), key=len, default="")


@pytest.mark.parametrize("door", [*DOORS, ""])
def test_the_public_names_and_signatures_are_those_that_are_written_down(door: str) -> None:
    now = set(surface(door)) if door else set[str]()
    lines = SURFACE.read_text(encoding="utf-8").splitlines()
    written = {line for line in lines if door_of(line) == door}
    changed = [f"- {line}" for line in sorted(written - now)]
    changed += [f"+ {line}" for line in sorted(now - written)]
    assert not changed, "\n".join(["the public API has changed:", *changed, HOW])


if __name__ == "__main__":
    lines = [line for door in DOORS for line in surface(door)]
    SURFACE.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

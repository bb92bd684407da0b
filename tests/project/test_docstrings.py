"""Public docstrings: each parameter is described, and so is what a function returns.

A description stands in the docstring's own Args, or in that of a public function to which the
docstring refers in backticks, or of the base or protocol that a method implements. Fields may be
described beside them, by comments with ``#:``.
"""

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast, is_typeddict

from tests.project.test_architecture import ENTRY_POINTS
from tests.support.servers import imported

ARGS = re.compile(r"^(?:Args|Attributes):\n((?:(?: {4}.*)?\n?)*)", re.MULTILINE)
ARGUMENT = re.compile(r"^ {4}((?:\*{0,2}\w+(?:, )?)+):", re.MULTILINE)
FIELD = re.compile(r"^ +#: .*\n(?: +#.*\n)* +(?:self\.)?(\w+)\b", re.MULTILINE)
# In the docstring of a module: a field of all its classes.
FIELD_OF_ALL = re.compile(r"^`(\w+)` is ", re.MULTILINE)
RETURNS = re.compile(r"^(?:Returns|Yields):$|\b[Rr]eturns?\b|^Yields?\b", re.MULTILINE)
REFERENCE = re.compile(r"`(?:(\w+)\.)?(\w+)`")


class Documented(NamedTuple):
    name: str
    called: Callable[..., Any]
    #: The class of a method.
    owner: type | None


def public_classes() -> list[type]:
    """Return the public classes, but for those of the driver that may be missing."""
    modules = [imported(it) for it in ENTRY_POINTS if it != "aiothrottle.stores.memcached"]
    found = [getattr(module, name) for module in modules for name in module.__all__]
    return [each for each in found if inspect.isclass(each)]


def functions(module: str) -> Iterator[Documented]:
    public = imported(module)
    for name in public.__all__:
        value = getattr(public, name)
        is_uncalled = is_typeddict(value) or getattr(value, "_is_protocol", False)
        if inspect.isroutine(value) or (inspect.isclass(value) and not is_uncalled):
            yield Documented(name, value, None)
        for member, of_class in vars(value).items() if inspect.isclass(value) else ():
            function = getattr(of_class, "__func__", of_class)
            # A cached property is no function.
            if inspect.isfunction(function) and not member.startswith("_"):
                yield Documented(f"{name}.{member}", function, cast("type", value))


def parameters(documented: Documented) -> set[str]:
    try:
        of_all = [*inspect.signature(documented.called).parameters.values()]
    except ValueError:  # an exception that is made of a message, as any other
        return set()
    is_static = documented.owner is None or isinstance(
        inspect.getattr_static(documented.owner, documented.called.__name__), staticmethod
    )
    # `positional` is accepted only for an error that suggests the right form.
    return {
        it.name
        for it in (of_all if is_static else of_all[1:])
        if not it.name.startswith("_") and it.name != "positional"
    }


def described(text: str) -> set[str]:
    found = ARGS.search(text)
    lines = ARGUMENT.findall(found[1]) if found else []
    return {name.strip(" *") for line in lines for name in line.split(",")}


def related(documented: Documented, classes: list[type]) -> Iterator[str]:
    """Yield the docstring, and those whose descriptions count for it."""
    own = inspect.cleandoc(documented.called.__doc__ or "")
    yield own
    owner, name = documented.owner, documented.called.__name__
    if inspect.isclass(documented.called):
        for kind in documented.called.__mro__:
            if kind.__module__.startswith("aiothrottle"):
                yield inspect.cleandoc(kind.__doc__ or "")
                fields = FIELD.findall(inspect.getsource(kind))
                fields += FIELD_OF_ALL.findall(imported(kind.__module__).__doc__ or "")
                yield "Args:\n" + "".join(f"    {field}: a field\n" for field in fields)
        return
    protocols = (it for it in classes if getattr(it, "_is_protocol", False))
    for kind in (*owner.__mro__[1:], *protocols) if owner else ():
        if name in vars(kind):
            yield inspect.cleandoc(vars(kind)[name].__doc__ or "")
    for kind_name, method in REFERENCE.findall(own):
        places: list[type | None] = [it for it in classes if it.__name__ == kind_name]
        for place in places or [owner]:
            text: str | None = getattr(getattr(place, method, None), "__doc__", None)
            yield inspect.cleandoc(text or "")


def complaints(documented: Documented, classes: list[type]) -> Iterator[str]:
    texts = [*related(documented, classes)]
    named = {name for text in texts for name in described(text)}
    if missing := parameters(documented) - named:
        yield f"{documented.name}: describe {', '.join(sorted(missing))} in Args"
    if inspect.isclass(documented.called):
        return
    returned = inspect.signature(documented.called).return_annotation
    is_none = returned in {None, "None", inspect.Signature.empty}
    if not is_none and not any(map(RETURNS.search, texts)):
        yield f"{documented.name}: write what it returns"


def test_docstrings_describe_parameters_and_results() -> None:
    classes = public_classes()
    public = [each for module in ENTRY_POINTS for each in functions(module)]
    found = [text for each in public for text in complaints(each, classes)]
    assert found == [], "\n".join(found)

    def wait(seconds: float, key: str) -> float:
        """Wait.

        Args:
            key: What to wait for.
        """
        return seconds * len(key)

    found = [*complaints(Documented("wait", wait, None), [])]
    assert found == ["wait: describe seconds in Args", "wait: write what it returns"]

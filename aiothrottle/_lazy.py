"""Imports what not every program needs: the public names of a package when they are first used.

A package lists them twice: for type checkers as imports under their own names, which exports them,
and for Python by `lazily`. The modules that need another library import it in a block of `needs`.
"""

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib import import_module


@contextmanager
def needs(library: str, extra: str) -> Generator[None]:
    """Say in the error of an import in the block how to install the library.

    Args:
        library: The name that is imported.
        extra: That of this package which installs it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{library} is not there: pip install 'aiothrottle-client[{extra}]'", name=library
        ) from error


def lazily(
    package: str, modules: dict[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return the `__getattr__` and the `__dir__` of a package, and set its `__all__`.

    Args:
        package: Its name.
        modules: The public names of each of its modules, with blanks between them.
    """
    places = {name: module for module, names in modules.items() for name in names.split()}
    namespace = vars(sys.modules[package])
    namespace["__all__"] = sorted(places)

    def get(name: str) -> object:
        if name in places:
            found = getattr(import_module(f"{package}.{places[name]}"), name)
            return namespace.setdefault(name, found)
        if name in modules:
            return import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get, lambda: sorted(places)

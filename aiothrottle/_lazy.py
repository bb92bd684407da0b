"""Imports the public names of a package when they are first used: few programs need them all.

A package lists them twice: for type checkers as imports under their own names, which exports them,
and for Python by `lazily`.
"""

import sys
from collections.abc import Callable
from importlib import import_module


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

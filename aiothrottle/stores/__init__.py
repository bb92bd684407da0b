"""Stores of shared limits: in this process, or in a server that all processes reach.

`MemoryStore` and `SQLiteStore` are here; each of the others is in a module of its own, which
imports its driver: `aiothrottle.stores.redis`, `aiothrottle.stores.mongo`,
`aiothrottle.stores.memcached`.
`Store` is their base, and `SlotStore` the base of stores that can share slots too; `SwapStore` is
the base for a store of your own.
"""

from typing import TYPE_CHECKING

from aiothrottle._lazy import lazily

if TYPE_CHECKING:
    from aiothrottle.stores.memory import MemoryStore as MemoryStore
    from aiothrottle.stores.slots import Claim as Claim
    from aiothrottle.stores.slots import Granted as Granted
    from aiothrottle.stores.slots import SlotStore as SlotStore
    from aiothrottle.stores.sqlite import SQLiteStore as SQLiteStore
    from aiothrottle.stores.store import Answer as Answer
    from aiothrottle.stores.store import Key as Key
    from aiothrottle.stores.store import Store as Store
    from aiothrottle.stores.swap import Loaded as Loaded
    from aiothrottle.stores.swap import SwapStore as SwapStore
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "memory": "MemoryStore",
            "slots": "Claim Granted SlotStore",
            "sqlite": "SQLiteStore",
            "store": "Answer Key Store",
            "swap": "Loaded SwapStore",
        },
    )

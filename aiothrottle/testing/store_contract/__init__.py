"""The contract of a store, as checks for any implementation.

Each of `CHECKS` is an async function of two arguments: a function that makes a store, and the clock
of that store. All stores made for one check share their records, as the stores of several processes
would, and there are no records at the beginning::

    @pytest.mark.parametrize("check", CHECKS)
    async def test_my_store(check):
        clock = ManualClock()
        records = {}
        await check(lambda: MyStore(records, clock=clock), clock)

A failed check raises `AssertionError`.
"""

from aiothrottle.testing.manual_clock import ManualClock
from aiothrottle.testing.store_contract.algorithms import ALGORITHMS, OneByOne
from aiothrottle.testing.store_contract.check import Check as Check
from aiothrottle.testing.store_contract.decisions import DECISIONS
from aiothrottle.testing.store_contract.records import RECORDS

__all__ = ["ALGORITHMS", "CHECKS", "ManualClock", "OneByOne"]

CHECKS: list[Check] = [*DECISIONS, *RECORDS]
"""The checks: async functions of a store factory and its clock."""

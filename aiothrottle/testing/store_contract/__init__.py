"""What every store has to keep, as checks that anybody's store can be put to.

Each of `CHECKS` is an async function of two arguments: one that makes a store, and the clock that
the store goes by. All stores that are made for one check share their records, as those of several
processes would, and there are none at the beginning::

    @pytest.mark.parametrize("check", CHECKS)
    async def test_my_store(check):
        clock = ManualClock()
        records = {}
        await check(lambda: MyStore(records, clock=clock), clock)

They raise `AssertionError` for what is wrong.
"""

from aiothrottle.testing.manual_clock import ManualClock
from aiothrottle.testing.store_contract.algorithms import ALGORITHMS, OneByOne
from aiothrottle.testing.store_contract.check import Check as Check
from aiothrottle.testing.store_contract.decisions import DECISIONS
from aiothrottle.testing.store_contract.records import RECORDS

__all__ = ["ALGORITHMS", "CHECKS", "ManualClock", "OneByOne"]

CHECKS: list[Check] = [*DECISIONS, *RECORDS]
"""The checks: async functions of what makes a store, and of its clock."""

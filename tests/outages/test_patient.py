"""A driver's own timers: a loop that was blocked gives the reply a turn, a dead server none.

In virtual time, with a driver of a few lines.
"""

import asyncio
from typing import Any

import pytest

from aiothrottle import StoreUnavailable
from aiothrottle.stores.calls import Calls, send_alone
from tests.support.virtually import now, turns
from tests.support.watching import stand_still

TIMEOUT = 1.0


class Driver:
    """Waits for a reply, by a timer of its own; `patiently` is the call."""

    def __init__(self, round_trips: int = 1) -> None:
        self.reply: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.round_trips = round_trips
        self.cancelled = False
        calls = Calls[Any]("Server", send_alone, limit=1, timeout=None, patient=True)
        self.patiently = asyncio.create_task(calls.ask(self.call))

    async def call(self) -> str:
        try:
            async with asyncio.timeout(TIMEOUT):
                reply = await self.reply
                await asyncio.sleep(0.02 * (self.round_trips - 1))
                return reply
        except asyncio.CancelledError:
            self.cancelled = True
            raise


async def block() -> None:
    await turns()
    stand_still(1.2 * TIMEOUT)  # a turn that takes so long


@pytest.mark.parametrize("round_trips", [1, 3])
async def test_reply_of_a_blocked_loop_is_read(round_trips: int) -> None:
    driver = Driver(round_trips)
    await block()
    # As asyncio does: the timer runs in the turn that reads the socket.
    asyncio.get_running_loop().call_later(0.0, driver.reply.set_result, "reply")
    assert await driver.patiently == "reply"
    assert now() == pytest.approx(1.2 * TIMEOUT + 0.02 * (round_trips - 1))


@pytest.mark.parametrize("blocked", [False, True])
async def test_dead_server_times_out_soon(blocked: bool) -> None:
    driver = Driver()
    if blocked:
        await block()
    with pytest.raises(StoreUnavailable, match="no answer in time"):
        await driver.patiently
    assert now() == pytest.approx((1.2 if blocked else 1.0) * TIMEOUT + 0.1)


@pytest.mark.parametrize("blocked", [False, True])
async def test_cancellation_of_the_caller_is_immediate(blocked: bool) -> None:
    driver = Driver()
    await turns()
    if blocked:
        await block()
        await turns()  # the timer of the driver is postponed
    driver.patiently.cancel()
    with pytest.raises(asyncio.CancelledError):
        await driver.patiently
    assert driver.cancelled  # a driver that takes it for its own timeout calls again
    assert now() == (1.2 * TIMEOUT if blocked else 0.0)
    assert asyncio.all_tasks() == {asyncio.current_task()}

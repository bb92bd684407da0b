"""A driver's own timers: a loop that was blocked gives the reply a turn, a dead server none.

In virtual time, with a driver of a few lines.
"""

import asyncio
from typing import Any

import pytest

from aiothrottle.stores.patient import call_patiently
from tests.virtually import now, turns, virtual

TIMEOUT = 1.0


class Driver:
    """Waits for a reply, by a timer of its own."""

    def __init__(self, round_trips: int = 1) -> None:
        self.reply: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.round_trips = round_trips
        self.cancelled = False

    async def call(self) -> str:
        try:
            async with asyncio.timeout(TIMEOUT):
                reply = await self.reply
                for _ in range(self.round_trips - 1):
                    await asyncio.sleep(0.02)
                return reply
        except asyncio.CancelledError:
            self.cancelled = True
            raise


async def block(seconds: float) -> None:
    await turns()
    loop: Any = asyncio.get_running_loop()
    loop._set_time(loop.time() + seconds)  # a turn that takes so long


@pytest.mark.parametrize("round_trips", [1, 3])
@virtual
async def test_reply_of_a_blocked_loop_is_read(round_trips: int) -> None:
    driver = Driver(round_trips)
    calling = asyncio.create_task(call_patiently(driver.call()))
    await block(1.2 * TIMEOUT)
    # As asyncio does: the timer runs in the turn that reads the socket.
    asyncio.get_running_loop().call_later(0.0, driver.reply.set_result, "reply")
    assert await calling == "reply"
    assert now() == pytest.approx(1.2 * TIMEOUT + 0.02 * (round_trips - 1))


@virtual
async def test_dead_server_times_out_a_turn_later() -> None:
    with pytest.raises(TimeoutError):
        await call_patiently(Driver().call())
    assert now() == pytest.approx(TIMEOUT, abs=0.002)


@virtual
async def test_dead_server_times_out_soon_after_the_block() -> None:
    driver = Driver()
    calling = asyncio.create_task(call_patiently(driver.call()))
    await block(1.2 * TIMEOUT)
    with pytest.raises(TimeoutError):
        await calling
    assert now() == pytest.approx(1.2 * TIMEOUT + 0.1)


@virtual
async def test_cancellation_of_the_caller_is_immediate() -> None:
    driver = Driver()
    calling = asyncio.create_task(call_patiently(driver.call()))
    await turns()
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert driver.cancelled
    assert now() == 0.0
    assert asyncio.all_tasks() == {asyncio.current_task()}


@virtual
async def test_cancellation_beats_a_postponed_timer() -> None:
    driver = Driver()
    calling = asyncio.create_task(call_patiently(driver.call()))
    await block(1.2 * TIMEOUT)
    await turns()
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert now() == 1.2 * TIMEOUT


def test_closed_loop_ends_the_call() -> None:
    drivers: list[Driver] = []

    async def main() -> None:
        drivers.append(Driver())
        asyncio.create_task(call_patiently(drivers[0].call()))  # noqa: RUF006 - the loop's end is the test
        await turns()

    with asyncio.Runner() as runner:
        runner.run(main())
    assert drivers[0].cancelled


@virtual
async def test_error_of_the_driver_comes_through() -> None:
    async def fail() -> None:
        raise ConnectionResetError(104, "reset")

    with pytest.raises(ConnectionResetError, match="reset"):
        await call_patiently(fail())

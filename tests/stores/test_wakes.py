"""Wake-ups for shared slots when their connection fails: nobody waits long, or asks too often."""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from aiothrottle.stores.redis_wakes import Wakes
from tests.support.virtually import now


class Line:
    """A connection that subscribes: `messages` are those that the reader has not got yet."""

    def __init__(self, *, is_silent: bool) -> None:
        self.is_silent = is_silent
        self.error: Exception | None = None
        self.messages = asyncio.Queue[dict[str, Any]]()
        self.subscribed_at: list[float] = []
        self.is_closed = False

    async def subscribe(self, _channel: str) -> None:
        self.subscribed_at.append(now())
        if not self.is_silent:
            self.messages.put_nowait({"type": "subscribe", "data": 1})

    async def get_message(self, timeout: float) -> dict[str, Any] | None:
        try:
            async with asyncio.timeout(timeout):
                message = await self.messages.get()
        except TimeoutError:
            message = None
        if self.error is not None:
            raise self.error
        return message

    async def aclose(self) -> None:
        self.is_closed = True


class Driver:
    """A client, the lines that it opened, and how often each of its owners was woken."""

    def __init__(self, *, is_silent: bool = False) -> None:
        self.is_silent = is_silent
        self.lines: list[Line] = []
        self.woken = Counter[str]()
        self.wakes = Wakes(self, "x", self.try_to_publish)

    def pubsub(self) -> Line:
        self.lines.append(Line(is_silent=self.is_silent))
        return self.lines[-1]

    async def try_to_publish(self, _channel: str) -> None: ...

    def publish(self, data: str | bytes) -> None:
        self.lines[-1].messages.put_nowait({"type": "message", "data": data})

    async def woken_in(self, seconds: float) -> Counter[str]:
        self.woken.clear()
        await asyncio.sleep(seconds)
        return self.woken.copy()


@asynccontextmanager
async def listening(owners: int = 1, *, is_silent: bool = False) -> AsyncGenerator[Driver]:
    """Have so many owners listen; in the end no task is left, and nobody is woken."""
    driver = Driver(is_silent=is_silent)
    names = [f"{place}" for place in range(owners)]
    for name in names:
        assert driver.wakes.listen(name, partial(driver.woken.update, [name]))
    await asyncio.sleep(0.0)
    yield driver
    for name in names:
        driver.wakes.unlisten(name)
    assert not await driver.woken_in(10.0)
    assert len(asyncio.all_tasks()) == 1
    assert all(line.is_closed for line in driver.lines)


async def test_messages_wake_their_owner_and_are_pinged_for_less_and_less() -> None:
    async with listening(3) as driver:
        assert (await driver.woken_in(1.0)).total() == 0
        line = driver.lines[0]
        for data in ("id.1", b"id.2", b"\xff\xfe", "id.nobody"):  # of which one is no text
            driver.publish(data)
        assert await driver.woken_in(0.01) == {"1": 1, "2": 1}
        await asyncio.sleep(30.0)
        assert 2.0 < now() - line.subscribed_at[-2] <= 4.0
        assert 15 < len(line.subscribed_at) < 25
        assert driver.lines == [line]
        assert not driver.woken - Counter({"1": 1, "2": 1})


async def test_silent_connection_is_doubted_and_replaced(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "aiothrottle")
    async with listening(4) as driver:
        await asyncio.sleep(1.0)
        driver.lines[0].is_silent = driver.is_silent = True
        assert (await driver.woken_in(0.69)).total() == 0  # it is pinged after 0.5 s
        assert (await driver.woken_in(0.11)).total() > 0
        woken = await driver.woken_in(1.6)
        assert min(woken.values()) > 160, "each is woken at least each 10 ms meanwhile"
        assert not driver.lines[0].is_closed
        assert not caplog.messages
        await asyncio.sleep(0.6)
        assert driver.lines[0].is_closed
        assert len(driver.lines) == 2
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert "the server does not answer the subscription" in caplog.text
        driver.is_silent = False
        await asyncio.sleep(3.0)
        assert len(driver.lines) == 3
        assert (await driver.woken_in(3.0)).total() == 0, "it trusts the new one"
        assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
        driver.publish("id.3")
        assert await driver.woken_in(0.01) == {"3": 1}


async def test_line_that_the_driver_has_replaced_wakes_all_owners() -> None:
    async with listening(3) as driver:
        await asyncio.sleep(1.0)
        await driver.lines[0].subscribe("again, by the driver")
        assert await driver.woken_in(3.0) == {"0": 1, "1": 1, "2": 1}


async def test_failing_connection_is_replaced_after_growing_pauses() -> None:
    async with listening() as driver:
        await asyncio.sleep(1.0)
        driver.lines[0].error = ValueError("Protocol Error: b'$x'")
        driver.publish("id.0")
        assert (await driver.woken_in(0.2)).total() >= 1, "a message may be lost meanwhile"
        assert len(driver.lines) == 2
        assert (await driver.woken_in(1.0)).total() == 0
        begin = now()
        for _ in range(8):
            driver.lines[-1].error = ConnectionResetError()
            driver.publish("id.0")
            opened = len(driver.lines)
            while len(driver.lines) == opened:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.01)
        # After the first one 0.1, 0.2 ... 2, 2 s, of which half is jitter.
        assert 4.5 <= now() - begin <= 9.2
        await asyncio.sleep(3.0)  # after one that has lasted they begin anew
        driver.lines[-1].error = ConnectionResetError()
        driver.publish("id.0")
        opened = len(driver.lines)
        await asyncio.sleep(0.06)
        assert len(driver.lines) == opened + 1


async def test_cancelled_reader_ends_though_the_driver_swallows_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connected = Line.subscribe

    async def subscribe(self: Line, channel: str) -> None:
        with contextlib.suppress(asyncio.CancelledError):  # as `wait_for` of Python 3.11 may
            await asyncio.sleep(1.0)
        await connected(self, channel)

    monkeypatch.setattr(Line, "subscribe", subscribe)
    async with listening() as driver:
        assert len(driver.lines) == 1


async def test_doubt_wakes_at_a_bounded_pace() -> None:
    async with listening(100, is_silent=True) as driver:
        woken = await driver.woken_in(10.0)
        assert 5_000 < woken.total() < 15_000
        assert max(woken.values()) - min(woken.values()) <= 1  # in turns
        await asyncio.sleep(600.0)
        assert (await driver.woken_in(100.0)).total() < 150 * 100  # less and less often

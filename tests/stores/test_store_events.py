"""Events and log of a store that fails and recovers."""

import asyncio
import contextlib
import logging
from typing import Any, Literal, TypeAlias

import pytest

from aiothrottle import KeyedRateLimiter, RateLimiter, SharedConcurrency, StoreUnavailable
from aiothrottle.events import Event, StoreDown, StoreUp
from tests.support.failing import Client, Server
from tests.support.virtually import now, virtual

Choice: TypeAlias = Literal["raise", "local", "open", "closed"]
each_choice = pytest.mark.parametrize("choice", ["raise", "local", "open", "closed"])
SLOTS = SharedConcurrency(3, 3.0)


async def ask(limiter: RateLimiter, seconds: float = 0.1) -> None:
    """Send requests for so long, whether the store answers or not."""
    for _ in range(round(10 * seconds)):
        with contextlib.suppress(StoreUnavailable):
            await limiter.try_acquire()
        await asyncio.sleep(0.1)


def of_the_store(events: list[Event]) -> list[StoreDown | StoreUp]:
    return [event for event in events if isinstance(event, StoreDown | StoreUp)]


@each_choice
@pytest.mark.parametrize(
    ("limits", "key"),
    [
        ({"rate_limit": "20/s"}, "ann"),
        ({"concurrency_limit": SLOTS}, None),
        ({"rate_limit": "20/s", "concurrency_limit": SLOTS}, None),
    ],
    ids=["rate", "slots", "both"],
)
@virtual
async def test_outage_is_reported_once_with_error_and_duration(
    limits: dict[str, Any], key: str | None, choice: Choice
) -> None:
    server = Server()
    limits = {**limits, "store": Client(server), "key": "k", "on_store_error": choice}
    limiter = KeyedRateLimiter(**limits)[key] if key else RateLimiter(**limits)
    events: list[Event] = []
    limiter.observe(events.append)
    await ask(limiter)
    assert of_the_store(events) == []
    for _ in range(2):
        server.mode = "refuses"
        begin = now()
        await ask(limiter, 3.0)
        (down,) = of_the_store(events)
        assert isinstance(down, StoreDown)
        assert down.key == key
        assert isinstance(down.error, StoreUnavailable)
        assert limiter.statistics().store_up is False
        server.mode = "up"
        while len(of_the_store(events)) == 1:
            await ask(limiter)
        _, up = of_the_store(events)
        assert isinstance(up, StoreUp)
        assert up.key == key
        assert up.after == pytest.approx(now() - begin, abs=0.11)
        assert limiter.statistics().store_up is True
        await ask(limiter, 3.0)
        assert len(of_the_store(events)) == 2
        events.clear()
    await limiter.aclose()


@virtual
async def test_limiter_made_during_an_outage_reports_its_reason() -> None:
    server = Server()
    client = Client(server)
    first, second = (
        RateLimiter("20/s", store=client, key=key, on_store_error="open") for key in "ab"
    )
    events: list[Event] = []
    second.observe(events.append)
    server.mode = "stalls"
    await ask(first)
    await ask(second)
    (down,) = of_the_store(events)
    assert isinstance(down, StoreDown)
    assert "late" in str(down.error)
    await first.aclose()
    await second.aclose()


@each_choice
@virtual
async def test_recovery_of_idle_is_logged(choice: Choice, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "aiothrottle")
    server = Server()
    client = Client(server)
    closed, other = (
        RateLimiter("20/s", store=client, key=key, on_store_error=choice) for key in "ab"
    )
    await ask(other)
    for _ in range(2):
        server.mode = "refuses"
        await ask(closed)
        await closed.aclose()
        server.mode = "up"
        await asyncio.sleep(5.0)
        async with other.throttle():
            pass
        closed = RateLimiter("20/s", store=client, key="a", on_store_error=choice)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"] * 2
    await other.aclose()


@virtual
async def test_limiter_that_is_closed_while_it_tries_the_server_reports_nothing_more() -> None:
    server = Server()
    store = Client(server)
    closed, other = (
        RateLimiter("9/s", store=store, key=key, on_store_error="local") for key in "ab"
    )
    events: list[Event] = []
    closed.observe(events.append)
    server.mode = "refuses"
    await ask(closed, 0.1)
    server.mode = "stalls"
    await ask(closed, 0.5)  # it tries the server
    await closed.aclose()
    server.mode = "up"
    await ask(other, 3.0)
    assert [type(event) for event in of_the_store(events)] == [StoreDown]

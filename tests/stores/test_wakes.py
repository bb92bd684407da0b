"""Wake-ups for shared slots when their connection fails: the slots keep 80 % of their pace.

Two limiters, as two processes have, take turns with one slot, so each grant needs a wake-up. Calls
always pass; only the connections that subscribe are harmed, by `Gate` or by other users of the
server. The pace is compared with that before the fault, in the same seconds of the same machine.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from typing import Self

import pytest
from redis.asyncio import Redis

from aiothrottle import RateLimiter, SharedConcurrency
from aiothrottle.stores.redis import RedisStore
from aiothrottle.stores.wakes import Wakes
from tests.servers import Valkey
from tests.virtually import virtual

pytestmark = pytest.mark.slow

HOLD = 0.01  # seconds for which a slot is in use
SECONDS = 5.0  # for which grants are counted


class Gate:
    """Stands between clients and a server, and can silence the connections that subscribe."""

    def __init__(self, upstream: int) -> None:
        self.upstream = upstream
        #: Whether new subscriptions are silent as well: accepted, and nothing comes.
        self.silences_new = False
        self.subscriptions: list[asyncio.StreamWriter] = []
        self.silent: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def silence(self) -> None:
        """Let nothing through on the present subscriptions: no data, no end."""
        self.silent.update(self.subscriptions)

    def inject(self, data: bytes) -> None:
        """Send bytes to all who subscribe, as if the server had sent them."""
        for writer in self.subscriptions:
            writer.write(data)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self.upstream)

        async def requests() -> None:
            while data := await reader.read(65536):
                if b"SUBSCRIBE" in data:
                    self.subscriptions.append(writer)
                    if self.silences_new:
                        self.silent.add(writer)
                if writer not in self.silent:
                    to_server.write(data)
            to_server.close()

        async def replies() -> None:
            while data := await from_server.read(65536):
                if writer not in self.silent:
                    writer.write(data)
            writer.close()

        try:
            with suppress(OSError):
                await asyncio.gather(requests(), replies())
        finally:
            for each in (writer, to_server):
                each.transport.abort()


class Pair:
    """Two limiters that take turns with one slot, and count their grants."""

    def __init__(self, *clients: Redis) -> None:
        self.granted = 0
        self.limiters = [
            RateLimiter(
                concurrency_limit=SharedConcurrency(1),
                store=RedisStore(client, timeout=20.0),
                key="k",
            )
            for client in clients
        ]

    async def work(self, limiter: RateLimiter) -> None:
        while True:
            async with limiter.throttle():
                self.granted += 1
                await asyncio.sleep(HOLD)

    async def pace(self, seconds: float) -> float:
        before = self.granted
        await asyncio.sleep(seconds)
        return (self.granted - before) / seconds


either = pytest.mark.parametrize(
    "gate_and_pair", [False, True], ids=["bytes", "decoded"], indirect=True
)


@pytest.fixture
async def gate_and_pair(
    request: pytest.FixtureRequest, valkey: Valkey
) -> AsyncIterator[tuple[Gate, Pair]]:
    decoded: bool = getattr(request, "param", False)
    async with Gate(valkey.port) as gate:
        clients = [Redis(port=gate.port, decode_responses=decoded) for _ in range(2)]
        pair = Pair(*clients)
        tasks = [asyncio.create_task(pair.work(limiter)) for limiter in pair.limiters * 3]
        async with asyncio.timeout(20.0):
            while pair.granted < 20 or len(gate.subscriptions) < 2:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.01)
        yield gate, pair
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for limiter in pair.limiters:
            await limiter.aclose()
        for client in clients:
            await client.aclose()


async def keeps_its_pace(pair: Pair, harm: Callable[[], object], *, again: bool = True) -> None:
    """Without what it tests the pace falls by half or more; a busy machine has three attempts."""
    usual, pace = await pair.pace(SECONDS / 2), 0.0
    # A harm that lasts leaves no second measurement of the usual pace beside that of the pace.
    least = 0.8 if again else 0.65
    for attempt in range(3):
        if attempt and again:
            usual = await pair.pace(SECONDS / 2)
        harm()
        pace = await pair.pace(SECONDS)
        if pace >= least * usual:
            return
    pytest.fail(f"{pace:.0f} grants/s, {usual:.0f} before")


async def test_silent_connection_is_replaced(gate_and_pair: tuple[Gate, Pair]) -> None:
    gate, pair = gate_and_pair
    await keeps_its_pace(pair, gate.silence)
    assert len(gate.subscriptions) >= 4


async def test_new_connections_are_silent_too(gate_and_pair: tuple[Gate, Pair]) -> None:
    gate, pair = gate_and_pair

    def harm() -> None:
        gate.silences_new = True
        gate.silence()

    await keeps_its_pace(pair, harm)


@either
async def test_message_that_is_not_utf8(gate_and_pair: tuple[Gate, Pair], valkey: Valkey) -> None:
    _, pair = gate_and_pair
    publishing: list[asyncio.Task[None]] = []

    async def publish() -> None:
        async with valkey.connect() as client:
            while True:
                for channel in await client.pubsub_channels():
                    await client.publish(channel, b"\xff\xfe")
                await asyncio.sleep(0.1)

    def harm() -> None:
        if not publishing:
            publishing.append(asyncio.create_task(publish()))

    await keeps_its_pace(pair, harm, again=False)
    publishing[0].cancel()
    await asyncio.gather(*publishing, return_exceptions=True)


@either
async def test_bytes_that_are_no_reply(gate_and_pair: tuple[Gate, Pair]) -> None:
    gate, pair = gate_and_pair
    await keeps_its_pace(pair, lambda: gate.inject(b"$x\r\n\xff\r\n*9\r\n"))


class Deaf:
    """A driver whose subscriptions are never confirmed."""

    def pubsub(self) -> "Deaf":
        return self

    async def subscribe(self, channel: str) -> None: ...

    async def get_message(self, timeout: float) -> None:
        await asyncio.sleep(timeout)

    async def aclose(self) -> None: ...


@virtual
async def test_doubt_wakes_at_a_bounded_pace() -> None:
    wakes, woken = Wakes(Deaf(), "x"), Counter[str]()
    owners = [f"{place}" for place in range(100)]
    for owner in owners:
        assert wakes.listen(owner, partial(woken.update, [owner]))
    await asyncio.sleep(10.0)
    assert 5_000 < woken.total() < 15_000
    assert max(woken.values()) - min(woken.values()) <= 1  # in turns
    woken.clear()
    await asyncio.sleep(3600.0)
    assert woken.total() < 150 * 3600  # less and less often
    for owner in owners:
        wakes.unlisten(owner)
    woken.clear()
    await asyncio.sleep(10.0)
    assert not woken
    assert len(asyncio.all_tasks()) == 1

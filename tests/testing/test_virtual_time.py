"""The loop of virtual time: timers fire at their instants, and nothing waits for them."""

import asyncio
import math
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiothrottle.testing import VirtualTimeLoop
from tests.support.effort import examples
from tests.support.virtually import now, turns, virtual

INSTANTS = st.floats(min_value=0, max_value=1e10)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that the test runner has no threads of its own."""
    monkeypatch.setattr(threading, "active_count", lambda: 1)


def test_clock_starts_as_given_and_stops_without_timers() -> None:
    async def main() -> float:
        await turns(100)
        return now()

    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(start=1000.5)) as runner:
        assert runner.run(main()) == 1000.5


@examples(30)
@given(start=INSTANTS, instants=st.lists(INSTANTS, min_size=1, max_size=10))
def test_timer_sees_its_exact_instant(start: float, instants: list[float]) -> None:
    # Neighbours are less apart than the tolerance with which asyncio fires timers.
    instants += [math.nextafter(instant, math.inf) for instant in instants]
    seen: list[tuple[float, float]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def see(when: float) -> None:
            seen.append((when, loop.time()))

        for instant in instants:
            loop.call_at(instant, see, instant)
        await asyncio.sleep(3e10)

    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(start)) as runner:
        runner.run(main())
    assert len(seen) == len(instants)
    for when, seen_at in seen:
        assert seen_at == max(start, when)


def test_shortest_delay_moves_the_clock_on() -> None:
    started, seen = 1e9, list[float]()

    async def main() -> None:
        for delay in (1e-9, 0.0, 1e-9):
            fired = asyncio.Event()
            asyncio.get_running_loop().call_later(delay, fired.set)
            await fired.wait()
            seen.append(now() - started)

    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(started)) as runner:
        runner.run(main())
    step = math.ulp(started)
    assert seen == [step, step, 2 * step]


@virtual
async def test_readable_socket_precedes_the_next_timer() -> None:
    loop, seen = asyncio.get_running_loop(), list[float]()
    near, far = socket.socketpair()
    with near, far:
        far.send(b"ready")

        def read() -> None:
            loop.remove_reader(near)
            seen.append(now())

        loop.add_reader(near, read)
        await asyncio.sleep(10)
    assert seen == [0.0]


@pytest.mark.parametrize("forever", [asyncio.Event().wait, lambda: asyncio.sleep(math.inf)])
@pytest.mark.usefixtures("alone")
def test_deadlocked_program_ends_with_an_error(forever: Callable[[], Awaitable[object]]) -> None:
    ended: list[float] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(100, lambda: None).cancel()
        try:
            await forever()
        finally:
            ended.append(loop.time())

    runner = asyncio.Runner(loop_factory=VirtualTimeLoop)
    with runner, pytest.raises(RuntimeError, match="nothing can ever wake"):
        runner.run(main())
    assert ended == [0.0]  # cancelled in good order, and the cancelled timer moved no clock


@virtual
async def test_thread_can_wake_the_loop() -> None:
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[str] = loop.create_future()
    asked = threading.Event()

    def work() -> None:
        asked.wait()
        loop.call_soon_threadsafe(answer.set_result, "from the thread")

    thread = threading.Thread(target=work)
    thread.start()
    loop.call_soon(asked.set)
    assert await answer == "from the thread"
    thread.join()


@pytest.mark.usefixtures("alone")
@virtual
async def test_watched_file_can_wake_the_loop() -> None:
    readable = asyncio.Event()
    command = [sys.executable, "-S", "-c", "import time; time.sleep(0.02); print()"]
    # A process of asyncio would end in a callback of the loop.
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:  # noqa: ASYNC220
        assert process.stdout is not None
        asyncio.get_running_loop().add_reader(process.stdout.fileno(), readable.set)
        await readable.wait()
        asyncio.get_running_loop().remove_reader(process.stdout.fileno())
    assert now() == 0.0

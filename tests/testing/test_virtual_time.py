import asyncio
import math
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiothrottle.testing import VirtualTimeLoop

INSTANTS = st.floats(min_value=0, max_value=1e10)


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        yield runner


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that the test runner has no threads of its own."""
    monkeypatch.setattr(threading, "active_count", lambda: 1)


def test_day_passes_at_once(runner: asyncio.Runner) -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        seen = [loop.time()]
        for _ in range(24):
            await asyncio.sleep(3600)
            seen.append(loop.time())
        return seen

    assert runner.run(main()) == [3600.0 * hour for hour in range(25)]


def test_sleep_beyond_the_selector_maximum(runner: asyncio.Runner) -> None:
    async def main() -> float:
        await asyncio.sleep(10 * 365 * 86400)
        return asyncio.get_running_loop().time()

    assert runner.run(main()) == 10 * 365 * 86400


def test_clock_starts_as_given_and_stops_without_timers() -> None:
    async def main() -> float:
        for _ in range(100):
            await asyncio.sleep(0)
        return asyncio.get_running_loop().time()

    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(start=1000.5)) as runner:
        assert runner.run(main()) == 1000.5


def test_tasks_run_in_the_order_of_their_timers(runner: asyncio.Runner) -> None:
    log: list[tuple[str, float]] = []

    async def tick(name: str, every: float, times: int) -> None:
        for _ in range(times):
            await asyncio.sleep(every)
            log.append((name, asyncio.get_running_loop().time()))

    async def main() -> None:
        await asyncio.gather(tick("a", 2, 3), tick("b", 3, 2))

    runner.run(main())
    assert log[:3] == [("a", 2), ("b", 3), ("a", 4)]
    assert sorted(log[3:]) == [("a", 6), ("b", 6)]


def test_timeout_expires_at_its_instant(runner: asyncio.Runner) -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(10):
                await asyncio.sleep(20)
        return asyncio.get_running_loop().time()

    assert runner.run(main()) == 10.0


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
    for when, now in seen:
        assert now == max(start, when)


def test_sums_that_round_differently_are_two_instants(runner: asyncio.Runner) -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        seen: list[float] = []
        for when in (0.3, 0.1 + 0.2):
            loop.call_at(when, lambda: seen.append(loop.time()))
        await asyncio.sleep(1)
        return seen

    assert runner.run(main()) == [0.3, 0.1 + 0.2]


def test_readable_socket_precedes_the_next_timer(runner: asyncio.Runner) -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        seen: list[float] = []
        near, far = socket.socketpair()
        with near, far:
            far.send(b"ready")

            def read() -> None:
                loop.remove_reader(near)
                seen.append(loop.time())

            loop.add_reader(near, read)
            await asyncio.sleep(10)
        return seen

    assert runner.run(main()) == [0.0]


@pytest.mark.usefixtures("alone")
def test_deadlocked_program_ends_with_an_error() -> None:
    ended: list[float] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(100, lambda: None).cancel()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(loop.time())

    runner = asyncio.Runner(loop_factory=VirtualTimeLoop)
    with runner, pytest.raises(RuntimeError, match="nothing can ever wake"):
        runner.run(main())
    assert ended == [0.0]  # cancelled in good order, and the cancelled timer moved no clock


@pytest.mark.usefixtures("alone")
def test_endless_sleep_is_a_deadlock() -> None:
    runner = asyncio.Runner(loop_factory=VirtualTimeLoop)
    with runner, pytest.raises(RuntimeError, match="nothing can ever wake"):
        runner.run(asyncio.sleep(math.inf))


def test_thread_can_wake_the_loop(runner: asyncio.Runner) -> None:
    async def main() -> str:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[str] = loop.create_future()
        asked = threading.Event()

        def work() -> None:
            asked.wait()
            loop.call_soon_threadsafe(answer.set_result, "from the thread")

        thread = threading.Thread(target=work)
        thread.start()
        loop.call_soon(asked.set)
        try:
            return await answer
        finally:
            thread.join()

    assert runner.run(main()) == "from the thread"


@pytest.mark.usefixtures("alone")
def test_watched_file_can_wake_the_loop(runner: asyncio.Runner) -> None:
    async def main(output: int) -> float:
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(output, readable.set)
        await readable.wait()
        loop.remove_reader(output)
        return loop.time()

    command = [sys.executable, "-S", "-c", "import time; time.sleep(0.02); print()"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert runner.run(main(process.stdout.fileno())) == 0.0

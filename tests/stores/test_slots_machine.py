"""Shared slots of a few processes under every event, in virtual time."""

import asyncio
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from aiothrottle import RateLimiter
from aiothrottle.testing import VirtualTimeLoop
from tests.sharing import Link, Shared, share
from tests.virtually import turns

LIMIT, LEASE = 3, 3.0


@dataclass
class Process:
    """One of the processes that share."""

    link: Link
    limiter: RateLimiter
    tasks: list["asyncio.Task[None]"] = field(default_factory=list["asyncio.Task[None]"])


class Processes(RuleBasedStateMachine):
    """Several processes, each with requests that wait, run, end, or are cancelled."""

    wakes = True

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner(loop_factory=VirtualTimeLoop)
        self.loop = self.runner.get_loop()
        self.shared = self.runner.run(self.make())
        self.processes = [self.begin() for _ in range(3)]
        self.came = 0
        self.running: dict[int, tuple[Process, asyncio.Event]] = {}
        self.waiting: list[int] = []
        # As long as waiters leave the queue only by being served, the order is exact.
        self.calm = True
        # So many slots came free at once: the waiters at the head are granted in any order.
        self.freed = 1

    async def make(self) -> Shared:
        return Shared()

    def begin(self) -> Process:
        async def make() -> Process:
            link = Link(self.shared, wakes=self.wakes)
            return Process(link, share(link, LIMIT, lease=LEASE))

        return self.runner.run(make())

    def wait(self, seconds: float = 0.0) -> None:
        async def some_turns() -> None:
            await asyncio.sleep(seconds)
            await turns(30)

        self.runner.run(some_turns())

    async def work(self, process: Process, number: int) -> None:
        end = asyncio.Event()
        try:
            async with process.limiter.throttle():
                if self.calm and self.wakes:
                    assert self.waiting.index(number) < self.freed, "somebody was overtaken"
                self.waiting.remove(number)
                self.running[number] = process, end
                await end.wait()
        finally:
            if number in self.waiting:
                self.waiting.remove(number)
            self.running.pop(number, None)

    @initialize(calm=st.booleans())
    def choose(self, calm: bool) -> None:
        self.calm = calm

    @rule(place=st.integers(0, 2), count=st.integers(1, 3))
    def come(self, place: int, count: int) -> None:
        process = self.processes[place]
        for _ in range(count):
            self.came += 1
            self.waiting.append(self.came)
            process.tasks.append(self.loop.create_task(self.work(process, self.came)))
        self.wait()

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def go(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.running)))
        self.running[number][1].set()
        self.wait()

    @precondition(lambda self: not self.calm)
    @rule(place=st.integers(0, 2), which=st.integers(0, 5), soon=st.booleans())
    def cancel(self, place: int, which: int, soon: bool) -> None:
        tasks = [task for task in self.processes[place].tasks if not task.done()]
        if tasks:
            tasks[which % len(tasks)].cancel()
            if not soon:
                self.wait()

    @precondition(lambda self: not self.calm)
    @rule(place=st.integers(0, 2))
    def crash(self, place: int) -> None:
        dying = self.processes[place]
        dying.link.may_answer.clear()  # its later calls are lost
        for task in dying.tasks:
            task.cancel()
        self.processes[place] = self.begin()
        self.wait()

    @rule(seconds=st.sampled_from([0.01, 0.5, 1.0, 2.9, 3.5]))
    def pass_time(self, seconds: float) -> None:
        self.wait(seconds)

    @invariant()
    def there_are_so_many_and_no_more(self) -> None:
        assert len(self.running) <= LIMIT
        assert sum(self.shared.parts("x").values()) <= LIMIT
        for process in self.processes:
            for task in process.tasks:
                if task.done() and not task.cancelled():
                    task.result()

    def teardown(self) -> None:
        """All waiters are served, and in the end nobody holds anything."""
        try:
            for _ in range(self.came + 1):
                self.freed = max(1, len(self.running))
                for _, end in self.running.values():
                    end.set()
                self.wait(0.1 if self.wakes else 1.0)
                if not self.waiting and not self.running:
                    break
                self.there_are_so_many_and_no_more()
                if not self.running:
                    self.wait(LEASE + 0.1)
            assert not self.waiting
            self.wait(LEASE + 0.1)
            for process in self.processes:
                self.runner.run(process.limiter.aclose())
            self.wait(LEASE + 0.1)
            # Nobody sends calls any more, and the leases of dead processes are over.
            assert not sum(
                part.held
                for table in self.shared._tables.values()
                for part in table.owners.values()
                if part.expires > self.loop.time()
            )
        finally:
            self.runner.close()


class Asking(Processes):
    """The same where stores cannot notify."""

    wakes = False


STEPS = settings(max_examples=40, stateful_step_count=25)
TestWoken = Processes.TestCase
TestWoken.settings = STEPS
TestAsking = Asking.TestCase
TestAsking.settings = STEPS

"""An event loop on virtual time that runs ready callbacks in a chosen order.

Strategy. Before each callback the loop is at a step, counted from 0, and a `Schedule` may have one
`Disturbance` for it: another callback is run first; time passes while callbacks are ready, as on a
busy machine; a task is cancelled, at whatever it awaits; or something else happens in between. An
empty schedule is the order of asyncio. So a run is a value: it can be repeated, and shrunk.

Assumptions. Two callbacks that one and the same callback has scheduled keep their order: asyncio
runs them first come, first served, and code may rely on that within one synchronous stretch. Due
timers, and callbacks scheduled by different callbacks, may come in any order, and stay behind for
any number of turns: on asyncio they do too, when a task awaits once more or less.
"""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

from aiothrottle.testing import VirtualTimeLoop

_Item = TypeVar("_Item")
# A run of more steps than this does not end.
_MOST_STEPS = 200_000


class Overtake(NamedTuple):
    """Another callback that may run first does so."""

    which: int


class Pass(NamedTuple):
    """The machine is busy with something else for so many seconds."""

    seconds: float


class Cancel(NamedTuple):
    """One of the tasks that may be cancelled is cancelled."""

    which: int


class Interrupt(NamedTuple):
    """Something else happens, see `InterleavingLoop.interrupt`."""

    which: int


Disturbance: TypeAlias = Overtake | Pass | Cancel | Interrupt
Schedule: TypeAlias = Mapping[int, Disturbance]


class _Ready:
    """The ready queue of an event loop, with the methods that a loop uses."""

    def __init__(self, loop: "InterleavingLoop") -> None:
        self.loop = loop
        # Each with the callback that has scheduled it; None: a timer, or the outside world.
        self.handles: list[tuple[asyncio.Handle, asyncio.Handle | None]] = []
        self.running: asyncio.Handle | None = None

    def __len__(self) -> int:
        return len(self.handles)

    def append(self, handle: asyncio.Handle) -> None:
        self.handles.append((handle, self.running))
        self.loop.scheduled(getattr(handle, "_callback", None))

    def popleft(self) -> asyncio.Handle:
        which = self.loop.step()
        free = list(self._free()) if which else [0]
        self.running, _ = self.handles.pop(free[which % len(free)])
        return self.running

    def clear(self) -> None:
        self.handles.clear()

    def _free(self) -> list[int]:
        """Return the places of the callbacks that may run first."""
        seen: set[int] = set()
        free: list[int] = []
        for place, (_, source) in enumerate(self.handles):
            if source is None or id(source) not in seen:
                free.append(place)
            if source is not None:
                seen.add(id(source))
        return free


class InterleavingLoop(VirtualTimeLoop):
    """A loop that is disturbed by the schedule."""

    # Private to asyncio's BaseEventLoop: it appends handles, and pops them from the left.
    _ready: _Ready

    def __init__(self, schedule: Schedule | None = None) -> None:
        super().__init__()
        self._ready = _Ready(self)
        #: When emptied, the loop behaves like any other from then on.
        self.schedule = schedule or {}
        self.steps = 0
        #: Seconds for which the machine was busy.
        self.busy = 0.0
        #: The events of the run, for people.
        self.trace: list[str] = []

    def victims(self) -> list["asyncio.Task[None]"]:
        return []

    def interrupt(self, which: int) -> None:
        """Run other code between two callbacks."""

    def scheduled(self, callback: object) -> None:
        """See a callback that becomes ready."""

    def note(self, what: str) -> None:
        self.trace.append(f"{self.time():8.3f} s, step {self.steps:3}: {what}")

    def step(self) -> int:
        """Apply the disturbance before the next callback; return which callback is next."""
        self.steps += 1
        if self.steps > _MOST_STEPS:
            raise AssertionError(f"no end after {_MOST_STEPS} steps")
        match self.schedule.get(self.steps):
            case Overtake(which):
                self.note(f"ready callback {which} runs first")
                return which
            case Pass(seconds):
                self.busy += seconds
                self._set_time(self.time() + seconds)
                self.note(f"the machine was busy for {seconds} s")
            case Cancel(which):
                if victims := self.victims():
                    victim = victims[which % len(victims)]
                    victim.cancel()
                    self.note(f"{victim.get_name()} is cancelled")
            case Interrupt(which):
                self.interrupt(which)
            case None:
                pass
        return 0

    def _run_once(self) -> None:
        self._ready.running = None
        super()._run_once()  # type: ignore[misc]


def made_up(
    chance: random.Random,
    steps: int,
    choices: Sequence[str] = ("o", "oc", "oopci", "p", "c", "i", "opc"),
) -> Schedule:
    """Return a random schedule: of few disturbances or many, of all kinds or some.

    One letter of a choice is one kind: (o)vertake, (p)ass, (c)ancel, (i)nterrupt.
    """
    kinds = chance.choice(choices)
    apart = chance.choice([1.5, 4, 16])
    schedule: dict[int, Disturbance] = {}
    at = 0
    while (at := at + 1 + int(chance.expovariate(1 / apart))) < steps:
        match chance.choice(kinds):
            case "o":
                schedule[at] = Overtake(chance.randint(1, 5))
            case "p":
                schedule[at] = Pass(chance.choice([0.125, 0.25, 0.5, 1.0, 2.0]))
            case "c":
                schedule[at] = Cancel(chance.randrange(16))
            case _:
                schedule[at] = Interrupt(chance.randrange(16))
    return schedule


def shrunk(items: Sequence[_Item], fails: Callable[[list[_Item]], bool]) -> list[_Item]:
    """Return the shortest part of the items that still fails, found in ever smaller pieces."""
    kept = list(items)
    size = len(kept)
    while size:
        start = 0
        while start < len(kept):
            fewer = kept[:start] + kept[start + size :]
            if fails(fewer):
                kept = fewer
            else:
                start += size
        size //= 2
    return kept
